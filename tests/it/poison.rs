//! An event that ends the process of whoever applies it: the server comes up all the same, says what it lacks,
//! and an operator helps.

use devmind_tests::{Data, KilledServer, Process, Question, ServerProcess, eventually, own_address};
use serde_json::Value;

/// Ends the process before the view of the devices applies anything.
const HOOK: (&str, &str) = ("DEVMIND_KILL_POINT", "apply device before");
/// Attempts at one event.
const ATTEMPTS: u32 = 3;

/// Starts the server until it no longer dies of the event.
async fn server_that_gave_up(data: &Data) -> ServerProcess {
    let folder = data.path().to_str().unwrap().to_owned();
    for _ in 0..ATTEMPTS {
        let environment: Vec<_> =
            [HOOK].into_iter().chain(data.database_url().map(|url| ("DATABASE_URL", url))).collect();
        let mut process = Process::start("devmind", &["--listen", "127.0.0.1:0", "--data", &folder], &environment);
        assert!(process.killed().await, "it outlived the event");
    }
    let server = KilledServer { data: data.clone(), address: own_address() };
    server.start_with(&[HOOK]).await
}

fn device_status(status: &Value) -> &Value {
    status.as_array().unwrap().iter().find(|status| status["name"] == "device").expect("device")
}

/// What the server and the operator's tool say of it, and that everything else goes on.
async fn assert_halted_alone(server: &ServerProcess) {
    server.client("ann").converse(&Question::new("add 1 and 2")).await;
    let answer = reqwest::get(format!("{}/readyz", server.url())).await.unwrap();
    assert_eq!(answer.status(), 503);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "NOT_READY", "{answer}");
    let told = device_status(&answer["error"]["details"]["projections"]);
    assert_eq!((&told["position"], &told["failed"]["position"]), (&0.into(), &1.into()), "{told}");
    assert_eq!((&told["failed"]["attempts"], &told["failed"]["halted"]), (&ATTEMPTS.into(), &true.into()), "{told}");
    assert!(told["failed"]["reason"].as_str().unwrap().contains("the program ended"), "{told}");

    eventually("the others catch up", async || {
        let finished = Process::replay(&server.data, &["--json", "status"]).await;
        assert_eq!(finished.code, Some(1), "{finished:#?}");
        let lines: Vec<Value> = finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (halted, others): (Vec<_>, Vec<_>) = lines.iter().partition(|status| status["name"] == "device");
        assert_eq!(halted[0]["failed"], told["failed"]);
        assert!(others.iter().all(|status| status["failed"].is_null()), "{others:#?}");
        if others.iter().all(|status| status["lag"] == 0) { Ok(()) } else { Err(format!("{others:#?}")) }
    })
    .await;
    let finished = Process::replay(&server.data, &["status"]).await;
    assert!(finished.stdout.contains("device v2 at 0, lag "), "{finished:#?}");
    assert!(finished.stdout.contains("halted at 1 after 3 attempts: the program ended"), "{finished:#?}");
}

async fn replay(data: &Data, arguments: &[&str]) -> devmind_tests::Finished {
    let finished = Process::replay(data, arguments).await;
    finished.assert_no_panic();
    finished
}

#[tokio::test]
async fn b34_an_event_that_ends_the_process_halts_one_view_after_three_starts_and_a_resume_continues_it() {
    let data = Data::new();
    let server = server_that_gave_up(&data).await;
    assert_halted_alone(&server).await;
    let server = server.kill().await;
    let checked = replay(&data, &["rebuild", "--check"]).await;
    let told = "device is right as far as it goes, and stopped";
    assert!(checked.code == Some(1) && checked.stderr.contains(told), "its rows are not all there: {checked:#?}");
    replay(&data, &["projection", "resume", "device"]).await.assert_refused("VALIDATION_FAILED");
    replay(&data, &["projection", "resume", "devices", "--yes"]).await.assert_refused("NOT_FOUND");
    replay(&data, &["projection", "resume", "device", "--yes"]).await.assert_success();
    let server = server.start().await;
    eventually("every view catches up", || async {
        let finished = replay(&data, &["status"]).await;
        let caught_up = finished.code == Some(0) && !finished.stdout.contains("at 0");
        if caught_up { Ok(()) } else { Err(format!("{finished:#?}")) }
    })
    .await;
    server.finish().await;
}

#[tokio::test]
async fn b34_a_skip_needs_the_event_a_reason_and_an_operator_and_is_an_event_that_a_rebuild_repeats() {
    let data = Data::new();
    let server = server_that_gave_up(&data).await;
    assert_halted_alone(&server).await;
    let server = server.kill().await;
    let skip = |position: &'static str| {
        ["projection", "skip", "device", "--position", position, "--reason", "the hook is broken", "--operator", "olga"]
    };
    replay(&data, &skip("1")).await.assert_refused("VALIDATION_FAILED");
    replay(&data, &[&skip("2")[..], &["--yes"]].concat()).await.assert_refused("VALIDATION_FAILED");
    replay(&data, &[&skip("1")[..], &["--yes"]].concat()).await.assert_success();
    replay(&data, &[&skip("1")[..], &["--yes"]].concat()).await.assert_refused("VALIDATION_FAILED");
    let facts = data.log().await.all().await;
    let told: Vec<_> = facts.iter().filter(|fact| fact.is("ProjectionEventSkipped")).collect();
    assert_eq!(told.len(), 1, "recorded once");
    assert_eq!(
        (told[0].payload["position"].as_u64(), &told[0].payload["reason"]),
        (Some(1), &"the hook is broken".into())
    );
    let server = server.start().await;
    // Views that were thrown away pass over it, too; the check at the end compares with a rebuild.
    let server = server.stop().await;
    data.delete_views().await;
    server.start().await.finish().await;
}
