//! Two tables of the same shape, row by row: the live one and `rebuilt.…` of the same name.

use crate::row::Columns;
use serde::Serialize;
use sqlx::SqliteConnection;
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

/// Compares `main.<table>` with `rebuilt.<table>`.
pub(crate) async fn compare(connection: &mut SqliteConnection, table: &str) -> Result<TableCheck, sqlx::Error> {
    let columns =
        sqlx::query("SELECT name, pk FROM pragma_table_info($1)").bind(table).fetch_all(&mut *connection).await?;
    let (mut all, mut key) = (Vec::new(), Vec::new());
    for column in &columns {
        let column = Columns(column);
        let name: String = column.text("name")?;
        if column.count("pk")? > 0 {
            key.push(name.clone());
        }
        all.push(format!("'{name}', {name}"));
    }
    // Names come from our own migrations, never from a request.
    let (key, row) = (key.join(", "), all.join(", "));
    let only = |here: &str, there: &str| format!("SELECT * FROM {here}.{table} EXCEPT SELECT * FROM {there}.{table}");
    let (live, rebuilt) = (only("main", "rebuilt"), only("rebuilt", "main"));

    let rows: i64 =
        sqlx::query_scalar(&format!("SELECT count(*) FROM main.{table}")).fetch_one(&mut *connection).await?;
    let count = format!("SELECT count(*) FROM (SELECT {key} FROM ({live}) UNION SELECT {key} FROM ({rebuilt}))");
    let differences: i64 = sqlx::query_scalar(&count).fetch_one(&mut *connection).await?;

    let mut shown: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    if differences > 0 {
        for (is_live, side) in [(true, &live), (false, &rebuilt)] {
            let sql = format!(
                "SELECT json_array({key}) AS key, json_object({row}) AS row FROM ({side}) ORDER BY {key} LIMIT $1"
            );
            for row in sqlx::query(&sql).bind(MAX_SHOWN).fetch_all(&mut *connection).await? {
                let row = Columns(&row);
                let entry = shown.entry(row.text("key")?).or_default();
                *(if is_live { &mut entry.0 } else { &mut entry.1 }) = Some(row.text("row")?);
            }
        }
    }
    Ok(TableCheck {
        table: table.to_owned(),
        rows: rows.unsigned_abs(),
        differences: differences.unsigned_abs(),
        shown: shown
            .into_iter()
            .take(MAX_SHOWN as usize)
            .map(|(key, (live, rebuilt))| Difference { key, live, rebuilt })
            .collect(),
    })
}
