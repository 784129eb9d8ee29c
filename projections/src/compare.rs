//! Two tables of the same shape, row by row: the live one and the rebuilt one of the same name.

use crate::db::{Work, values};
use crate::row::Columns;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Differences shown of one table, at most; all are counted.
const MAX_SHOWN: u32 = 20;

/// What a check found of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableCheck {
    /// The table.
    pub table: String,
    /// Live rows.
    pub rows: u64,
    /// Keys whose rows differ, are missing or are too many.
    pub differences: u64,
    /// The first of them.
    pub shown: Vec<Difference>,
}

/// One key whose rows differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key, as a JSON array.
    pub key: String,
    /// The live row as a JSON object; absent where it is missing.
    pub live: Option<String>,
    /// The rebuilt row as a JSON object; absent where the live one is too many.
    pub rebuilt: Option<String>,
}

impl fmt::Display for TableCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}: {} rows, {} differences", self.table, self.rows, self.differences)?;
        for difference in &self.shown {
            let row = |row: &Option<String>| row.clone().unwrap_or_else(|| "(none)".to_owned());
            writeln!(f, "    {}", difference.key)?;
            writeln!(f, "      live    {}", row(&difference.live))?;
            writeln!(f, "      rebuilt {}", row(&difference.rebuilt))?;
        }
        Ok(())
    }
}

/// The schemas of the live tables and the rebuilt ones.
#[derive(Clone, Debug)]
pub(crate) struct Schemas {
    pub live: String,
    pub rebuilt: String,
}

/// Compares `<live>.<table>` with `<rebuilt>.<table>`.
pub(crate) async fn compare(work: &mut Work, schemas: &Schemas, table: &str) -> Result<TableCheck, sqlx::Error> {
    let (all, key) = columns(work, &schemas.live, table).await?;
    let (array, object) = match work.is_postgres() {
        true => ("json_build_array", "json_build_object"),
        false => ("json_array", "json_object"),
    };
    // Names come from our own migrations, never from a request.
    let row = all.iter().map(|name| format!("'{name}', {name}")).collect::<Vec<_>>().join(", ");
    let key = key.join(", ");
    let text = if work.is_postgres() { "::text" } else { "" };
    let only = |here: &str, there: &str| format!("SELECT * FROM {here}.{table} EXCEPT SELECT * FROM {there}.{table}");
    let live = only(&schemas.live, &schemas.rebuilt);
    let rebuilt = only(&schemas.rebuilt, &schemas.live);

    let rows = count(work, &format!("SELECT count(*) AS number FROM {}.{table}", schemas.live)).await?;
    let differing = format!(
        "SELECT count(*) AS number FROM (SELECT {key} FROM ({live}) AS l UNION SELECT {key} FROM ({rebuilt}) AS r) AS d"
    );
    let differences = count(work, &differing).await?;

    let mut shown: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    if differences > 0 {
        for (is_live, side) in [(true, &live), (false, &rebuilt)] {
            let sql = format!(
                "SELECT {array}({key}){text} AS key, {object}({row}){text} AS row FROM ({side}) AS s ORDER BY {key} LIMIT $1"
            );
            for row in work.rows(&sql, &values![MAX_SHOWN]).await? {
                let row = Columns(&row);
                let entry = shown.entry(without_spaces(row.text("key")?)).or_default();
                *(if is_live { &mut entry.0 } else { &mut entry.1 }) = Some(without_spaces(row.text("row")?));
            }
        }
    }
    Ok(TableCheck {
        table: table.to_owned(),
        rows,
        differences,
        shown: shown
            .into_iter()
            .take(MAX_SHOWN as usize)
            .map(|(key, (live, rebuilt))| Difference { key, live, rebuilt })
            .collect(),
    })
}

async fn count(work: &mut Work, sql: &str) -> Result<u64, sqlx::Error> {
    let row = work.row(sql, &[]).await?.ok_or(sqlx::Error::RowNotFound)?;
    Columns(&row).count("number")
}

/// All columns of a table, and those of its key.
pub(crate) async fn columns(
    work: &mut Work,
    schema: &str,
    table: &str,
) -> Result<(Vec<String>, Vec<String>), sqlx::Error> {
    let rows = if work.is_postgres() {
        let sql = "SELECT a.attname::text AS name, (a.attnum = ANY (i.indkey))::int::bigint AS pk FROM pg_attribute a \
             JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary \
             WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
        work.rows(sql, &values![schema, table]).await?
    } else {
        work.rows("SELECT name, pk FROM pragma_table_info($1)", &values![table]).await?
    };
    let (mut all, mut key) = (Vec::new(), Vec::new());
    for column in &rows {
        let column = Columns(column);
        let name: String = column.text("name")?;
        if column.count("pk")? > 0 {
            key.push(name.clone());
        }
        all.push(name);
    }
    Ok((all, key))
}

/// One spelling of JSON, whichever database wrote it.
fn without_spaces(json: String) -> String {
    serde_json::from_str::<serde_json::Value>(&json).map_or(json, |value| value.to_string())
}
