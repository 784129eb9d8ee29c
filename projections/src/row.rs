//! Reading columns: one place that turns a database row into domain types.

use devmind_domain::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// A row whose columns are read by name.
pub(crate) struct Columns<'r>(pub &'r SqliteRow);

impl Columns<'_> {
    /// A text, or an id made from it.
    pub fn text<T: From<String>>(&self, name: &str) -> Result<T, sqlx::Error> {
        self.0.try_get::<String, _>(name).map(T::from)
    }
    /// A text that may be absent.
    pub fn maybe_text<T: From<String>>(&self, name: &str) -> Result<Option<T>, sqlx::Error> {
        Ok(self.0.try_get::<Option<String>, _>(name)?.map(T::from))
    }
    /// A count; negative ones are never written.
    pub fn count(&self, name: &str) -> Result<u64, sqlx::Error> {
        Ok(self.0.try_get::<i64, _>(name)?.unsigned_abs())
    }
    /// A count that may be absent.
    pub fn maybe_count(&self, name: &str) -> Result<Option<u64>, sqlx::Error> {
        Ok(self.0.try_get::<Option<i64>, _>(name)?.map(i64::unsigned_abs))
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
        self.0.try_get(name)
    }
    /// A moment.
    pub fn moment(&self, name: &str) -> Result<Timestamp, sqlx::Error> {
        self.0.try_get(name).map(Timestamp::from_micros)
    }
    /// A moment that may be absent.
    pub fn maybe_moment(&self, name: &str) -> Result<Option<Timestamp>, sqlx::Error> {
        Ok(self.0.try_get::<Option<i64>, _>(name)?.map(Timestamp::from_micros))
    }
    /// A JSON value.
    pub fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, sqlx::Error> {
        json(name, &self.0.try_get::<String, _>(name)?)
    }
    /// A JSON value that may be absent.
    pub fn maybe_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, sqlx::Error> {
        self.0.try_get::<Option<String>, _>(name)?.map(|text| json(name, &text)).transpose()
    }
}

fn json<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, sqlx::Error> {
    serde_json::from_str(text)
        .map_err(|error| sqlx::Error::ColumnDecode { index: name.to_owned(), source: Box::new(error) })
}
