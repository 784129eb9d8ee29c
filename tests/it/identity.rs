//! Who may do what: every route of the description, asked by nobody, somebody else, the owner, an
//! auditor and an operator; and what auditors and operators read is in the ledger.

use devmind_api::config::TokenUser;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::Role;
use devmind_tests::contract::operations;
use devmind_tests::sse::interrupts;
use devmind_tests::{Answer, Asked, Client, Fact, Question, RawDevice, TestServer, eventually, new_id};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Who asks, in the order in which they do: those who change nothing first.
const ASKERS: [&str; 5] = ["nobody", "auditor", "somebody else", "operator", "owner"];

fn asker(server: &TestServer, who: &str) -> Client {
    match who {
        "nobody" => server.client("ann").anonymous(),
        "somebody else" => server.client("bob"),
        "auditor" => server.client("carol").role("auditor"),
        "operator" => server.client("olga").role("operator"),
        _ => server.client("ann"),
    }
}

/// What belongs to ann.
struct Anns {
    answered: Asked,
    /// The position of an event of it.
    position: u64,
    tool_call_id: String,
    waiting: Asked,
    interrupt_id: String,
    granted: Asked,
    grant_id: String,
    to_run: Asked,
    to_stop: Asked,
    to_delete: Asked,
}

impl Anns {
    async fn make(ann: &Client) -> Self {
        let (answered, _) = ann.converse(&Question::new("add 1 and 2")).await;
        let call = ann.tool_call(&answered).await;
        let path = format!("/api/ledger/events?conversation_id={}&limit=1", answered.conversation_id);
        let position = ann.get(&path).await.ok()["events"][0]["position"].as_u64().unwrap();
        let (granted, events) = ann.converse(&Question::new("the demo text, please")).await;
        let yes = json!({ "interrupt_id": interrupts(&events).remove(0), "approved": true, "grant": { "scope": "tool" },
            "idempotency_key": new_id() });
        ann.post("/api/runs/resume", &yes).await.ok();
        let grants = format!("/api/conversations/grants?conversation_id={}", granted.conversation_id);
        let grant_id = ann.get(&grants).await.ok()[0]["grant_id"].as_str().unwrap().to_owned();
        let (waiting, events) = ann.converse(&Question::new("the demo text, please")).await;
        Self {
            tool_call_id: call["tool_call_id"].as_str().unwrap().to_owned(),
            answered,
            position,
            waiting,
            interrupt_id: interrupts(&events).remove(0),
            granted,
            grant_id,
            to_run: ann.ask(&Question::new("to run")).await,
            to_stop: ann.ask(&Question::new("to stop")).await,
            to_delete: ann.ask(&Question::new("to delete")).await,
        }
    }
}

/// A request to a route about something of ann's, and the answers to the five.
struct Case {
    route: &'static str,
    query: String,
    body: Option<Value>,
    expect: [(u16, &'static str); 5],
}

const NOBODY: (u16, &str) = (401, "UNAUTHENTICATED");
const READ_ONLY: (u16, &str) = (403, "READ_ONLY_ROLE");
const FORBIDDEN: (u16, &str) = (403, "FORBIDDEN");
const OK: (u16, &str) = (200, "");

fn cases(own: &Anns) -> Vec<Case> {
    let Anns { answered, position, tool_call_id, waiting, interrupt_id, granted, grant_id, to_run, to_stop, to_delete } =
        own;
    let conversation = &answered.conversation_id;
    // What is ann's: the owner, and those who may read everything.
    let read = |route, query: String| Case { route, query, body: None, expect: [NOBODY, OK, FORBIDDEN, OK, OK] };
    // Lists of one's own and what is nobody's in particular: everybody who is somebody.
    let list = |route| Case { route, query: String::new(), body: None, expect: [NOBODY, OK, OK, OK, OK] };
    let open =
        |route, expect: (u16, &'static str)| Case { route, query: String::new(), body: None, expect: [expect; 5] };
    let change = |route, body: Value| Case {
        route,
        query: String::new(),
        body: Some(body),
        expect: [NOBODY, READ_ONLY, FORBIDDEN, FORBIDDEN, OK],
    };
    // What makes something of the asker's own.
    let make = |route, body: Value| Case {
        route,
        query: String::new(),
        body: Some(body),
        expect: [NOBODY, READ_ONLY, OK, OK, OK],
    };
    let key = new_id();
    vec![
        list("get /api/conversations"),
        read("get /api/conversations", "user_id=ann".to_owned()),
        read("get /api/turns", format!("conversation_id={conversation}")),
        read("get /api/tool-calls", format!("conversation_id={conversation}")),
        read("get /api/tool-calls", format!("run_id={}", answered.run_id)),
        read("get /api/tool-calls", format!("tool_call_id={tool_call_id}")),
        read("get /api/runs/events", format!("run_id={}", answered.run_id)),
        Case { query: "q=add".to_owned(), ..list("get /api/conversations/search") },
        read("get /api/conversations/search", "q=add&user_id=ann".to_owned()),
        read("get /api/conversations/grants", format!("conversation_id={}", granted.conversation_id)),
        list("get /api/usage"),
        read("get /api/usage", "user_id=ann".to_owned()),
        Case { expect: [NOBODY, OK, FORBIDDEN, OK, FORBIDDEN], ..read("get /api/usage", "everybody=true".to_owned()) },
        list("get /api/devices"),
        read("get /api/devices", "user_id=ann".to_owned()),
        list("get /api/ledger/events"),
        read("get /api/ledger/events", format!("conversation_id={conversation}")),
        read("get /api/ledger/events", format!("run_id={}", answered.run_id)),
        // Of these, streams that end at once.
        Case { query: "until=0".to_owned(), ..list("get /api/ledger/stream") },
        read("get /api/ledger/stream", format!("until=0&conversation_id={conversation}")),
        read("get /api/ledger/stream", format!("until=0&run_id={}", answered.run_id)),
        read("get /api/ledger/state", format!("conversation_id={conversation}&at={position}")),
        list("get /api/ledger/checkpoint"),
        Case { query: "from=1".to_owned(), ..list("get /api/ledger/consistency") },
        read("get /api/ledger/proof", format!("position={position}")),
        // The start of the server is nobody's in particular, and for those who read everything.
        Case {
            expect: [NOBODY, OK, FORBIDDEN, OK, FORBIDDEN],
            ..read("get /api/ledger/proof", "position=1".to_owned())
        },
        make("post /api/turns", json!({ "content": "hello", "idempotency_key": key })),
        change(
            "post /api/turns",
            json!({ "content": "hello", "idempotency_key": new_id(), "conversation_id": conversation }),
        ),
        change("post /api/turns/rerun", json!({ "turn_id": to_delete.turn_id, "idempotency_key": new_id() })),
        change("post /api/conversations/rename", json!({ "conversation_id": conversation, "title": "mine" })),
        change("post /api/conversations/delete", json!({ "conversation_id": to_delete.conversation_id })),
        change(
            "post /api/conversations/grants/revoke",
            json!({ "conversation_id": granted.conversation_id, "grant_id": grant_id }),
        ),
        change("post /api/runs/stop", json!({ "run_id": to_stop.run_id })),
        change("post /api/agent", to_run.input()),
        change(
            "post /api/runs/resume",
            json!({ "interrupt_id": interrupt_id, "approved": false, "idempotency_key": new_id() }),
        ),
        // A client's thread is a conversation of its own user: nobody reaches another's by naming it.
        make(
            "post /api/agui",
            json!({
                "threadId": waiting.turn_id, "runId": "r", "messages": [{ "id": "m", "role": "user", "content": "hello" }],
            }),
        ),
        make("post /api/desktop/connection-ticket", json!({ "device_id": "laptop" })),
        Case {
            // The run has no device: an outcome, as a model would get it.
            expect: [NOBODY, READ_ONLY, FORBIDDEN, FORBIDDEN, (200, "DESKTOP_DEVICE_NOT_SELECTED")],
            ..change(
                "post /api/desktop/dev/tool-calls",
                json!({ "run_id": answered.run_id, "tool_name": "workspace.list_files", "arguments": {} }),
            )
        },
        open("get /api/desktop/ws", (400, "PROTOCOL_ERROR")),
        open("get /healthz", OK),
        open("get /readyz", OK),
        open("get /metrics", OK),
        open("get /openapi.json", OK),
    ]
}

async fn ask(client: &Client, case: &Case) -> Answer {
    let (method, path) = case.route.split_once(' ').unwrap();
    let separator = if case.query.is_empty() { "" } else { "?" };
    let path = format!("{path}{separator}{}", case.query);
    match &case.body {
        Some(body) => client.post(&path, body).await,
        None => {
            assert_eq!(method, "get");
            client.get(&path).await
        }
    }
}

#[tokio::test]
async fn every_route_answers_everybody_as_their_role_says() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let anns = Anns::make(&ann).await;
    let cases = cases(&anns);
    let routes: BTreeSet<_> = operations().map(|(path, method, _)| format!("{method} {path}")).collect();
    let tried: BTreeSet<_> = cases.iter().map(|case| case.route.to_owned()).collect();
    assert_eq!(tried, routes, "every route is tried");

    let before = ann.everything().await;
    for (index, who) in ASKERS.iter().enumerate() {
        let client = asker(&server, who);
        if *who == "owner" {
            assert_eq!(ann.everything().await, before, "others changed something of ann's");
        }
        for case in &cases {
            let answer = ask(&client, case).await;
            let code = answer.body["error"]["code"].as_str().unwrap_or_default();
            let what = format!("{who}: {} {}: {}", case.route, case.query, answer.body);
            assert_eq!((answer.status, code), case.expect[index], "{what}");
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_role_is_checked_before_a_body_is_read_and_an_identity_before_a_query() {
    let server = TestServer::start().await;
    let (nobody, auditor) = (asker(&server, "nobody"), asker(&server, "auditor"));
    for (path, method, operation) in operations() {
        if operation.get("security").is_some() {
            continue;
        }
        if method == "post" {
            assert_eq!(auditor.post_text(path, "{".to_owned()).await.refused(), READ_ONLY, "{path}");
            assert_eq!(nobody.post_text(path, "{".to_owned()).await.refused(), NOBODY, "{path}");
        } else {
            assert_eq!(nobody.get(&format!("{path}?nonsense=1")).await.refused(), NOBODY, "{path}");
            let answer = auditor.get(&format!("{path}?nonsense=1")).await;
            assert_eq!(answer.refused(), (422, "VALIDATION_FAILED"), "{path}");
            assert_eq!(answer.body["error"]["details"]["field"], "nonsense", "{path}");
        }
    }
    assert_eq!(server.log().all().await.len(), 1, "nothing was changed, and nothing was read");
    server.finish().await;
}

/// Who read what of which stream.
fn reads(facts: &[Fact]) -> Vec<(String, String, String, String)> {
    let is_read = |fact: &&Fact| fact.is("ConversationRead") || fact.is("DeviceRead");
    let text = |fact: &Fact, field: &str| fact.payload[field].as_str().unwrap().to_owned();
    let told = |fact: &Fact| (text(fact, "by"), text(fact, "role"), text(fact, "what"), fact.stream_id.clone());
    facts.iter().filter(is_read).map(told).collect()
}

#[tokio::test]
async fn what_an_auditor_or_an_operator_reads_of_others_is_in_the_ledger_and_what_is_their_own_is_not() {
    let server = TestServer::start().await;
    let (ann, auditor, operator) = (asker(&server, "owner"), asker(&server, "auditor"), asker(&server, "operator"));
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let (own, _) = operator.converse(&Question::new("hello")).await;
    let device = RawDevice::new(server.address()).online(&ann).await;
    let call_id = ann.tool_call(&asked).await["tool_call_id"].as_str().unwrap().to_owned();

    for client in [&ann, &operator] {
        let asked = if std::ptr::eq(client, &ann) { &asked } else { &own };
        client.turns(&asked.conversation_id).await;
        client.everything().await;
        client.get(&format!("/api/runs/events?run_id={}", asked.run_id)).await.ok();
        client.get(&format!("/api/ledger/events?conversation_id={}", asked.conversation_id)).await.ok();
    }
    assert_eq!(reads(&server.log().all().await), [], "nobody has read what belongs to others");

    let conversation = asked.conversation_id.clone();
    let position = server.log().of("TurnPrepared").await[0].position;
    for (path, what) in [
        ("/api/conversations?user_id=ann".to_owned(), "conversations"),
        ("/api/conversations/search?q=add&user_id=ann".to_owned(), "search"),
        (format!("/api/turns?conversation_id={conversation}"), "turns"),
        (format!("/api/tool-calls?conversation_id={conversation}"), "tool_calls"),
        (format!("/api/tool-calls?run_id={}", asked.run_id), "tool_calls"),
        (format!("/api/tool-calls?tool_call_id={call_id}"), "tool_calls"),
        (format!("/api/runs/events?run_id={}", asked.run_id), "run_events"),
        (format!("/api/ledger/events?run_id={}", asked.run_id), "ledger_events"),
        (format!("/api/ledger/state?conversation_id={conversation}"), "ledger_state"),
        (format!("/api/ledger/proof?position={position}"), "ledger_proof"),
    ] {
        for (client, by, role) in [(&auditor, "carol", "auditor"), (&operator, "olga", "operator")] {
            let before = server.log().head().await;
            assert_eq!(client.get(&path).await.status, 200, "{path}");
            let facts: Vec<_> = server.log().all().await.into_iter().filter(|fact| fact.position > before).collect();
            let expected = (by.to_owned(), role.to_owned(), what.to_owned(), conversation.clone());
            assert_eq!(reads(&facts), [expected], "{path}");
            assert_eq!(facts[0].metadata["actor"], json!({ "kind": "user", "id": by }), "{path}");
        }
    }
    let devices = auditor.get("/api/devices?user_id=ann").await.ok();
    assert_eq!(devices.as_array().unwrap().len(), 1);
    let read = server.log().one("DeviceRead").await;
    assert_eq!((read.payload["by"].as_str(), read.stream_id.starts_with("ann/")), (Some("carol"), true), "{read}");
    // The owner sees who read, where the log is read.
    let page = ann.get(&format!("/api/ledger/events?conversation_id={conversation}&type=ConversationRead")).await.ok();
    assert_eq!(page["events"].as_array().unwrap().len(), 20);
    device.close().await;
    server.finish().await;
}

#[tokio::test]
async fn an_auditor_reads_the_whole_ledger_to_its_head_however_small_the_pages() {
    let server = TestServer::start().await;
    let mut conversations = BTreeSet::new();
    for user in ["ann", "bob"] {
        for question in ["add 1 and 2", "to delete"] {
            let asked = server.client(user).ask(&Question::new(question)).await;
            conversations.insert(asked.conversation_id.clone());
            if question == "to delete" {
                let body = json!({ "conversation_id": asked.conversation_id });
                server.client(user).post("/api/conversations/delete", &body).await.ok();
            }
        }
    }
    let facts = server.log().all().await;
    let auditor = asker(&server, "auditor");
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = auditor.get(&format!("/api/ledger/events?after={after}&limit=2")).await.ok();
        seen.extend(page["events"].as_array().unwrap().iter().map(|event| event["position"].as_u64().unwrap()));
        after = page["next_after"].as_u64().unwrap();
        if page["at_head"] == true {
            break;
        }
        // Reading moves the head; the records of reads must not make more of them, or there were no end.
        assert!(seen.len() < 10 * facts.len(), "no end after {} of {} events", seen.len(), facts.len());
    }
    assert!(seen.windows(2).all(|two| two[0] + 1 == two[1]), "an event was left out or came twice: {seen:?}");
    assert!(seen.len() >= facts.len());
    let mut by_conversation: BTreeMap<_, usize> = BTreeMap::new();
    for (_, _, what, stream) in reads(&server.log().all().await) {
        assert_eq!(what, "ledger_events");
        *by_conversation.entry(stream).or_default() += 1;
    }
    assert_eq!(by_conversation.keys().cloned().collect::<BTreeSet<_>>(), conversations, "also deleted ones");
    // A deleted conversation is gone for its owner, and still there for those who may read the log.
    let deleted = facts.iter().find(|fact| fact.is("ConversationDeleted")).unwrap();
    let path = format!("/api/ledger/events?conversation_id={}", deleted.stream_id);
    assert_eq!(server.client("ann").get(&path).await.refused(), (404, "CONVERSATION_NOT_FOUND"));
    assert!(!auditor.get(&path).await.ok()["events"].as_array().unwrap().is_empty());
    server.finish().await;
}

#[tokio::test]
async fn a_token_is_its_persons_role_and_a_disabled_or_unknown_one_is_nobodys() {
    let user = |name: &str, role: Role, disabled: bool| TokenUser {
        name: name.to_owned(),
        token_sha256: sha256_hex(format!("{name}-secret").as_bytes()),
        role,
        disabled,
    };
    let server = TestServer::start_with(|config| {
        // On, so that what is shown is that a token wins and not that the headers are off.
        config.development = Some(true);
        config.users =
            vec![user("ann", Role::User, false), user("carol", Role::Auditor, false), user("eve", Role::Auditor, true)];
    })
    .await;
    let (asked, _) = server.client("ann").converse(&Question::new("hello")).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let call = async |token: &str, method: Method, path: &str| {
        let request = http.request(method, format!("{}{path}", server.url())).bearer_auth(token);
        // The development headers beside a token count for nothing.
        let answer =
            request.header("x-dev-user", "ann").header("x-dev-role", "operator").body("{}").send().await.unwrap();
        let (status, body) = (answer.status().as_u16(), answer.text().await.unwrap());
        let body: Value = serde_json::from_str(&body).unwrap();
        (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    let turns = format!("/api/turns?conversation_id={}", asked.conversation_id);
    let expect = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(call("ann-secret", Method::GET, &turns).await, expect(200, ""));
    assert_eq!(call("ann-secret", Method::GET, "/api/devices?user_id=bob").await, expect(403, "FORBIDDEN"));
    assert_eq!(call("ann-secret", Method::POST, "/api/turns").await, expect(422, "VALIDATION_FAILED"));
    assert_eq!(call("carol-secret", Method::GET, &turns).await, expect(200, ""));
    assert_eq!(call("carol-secret", Method::POST, "/api/turns").await, expect(403, "READ_ONLY_ROLE"));
    for token in ["eve-secret", "wrong", "", &user("ann", Role::User, false).token_sha256] {
        assert_eq!(call(token, Method::GET, &turns).await, expect(401, "UNAUTHENTICATED"), "{token}");
    }
    assert_eq!(reads(&server.log().all().await).len(), 1);
    server.finish().await;
}

#[tokio::test]
async fn a_person_has_six_streams_open_and_room_for_another_when_one_is_closed() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.client("ann"), server.client("bob"));
    // Streams of runs that nobody claims stay open.
    let (of_ann, of_bob) = (ann.ask(&Question::new("hello")).await, bob.ask(&Question::new("hello")).await);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let open = async |user: &str, asked: &Asked| {
        let url = format!("{}/api/runs/events?run_id={}", server.url(), asked.run_id);
        http.get(url).header("x-dev-user", user).send().await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..6 {
        streams.push(open("ann", &of_ann).await);
    }
    assert!(streams.iter().all(|stream| stream.status() == 200));
    let path = format!("/api/runs/events?run_id={}", of_ann.run_id);
    assert_eq!(ann.get(&path).await.refused(), (429, "RATE_LIMITED"));
    assert_eq!(open("bob", &of_bob).await.status(), 200, "others are not touched");
    drop(streams.pop());
    let again = eventually("room for another stream", || async {
        let stream = open("ann", &of_ann).await;
        if stream.status() == 200 { Ok(stream) } else { Err(stream.status().to_string()) }
    });
    drop((again.await, streams));
    server.finish().await;
}

#[tokio::test]
async fn while_it_stops_the_server_refuses_every_request_of_a_person_and_still_says_that_it_lives() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    server.app().stopping.cancel();
    for (path, method, operation) in operations() {
        if operation.get("security").is_none() {
            let answer = if method == "post" { ann.post(path, &json!({})).await } else { ann.get(path).await };
            assert_eq!(answer.refused(), (503, "SHUTTING_DOWN"), "{method} {path}");
        }
    }
    assert_eq!(ann.get("/readyz").await.refused(), (503, "SHUTTING_DOWN"));
    assert_eq!(ann.get("/healthz").await.status, 200);
    server.finish().await;
}
