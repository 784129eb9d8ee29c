//! The built programs in processes of their own: started, read, killed, and waited for.

use crate::client::Client;
use crate::data::Data;
use crate::log::Log;
use crate::port::own_address;
use crate::wait::{DEADLINE, eventually, within_deadline};
use rustix::process::Pid;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// Where a built program is: beside the test binary's folder, where cargo puts them.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its own file");
    let profile = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let places = [profile.join(name), profile.join("examples").join(name)];
    places.into_iter().find(|place| place.is_file()).unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo build --workspace --bins --examples` first (the test command does)")
    })
}

/// A program under way. It is killed when dropped.
pub struct Process {
    child: Child,
    pid: Pid,
    output: watch::Receiver<Output>,
    folder: TempDir,
}

/// What a program has printed so far.
#[derive(Clone, Debug, Default)]
struct Output {
    stdout: Vec<String>,
    stderr: Vec<String>,
    open: usize,
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Its data.
    pub stdout: String,
    /// Everything else it said.
    pub stderr: String,
}

impl Finished {
    /// Fails unless the program refused with this code, a hint and exit 1, and without a panic.
    #[track_caller]
    pub fn assert_refused(&self, code: &str) {
        self.assert_no_panic();
        assert_eq!(self.code, Some(1), "{self:#?}");
        assert!(self.stderr.contains(&format!("error[{code}]: ")), "no error[{code}]: {self:#?}");
        assert!(self.stderr.lines().any(|line| line.trim_start().starts_with("hint: ")), "no hint: {self:#?}");
    }

    /// Fails unless the program ended with success.
    #[track_caller]
    pub fn assert_success(&self) {
        self.assert_no_panic();
        assert_eq!(self.code, Some(0), "{self:#?}");
    }

    /// Fails when the program panicked.
    #[track_caller]
    pub fn assert_no_panic(&self) {
        assert!(!self.stderr.contains("panicked at"), "{self:#?}");
    }
}

impl Process {
    /// Starts a program in an empty folder, without this process's `DEVMIND_…` and `MODEL_…`
    /// settings.
    pub fn start(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(program(name));
        command.args(arguments).current_dir(folder.path());
        for (variable, _) in std::env::vars() {
            if variable.starts_with("DEVMIND_")
                || variable.starts_with("MODEL_")
                || ["RUST_LOG", "DATABASE_URL"].contains(&variable.as_str())
            {
                command.env_remove(variable);
            }
        }
        command.envs(environment.iter().copied()).env("NO_COLOR", "1").env("XDG_CONFIG_HOME", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} starts: {error}"));
        let (sender, output) = watch::channel(Output { open: 2, ..Output::default() });
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        collect(stdout, sender.clone(), |output| &mut output.stdout);
        collect(stderr, sender, |output| &mut output.stderr);
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("a process id");
        Self { child, pid, output, folder }
    }

    /// Runs `devmind-replay` on what a server keeps or kept.
    pub async fn replay(data: &Data, arguments: &[&str]) -> Finished {
        let folder = data.path().to_str().expect("a plain path");
        let database: Vec<_> = data.database_url().map(|url| ("DATABASE_URL", url)).into_iter().collect();
        Self::run("devmind-replay", &[&["--data", folder], arguments].concat(), &database).await
    }

    /// Runs a program to its end.
    pub async fn run(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
        Self::start(name, arguments, environment).ended().await
    }

    /// The folder it runs in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits for a line that holds `part`, on stdout or stderr, and answers it.
    pub async fn line(&mut self, part: &str) -> String {
        let found = |output: &Output| {
            let lines = output.stdout.iter().chain(&output.stderr);
            lines.into_iter().find(|line| line.contains(part)).cloned()
        };
        let waited = self.output.wait_for(|output| found(output).is_some() || output.open == 0);
        let in_time = tokio::time::timeout(DEADLINE, waited).await.is_ok();
        let output = self.output.borrow();
        found(&output).unwrap_or_else(|| {
            let why = if in_time { "it ended" } else { "the deadline came" };
            panic!("{why} without {part:?}: {:#?}", *output)
        })
    }

    /// Everything it has said so far.
    pub fn said(&self) -> String {
        let output = self.output.borrow();
        output.stdout.iter().chain(&output.stderr).map(|line| format!("{line}\n")).collect()
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(mut self) -> Finished {
        self.child.start_kill().expect("a kill");
        self.ended().await
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        terminate(self.id());
    }

    /// Its process id.
    pub fn id(&self) -> Pid {
        self.pid
    }

    /// Waits until it has ended, without taking it over: whether it was killed.
    pub async fn killed(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let status = self.child.wait().await.expect("it can be waited for");
        status.signal() == Some(rustix::process::Signal::KILL.as_raw())
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> Finished {
        let what = format!("the end of the program ({})", self.said());
        let status = within_deadline(&what, self.child.wait()).await.expect("it can be waited for");
        let output = within_deadline("the rest of its output", self.output.wait_for(|output| output.open == 0)).await;
        let output = output.expect("its output is read to the end").clone();
        let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect();
        Finished { code: status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

/// SIGTERM, where it has not ended yet.
pub fn terminate(id: Pid) {
    rustix::process::kill_process(id, rustix::process::Signal::TERM).ok();
}

/// Whether it has ended and was waited for.
pub fn is_gone(id: Pid) -> bool {
    rustix::process::test_kill_process(id).is_err()
}

fn collect(
    from: impl AsyncRead + Unpin + Send + 'static,
    to: watch::Sender<Output>,
    part: fn(&mut Output) -> &mut Vec<String>,
) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            to.send_modify(|output| part(output).push(line));
        }
        to.send_modify(|output| output.open -= 1);
    });
}

/// The server's program, serving. A test ends with [`ServerProcess::finish`].
pub struct ServerProcess {
    /// Its files.
    pub data: Data,
    /// Where it listens.
    pub address: SocketAddr,
    process: Option<Process>,
}

impl ServerProcess {
    /// On a port of its own, over an empty folder.
    pub async fn start(environment: &[(&str, &str)]) -> Self {
        Self::start_with(&[], environment).await
    }

    /// The same with more arguments.
    pub async fn start_with(more: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::open(Data::new(), own_address(), more, environment).await
    }

    /// Over files, whatever store the tests run on.
    pub async fn on_sqlite(environment: &[(&str, &str)]) -> Self {
        Self::open(Data::sqlite(), own_address(), &[], environment).await
    }

    /// Over a database, whatever store the tests run on.
    pub async fn on_postgres(environment: &[(&str, &str)]) -> Self {
        Self::open(Data::postgres(), own_address(), &[], environment).await
    }

    /// A second server on the same database, with a data folder of its own.
    pub async fn beside(&self, environment: &[(&str, &str)]) -> Self {
        let folder = self.data.path().join(crate::new_id());
        let more = ["--data", folder.to_str().expect("a plain path")];
        Self::open_in(self.data.clone(), &more, own_address(), &[], environment).await
    }

    /// The end of a second server on the same database that must not start.
    pub async fn beside_refused(&self, environment: &[(&str, &str)]) -> Finished {
        let folder = self.data.path().join(crate::new_id());
        let arguments = ["--listen", "127.0.0.1:0", "--data", folder.to_str().expect("a plain path")];
        let database = self.data.database_url().map(|url| ("DATABASE_URL", url));
        let environment: Vec<_> = environment.iter().copied().chain(database).collect();
        Process::run("devmind", &arguments, &environment).await
    }

    async fn open(data: Data, listen: SocketAddr, more: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = data.path().to_str().expect("a plain path").to_owned();
        Self::open_in(data, &["--data", &folder], listen, more, environment).await
    }

    async fn open_in(
        data: Data,
        folder: &[&str],
        listen: SocketAddr,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let listen = listen.to_string();
        let arguments = [&["--listen", &listen], folder, more].concat();
        let database = data.database_url().map(|url| ("DATABASE_URL", url));
        let environment: Vec<_> = environment.iter().copied().chain(database).collect();
        let mut process = Process::start("devmind", &arguments, &environment);
        let line = process.line("listening on http://").await;
        let address = line.trim().rsplit('/').next().and_then(|address| address.parse().ok());
        Self { data, address: address.unwrap_or_else(|| panic!("no address in {line:?}")), process: Some(process) }
    }

    /// A client of a user.
    pub fn client(&self, user: &str) -> Client {
        Client::new(self.address, user)
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its log, read from the file beside it.
    pub async fn log(&self) -> Log {
        self.data.log().await
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = self.process.as_ref().expect("a running server").id();
        rustix::process::kill_process(id, signal).expect("it is there");
    }

    /// Waits until it has ended by itself.
    pub async fn ended(mut self) -> Finished {
        self.process.take().expect("a running server").ended().await
    }

    /// `kill -9`.
    pub async fn kill(mut self) -> KilledServer {
        let process = self.process.take().expect("a running server");
        process.kill().await.assert_no_panic();
        KilledServer { data: self.data.clone(), address: self.address }
    }

    /// Stops it in order, checks its files, and leaves them to be started again.
    pub async fn stop(self) -> KilledServer {
        let (data, address) = (self.data.clone(), self.address);
        self.finish().await;
        KilledServer { data, address }
    }

    /// The end of every test: views that have caught up, SIGTERM, exit 0, and the files checked. Answers what it had
    /// said.
    pub async fn finish(mut self) -> Finished {
        // The files' check compares as far as the views have come: a projection that stopped would pass it.
        // A test that made no client has installed no provider yet; the first stays.
        drop(rustls::crypto::ring::default_provider().install_default());
        let ready = format!("{}/readyz", self.url());
        eventually("the views catch up", async || {
            let answer = reqwest::get(&ready).await.map_err(|error| error.to_string())?;
            if answer.status() == 200 { Ok(()) } else { Err(answer.text().await.unwrap_or_default()) }
        })
        .await;
        let process = self.process.take().expect("a running server");
        process.terminate();
        let finished = process.ended().await;
        finished.assert_success();
        let last = self.data.log().await.all().await.pop().expect("the log is not empty");
        assert!(last.is("NodeStopped"), "a stop in order is the last event, not {last}");
        self.data.check().await;
        finished
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if self.process.is_some() && !std::thread::panicking() {
            panic!("a test must end with `finish().await`, which checks log and views");
        }
    }
}

/// A server that was killed, with its files.
pub struct KilledServer {
    /// Its files.
    pub data: Data,
    /// Where it listened.
    pub address: SocketAddr,
}

impl KilledServer {
    /// Starts it again over the same files, at the same address.
    pub async fn start(self) -> ServerProcess {
        self.start_with(&[]).await
    }

    /// The same with an environment.
    pub async fn start_with(self, environment: &[(&str, &str)]) -> ServerProcess {
        self.start_as(&[], environment).await
    }

    /// The same with more arguments and an environment.
    pub async fn start_as(self, more: &[&str], environment: &[(&str, &str)]) -> ServerProcess {
        ServerProcess::open(self.data, self.address, more, environment).await
    }
}

/// The files that a test shares with the device whose reads leave a trace and wait.
pub struct Traces(TempDir);

impl Traces {
    /// Nothing read yet.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// The variables that tell the slow device where they are.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        let text = |path: PathBuf| path.to_str().expect("a plain path").to_owned();
        [
            ("DEVMIND_TEST_WITNESS", text(self.witness())),
            ("DEVMIND_TEST_EXECUTING", text(self.executing())),
            ("DEVMIND_TEST_GO_ON", text(self.go_on())),
            // Its traces lie outside the device's folders.
            ("DEVMIND_SANDBOX", "off".to_owned()),
        ]
    }

    fn witness(&self) -> PathBuf {
        self.0.path().join("witness")
    }

    fn executing(&self) -> PathBuf {
        self.0.path().join("executing")
    }

    fn go_on(&self) -> PathBuf {
        self.0.path().join("go-on")
    }

    /// Waits until a read is under way.
    pub async fn reading(&self) {
        eventually("a read is under way", || async {
            if self.executing().exists() { Ok(()) } else { Err("nothing".to_owned()) }
        })
        .await;
    }

    /// Lets reads go on.
    pub fn go(&self) {
        std::fs::write(self.go_on(), "").expect("a file");
    }

    /// The calls whose reads were begun, one line each time.
    pub fn reads(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.witness()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// The device's program, or the slow one of its examples.
pub struct DeviceProcess {
    /// The process.
    pub process: Process,
    state: TempDir,
}

impl DeviceProcess {
    /// Starts `devmind-device` with the answer to every confirmation given on the command line.
    pub fn start(url: &str, user: &str, workspace: &Path, state: TempDir, more: &[&str]) -> Self {
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        let (workspace, folder) = (text(workspace), text(&state.path().join("device")));
        let mut arguments = vec!["--server", url, "--user", user, "--workspace", &workspace, "--state", &folder];
        arguments.extend(more);
        Self { process: Process::start("devmind-device", &arguments, &[]), state }
    }

    /// Starts the device whose reads leave a trace and wait.
    pub fn start_slow(url: &str, user: &str, workspace: &Path, state: TempDir, traces: &Traces) -> Self {
        let environment = traces.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        Self::start_slow_with(url, user, workspace, state, &environment)
    }

    /// The same with an environment.
    pub fn start_slow_with(
        url: &str,
        user: &str,
        workspace: &Path,
        state: TempDir,
        environment: &[(&str, &str)],
    ) -> Self {
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        let (workspace, folder) = (text(workspace), text(&state.path().join("device")));
        let arguments = ["--server", url, "--user", user, "--workspace", &workspace, "--state", &folder, "--yes"];
        Self { process: Process::start("slow_read_device", &arguments, environment), state }
    }

    /// Waits until it is connected.
    pub async fn connected(&mut self) {
        self.process.line("connected").await;
    }

    /// `kill -9`; answers its state folder.
    pub async fn kill(self) -> TempDir {
        self.process.kill().await.assert_no_panic();
        self.state
    }

    /// SIGTERM and a success; answers what it had said.
    pub async fn finish(self) -> Finished {
        self.process.terminate();
        let finished = self.process.ended().await;
        finished.assert_success();
        finished
    }
}
