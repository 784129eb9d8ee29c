//! A device for tests that kill it: all of the production code, and a `workspace.read_file`, which a person is asked
//! about, and a `workspace.list_files`, which nobody is asked about, that leave a trace and wait.
//!
//! When one is executed, its call's id is appended to the file `DEVMIND_TEST_WITNESS` and flushed
//! to the disk (one line per execution, whatever the program under test says), `executing ID` is
//! written to `DEVMIND_TEST_EXECUTING`, and it goes on when `DEVMIND_TEST_GO_ON` exists.
//! Everything else is `devmind-device`.

use devmind_device::tools::{Execution, ListFiles, LocalTool, Prepared, ReadFile, Subject, ToolFailure, all};
use devmind_device::workspace::Workspace;
use devmind_domain::ErrorCode;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How often what waits looks for the file to go on.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The files that a test and this program share.
#[derive(Clone)]
struct Traces {
    witness: PathBuf,
    executing: PathBuf,
    go_on: PathBuf,
}

impl Traces {
    fn from_environment() -> Option<Self> {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Some(Self {
            witness: path("DEVMIND_TEST_WITNESS")?,
            executing: path("DEVMIND_TEST_EXECUTING")?,
            go_on: path("DEVMIND_TEST_GO_ON")?,
        })
    }

    fn leave(&self, call: &str) -> io::Result<()> {
        let mut witness = OpenOptions::new().append(true).create(true).open(&self.witness)?;
        writeln!(witness, "{call}")?;
        witness.sync_all()?;
        // Renamed into place: whoever sees the file sees all of it.
        let fresh = self.executing.with_extension("new");
        let mut executing = File::create(&fresh)?;
        write!(executing, "executing {call}")?;
        executing.sync_all()?;
        std::fs::rename(&fresh, &self.executing)
    }
}

/// A tool that leaves a trace and waits.
struct Slow(Arc<dyn LocalTool>, Traces);

impl LocalTool for Slow {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let inner = self.0.prepare(workspace, arguments)?;
        Ok(Box::new(SlowRun { traces: self.1.clone(), inner }))
    }
}

struct SlowRun {
    traces: Traces,
    inner: Box<dyn Prepared>,
}

impl Prepared for SlowRun {
    fn subject(&self) -> Option<Subject> {
        self.inner.subject()
    }
    fn is_unchanged(&self) -> bool {
        self.inner.is_unchanged()
    }
    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        let left = self.traces.leave(execution.tool_call_id.as_str());
        left.map_err(|error| ToolFailure::new(ErrorCode::IoError, error.to_string()))?;
        while !self.traces.go_on.exists() {
            execution.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        self.inner.run(execution)
    }
}

fn main() -> ExitCode {
    let Some(traces) = Traces::from_environment() else {
        eprintln!("set DEVMIND_TEST_WITNESS, DEVMIND_TEST_EXECUTING and DEVMIND_TEST_GO_ON");
        return ExitCode::from(2);
    };
    let slow = [ReadFile.name(), ListFiles.name()];
    let tools = all().into_iter().map(|tool| match slow.contains(&tool.name()) {
        true => Arc::new(Slow(tool, traces.clone())),
        false => tool,
    });
    devmind_device::cli::main(tools.collect())
}
