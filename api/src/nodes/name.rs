//! The name of a server process: configured, or made at its first start and kept.

use crate::config::ServerConfig;
use crate::identity::is_user_name;
use crate::ids::new_id;
use crate::lifecycle::StartError;
use devmind_domain::ErrorCode;
use devmind_domain::ids::NodeId;
use devmind_ledger::Place;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The name where a ledger has one process.
const ALONE: &str = "local";
/// The file within the data folder that keeps a name that was made.
const FILE: &str = "node-id";

/// This process's name.
///
/// # Errors
/// A data folder that cannot be used, or a file in it that holds no name.
pub(crate) fn name(config: &ServerConfig, place: &Place) -> Result<NodeId, StartError> {
    match (&config.node_id, place) {
        (Some(name), _) => Ok(name.as_str().into()),
        (None, Place::File(_)) => Ok(ALONE.into()),
        (None, Place::Postgres(_)) => kept(&config.data),
    }
}

fn kept(folder: &Path) -> Result<NodeId, StartError> {
    let file = folder.join(FILE);
    let failed = |error: std::io::Error| {
        let message = format!("the name of this process cannot be kept in {}: {error}", file.display());
        StartError {
            hint: Some("name it with --node-id NAME, or make the data folder writable".to_owned()),
            ..StartError::new(ErrorCode::ConfigInvalid, message)
        }
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    // Made once: of two processes that start in one folder at once, the second reads the first one's name, and is
    // refused because of it.
    match std::fs::File::create_new(&file) {
        Ok(mut new) => {
            let name = format!("node-{}", new_id());
            new.write_all(name.as_bytes()).and_then(|()| new.sync_all()).map_err(failed)?;
            Ok(name.as_str().into())
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let text = std::fs::read_to_string(&file).map_err(failed)?;
            match text.trim() {
                name if is_user_name(name) => Ok(name.into()),
                _ => Err(failed(std::io::Error::new(ErrorKind::InvalidData, "what it holds is no name; remove it"))),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_once_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = kept(folder.path()).expect("made");
        assert!(is_user_name(first.as_str()));
        assert_eq!(kept(folder.path()).expect("read"), first);
        std::fs::write(folder.path().join(FILE), "").expect("written");
        assert_eq!(kept(folder.path()).expect_err("no name").code, ErrorCode::ConfigInvalid);
    }
}
