//! The rows on PostgreSQL.

use crate::load::Measure;
use crate::table::Table;

pub async fn rows(_measure: &Measure, _table: &mut Table) {}
