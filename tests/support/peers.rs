//! Programs of other hands that tests and benches run beside ours: fetched on first use. A test on a machine that
//! lacks their runtime skips them, loudly, unless `DEVMIND_REQUIRE_PEERS=1` says that nothing may be skipped.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;
use tokio::sync::Mutex;

/// Of several tests that ask for a peer, one fetches.
static FETCHING: Mutex<()> = Mutex::const_new(());

/// The runtime that a peer needs and this machine lacks.
type Missing = &'static str;

/// The folder `tests/peers/<name>`.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// Says that a peer is skipped, past the capture of the test's output; fails where nothing may be.
#[allow(clippy::explicit_write, reason = "a macro's output would be captured with the test's")]
fn skip<T>(name: &str, needs: &str) -> Option<T> {
    let required = std::env::var("DEVMIND_REQUIRE_PEERS").is_ok_and(|value| value == "1");
    assert!(!required, "peers/{name} needs {needs}, and DEVMIND_REQUIRE_PEERS=1 forbids to skip it");
    writeln!(std::io::stderr(), "SKIPPED: peers/{name} needs {needs}").expect("stderr");
    None
}

async fn runs(program: &str) -> bool {
    let run = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    run.is_ok_and(|status| status.success())
}

/// Where what is built and installed for a peer is kept, if not in its folder.
fn installed(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own file");
    test.ancestors().nth(3).expect("target/<profile>/deps/<test>").join("peers").join(name)
}

/// The folder of a peer from npm with its packages, or `None` where node is missing.
pub async fn node(name: &str) -> Option<PathBuf> {
    match npm(name).await {
        Ok(folder) => Some(folder),
        Err(needs) => skip(name, needs),
    }
}

/// The same for who cannot do without.
///
/// # Errors
/// What is missing.
pub async fn npm(name: &str) -> Result<PathBuf, Missing> {
    if !runs("node").await || !runs("npm").await {
        return Err("node and npm");
    }
    let folder = folder(name);
    fetch(&folder).await;
    Ok(folder)
}

/// The program of a peer that is a Rust package of its own, outside of our workspace, built for release.
///
/// # Errors
/// What is missing.
pub async fn cargo(name: &str) -> Result<PathBuf, Missing> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let target = installed(name);
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--locked", "--target-dir"]).arg(&target).current_dir(folder(name));
    let built = build.status().await.map_err(|_| "cargo")?;
    assert!(built.success(), "cargo build of peers/{name}: {built}");
    Ok(target.join("release").join(format!("{name}-peer")))
}

/// The folder of the browser tests with their packages, or `None` where node or Chromium is missing.
pub async fn browser() -> Option<PathBuf> {
    let chromium = std::env::var("DEVMIND_CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    if !runs("node").await || !runs("npm").await || !runs(&chromium).await {
        return skip("../browser", "node, npm and chromium");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser");
    fetch(&folder).await;
    Some(folder)
}

/// The packages that a folder's lock names.
async fn fetch(folder: &Path) {
    let _fetching = FETCHING.lock().await;
    // Another lock than the one that was installed is fetched anew.
    let (lock, stamp) = (folder.join("package-lock.json"), folder.join("node_modules/.lock-of-the-tests"));
    let lock = std::fs::read(lock).expect("a lock file");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        return;
    }
    // No package needs a script of its own to be installed; the one that has one only reports the installation.
    let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
    let install = Command::new("npm").args(arguments).current_dir(folder).output();
    let installed = install.await.expect("npm runs");
    assert!(installed.status.success(), "npm ci: {}", String::from_utf8_lossy(&installed.stderr));
    std::fs::write(stamp, lock).expect("a note of what is installed");
}

/// A peer from PyPI, in an environment of its own under `target/peers`.
pub struct Python {
    /// `tests/peers/<name>`.
    pub folder: PathBuf,
    environment: PathBuf,
}

impl Python {
    /// A program of the environment.
    pub fn program(&self, name: &str) -> PathBuf {
        self.environment.join("bin").join(name)
    }
}

/// A peer with the packages of its `requirements.txt`, or `None` where python is missing.
pub async fn python(name: &str) -> Option<Python> {
    let _fetching = FETCHING.lock().await;
    let peer = Python { environment: installed(name), folder: folder(name) };
    let requirements = std::fs::read_to_string(peer.folder.join("requirements.txt")).expect("requirements");
    let stamp = peer.environment.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        return Some(peer);
    }
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&peer.environment).output().await;
    if !made.is_ok_and(|made| made.status.success()) {
        return skip(name, "python3 with venv");
    }
    let mut install = Command::new(peer.program("python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt"]);
    let installed = install.current_dir(&peer.folder).output().await.expect("pip runs");
    assert!(installed.status.success(), "pip: {}", String::from_utf8_lossy(&installed.stderr));
    std::fs::write(stamp, requirements).expect("a note of what is installed");
    Some(peer)
}
