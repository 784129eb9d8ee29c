//! `devmind demo`: the whole story in one process, and an exit code that means it.

use devmind_tests::model::API_KEY;
use devmind_tests::{Data, Finished, ModelEndpoint, Process, Reply, workspace};

async fn demo(arguments: &[&str], environment: &[(&str, &str)]) -> (Data, Finished) {
    let (data, folder) = (Data::sqlite(), workspace());
    let (ledger, workspace) = (data.path().to_str().unwrap(), folder.path().to_str().unwrap());
    let arguments = [&["demo", "--workspace", workspace, "--data", ledger], arguments].concat();
    let finished = Process::run("devmind", &arguments, environment).await;
    finished.assert_no_panic();
    (data, finished)
}

/// What every demo prints, whatever became of the call.
fn assert_report(finished: &Finished) {
    for part in [
        "demo model",
        "Timeline of run",
        "Conversation view",
        "Tool call view",
        "the log verifies",
        "view conversation rebuilt from the log equals the live one",
        "view tool_call rebuilt from the log equals the live one",
        "run answered",
        "attempt 1",
    ] {
        assert!(finished.stdout.contains(part), "no {part:?}: {finished:#?}");
    }
    assert!(!finished.stdout.contains("FAILED"), "{finished:#?}");
}

#[tokio::test]
async fn with_yes_the_file_is_read_and_everything_holds() {
    let (data, finished) = demo(&["--yes"], &[]).await;
    finished.assert_success();
    assert_report(&finished);
    assert!(finished.stdout.contains("The quick brown fox"), "{finished:#?}");
    assert!(!finished.stdout.contains("the-secret-of-the-fixture"));
    data.check().await;
    let log = data.log().await;
    let results = log.of("ToolResultRecorded").await;
    assert_eq!(results.iter().map(|fact| fact.payload["status"].clone()).collect::<Vec<_>>(), ["succeeded"; 2]);
}

#[tokio::test]
async fn with_no_the_refusal_travels_to_the_model_and_everything_holds() {
    let (data, finished) = demo(&["--no"], &[]).await;
    finished.assert_success();
    assert_report(&finished);
    for part in ["rejected", "CONFIRMATION_REJECTED"] {
        assert!(finished.stdout.contains(part), "no {part:?}: {finished:#?}");
    }
    assert!(!finished.stdout.contains("The quick brown fox"), "{finished:#?}");
    data.check().await;
}

#[tokio::test]
async fn without_an_answer_and_without_a_terminal_nothing_is_read() {
    let (data, finished) = demo(&[], &[]).await;
    finished.assert_success();
    assert_report(&finished);
    assert!(!finished.stdout.contains("The quick brown fox"), "{finished:#?}");
    data.check().await;
    let results = data.log().await.of("ToolResultRecorded").await;
    assert_eq!(
        results.iter().map(|fact| fact.payload["status"].clone()).collect::<Vec<_>>(),
        ["succeeded", "rejected"]
    );
}

#[tokio::test]
async fn another_question_is_asked_of_the_same_tools() {
    let (data, finished) = demo(&["--yes", "--question", "read src/main.rs and add 20 and 22"], &[]).await;
    finished.assert_success();
    for part in ["fn main()", "20 + 22 = 42."] {
        assert!(finished.stdout.contains(part), "no {part:?}: {finished:#?}");
    }
    data.check().await;
}

#[tokio::test]
async fn a_real_models_answer_is_streamed_and_its_key_is_nowhere() {
    let endpoint = ModelEndpoint::start([Reply::say("Hello from a real model.")]).await;
    let url = endpoint.url();
    let environment = [("MODEL_BASE_URL", url.as_str()), ("MODEL_NAME", "scripted"), ("MODEL_API_KEY", API_KEY)];
    let (data, finished) = demo(&["--yes", "--question", "hello"], &environment).await;
    finished.assert_success();
    assert!(finished.stdout.contains("Hello from a real model."), "{finished:#?}");
    assert!(!format!("{finished:?}").contains(API_KEY));
    assert_eq!(endpoint.keys(), [format!("Bearer {API_KEY}")]);
    data.check().await;
}

#[tokio::test]
async fn a_model_that_fails_is_an_exit_code_of_1_with_log_and_views_in_order() {
    let refusal = r#"{"error":{"message":"bad key","type":"t","param":null,"code":null}}"#;
    let endpoint = ModelEndpoint::start([Reply::Status(401, refusal.to_owned())]).await;
    let url = endpoint.url();
    let environment = [
        ("MODEL_BASE_URL", url.as_str()),
        ("MODEL_NAME", "scripted"),
        ("MODEL_API_KEY", API_KEY),
        ("RUST_LOG", "trace,hyper_util=info"),
    ];
    let (data, finished) = demo(&["--yes"], &environment).await;
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    assert!(finished.stdout.contains("MODEL_AUTH_FAILED"), "{finished:#?}");
    assert!(!format!("{finished:?}").contains(API_KEY), "the key was printed or logged");
    data.check().await;
}

#[tokio::test]
async fn an_approval_that_nobody_answers_is_no_refusal_in_the_ledger() {
    let (data, finished) = demo(&["--question", "the demo text"], &[]).await;
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    assert!(finished.stdout.contains("nobody answered"), "{finished:#?}");
    let log = data.log().await;
    assert!(log.of("InterruptResolved").await.is_empty(), "a person decided who was never there");
    assert_eq!(log.one("InterruptCancelled").await.payload["reason"], "RUN_STOPPED");
    data.check().await;
}
