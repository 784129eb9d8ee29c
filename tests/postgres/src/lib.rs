//! A throw-away PostgreSQL for tests: one cluster a test program, one database a test.
//!
//! The cluster lives in a temporary folder and listens on a socket in it alone. PostgreSQL refuses to
//! run as root, so root hands it to another user. A keeper process ends it when the test program ends,
//! however that comes about.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Where Debian keeps the programs of each version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    programs: PathBuf,
    folder: TempDir,
    user: Option<u32>,
    databases: AtomicU32,
    keeper: Option<Child>,
}

impl Cluster {
    /// The cluster that the tests of this program share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// A cluster of the caller's own, with settings like `fsync=off`.
    ///
    /// # Panics
    /// When PostgreSQL is missing or does not start.
    pub fn start(settings: &[&str]) -> Self {
        let programs = programs();
        let folder = tempfile::Builder::new().prefix("devmind-pg-").tempdir().expect("a temporary folder");
        let user = is_root().then(other_user);
        if let Some(user) = user {
            chown(folder.path(), Some(user), None).expect("root may give a folder away");
        }
        let mut cluster = Self { programs, folder, user, databases: AtomicU32::new(0), keeper: None };
        let data = cluster.data();
        let locale = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"];
        cluster.run("initdb", locale.iter().map(ToString::to_string).chain([format!("--pgdata={}", data.display())]));
        let own = ["listen_addresses=''".to_owned(), "max_connections=300".to_owned(), {
            format!("unix_socket_directories='{}'", cluster.folder.path().display())
        }];
        let mut text = fs::read_to_string(data.join("postgresql.conf")).expect("its settings");
        for setting in own.into_iter().chain(settings.iter().map(ToString::to_string)) {
            text += &setting;
            text.push('\n');
        }
        fs::write(data.join("postgresql.conf"), text).expect("its settings");
        cluster.keeper = Some(cluster.keep());
        cluster.pg_ctl(&["start"]);
        cluster
    }

    /// Starts it again as after a power cut: nothing is flushed, nobody is told.
    pub fn restart_immediately(&self) {
        self.pg_ctl(&["restart", "-m", "immediate"]);
    }

    /// A new, empty database, dropped with the last of its clones.
    pub fn database(&self) -> Database {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let connection = self.connection();
        let made = ["--template=template0", "--encoding=UTF8"].iter().map(ToString::to_string);
        self.run("createdb", connection.clone().into_iter().chain(made).chain([name.clone()]));
        let url = format!("postgres://postgres@localhost/{name}?host={}", self.folder.path().display());
        Database { url, drop: Some((self.program("dropdb"), connection, name)) }
    }

    fn connection(&self) -> Vec<String> {
        vec![format!("--host={}", self.folder.path().display()), "--username=postgres".to_owned()]
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn pg_ctl(&self, what: &[&str]) {
        let data = self.data().display().to_string();
        let log = self.folder.path().join("log").display().to_string();
        let all = what.iter().map(ToString::to_string).chain(["-D".into(), data, "-l".into(), log, "-w".into()]);
        self.run("pg_ctl", all);
    }

    /// Ends the cluster when this program has ended: then its end of the pipe closes.
    fn keep(&self) -> Child {
        let data = self.data();
        let script = format!(
            "read -r line; '{}' -D '{}' -m immediate stop >/dev/null 2>&1; rm -rf '{}'",
            self.program("pg_ctl").display(),
            data.display(),
            self.folder.path().display()
        );
        let mut keeper = Command::new("sh");
        keeper.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = self.user {
            keeper.uid(user);
        }
        // A signal to the test program's group must not end the keeper with it.
        keeper.process_group(0).current_dir("/").spawn().expect("sh runs")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    fn run(&self, program: &str, arguments: impl IntoIterator<Item = String>) {
        let mut command = Command::new(self.program(program));
        command.args(arguments).current_dir("/").stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user);
        }
        // Not a pipe: the server that pg_ctl starts would keep it open.
        let said = tempfile::tempfile().expect("a temporary file");
        command.stdout(said.try_clone().expect("a handle")).stderr(said.try_clone().expect("a handle"));
        let status = command.status().unwrap_or_else(|error| panic!("{program}: {error}"));
        if !status.success() {
            let mut text = String::new();
            let mut said = said;
            let read =
                std::io::Seek::rewind(&mut said).and_then(|()| std::io::Read::read_to_string(&mut said, &mut text));
            panic!("{program} failed ({status}): {text} {read:?}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            // It ends the cluster, then itself.
            drop(keeper.wait());
        }
    }
}

/// A database of one test.
#[derive(Debug)]
pub struct Database {
    url: String,
    drop: Option<(PathBuf, Vec<String>, String)>,
}

impl Database {
    /// `postgres://…`
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some((dropdb, connection, name)) = self.drop.take() {
            // It goes with the cluster at the latest.
            let dropping = Command::new(dropdb)
                .args(connection)
                .args(["--force", "--if-exists", &name])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            drop(dropping);
        }
    }
}

fn programs() -> PathBuf {
    let of_path = std::env::var_os("PATH").unwrap_or_default();
    let mut newest: Vec<PathBuf> = fs::read_dir(DEBIAN)
        .map(|versions| versions.filter_map(|version| Some(version.ok()?.path().join("bin"))).collect())
        .unwrap_or_default();
    newest.sort();
    let found = newest.into_iter().rev().chain(std::env::split_paths(&of_path)).find(|folder| has_all(folder));
    found.unwrap_or_else(|| panic!("these tests need PostgreSQL 13 or newer: apt-get install postgresql"))
}

fn has_all(folder: &Path) -> bool {
    ["initdb", "pg_ctl", "postgres", "createdb", "dropdb"].iter().all(|program| folder.join(program).is_file())
}

fn is_root() -> bool {
    let own = fs::metadata("/proc/self").map(|found| std::os::unix::fs::MetadataExt::uid(&found));
    own.is_ok_and(|uid| uid == 0)
}

/// The user that Debian's package made, else `nobody`.
fn other_user() -> u32 {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let uid = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        line.split(':').nth(2)?.parse().ok()
    };
    uid("postgres").or_else(|| uid("nobody")).unwrap_or(65_534)
}
