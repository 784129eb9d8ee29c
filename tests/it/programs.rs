//! Programs in the real process: what they can do, and that nothing else is harmed by what they must not.

use devmind_code_mode::interpreter::ProgramError;
use devmind_code_mode::{CallError, Failure, Finished, Limits, Program, Start, SubCall, ToProgram, run};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn devmind() -> Program {
    Program { executable: devmind_tests::program("devmind"), arguments: vec!["program".to_owned()] }
}

/// Runs a program whose tool `add` adds, whose tool `echo` gives its arguments back, and which has no other.
async fn run_with(source: &str, limits: Limits) -> (Result<Finished, Failure>, Vec<SubCall>) {
    let (start, mut calls) = (Start { source: source.to_owned(), limits }, Vec::new());
    let end = run(&devmind(), &start, &CancellationToken::new(), |call: SubCall| {
        calls.push(call.clone());
        let arguments: Value = serde_json::from_str(&call.arguments).expect("the program sends JSON");
        let answer = match call.tool.as_str() {
            "add" => ToProgram::Value(json!(arguments["a"].as_i64().zip(arguments["b"].as_i64()).map(|(a, b)| a + b))),
            "echo" => ToProgram::Value(arguments),
            _ => ToProgram::Error(CallError { code: "UNKNOWN_TOOL".into(), message: "there is no such tool".into() }),
        };
        std::future::ready(answer)
    })
    .await;
    (end, calls)
}

async fn value(source: &str) -> Value {
    run_with(source, Limits::default()).await.0.expect(source).value
}

async fn error(source: &str, limits: Limits) -> ProgramError {
    match run_with(source, limits).await.0 {
        Err(Failure::Program(error)) => error,
        other => panic!("{source}: {other:?}"),
    }
}

#[tokio::test]
async fn a_program_calls_tools_in_order_and_returns_what_it_makes_of_them() {
    let source = "let sum = 0;
        for (const n of [1, 2, 3]) sum = await tools.add({ a: sum, b: n });
        console.log('sum', { sum });
        return { sum };";
    let (end, calls) = run_with(source, Limits::default()).await;
    let finished = end.expect("it ends");
    assert_eq!((finished.value, finished.printed.as_str()), (json!({"sum": 6}), "sum {\"sum\":6}\n"));
    let arguments: Vec<_> = calls.iter().map(|call| (call.tool.as_str(), call.arguments.as_str())).collect();
    assert_eq!(arguments, [("add", r#"{"a":0,"b":1}"#), ("add", r#"{"a":1,"b":2}"#), ("add", r#"{"a":3,"b":3}"#)]);
}

#[tokio::test]
async fn a_refused_call_is_an_error_with_its_code_that_the_program_may_catch() {
    assert_eq!(value("try { tools.rm_rf() } catch (e) { return [e.code, e.message] }").await[0], "UNKNOWN_TOOL");
    let uncaught = error("await tools.rm_rf()", Limits::default()).await;
    assert!(matches!(&uncaught, ProgramError::Threw(words) if words.contains("no such tool")), "{uncaught:?}");
}

#[tokio::test]
async fn the_program_gets_the_whole_of_a_large_result() {
    assert_eq!(value("return tools.echo({ text: 'ü'.repeat(1e6) }).text.length").await, 1_000_000);
}

#[tokio::test]
async fn a_program_has_no_files_no_network_and_no_modules() {
    for name in ["require", "process", "fetch", "std", "os", "Deno", "Worker", "XMLHttpRequest", "setTimeout"] {
        assert_eq!(value(&format!("return typeof {name}")).await, "undefined", "{name}");
    }
    for source in ["await import('std')", "await import('/etc/passwd')"] {
        assert!(matches!(error(source, Limits::default()).await, ProgramError::Threw(_)), "{source}");
    }
}

#[tokio::test]
async fn what_a_program_does_to_the_built_ins_changes_nothing_of_what_is_sent_for_it() {
    let source = "JSON.stringify = () => '{\"a\":9,\"b\":9}'; Object.prototype.toJSON = undefined;
        globalThis.String = null; return tools.add({ a: 1, b: 2 })";
    assert_eq!(value(source).await, 3);
}

#[tokio::test]
async fn each_limit_ends_the_program_for_its_own_reason_even_if_the_program_catches_all() {
    let small = Limits { operations: 1_000_000, output_bytes: 1_000, calls: 3, ..Limits::default() };
    let forever = |body: &str| format!("for (;;) {{ try {{ {body} }} catch {{}} }}");
    assert_eq!(error(&forever(""), small).await, ProgramError::OutOfOperations);
    assert_eq!(error("/(a+)+b/.test('a'.repeat(60))", small).await, ProgramError::OutOfOperations);
    assert_eq!(error(&forever("console.log('x'.repeat(99))"), small).await, ProgramError::OutputTooLarge(1_000));
    assert_eq!(error("return 'x'.repeat(1000)", small).await, ProgramError::OutputTooLarge(1_000));
    assert_eq!(error(&forever("tools.echo()"), small).await, ProgramError::TooManyCalls(3));
    assert_eq!(error("await new Promise(() => {})", small).await, ProgramError::NeverFinishes);
    for source in ["(function f() { f() })()", "const a = []; for (;;) a.push('x'.repeat(1e6) + a.length)", "}{"] {
        assert!(matches!(error(source, Limits::default()).await, ProgramError::Threw(_)), "{source}");
    }
}

#[tokio::test]
async fn a_program_inside_one_endless_operation_is_killed_when_its_time_is_over() {
    // No engine looks at its limits in here.
    let source = "Array.prototype.indexOf.call({ length: Number.MAX_SAFE_INTEGER }, 1)";
    let end = run_with(source, Limits { run_ms: 300, ..Limits::default() }).await.0;
    assert!(matches!(end, Err(Failure::OutOfTime(300))), "{end:?}");
}

#[tokio::test]
async fn a_program_that_is_told_to_stop_awaits_its_running_call_and_gets_no_answer() {
    let (stop, mut answered) = (CancellationToken::new(), 0);
    let start = Start { source: "for (;;) tools.echo()".to_owned(), limits: Limits::default() };
    let end = run(&devmind(), &start, &stop, |_| {
        stop.cancel();
        answered += 1;
        std::future::ready(ToProgram::Value(Value::Null))
    })
    .await;
    assert!(matches!(end, Err(Failure::Stopped)), "{end:?}");
    assert_eq!(answered, 1);
}

#[tokio::test]
async fn time_in_which_a_call_is_answered_is_not_the_programs() {
    let start =
        Start { source: "return tools.slow()".to_owned(), limits: Limits { run_ms: 30_000, ..Limits::default() } };
    let end = run(&devmind(), &start, &CancellationToken::new(), |_| async {
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_millis(30_100)).await;
        tokio::time::resume();
        ToProgram::Value(json!("late"))
    })
    .await;
    assert_eq!(end.expect("it goes on").value, "late");
}

#[tokio::test]
async fn a_process_that_cannot_start_or_says_nothing_is_a_failure_with_its_reason() {
    for program in ["/nonexistent/devmind-program", "/bin/true", "/bin/cat"] {
        let start = Start { source: String::new(), limits: Limits::default() };
        let end =
            run(&Program { executable: program.into(), arguments: vec![] }, &start, &CancellationToken::new(), |_| {
                std::future::ready(ToProgram::Value(Value::Null))
            })
            .await;
        assert!(matches!(end, Err(Failure::Process(_))), "{program}: {end:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_process_can_open_nothing_and_has_none_of_the_servers_environment() {
    // The limit of address space is this program's alone, so it tells its process from those of other tests.
    let limits = Limits { memory_bytes: 17_000_000, ..Limits::default() };
    let start = Start { source: "return tools.look()".to_owned(), limits };
    let address_space = (17_000_000 + 512 * 1024 * 1024).to_string();
    let end = run(&devmind(), &start, &CancellationToken::new(), |_| {
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
        let seen = processes.filter_map(|process| {
            let limits = std::fs::read_to_string(process.join("limits")).ok()?;
            let limit = |name: &str| Some(limits.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned());
            let own = limit("Max address space")?.starts_with(&address_space);
            let environment = std::fs::read(process.join("environ")).ok()?;
            own.then(|| json!([limit("Max open files"), limit("Max core file size"), environment]))
        });
        std::future::ready(ToProgram::Value(json!(seen.collect::<Vec<_>>())))
    })
    .await;
    let seen = end.expect("it ends").value;
    let [files, core, environment] = ["/0/0", "/0/1", "/0/2"].map(|at| seen.pointer(at).expect("it is seen"));
    let words = |limit: &Value| limit.as_str().expect("text").split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!((words(files), words(core)), ("3 3 files".to_owned(), "0 0 bytes".to_owned()));
    assert_eq!(environment, &json!(b"MIMALLOC_ARENA_RESERVE=0\0"), "the allocator's, and nothing of the server's");
}
