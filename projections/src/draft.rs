//! Rows that nobody else sees while they are made, as a SQLite database that one thread writes: a change is a call
//! there, not a message to a database and back. Whichever store the rows are for, the changes are the same.
//!
//! What the changes are is left to [`crate::build`], where the rows go in the end to that and to [`crate::beside`].

use crate::apply::Step;
use crate::change::{Change, Value};
use crate::projection::Projection;
use crate::store::draft_schema;
use devmind_domain::nul::without_nul;
use rusqlite::types::{ToSqlOutput, Value as Bound, ValueRef};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Statements that stay prepared: more than all projections have.
const STATEMENTS: usize = 256;
/// What SQLite keeps of the rows in memory, at most (KiB, as a negative number).
const CACHE: i64 = -4 << 10;
/// For rows of which nothing is needed after the end of the process.
pub(crate) const UNKEPT: &str = "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF";
/// A process that ends in a transaction leaves what takes it back; a computer that ends may leave anything.
pub(crate) const KEPT: &str = "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF";
/// Rows are handed on in pieces of about so many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// What a page of events means to one projection.
pub(crate) struct Part {
    /// The projection.
    pub name: &'static str,
    /// Where its rows stand before, and afterwards.
    pub from: u64,
    pub to: u64,
    /// The leaf hash of the last event, in hexadecimal digits.
    pub leaf_hash: String,
    /// Each event's position and meaning.
    pub steps: Vec<(u64, Step)>,
}

/// Rows under way.
pub(crate) struct Draft {
    connection: Connection,
    /// Projections of which a change was refused, at which event and why: their rows stand before its page.
    pub refused: BTreeMap<&'static str, (u64, String)>,
}

impl Draft {
    /// The rows in a file that has its tables already.
    pub fn in_file(file: &Path, pragmas: &str) -> rusqlite::Result<Self> {
        Self::over(Connection::open(file)?, pragmas)
    }

    /// Empty tables in a file without a name, which is gone when this is dropped, however the process ends
    /// (<https://www.sqlite.org/inmemorydb.html#temp_db>).
    pub fn unnamed(projection: &dyn Projection) -> rusqlite::Result<Self> {
        Self::over(Connection::open("")?, UNKEPT)?.begun(projection, "")
    }

    /// Empty tables in a new file that is kept where the process ends.
    pub fn new_kept(file: &Path, projection: &dyn Projection, origin: &str) -> rusqlite::Result<Self> {
        Self::over(Connection::open(file)?, KEPT)?.begun(projection, origin)
    }

    /// What was begun in such a file; nothing where that came of something else.
    pub fn kept(file: &Path, projection: &dyn Projection, origin: &str) -> rusqlite::Result<Option<Self>> {
        if !file.exists() {
            return Ok(None);
        }
        let draft = Self::over(Connection::open(file)?, KEPT)?;
        let one = |sql: &str| draft.connection.query_row(sql, [], |row| row.get::<_, String>(0));
        let is_whole = one("PRAGMA quick_check(1)")? == "ok" && one("SELECT ledger_id FROM views_origin")? == origin;
        draft.stands(projection.name())?;
        Ok(is_whole.then_some(draft))
    }

    fn begun(self, projection: &dyn Projection, origin: &str) -> rusqlite::Result<Self> {
        self.connection.execute_batch(&draft_schema())?;
        self.connection.execute(
            "INSERT INTO projection_position (name, version, position, skipped_unknown, known_types) \
             VALUES (?1, ?2, 0, 0, '')",
            params![projection.name(), projection.version()],
        )?;
        // The last of it: without this line the file is of no use.
        self.connection.execute("INSERT INTO views_origin (only_row, ledger_id) VALUES (1, ?1)", [origin])?;
        Ok(self)
    }

    fn over(connection: Connection, pragmas: &str) -> rusqlite::Result<Self> {
        connection.execute_batch(pragmas)?;
        connection.pragma_update(None, "cache_size", CACHE)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(Self { connection, refused: BTreeMap::new() })
    }

    /// Makes the changes of a page, in one transaction.
    ///
    /// # Errors
    /// When the file cannot be written; nothing of the page is there then.
    pub fn apply(&mut self, page: &[Part]) -> rusqlite::Result<()> {
        let mut work = self.connection.transaction()?;
        for part in page {
            if self.refused.contains_key(part.name) {
                continue;
            }
            let alone = work.savepoint()?;
            match write(&alone, part)? {
                Ok(()) => {
                    alone.commit()?;
                }
                Err(refused) => {
                    // A savepoint that is dropped is rolled back.
                    drop(alone);
                    self.refused.insert(part.name, refused);
                }
            }
        }
        work.commit()
    }

    /// A projection's position, the leaf hash there, and the events of unknown types that it passed.
    pub fn stands(&self, name: &str) -> rusqlite::Result<(i64, Option<String>, i64)> {
        let sql = "SELECT position, leaf_hash, skipped_unknown FROM projection_position WHERE name = ?1";
        self.connection.query_row(sql, [name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    }

    /// The position alone.
    pub fn position(&self, name: &str) -> rusqlite::Result<u64> {
        self.stands(name).map(|(position, ..)| position.unsigned_abs())
    }

    /// The columns of a table, in order.
    pub fn columns(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        let mut columns = self.connection.prepare_cached("SELECT name FROM pragma_table_info(?1)")?;
        columns.query_map([table], |row| row.get(0))?.collect()
    }

    /// Hands on all rows of a table in the text format of PostgreSQL's COPY
    /// (<https://www.postgresql.org/docs/current/sql-copy.html>), until `take` answers that it wants no more.
    pub fn copy_out(&self, table: &str, mut take: impl FnMut(Vec<u8>) -> bool) -> rusqlite::Result<()> {
        // Names come from our own migrations, never from a request.
        let mut select = self.connection.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = select.column_count();
        let mut rows = select.query([])?;
        let mut piece = String::with_capacity(PIECE_BYTES * 5 / 4);
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                if column > 0 {
                    piece.push('\t');
                }
                match row.get_ref(column)? {
                    ValueRef::Null => piece.push_str("\\N"),
                    // Truth is 0 or 1 here, which PostgreSQL reads as such.
                    ValueRef::Integer(number) => drop(write!(piece, "{number}")),
                    ValueRef::Real(number) => drop(write!(piece, "{number}")),
                    ValueRef::Text(text) | ValueRef::Blob(text) => escape(&String::from_utf8_lossy(text), &mut piece),
                }
            }
            piece.push('\n');
            if piece.len() >= PIECE_BYTES {
                let full = std::mem::replace(&mut piece, String::with_capacity(PIECE_BYTES * 5 / 4));
                if !take(full.into_bytes()) {
                    return Ok(());
                }
            }
        }
        if !piece.is_empty() {
            take(piece.into_bytes());
        }
        Ok(())
    }
}

fn escape(text: &str, to: &mut String) {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '\n', '\r', '\t']) {
        let (plain, special) = rest.split_at(at);
        to.push_str(plain);
        to.push_str(match special.as_bytes().first() {
            Some(b'\n') => "\\n",
            Some(b'\r') => "\\r",
            Some(b'\t') => "\\t",
            _ => "\\\\",
        });
        rest = special.get(1..).unwrap_or_default();
    }
    to.push_str(rest);
}

/// Where a change was refused, the event and why.
fn write(work: &Connection, part: &Part) -> rusqlite::Result<Result<(), (u64, String)>> {
    let mut unknown = 0_i64;
    for (position, step) in &part.steps {
        match step {
            Step::Pass => {}
            Step::Unknown => unknown += 1,
            Step::Write(all) => {
                for change in all {
                    match run(work, change) {
                        Ok(()) => {}
                        Err(error) if is_the_statements_fault(&error) => {
                            return Ok(Err((*position, error.to_string())));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
    let mut moved = work.prepare_cached(
        "UPDATE projection_position SET position = ?3, leaf_hash = ?4, failed_position = NULL, failed_reason = NULL, \
         attempts = 0, skipped_unknown = skipped_unknown + ?5 WHERE name = ?1 AND position = ?2 RETURNING position",
    )?;
    let position = |position: u64| i64::try_from(position).unwrap_or(i64::MAX);
    let values = params![part.name, position(part.from), position(part.to), part.leaf_hash, unknown];
    let moved: Option<i64> = moved.query_row(values, |row| row.get(0)).optional()?;
    Ok(moved.map(drop).ok_or_else(|| (part.from + 1, "its rows were changed by somebody else".to_owned())))
}

fn run(work: &Connection, change: &Change) -> rusqlite::Result<()> {
    let mut statement = work.prepare_cached(change.sql)?;
    for index in 1..=statement.parameter_count() {
        let value = bound(&statement, index, &change.values);
        statement.raw_bind_parameter(index, value)?;
    }
    statement.raw_execute().map(drop)
}

/// The value of a parameter: SQLite counts parameters as they come, `$2` is the second value wherever it stands.
fn bound<'v>(statement: &CachedStatement<'_>, index: usize, values: &'v [Value]) -> ToSqlOutput<'v> {
    let number = statement.parameter_name(index).and_then(|name| name.get(1..)?.parse::<usize>().ok());
    match values.get(number.unwrap_or(index).wrapping_sub(1)) {
        Some(Value::Int(Some(number))) => ToSqlOutput::Owned(Bound::Integer(*number)),
        Some(Value::Text(Some(text))) => match without_nul(text) {
            std::borrow::Cow::Borrowed(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            std::borrow::Cow::Owned(text) => ToSqlOutput::Owned(Bound::Text(text)),
        },
        Some(Value::Bool(truth)) => ToSqlOutput::Owned(Bound::Integer((*truth).into())),
        Some(Value::Int(None) | Value::Text(None)) | None => ToSqlOutput::Owned(Bound::Null),
    }
}

/// Whether the statement can never succeed: as [`crate::db::is_the_statements_fault`] says of the same codes.
fn is_the_statements_fault(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => {
            u32::try_from(failure.extended_code & 0xff).is_ok_and(crate::db::is_the_statements_code)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_copied_with_what_has_a_meaning_of_its_own_escaped() {
        let mut text = String::new();
        escape("a\tb\\c\r\n\u{1F600}\\N\t", &mut text);
        assert_eq!(text, "a\\tb\\\\c\\r\\n\u{1F600}\\\\N\\t");
    }
}
