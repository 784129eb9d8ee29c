//! One program in the engine, on the calling thread: limits of memory, stack, operations, output and calls.
//! Time is the server's to keep, from outside (`process`).

use crate::limits::{Limits, MAX_MESSAGE_CHARS, OPERATIONS_A_CHECK};
use crate::protocol::{Finished, Start, SubCall, ToProgram};
use rquickjs::{CatchResultExt, CaughtError, Context, Ctx, Exception, Function, Promise, Runtime};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Why a program ended without a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ProgramError {
    /// It threw, or is no JavaScript.
    #[error("{0}")]
    Threw(String),
    /// It waits for a promise that nothing will settle.
    #[error("the program waits for a promise that nothing will settle")]
    NeverFinishes,
    /// It used all its operations.
    #[error("the program ran for too long")]
    OutOfOperations,
    /// It returned or printed too much.
    #[error("the program returned or printed more than {0} bytes")]
    OutputTooLarge(usize),
    /// It called too many tools.
    #[error("the program called more than {0} tools")]
    TooManyCalls(u32),
    /// The server went away, or the engine could not start.
    #[error("the program could not go on: {0}")]
    Broken(String),
}

/// Answers a sub-call.
type Host = dyn FnMut(SubCall) -> std::io::Result<ToProgram>;

/// What the program's functions share.
struct Surroundings {
    limits: Limits,
    calls: Cell<u32>,
    printed: RefCell<String>,
    /// The first limit that was reached: the program ends at once, whatever it catches.
    ended: RefCell<Option<ProgramError>>,
    host: RefCell<Box<Host>>,
}

impl Surroundings {
    fn end(&self, error: ProgramError) {
        self.ended.borrow_mut().get_or_insert(error);
    }

    fn call(&self, tool: String, arguments: String) -> Option<String> {
        if self.ended.borrow().is_some() {
            return None;
        }
        if self.calls.get() >= self.limits.calls {
            self.end(ProgramError::TooManyCalls(self.limits.calls));
            return None;
        }
        self.calls.set(self.calls.get() + 1);
        let answer = (self.host.borrow_mut())(SubCall { tool, arguments });
        let text = answer.and_then(|answer| Ok(serde_json::to_string(&answer)?));
        text.inspect_err(|error| self.end(ProgramError::Broken(error.to_string()))).ok()
    }

    fn print(&self, line: &str) {
        let mut printed = self.printed.borrow_mut();
        if printed.len() + line.len() >= self.limits.output_bytes {
            return self.end(ProgramError::OutputTooLarge(self.limits.output_bytes));
        }
        printed.push_str(line);
        printed.push('\n');
    }
}

/// Runs a program to its end.
///
/// # Errors
/// Why it has no value.
pub fn interpret(
    start: Start,
    host: impl FnMut(SubCall) -> std::io::Result<ToProgram> + 'static,
) -> Result<Finished, ProgramError> {
    let broken = |error: rquickjs::Error| ProgramError::Broken(error.to_string());
    let limits = start.limits;
    let around = Rc::new(Surroundings {
        limits,
        calls: Cell::new(0),
        printed: RefCell::default(),
        ended: RefCell::default(),
        host: RefCell::new(Box::new(host)),
    });
    let runtime = Runtime::new().map_err(broken)?;
    runtime.set_memory_limit(limits.memory_bytes);
    runtime.set_max_stack_size(limits.stack_bytes);
    let (watched, mut checks) = (Rc::clone(&around), 0);
    runtime.set_interrupt_handler(Some(Box::new(move || {
        checks += 1;
        if checks * OPERATIONS_A_CHECK > watched.limits.operations {
            watched.end(ProgramError::OutOfOperations);
        }
        watched.ended.borrow().is_some()
    })));
    let context = Context::full(&runtime).map_err(broken)?;
    let value = context.with(|ctx| evaluate(&ctx, &around, start.source));
    // A limit is the reason, whatever the program made of it.
    if let Some(error) = around.ended.borrow_mut().take() {
        return Err(error);
    }
    let value = value?;
    if value.len() > limits.output_bytes {
        return Err(ProgramError::OutputTooLarge(limits.output_bytes));
    }
    let value = serde_json::from_str(&value).map_err(|error| ProgramError::Broken(error.to_string()))?;
    Ok(Finished { value, printed: around.printed.take() })
}

fn evaluate<'js>(ctx: &Ctx<'js>, around: &Rc<Surroundings>, source: String) -> Result<String, ProgramError> {
    let promise = || {
        let calling = Rc::clone(around);
        let call = Function::new(ctx.clone(), move |ctx: Ctx<'js>, tool: String, arguments: String| {
            calling.call(tool, arguments).ok_or_else(|| Exception::throw_message(&ctx, "the program is over"))
        })?;
        let printing = Rc::clone(around);
        let print = Function::new(ctx.clone(), move |line: String| printing.print(&line))?;
        let prelude: Function = ctx.eval(include_str!("prelude.js"))?;
        prelude.call::<_, Promise>((source, call, print))?.finish::<String>()
    };
    promise().catch(ctx).map_err(|caught| match caught {
        CaughtError::Error(rquickjs::Error::WouldBlock) => ProgramError::NeverFinishes,
        other => ProgramError::Threw(other.to_string().chars().take(MAX_MESSAGE_CHARS).collect()),
    })
}
