//! Where a ledger is kept: a SQLite file, or a PostgreSQL database.

use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a ledger, or its views, are kept.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are a handful in a process")]
pub enum Place {
    /// A SQLite file.
    File(PathBuf),
    /// A PostgreSQL database; the log is in its schema `ledger`, the views in `views`.
    Postgres(PostgresUrl),
}

impl From<&Path> for Place {
    fn from(file: &Path) -> Self {
        Self::File(file.to_owned())
    }
}

impl From<&PathBuf> for Place {
    fn from(file: &PathBuf) -> Self {
        Self::File(file.clone())
    }
}

impl From<&PostgresUrl> for Place {
    fn from(url: &PostgresUrl) -> Self {
        Self::Postgres(url.clone())
    }
}

impl From<&Place> for Place {
    fn from(place: &Place) -> Self {
        place.clone()
    }
}

/// `postgres://user:password@host:port/database?…`, as libpq understands it. Shown without the
/// password.
#[derive(Clone)]
pub struct PostgresUrl {
    options: Box<PgConnectOptions>,
    shown: String,
    accepts_data_loss: bool,
}

impl PostgresUrl {
    /// Also uses a database whose settings let acknowledged commits be lost with a power cut; each
    /// start says so in the log.
    #[must_use]
    pub fn accepting_data_loss(self, accepts_data_loss: bool) -> Self {
        Self { accepts_data_loss, ..self }
    }

    /// How to connect.
    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    pub(crate) fn accepts_data_loss(&self) -> bool {
        self.accepts_data_loss
    }
}

impl FromStr for PostgresUrl {
    type Err = String;

    /// Says what is wrong without repeating the text, which may hold a password.
    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err("it must begin with postgres:// (SQLite needs no URL: name its folder)".to_owned());
        }
        let options = PgConnectOptions::from_str(text).map_err(|error| error.to_string())?;
        let host = match options.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => options.get_host().to_owned(),
        };
        let (user, port) = (options.get_username(), options.get_port());
        let shown = format!("postgres://{user}@{host}:{port}/{}", options.get_database().unwrap_or(user));
        Ok(Self { options: Box::new(options.application_name("devmind")), shown, accepts_data_loss: false })
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_neither_shown_nor_repeated_in_an_error() {
        let url: PostgresUrl = "postgres://ann:geheim@db.example:6432/prod?sslmode=require".parse().expect("good");
        assert_eq!(format!("{url} {url:?}"), "postgres://ann@db.example:6432/prod postgres://ann@db.example:6432/prod");
        for wrong in ["mysql://ann:geheim@h/d", "postgres://ann:geheim@h:port/d", "geheim"] {
            let error = wrong.parse::<PostgresUrl>().expect_err(wrong);
            assert!(!error.contains("geheim"), "{error}");
        }
    }
}
