//! The one list of projections: adding one is its file and one line here.

use crate::conversation::Conversations;
use crate::device::Devices;
use crate::projection::Projection;
use crate::search::Search;
use crate::tool_call::ToolCalls;
use crate::usage::Usage;

/// Every projection of the product.
pub static PROJECTIONS: [&dyn Projection; 5] = [&Conversations, &ToolCalls, &Devices, &Usage, &Search];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_no_table_has_two_owners() {
        let names: BTreeSet<_> = PROJECTIONS.iter().map(|projection| projection.name()).collect();
        assert_eq!(names.len(), PROJECTIONS.len());
        let tables: Vec<_> = PROJECTIONS.iter().flat_map(|projection| projection.tables()).collect();
        assert_eq!(tables.iter().collect::<BTreeSet<_>>().len(), tables.len());
    }
}
