//! A mock model server that is not ours (`@copilotkit/aimock` from npm, `tests/peers/aimock`), asked in
//! both dialects: a tool, an approval, a stream that it cuts, and the turn after it. Needs node 20.15
//! or later and npm; says so when it is skipped.

use devmind_api::config::{ModelConfig, Provider};
use devmind_tests::model::API_KEY;
use devmind_tests::peers;
use devmind_tests::sse::interrupts;
use devmind_tests::wait::within_deadline;
use devmind_tests::{Question, TestServer, agui};
use serde_json::json;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The mock on a free port, until it is dropped.
struct Mock {
    url: String,
    _process: Child,
}

impl Mock {
    async fn start(folder: &Path) -> Self {
        let mut command = Command::new("node");
        command
            .args(["node_modules/@copilotkit/aimock/dist/cli.js", "--port", "0", "--fixtures", "fixtures.json"])
            .args(["--strict", "--validate-on-load"])
            .env("AIMOCK_API_KEYS", API_KEY)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn().expect("node runs");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let listening = async {
            while let Some(line) = lines.next_line().await.expect("its output can be read") {
                if let Some((_, url)) = line.split_once("listening on ") {
                    return url.trim().to_owned();
                }
            }
            panic!("the mock ended")
        };
        let url = within_deadline("the mock's address", listening).await;
        // Nobody may close the pipe that it writes its log to.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { url, _process: process }
    }

    fn speaking(&self, provider: Provider) -> ModelConfig {
        let (base_url, api_key) = (Some(format!("{}/v1", self.url)), API_KEY.to_owned());
        ModelConfig { provider, base_url, name: "somebody-elses".to_owned(), api_key, ..ModelConfig::default() }
    }
}

#[tokio::test]
async fn a_model_server_that_is_not_ours_is_driven_through_tools_an_approval_and_a_cut_stream() {
    let Some(folder) = peers::node("aimock").await else { return };
    let mock = Mock::start(&folder).await;
    for provider in [Provider::Openai, Provider::Anthropic] {
        let server = TestServer::start_with(|config| config.model = Some(mock.speaking(provider))).await;
        let ann = server.client("ann");

        // A tool: called, answered, and its result used.
        let (asked, events) = ann.converse(&Question::new("add 20 and 22")).await;
        agui::assert_success(&events);
        assert_eq!(agui::spoken(&events), "20 and 22 make 42.");
        let call = ann.tool_call(&asked).await;
        assert_eq!((&call["status"], &call["arguments"]), (&json!("succeeded"), &json!({ "a": 20, "b": 22 })));
        for answered in server.log().of("ModelResponded").await {
            assert_eq!(answered.payload["served_model"], "somebody-elses");
            assert!(answered.payload["usage"]["output"].is_u64(), "{answered}");
        }

        // An approval, in the same conversation: the run waits, and goes on with the answer.
        let question = Question::new("show me the demo text").within(&asked.conversation_id);
        let (asked, events) = ann.converse(&question).await;
        assert_eq!(agui::spoken(&events), "I will ask for it.");
        let open = interrupts(&events);
        assert_eq!(open.len(), 1, "{events:#?}");
        let reply = ann.answer(&open[0], true).await.ok();
        let events = ann.resume(&asked, reply["run_id"].as_str().expect("a run"), &open).await;
        agui::assert_success(&events);
        assert_eq!(agui::spoken(&events), "That was the demo text.");
        assert_eq!(ann.tool_call(&asked).await["status"], "succeeded");

        // A stream that breaks off: what came is kept, and the next turn works.
        let question = Question::new("tell me a long story").within(&asked.conversation_id);
        let (asked, events) = ann.converse(&question).await;
        assert_eq!(agui::error_code(&events), "MODEL_STREAM_CUT");
        let told = agui::spoken(&events);
        assert!(told.starts_with("Once upon"), "{told:?}");
        let turn = ann.turn(&asked).await;
        assert_eq!((&turn["answer"], &turn["partial"]), (&json!(told), &json!(true)));
        let (_, events) = ann.converse(&Question::new("say hello").within(&asked.conversation_id)).await;
        agui::assert_success(&events);
        assert_eq!(agui::spoken(&events), "Hello from somebody else.");
        server.finish().await;
    }
}
