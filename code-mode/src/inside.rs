//! The process in which one program runs: a start and answers come on stdin, calls and the end go to stdout.
//! Before the first line of the program it gives up what it does not need: it can open no file and no socket.

use crate::interpreter::{ProgramError, interpret};
use crate::protocol::{Start, ToServer};
use std::io::{BufRead, Error, Lines, StdinLock, Write};

/// Runs one program over stdin and stdout: the whole of a process that [`run`](crate::run) starts.
///
/// # Errors
/// When the other side is gone, or says what is no message.
pub fn serve() -> std::io::Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let start: Start = read(&mut lines)?;
    let end = match give_up(start.limits.memory_bytes) {
        Ok(()) => interpret(start, move |call| {
            write(&ToServer::Call(call))?;
            read(&mut lines)
        }),
        Err(error) => Err(ProgramError::Broken(error.to_string())),
    };
    write(&end.map_or_else(ToServer::Failed, ToServer::Finished))
}

fn read<T: serde::de::DeserializeOwned>(lines: &mut Lines<StdinLock<'_>>) -> std::io::Result<T> {
    let line = lines.next().ok_or_else(|| Error::other("the server is gone"))??;
    Ok(serde_json::from_str(&line)?)
}

fn write(message: &ToServer) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// No descriptor beyond the three that are open, no core file, and no more address space than the program's heap
/// needs beside this process's own.
#[cfg(unix)]
fn give_up(memory_bytes: usize) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    /// The process itself, which may be a whole server's program, and copies of lines, in bytes.
    const OWN_BYTES: u64 = 512 * 1024 * 1024;
    let most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Nofile, most(3))?;
    setrlimit(Resource::Core, most(0))?;
    setrlimit(Resource::As, most(memory_bytes as u64 + OWN_BYTES))?;
    Ok(())
}

#[cfg(not(unix))]
fn give_up(_memory_bytes: usize) -> std::io::Result<()> {
    Ok(())
}
