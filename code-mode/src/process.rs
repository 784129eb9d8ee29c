//! The server's side of one program: starts its process, answers its calls, keeps its time, and kills it.

use crate::interpreter::ProgramError;
use crate::limits::MAX_LINE_BYTES;
use crate::protocol::{Finished, Start, SubCall, ToProgram, ToServer};
use futures::{SinkExt, StreamExt};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};
use tokio_util::sync::CancellationToken;

/// The command of a process that calls [`serve`](crate::serve).
#[derive(Clone, Debug)]
pub struct Program {
    /// The file.
    pub executable: PathBuf,
    /// What it is started with.
    pub arguments: Vec<String>,
}

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The program's own fault.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Its time was over; it was killed.
    #[error("the program ran for more than {0} ms")]
    OutOfTime(u64),
    /// It was told to stop; it was killed.
    #[error("the program was stopped")]
    Stopped,
    /// Its process could not start, or ended without a word.
    #[error("the program's process failed: {0}")]
    Process(String),
}

/// Runs `start` in a process of `program`, which calls [`serve`](crate::serve). `call` answers each sub-call; one that runs when
/// `stop` comes is awaited, its answer is not passed on. When this returns or is dropped, the process is gone.
///
/// # Errors
/// [`Failure`].
pub async fn run<F, A>(program: &Program, start: &Start, stop: &CancellationToken, call: F) -> Result<Finished, Failure>
where
    F: FnMut(SubCall) -> A,
    A: Future<Output = ToProgram>,
{
    // No environment: it may hold the server's secrets. But the server's allocator would take a gibibyte of addresses at
    // once, which is more than the process may have.
    let mut command = Command::new(&program.executable);
    command
        .args(&program.arguments)
        .env_clear()
        .env("MIMALLOC_ARENA_RESERVE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    let end = converse(&mut child, start, stop, call).await;
    child.kill().await.map_err(failed)?;
    end
}

async fn converse<F, A>(
    child: &mut Child,
    start: &Start,
    stop: &CancellationToken,
    mut call: F,
) -> Result<Finished, Failure>
where
    F: FnMut(SubCall) -> A,
    A: Future<Output = ToProgram>,
{
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed("no pipes"));
    };
    let mut to_program = FramedWrite::new(stdin, LinesCodec::new());
    let mut from_program = FramedRead::new(stdout, LinesCodec::new_with_max_length(MAX_LINE_BYTES));
    let mut line = serde_json::to_string(start).map_err(failed)?;
    let mut left = Duration::from_millis(start.limits.run_ms);
    loop {
        let since = Instant::now();
        let exchange = async {
            to_program.send(line).await.map_err(failed)?;
            from_program.next().await.ok_or_else(|| failed("it ended without a word"))?.map_err(failed)
        };
        let said = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Failure::Stopped),
            said = timeout(left, exchange) => said.map_err(|_| Failure::OutOfTime(start.limits.run_ms))??,
        };
        left = left.saturating_sub(since.elapsed());
        match serde_json::from_str(&said).map_err(failed)? {
            ToServer::Finished(finished) => return Ok(finished),
            ToServer::Failed(error) => return Err(error.into()),
            ToServer::Call(sub_call) => line = serde_json::to_string(&call(sub_call).await).map_err(failed)?,
        }
    }
}

fn failed(error: impl ToString) -> Failure {
    Failure::Process(error.to_string())
}
