//! The two databases that views are kept in, behind the few things that views do with one: run a
//! statement, read rows, work in a transaction. SQL is written once, in what both understand.

use crate::change::{Change, Value};
use crate::store::postgres::WRITERS;
use crate::together::for_many;
use devmind_domain::nul::without_nul;
use devmind_ledger::{PgConnections, Taken};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Executor, Postgres, Sqlite, SqlitePool, Transaction};
use tokio::sync::mpsc;

/// Connections to one database; clones share them.
#[derive(Clone, Debug)]
pub(crate) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgConnections),
}

/// A row of either.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A transaction; without a commit it leaves no trace.
pub(crate) enum Work {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(PgWork),
}

/// A transaction on a connection that is closed, unless it is ended in order.
pub(crate) struct PgWork(Option<Taken>);

impl PgWork {
    async fn begin(pool: &PgConnections, begin: &'static str) -> Result<Self, sqlx::Error> {
        let mut work = Self(Some(pool.take().await?));
        work.connection()?.execute(begin).await?;
        Ok(work)
    }

    fn connection(&mut self) -> Result<&mut Taken, sqlx::Error> {
        self.0.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    async fn end(mut self, with: &'static str) -> Result<(), sqlx::Error> {
        self.connection()?.execute(with).await?;
        if let Some(connection) = self.0.take() {
            connection.give_back();
        }
        Ok(())
    }
}

impl Drop for PgWork {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close();
        }
    }
}

/// Makes the values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { [$($crate::change::Value::from($value)),*] };
}
pub(crate) use values;

impl Pool {
    /// All rows of a query.
    pub async fn rows(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Sqlite(pool) => Ok(wrap(sqlite(sql, values).fetch_all(pool).await?, Row::Sqlite)),
            Self::Postgres(pool) => {
                let mut connection = pool.take().await?;
                let rows = postgres(sql, values).fetch_all(&mut *connection).await?;
                connection.give_back();
                Ok(wrap(rows, Row::Postgres))
            }
        }
    }

    /// The first row of a query, where there is one.
    pub async fn row(&self, sql: &str, values: &[Value]) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Statements one after the other, without values.
    pub async fn script(&self, sql: &str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(pool) => pool.execute(sql).await.map(drop),
            Self::Postgres(pool) => {
                let mut connection = pool.take().await?;
                connection.execute(sql).await?;
                connection.give_back();
                Ok(())
            }
        }
    }

    /// A transaction that may write. On SQLite it keeps other writers out from the beginning; on
    /// PostgreSQL whoever must not be overtaken locks the row that it goes by.
    pub async fn begin(&self) -> Result<Work, sqlx::Error> {
        match self {
            Self::Sqlite(pool) => Ok(Work::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?)),
            Self::Postgres(pool) => Ok(Work::Postgres(PgWork::begin(pool, "BEGIN").await?)),
        }
    }

    /// A transaction that reads everything as it stood at one moment.
    pub async fn at_once(&self) -> Result<Work, sqlx::Error> {
        match self {
            Self::Sqlite(pool) => Ok(Work::Sqlite(pool.begin().await?)),
            Self::Postgres(pool) => {
                let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
                Ok(Work::Postgres(PgWork::begin(pool, begin).await?))
            }
        }
    }

    /// How many transactions can be under way that write.
    pub fn writers(&self) -> usize {
        match self {
            Self::Sqlite(_) => 1,
            Self::Postgres(_) => WRITERS as usize,
        }
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

impl Work {
    /// Runs a change.
    pub async fn change(&mut self, change: &Change) -> Result<(), sqlx::Error> {
        self.run(change.sql, &change.values).await
    }

    /// Runs one statement for each of these rows of values: on PostgreSQL for all of them at once, where it can be.
    pub async fn run_for(&mut self, sql: &str, rows: &[&[Value]]) -> Result<(), sqlx::Error> {
        if let (Self::Postgres(work), [first, _, ..]) = (&mut *self, rows)
            && let Some(for_many) = for_many(sql, first)
        {
            return postgres_arrays(&for_many, rows).execute(&mut **work.connection()?).await.map(drop);
        }
        for values in rows {
            self.run(sql, values).await?;
        }
        Ok(())
    }

    /// Runs a statement.
    pub async fn run(&mut self, sql: &str, values: &[Value]) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(work) => sqlite(sql, values).execute(&mut **work).await.map(drop),
            Self::Postgres(work) => postgres(sql, values).execute(&mut **work.connection()?).await.map(drop),
        }
    }

    /// All rows of a query.
    pub async fn rows(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Sqlite(work) => Ok(wrap(sqlite(sql, values).fetch_all(&mut **work).await?, Row::Sqlite)),
            Self::Postgres(work) => {
                Ok(wrap(postgres(sql, values).fetch_all(&mut **work.connection()?).await?, Row::Postgres))
            }
        }
    }

    /// The first row of a query, where there is one.
    pub async fn row(&mut self, sql: &str, values: &[Value]) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Copies rows into a table of PostgreSQL, in the text format of its COPY, as they arrive.
    pub async fn copy_in(&mut self, copy: &str, rows: &mut mpsc::Receiver<Vec<u8>>) -> Result<(), sqlx::Error> {
        let Self::Postgres(work) = self else {
            return Err(sqlx::Error::Configuration("SQLite has no COPY".into()));
        };
        let mut copy = work.connection()?.copy_in_raw(copy).await?;
        while let Some(piece) = rows.recv().await {
            copy.send(piece).await?;
        }
        copy.finish().await.map(drop)
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    pub async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(work) => work.commit().await,
            Self::Postgres(work) => work.end("COMMIT").await,
        }
    }

    pub async fn rollback(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(work) => work.rollback().await,
            Self::Postgres(work) => work.end("ROLLBACK").await,
        }
    }
}

fn wrap<R>(rows: Vec<R>, as_row: fn(R) -> Row) -> Vec<Row> {
    rows.into_iter().map(as_row).collect()
}

fn sqlite<'q>(sql: &'q str, values: &'q [Value]) -> Query<'q, Sqlite, SqliteArguments<'q>> {
    values.iter().fold(sqlx::query(sql), |query, value| match value {
        Value::Int(value) => query.bind(*value),
        Value::Text(value) => query.bind(value.as_deref().map(without_nul)),
        Value::Bool(value) => query.bind(*value),
    })
}

fn postgres<'q>(sql: &'q str, values: &'q [Value]) -> Query<'q, Postgres, PgArguments> {
    values.iter().fold(sqlx::query(sql), |query, value| match value {
        Value::Int(value) => query.bind(*value),
        Value::Text(value) => query.bind(value.as_deref().map(without_nul)),
        Value::Bool(value) => query.bind(*value),
    })
}

/// The same with the values of many rows, an array for each value of a row: rows have values of the same kinds.
fn postgres_arrays<'q>(sql: &'q str, rows: &[&'q [Value]]) -> Query<'q, Postgres, PgArguments> {
    fn column<'q, T>(rows: &[&'q [Value]], index: usize, value: impl Fn(&'q Value) -> Option<T>) -> Vec<Option<T>> {
        rows.iter().map(|row| row.get(index).and_then(&value)).collect()
    }
    let kinds = rows.first().copied().unwrap_or_default();
    (0..).zip(kinds).fold(sqlx::query(sql), |query, (index, kind)| match kind {
        Value::Int(_) => {
            query.bind(column(rows, index, |value| if let Value::Int(number) = value { *number } else { None }))
        }
        Value::Text(_) => query.bind(column(rows, index, |value| {
            if let Value::Text(text) = value { text.as_deref().map(without_nul) } else { None }
        })),
        Value::Bool(_) => {
            query.bind(column(rows, index, |value| if let Value::Bool(truth) = value { Some(*truth) } else { None }))
        }
    })
}

/// What an error says about the statement: can it ever succeed, or is it the database's state?
pub(crate) fn is_the_statements_fault(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => match (sqlite_code(error), sqlstate(error)) {
            (Some(code), _) => is_the_statements_code(code),
            // Cardinality, data, integrity, syntax and names, limits.
            (None, Some(state)) => ["21", "22", "23", "42", "54"].iter().any(|class| state.starts_with(class)),
            (None, None) => false,
        },
        sqlx::Error::Encode(_) => true,
        _ => false,
    }
}

/// The same of SQLite's primary result code.
pub(crate) fn is_the_statements_code(code: u32) -> bool {
    const ERROR: u32 = 1;
    const TOOBIG: u32 = 18;
    const CONSTRAINT: u32 = 19;
    const MISMATCH: u32 = 20;
    const RANGE: u32 = 25;
    [ERROR, TOOBIG, CONSTRAINT, MISMATCH, RANGE].contains(&code)
}

/// SQLite's primary result code.
pub(crate) fn sqlite_code(error: &sqlx::Error) -> Option<u32> {
    use sqlx::error::DatabaseError as _;
    let error = error.as_database_error()?.try_downcast_ref::<sqlx::sqlite::SqliteError>()?;
    error.code()?.parse::<u32>().ok().map(|extended| extended & 0xff)
}

/// PostgreSQL's five letters.
pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error()?.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().map(|error| error.code())
}
