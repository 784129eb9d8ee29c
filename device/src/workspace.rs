//! The one folder that the device's tools may touch, held open for the life of the program.
//!
//! Which folders are refused is decided here; which paths within it, in [`crate::path_policy`].

use crate::error::DeviceError;
use crate::path_policy::{Backend, sensitive};
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use devmind_domain::ErrorCode;
use std::io;
use std::path::{Component, Path, PathBuf};

/// An open workspace.
#[derive(Debug)]
pub struct Workspace {
    root: Dir,
    backend: Backend,
    path: PathBuf,
}

impl Workspace {
    /// Opens a folder as the workspace.
    ///
    /// # Errors
    /// `WORKSPACE_NOT_FOUND` when there is nothing; `WORKSPACE_REFUSED` when it is no folder, the
    /// root of a disk, the home folder or one above it, or a folder for secrets.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        Self::open_apart_from(path, std::env::home_dir().as_deref())
    }

    fn open_apart_from(path: &Path, home: Option<&Path>) -> Result<Self, DeviceError> {
        let shown = path.display();
        let refused = |why: &str| DeviceError::new(ErrorCode::WorkspaceRefused, format!("the workspace {shown} {why}"));
        let real = path.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                DeviceError::new(ErrorCode::WorkspaceNotFound, format!("there is no folder {shown}"))
            }
            _ => refused("cannot be opened").caused_by(error),
        })?;
        if !real.is_dir() {
            return Err(refused("is not a folder"));
        }
        if real.parent().is_none() {
            return Err(refused("is the root of a disk"));
        }
        let home = home.and_then(|home| home.canonicalize().ok());
        if home.is_some_and(|home| home.starts_with(&real)) {
            return Err(refused("is your home folder, or holds it"));
        }
        let mut parent = None;
        for component in real.components() {
            let Component::Normal(name) = component else { continue };
            let name = name.to_string_lossy().into_owned();
            if sensitive::is_sensitive(parent.as_deref(), &name) {
                return Err(refused("is a folder for secrets"));
            }
            parent = Some(name);
        }
        let root = Dir::open_ambient_dir(&real, ambient_authority())
            .map_err(|error| refused("cannot be opened").caused_by(error))?;
        Ok(Self { backend: Backend::of(&root), root, path: real })
    }

    /// The same folder with paths opened in this way.
    pub fn with_backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// Its path, links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path still leads to the folder that is held open. Somebody who moves another folder
    /// there means that one; the device must be started again for it.
    pub fn is_in_place(&self) -> bool {
        use cap_std::fs::MetadataExt as _;
        use std::os::unix::fs::MetadataExt as _;
        let held = self.root.dir_metadata();
        let there = std::fs::metadata(&self.path);
        held.is_ok_and(|held| there.is_ok_and(|there| (held.dev(), held.ino()) == (there.dev(), there.ino())))
    }

    /// How paths are opened.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    pub(crate) fn root(&self) -> &Dir {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_opened_in_a_workspace_that_was_moved_replaced_or_removed() {
        let folder = tempfile::tempdir().expect("folder");
        let (ws, away) = (folder.path().join("ws"), folder.path().join("away"));
        std::fs::create_dir(&ws).expect("folder");
        std::fs::write(ws.join("a"), "x").expect("file");
        let workspace = Workspace::open(&ws).expect("workspace");
        let codes = || {
            let file = workspace.open_file("a").err().map(|denied| denied.code);
            (workspace.is_in_place(), file, workspace.open_folder(".").err().map(|denied| denied.code))
        };
        let gone = (false, Some(ErrorCode::WorkspaceReplaced), Some(ErrorCode::WorkspaceReplaced));
        assert_eq!(codes(), (true, None, None));
        std::fs::rename(&ws, &away).expect("moved");
        assert_eq!(codes(), gone, "moved");
        std::fs::create_dir(&ws).expect("folder");
        std::fs::write(ws.join("a"), "another's").expect("file");
        assert_eq!(codes(), gone, "replaced");
        std::fs::remove_dir_all(&ws).expect("removed");
        std::os::unix::fs::symlink(&away, &ws).expect("link");
        assert_eq!(codes(), (true, None, None), "a link to the same folder is that folder");
    }

    fn code(path: &Path, home: &Path) -> Option<ErrorCode> {
        Workspace::open_apart_from(path, Some(home)).err().map(|error| error.code())
    }

    #[test]
    fn only_an_existing_project_folder_becomes_a_workspace() {
        let folder = tempfile::tempdir().expect("folder");
        let home = folder.path().join("users/ada");
        let project = home.join("project");
        std::fs::create_dir_all(project.join(".ssh")).expect("folders");
        std::fs::write(home.join("file"), "x").expect("file");
        assert_eq!(code(&project, &home), None);
        for (path, expected) in [
            (home.join("missing"), ErrorCode::WorkspaceNotFound),
            (home.join("file/below"), ErrorCode::WorkspaceNotFound),
            (home.join("file"), ErrorCode::WorkspaceRefused),
            (PathBuf::from("/"), ErrorCode::WorkspaceRefused),
            (home.clone(), ErrorCode::WorkspaceRefused),
            (home.join("project/.."), ErrorCode::WorkspaceRefused),
            (folder.path().join("users"), ErrorCode::WorkspaceRefused),
            (project.join(".ssh"), ErrorCode::WorkspaceRefused),
        ] {
            assert_eq!(code(&path, &home), Some(expected), "{}", path.display());
        }
    }
}
