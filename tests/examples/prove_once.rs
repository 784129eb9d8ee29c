//! The demonstration of `devmind-replay prove-once`: a real device is killed (SIGKILL) at every boundary of one tool
//! call, asked about while it is dead, started again, and asked about once more, with the proofs.
//!
//!     cargo build --workspace --bins --examples && cargo run -p devmind-tests --example prove_once
//!
//! It prints what the two sides say and, as a witness that trusts neither, how often the file was really read: a line
//! that the tool itself flushes to the disk. It exits 0 only if they agree at every boundary. The places of the kills
//! are in debug builds alone, so this shows nothing of a release build.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a demonstration fails by panicking")]

use devmind_tests::pair::{self, Pair, Side, Wants};
use devmind_tests::{Finished, Process, eventually};
use std::process::ExitCode;

/// The boundaries: where the device is killed, in words and as the place in its code, and what the server's log and
/// the device's journal must prove while it is dead and after its restart. Who was killed before it accepted is asked
/// anew; what was accepted and not begun is settled as cancelled, and what was begun is never begun again.
const BOUNDARIES: &[(&str, &str, &str, &str)] = &[
    ("before it accepts the call", "perform reserve before", "never executed", "executed once"),
    ("after it accepted the call", "perform reserve after", "never executed", "never executed"),
    ("after it noted that it begins, before the effect", "perform begin after", "unknown", "unknown"),
    ("after the effect, before the journal", "perform execute after", "unknown", "unknown"),
    ("after the journal, before the result is sent", "perform settle after", "executed once", "executed once"),
    ("after the acknowledgement", "note acknowledgement after", "executed once", "executed once"),
];

#[tokio::main]
async fn main() -> ExitCode {
    let mut disagree = 0;
    for (words, point, dead, restarted) in BOUNDARIES {
        println!("== killed {words}");
        if !shown(point, dead, restarted).await {
            println!("  FAILED: expected {dead:?}, then {restarted:?}");
            disagree += 1;
        }
        println!();
    }
    println!("{} boundaries, {disagree} where log, journal and witness disagree", BOUNDARIES.len());
    ExitCode::from(u8::from(disagree > 0))
}

/// Kills a device at a place and asks twice what became of its call; whether it is as expected.
async fn shown(point: &str, dead: &str, restarted: &str) -> bool {
    let mut pair = Pair::new(Wants::Contents);
    pair.start(Side::Device, &[("DEVMIND_KILL_POINT", point)]);
    let client = pair.client();
    let asked = pair::ask(&client, pair.wants, &pair.key, &pair::online_device(&client).await).await;
    let running = {
        let (client, asked) = (client.clone(), asked.clone());
        tokio::spawn(async move { pair::run(&client, Wants::Contents, &asked).await })
    };
    let device = pair.device.as_mut().unwrap();
    let killed = tokio::time::timeout(devmind_tests::DEADLINE, device.killed()).await;
    assert!(matches!(killed, Ok(true)), "the device was not killed at {point}");
    drop(pair.device.take());
    let run_id = asked["run_id"].as_str().unwrap();
    let calls = format!("/api/tool-calls?run_id={run_id}");
    let id = eventually("the call is known", || async {
        let calls = pair::get(&client, &calls).await?;
        calls[0]["tool_call_id"].as_str().map(str::to_owned).ok_or_else(|| calls.to_string())
    })
    .await;
    let reads = |pair: &Pair| pair.traces.reads().iter().filter(|read| **read == id).count();

    let told = prove(&pair, &id).await;
    let read = reads(&pair);
    println!("  while it is dead: {}", told.stdout.lines().next().unwrap_or_default());
    println!("    the file was read {read} times");
    let as_expected = agrees(&told, read, dead);

    pair.start_device(&[]);
    pair::online_device(&client).await;
    running.await.expect("the run is followed");
    pair.settled(run_id).await;
    pair.nothing_left_to_send().await;
    let told = prove(&pair, &id).await;
    let read = reads(&pair);
    println!("  started again:");
    for line in told.stdout.lines() {
        println!("    {line}");
    }
    println!("    the file was read {read} times");
    let as_expected = agrees(&told, read, restarted) && as_expected;
    for process in [pair.device.take(), pair.server.take()].into_iter().flatten() {
        process.terminate();
        process.ended().await.assert_success();
    }
    pair.data.check().await;
    as_expected
}

async fn prove(pair: &Pair, id: &str) -> Finished {
    let journal = pair.journal();
    let arguments = ["prove-once", "--tool-call", id, "--journal", journal.to_str().unwrap()];
    Process::replay(&pair.data, &arguments).await
}

/// Whether the answer is the expected one, with its exit status, and the witness does not contradict it.
fn agrees(told: &Finished, read: usize, expected: &str) -> bool {
    let (code, witnessed) = match expected {
        "executed once" => (0, read == 1),
        "never executed" => (0, read == 0),
        _ => (1, read <= 1),
    };
    told.stdout.starts_with(&format!("{expected}: ")) && told.code == Some(code) && witnessed
}
