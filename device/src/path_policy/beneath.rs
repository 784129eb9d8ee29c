//! Opening a path so that it cannot lead out of a folder, whatever links and races say.
//!
//! On Linux the kernel promises it (`openat2` with `RESOLVE_BENEATH`, openat2(2)); elsewhere, and on a
//! kernel that does not know it, cap-std walks the path one component at a time, without following a link
//! it has not looked at. Which names may be opened is left to `open`.

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;
use std::fs::File;
use std::io;

/// How paths are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's `openat2`.
    #[cfg(target_os = "linux")]
    Openat2,
    /// cap-std's walk.
    Portable,
}

impl Backend {
    /// The best that this computer has.
    pub fn of(root: &Dir) -> Self {
        #[cfg(target_os = "linux")]
        if linux::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY).is_ok() {
            return Self::Openat2;
        }
        let _ = root;
        Self::Portable
    }

    /// Opens something for reading; a pipe without a writer does not block, a terminal does not become
    /// ours.
    pub(super) fn open(self, root: &Dir, path: &str) -> io::Result<File> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        match self {
            #[cfg(target_os = "linux")]
            Self::Openat2 => linux::open(root, path, OFlags::RDONLY | flags),
            Self::Portable => {
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(flags.bits().cast_signed());
                root.open_with(path, &options).map(cap_std::fs::File::into_std)
            }
        }
    }

    /// Opens a folder.
    pub(super) fn open_folder(self, root: &Dir, path: &str) -> io::Result<Dir> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Openat2 => linux::open(root, path, OFlags::RDONLY | OFlags::DIRECTORY).map(Dir::from_std_file),
            Self::Portable => root.open_dir(path),
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use rustix::fs::{Mode, ResolveFlags, openat2};
    use rustix::io::Errno;

    /// How often a path is tried while others rename around it; then it is refused.
    const TRIES: u32 = 64;

    pub(super) fn open(root: &Dir, path: &str, flags: OFlags) -> io::Result<File> {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath) {
                Ok(opened) => return Ok(File::from(opened)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}
