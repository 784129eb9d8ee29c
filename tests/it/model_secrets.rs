//! The model's key is in the request to the model and nowhere else: not in a log line, an event, an
//! answer, an error or a file, also when the endpoint repeats it and everything is logged.

use devmind_tests::model::API_KEY;
use devmind_tests::{ModelEndpoint, Process, Question, Reply, ServerProcess, agui};
use serde_json::json;

#[tokio::test]
async fn the_key_is_nowhere_but_in_the_request_also_when_the_endpoint_repeats_it() {
    for provider in ["openai", "anthropic"] {
        let said = format!("Incorrect API key provided: {API_KEY}");
        let error = json!({ "type": "error", "error": { "message": said, "type": "invalid_request_error" } });
        let event = format!("event: error\ndata: {error}\n\n");
        let garbage = format!("data: {{\"key\": \"{API_KEY}\"\n\n");
        let endpoint = ModelEndpoint::start([
            Reply::Status(401, error.to_string()),
            Reply::Status(500, format!("<p>{said}</p>")),
            Reply::Busy(429, "0"),
            Reply::stream().raw(&event).end(),
            Reply::stream().raw(&garbage).end(),
            Reply::Status(200, said.clone()),
            Reply::stream().text("half").cut(),
            Reply::say("hello"),
        ])
        .await;
        let url = endpoint.url();
        let server = ServerProcess::start(&[
            ("MODEL_PROVIDER", provider),
            ("MODEL_BASE_URL", &url),
            ("MODEL_NAME", "scripted"),
            ("MODEL_API_KEY", API_KEY),
            ("RUST_LOG", "trace,hyper_util=info"),
        ])
        .await;
        let ann = server.client("ann");
        let mut seen = Vec::new();
        for code in ["MODEL_AUTH_FAILED", "MODEL_REFUSED", "MODEL_STREAM_CUT", "MODEL_UNAVAILABLE", "MODEL_STREAM_CUT"]
        {
            let (_, events) = ann.converse(&Question::new("say hello")).await;
            assert_eq!(agui::error_code(&events), code, "{events:#?}");
            seen.push(json!(events));
        }
        let (_, events) = ann.converse(&Question::new("say hello")).await;
        agui::assert_success(&events);
        assert_eq!(endpoint.keys().len(), 8);
        assert!(endpoint.keys().iter().all(|key| key.ends_with(API_KEY)));
        seen.push(ann.everything().await);
        assert!(!json!(seen).to_string().contains(API_KEY), "the key was answered");

        let data = server.data.clone();
        let ended = server.finish().await;
        let printed = format!("{}{}", ended.stdout, ended.stderr);
        assert!(printed.contains("the model is asked again"), "each retry is logged: {printed}");
        assert!(!printed.contains(API_KEY), "the key was printed or logged");
        for entry in std::fs::read_dir(data.path()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(API_KEY.len()).any(|window| window == API_KEY.as_bytes()), "the key is in a file");
        }
    }
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_without_repeating_the_key() {
    for (variables, wrong) in [
        (&[("MODEL_BASE_URL", "http://127.0.0.1:1/v1"), ("MODEL_API_KEY", "sk-\u{7}secret")][..], "MODEL_API_KEY"),
        (&[("MODEL_BASE_URL", "http://sk-secret@127.0.0.1:1/v1")], "MODEL_BASE_URL"),
        (&[("MODEL_PROVIDER", "azure"), ("MODEL_API_KEY", "sk-secret")], "MODEL_PROVIDER"),
        (&[("MODEL_API_KEY", "sk-secret")], "MODEL_BASE_URL"),
    ] {
        let environment = [variables, &[("MODEL_NAME", "m"), ("RUST_LOG", "trace")]].concat();
        let data = tempfile::tempdir().unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--data", data.path().to_str().unwrap()];
        let ended = Process::run("devmind", &arguments, &environment).await;
        ended.assert_refused("CONFIG_INVALID");
        assert!(ended.stderr.contains(wrong), "{wrong}: {ended:#?}");
        assert!(!format!("{ended:?}").contains("secret"), "{ended:#?}");
    }
}
