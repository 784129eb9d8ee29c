//! Reading columns: one place that turns a database row into domain types.

use crate::db::Row;
use devmind_domain::Timestamp;
use sqlx::{Decode, Postgres, Row as _, Sqlite, Type};

/// A row whose columns are read by name.
pub(crate) struct Columns<'r>(pub &'r Row);

impl Columns<'_> {
    fn get<T>(&self, name: &str) -> Result<T, sqlx::Error>
    where
        T: for<'d> Decode<'d, Sqlite> + Type<Sqlite> + for<'d> Decode<'d, Postgres> + Type<Postgres>,
    {
        match self.0 {
            Row::Sqlite(row) => row.try_get(name),
            Row::Postgres(row) => row.try_get(name),
        }
    }

    /// A text, or an id made from it.
    pub fn text<T: From<String>>(&self, name: &str) -> Result<T, sqlx::Error> {
        self.get::<String>(name).map(T::from)
    }
    /// A text that may be absent.
    pub fn maybe_text<T: From<String>>(&self, name: &str) -> Result<Option<T>, sqlx::Error> {
        Ok(self.get::<Option<String>>(name)?.map(T::from))
    }
    /// A count; negative ones are never written.
    pub fn count(&self, name: &str) -> Result<u64, sqlx::Error> {
        Ok(self.get::<i64>(name)?.unsigned_abs())
    }
    /// A count that may be absent.
    pub fn maybe_count(&self, name: &str) -> Result<Option<u64>, sqlx::Error> {
        Ok(self.get::<Option<i64>>(name)?.map(i64::unsigned_abs))
    }
    /// A small count.
    pub fn small(&self, name: &str) -> Result<u32, sqlx::Error> {
        Ok(u32::try_from(self.count(name)?).unwrap_or(u32::MAX))
    }
    /// A small count that may be absent.
    pub fn maybe_small(&self, name: &str) -> Result<Option<u32>, sqlx::Error> {
        Ok(self.maybe_count(name)?.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
    }
    /// A truth value.
    pub fn truth(&self, name: &str) -> Result<bool, sqlx::Error> {
        self.get(name)
    }
    /// A moment.
    pub fn moment(&self, name: &str) -> Result<Timestamp, sqlx::Error> {
        self.get(name).map(Timestamp::from_micros)
    }
    /// A moment that may be absent.
    pub fn maybe_moment(&self, name: &str) -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(self.get::<Option<i64>>(name)?.map(Timestamp::from_micros))
    }
    /// A JSON value.
    pub fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, sqlx::Error> {
        json(name, &self.get::<String>(name)?)
    }
    /// A JSON value that may be absent.
    pub fn maybe_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, sqlx::Error> {
        self.get::<Option<String>>(name)?.map(|text| json(name, &text)).transpose()
    }
}

fn json<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, sqlx::Error> {
    serde_json::from_str(text)
        .map_err(|error| sqlx::Error::ColumnDecode { index: name.to_owned(), source: Box::new(error) })
}
