//! The program as a process, on folders of its own.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

/// An example of this package, beside the folder of the test itself. `cargo test` builds it; a run
/// of this one file alone may not have.
pub fn example(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let profile = deps.parent().and_then(Path::parent).unwrap();
    let example = profile.join("examples").join(name);
    if !example.exists() {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--example", name]);
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the example builds");
    }
    example
}

/// The program, with nothing of the tester's own settings.
pub fn program() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_devmind-device")))
}

/// Nothing of the tester's own settings, and no child outlives the test.
pub fn clean(mut command: Command) -> Command {
    for name in ["SERVER", "WORKSPACE", "STATE", "USER", "TOKEN", "CONFIRM", "SANDBOX", "DEVICE_CONFIG"] {
        command.env_remove(format!("DEVMIND_{name}"));
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// A folder with a workspace and a state folder for one device.
pub struct Folders {
    pub folder: tempfile::TempDir,
}

impl Folders {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("ws")).unwrap();
        std::fs::write(folder.path().join("ws/README.md"), "hello\n").unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn device_id(&self) -> String {
        std::fs::read_to_string(self.path("state/device-id")).unwrap()
    }

    pub fn start(&self, command: Command, server: &str) -> Child {
        let mut command = command;
        command.current_dir(self.folder.path()).arg("--server").arg(server);
        command.arg("--workspace").arg(self.path("ws")).arg("--state").arg(self.path("state"));
        command.spawn().unwrap()
    }

    /// A command of the program on these folders, to its end: exit code, stdout, stderr.
    pub async fn command(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.command_with(arguments, "").await
    }

    /// The same with something on its stdin.
    pub async fn command_with(&self, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
        let mut command = program();
        command.current_dir(self.folder.path()).args(arguments).stdin(Stdio::piped());
        command.arg("--workspace").arg(self.path("ws")).arg("--state").arg(self.path("state"));
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that reads nothing may have ended before.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let Output { status, stdout, stderr } = child.wait_with_output().await.unwrap();
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    /// Waits until a file of the folder is there and holds something.
    pub async fn file(&self, name: &str) -> String {
        loop {
            match std::fs::read_to_string(self.path(name)) {
                Ok(text) if !text.is_empty() => return text,
                _ => tokio::task::yield_now().await,
            }
        }
    }

    pub fn slow_reader(&self) -> Command {
        let mut command = clean(Command::new(example("slow_read_device")));
        command
            .arg("--yes")
            // Its traces lie outside the device's folders.
            .env("DEVMIND_SANDBOX", "off")
            .env("DEVMIND_TEST_WITNESS", self.path("witness"))
            .env("DEVMIND_TEST_EXECUTING", self.path("executing"))
            .env("DEVMIND_TEST_GO_ON", self.path("go-on"));
        command
    }
}
