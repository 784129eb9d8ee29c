//! A folder for a device's tools to look at.

use tempfile::TempDir;

/// What `README.md` says.
pub const README: &str = "# Fixture\n\nThe quick brown fox lives here.\n";
/// What must never be read.
pub const SECRET: &str = "TOKEN=the-secret-of-the-fixture";

/// A workspace with a README, a folder, and a file of secrets; beside it nothing.
pub fn workspace() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |path: &str, text: &str| std::fs::write(folder.path().join(path), text).expect("a fixture file");
    std::fs::create_dir(folder.path().join("src")).expect("a fixture folder");
    write("README.md", README);
    write("src/main.rs", "fn main() {}\n");
    write(".env", SECRET);
    folder
}
