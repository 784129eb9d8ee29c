//! The pages as documents, over HTTP and without a script: what they show, to whom, and what a browser may do with
//! them. What scripts add is tested in a browser.

use devmind_api::config::TokenUser;
use devmind_api::ids::now;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::{Actor, AggregateType, Metadata, NewEvent, Role, StreamId};
use devmind_domain::thread::{AnswerProgressed, ThreadEvent};
use devmind_ledger::{Append, StreamAppend};
use devmind_tests::sse::interrupts;
use devmind_tests::{Asked, Question, RawDevice, TestServer, eventually, new_id};
use eventsource_stream::Eventsource;
use futures::StreamExt;
use reqwest::header::{HeaderMap, SET_COOKIE};
use std::fmt::Write as _;

/// Bytes of a first paint, at most, as they travel (nothing is compressed).
const FIRST_PAINT_BYTES: usize = 100_000;

/// A browser without scripts.
#[derive(Clone)]
struct Browser {
    http: reqwest::Client,
    base: String,
    headers: Vec<(&'static str, String)>,
}

struct Document {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Document {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.status, 200, "{}", self.text);
        self.text
    }

    /// The addresses of what it loads.
    fn loads(&self) -> Vec<String> {
        let tags =
            self.text.split('<').filter(|tag| ["link ", "script ", "img "].iter().any(|name| tag.starts_with(name)));
        let address = |tag: &str| {
            let (_, rest) = tag.split_once("href=\"").or_else(|| tag.split_once("src=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        tags.filter_map(address).collect()
    }
}

impl Browser {
    /// Of somebody with a name and a role, as their cookie says.
    fn of(server: &TestServer, name: &str) -> Self {
        Self::nobody(server).with("cookie", &format!("devmind-user={name}"))
    }

    fn nobody(server: &TestServer) -> Self {
        drop(server.client("ann"));
        let policy = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().no_proxy().redirect(policy).build().unwrap();
        Self { http, base: server.url(), headers: vec![("accept", "text/html".to_owned())] }
    }

    fn with(&self, name: &'static str, value: &str) -> Self {
        let mut headers: Vec<_> = self.headers.iter().filter(|(known, _)| *known != name).cloned().collect();
        headers.push((name, value.to_owned()));
        Self { headers, ..self.clone() }
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Document {
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Document { status, headers, text: answer.text().await.unwrap() }
    }

    async fn get(&self, path: &str) -> Document {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    /// A form of our own page.
    async fn post(&self, path: &str, form: &str) -> Document {
        let request = self.http.post(format!("{}{path}", self.base)).header("origin", &self.base);
        self.send(request.header("content-type", "application/x-www-form-urlencoded").body(form.to_owned())).await
    }

    async fn upload(&self, bundle: &str) -> Document {
        let body = format!(
            "--b\r\ncontent-disposition: form-data; name=\"bundle\"; filename=\"x.jsonl\"\r\n\r\n{bundle}\r\n--b--\r\n"
        );
        let request = self.http.post(format!("{}/bundles", self.base)).header("origin", &self.base);
        self.send(request.header("content-type", "multipart/form-data; boundary=b").body(body)).await
    }
}

const HOSTILE: &str = "add 1 and 2 <script>alert(1)</script> \u{202e}txt.exe\" onload=\"x";

/// Ann's conversation, and one that waits for her approval.
struct Story {
    server: TestServer,
    asked: Asked,
    waiting: Asked,
    interrupt: String,
}

impl Story {
    async fn tell() -> Self {
        let server = TestServer::start().await;
        let ann = server.client("ann");
        let (asked, _) = ann.converse(&Question::new(HOSTILE)).await;
        let (waiting, events) = ann.converse(&Question::new("the demo text, please")).await;
        Self { interrupt: interrupts(&events).remove(0), server, asked, waiting }
    }

    async fn position(&self, kind: &str) -> u64 {
        self.server.log().of(kind).await[0].position
    }

    /// Every page of ann's.
    async fn pages(&self) -> Vec<String> {
        let (conversation, run) = (&self.asked.conversation_id, &self.asked.run_id);
        let position = self.position("TurnPrepared").await;
        vec![
            "/".to_owned(),
            "/sign-in".to_owned(),
            "/shortcuts".to_owned(),
            "/approvals".to_owned(),
            "/bundles".to_owned(),
            "/operations".to_owned(),
            "/verify".to_owned(),
            "/log".to_owned(),
            format!("/log?conversation_id={conversation}&type=TurnPrepared&actor=&run_id="),
            format!("/log/{position}"),
            format!("/log/{position}?proof=1"),
            format!("/runs/{run}"),
            format!("/runs/{run}?view=events&at={position}"),
            format!("/runs/{run}?view=json"),
            format!("/history/{conversation}"),
            format!("/history/{conversation}?at={position}"),
            format!("/history/{conversation}/changes?from=1"),
        ]
    }
}

#[tokio::test]
async fn every_page_is_a_document_that_loads_and_runs_nothing_but_our_own_files() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let mut pages = story.pages().await;
    pages.extend(["/nothing".to_owned(), "/log/999999".to_owned(), "/runs/x".to_owned(), "/history/x".to_owned()]);
    for page in pages {
        let shown = ann.get(&page).await;
        assert_eq!(shown.header("content-type"), "text/html; charset=utf-8", "{page}: {}", shown.text);
        let policy = shown.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self';"), "{page}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{page}: {policy}");
        assert_eq!(shown.header("x-content-type-options"), "nosniff", "{page}");
        for text in
            ["<!DOCTYPE html>", "<html lang=\"en\">", "<main", "<h1", "<nav aria-label=\"Main\">", "href=\"#main\""]
        {
            assert!(shown.text.contains(text), "{page} has no {text}");
        }
        for inline in [" style=\"", "<style", "javascript:", " onclick=", " onload=\"", "<script>", "<iframe"] {
            assert!(!shown.text.contains(inline), "{page} has {inline}");
        }
        let loads = shown.loads();
        assert!(loads.len() >= 4 && loads.iter().all(|address| address.starts_with("/ui/")), "{page}: {loads:?}");
        for file in loads {
            let file = ann.get(&file).await;
            assert_eq!((file.status, file.header("cache-control")), (200, "public, max-age=31536000, immutable"));
        }
    }
    story.server.finish().await;
}

#[tokio::test]
async fn what_people_wrote_is_shown_as_text_and_turns_nothing_round() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let shown_in =
        |page: &str| page.starts_with("/history/") && !page.contains("changes") || page.contains("view=events");
    for page in story.pages().await {
        let text = ann.get(&page).await.ok();
        assert!(
            !text.contains("<script>alert") && !text.contains('\u{202e}') && !text.contains("\" onload="),
            "{page}"
        );
        if shown_in(&page) {
            assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}: {text}");
        }
    }
    let position = story.position("TurnPrepared").await;
    let event = ann.get(&format!("/log/{position}")).await.ok();
    assert!(event.contains("<span class=\"hidden-character\">U+202E</span>txt.exe"), "{event}");

    let long = format!("add 1 and 2 {}", "y".repeat(31_000));
    let (asked, _) = story.server.client("ann").converse(&Question::new(&long)).await;
    let page = ann.get(&format!("/history/{}", asked.conversation_id)).await.ok();
    assert!(page.len() < 40_000 && page.contains("Read all of it"), "{} bytes", page.len());
    story.server.finish().await;
}

/// Adds facts to the run's thread until it has so many events.
async fn lengthen(server: &TestServer, asked: &Asked, events: usize) {
    let app = server.app();
    let reader = app.ledger.reader();
    let thread = server.log().of("ThreadStarted").await[0].stream_id.clone();
    let stream = StreamId::new(AggregateType::Thread, thread);
    let version = reader.read_stream(&stream, 0).await.unwrap().len() as u64;
    let metadata = Metadata::new(Actor::server(&"test".into()), "test".into())
        .run(&asked.run_id.as_str().into())
        .conversation(&asked.conversation_id.as_str().into());
    let events = (0..events).map(|number| {
        let text = format!("{number} of many words that were streamed before this one, <b>and more</b> of them");
        let event = ThreadEvent::AnswerProgressed(AnswerProgressed {
            run_id: asked.run_id.as_str().into(),
            message_id: "m".into(),
            text,
        });
        NewEvent { event_id: new_id(), event: event.into(), metadata: metadata.clone() }
    });
    let append = StreamAppend { stream, expected_version: version, events: events.collect() };
    app.ledger.append(Append { streams: vec![append], idempotency: None }).await.unwrap();
}

#[tokio::test]
async fn the_first_paint_of_a_timeline_of_a_thousand_events_is_under_100_kb_and_every_event_is_a_page_away() {
    let server = TestServer::start().await;
    let (asked, _) = server.client("ann").converse(&Question::new("add 1 and 2, what time is it?")).await;
    lengthen(&server, &asked, 1_000).await;
    let ann = Browser::of(&server, "ann");
    for view in ["groups", "events", "json"] {
        let page = ann.get(&format!("/runs/{}?view={view}", asked.run_id)).await;
        let mut bytes = page.text.len();
        for file in page.loads() {
            bytes += ann.get(&file).await.text.len();
        }
        assert!(bytes < FIRST_PAINT_BYTES, "{view}: {bytes} bytes");
    }
    let (mut seen, mut number) = (0, 1);
    loop {
        let page = ann.get(&format!("/runs/{}?view=events&page={number}", asked.run_id)).await.ok();
        seen += page.matches("<li class=\"event\"").count();
        if !page.contains("rel=\"next\"") {
            break;
        }
        number += 1;
    }
    let all = ann.get(&format!("/runs/{}/timeline.json", asked.run_id)).await.ok();
    let all: Vec<serde_json::Value> = serde_json::from_str(&all).unwrap();
    assert!(seen == all.len() && seen > 1_000, "{seen} of {}", all.len());
    server.finish().await;
}

#[tokio::test]
async fn who_may_see_a_page_is_who_may_read_its_data_and_an_auditors_look_is_in_the_ledger() {
    let story = Story::tell().await;
    let (conversation, run) = (&story.asked.conversation_id, &story.asked.run_id);
    let position = story.position("TurnPrepared").await;
    let anns = [
        (format!("/runs/{run}"), "run_timeline"),
        (format!("/runs/{run}/timeline.json"), "run_timeline"),
        (format!("/history/{conversation}"), "ledger_state"),
        (format!("/history/{conversation}/changes"), "changes"),
        (format!("/log/{position}"), "ledger_event"),
        (format!("/log?conversation_id={conversation}"), "ledger_events"),
        (format!("/bundles/download?conversation_id={conversation}"), "bundle"),
        (format!("/bundles/download?run_id={run}"), "bundle"),
    ];
    let [bob, carol] = ["bob", "carol:auditor"].map(|name| Browser::of(&story.server, name));
    for (page, what) in &anns {
        assert_eq!(bob.get(page).await.status, 403, "{page}");
        assert_eq!(story.server.log().of("ConversationRead").await.len(), 0, "{page}");
        assert_eq!(Browser::of(&story.server, "ann").get(page).await.status, 200, "{page}");
        let _ = what;
    }
    for (page, what) in &anns {
        let before = story.server.log().of("ConversationRead").await.len();
        assert_eq!(carol.get(page).await.status, 200, "{page}");
        let reads = story.server.log().of("ConversationRead").await;
        let told =
            reads.last().map(|read| (read.payload["by"].as_str().unwrap(), read.payload["what"].as_str().unwrap()));
        assert_eq!((reads.len(), told), (before + 1, Some(("carol", *what))), "{page}");
    }
    let own = bob.get("/log").await.ok();
    assert!(!own.contains("<li class=\"event\""), "another person's events: {own}");
    assert_eq!(bob.get("/approvals?everybody=1").await.status, 403);
    assert!(!bob.get("/approvals").await.ok().contains("demo_text"));
    let everybody = carol.get("/approvals?everybody=1").await.ok();
    assert!(everybody.contains("demo_text") && !everybody.contains("name=\"approved\""), "{everybody}");
    assert_eq!(bob.post("/verify", "").await.status, 403);
    story.server.finish().await;
}

#[tokio::test]
async fn a_token_signs_in_by_a_cookie_that_only_our_own_pages_can_use() {
    let token = "a-token-of-anns";
    let server = TestServer::start_with(|config| {
        let user = |name: &str, token: &str| TokenUser {
            name: name.to_owned(),
            token_sha256: sha256_hex(token.as_bytes()),
            role: Role::User,
            disabled: false,
        };
        config.users = vec![user("ann", token)];
    })
    .await;
    let nobody = Browser::nobody(&server);
    let away = nobody.get("/log?type=RunFailed").await;
    assert_eq!((away.status, away.header("location")), (303, "/sign-in?next=/log%3Ftype%3DRunFailed"));
    assert_eq!(nobody.with("cookie", "devmind-user=ann").get("/log").await.status, 303, "a name is not enough here");
    let wrong = nobody.post("/sign-in", "token=another").await;
    assert!(wrong.status == 401 && wrong.headers.get(SET_COOKIE).is_none(), "{}", wrong.text);

    let signed_in = nobody.post("/sign-in", &format!("token={token}&next=%2F%2Fevil.example")).await;
    assert_eq!((signed_in.status, signed_in.header("location")), (303, "/sign-in?signed_in=1&next=/"));
    let cookies: Vec<_> = signed_in.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap()).collect();
    let cookie = cookies.iter().find(|cookie| cookie.starts_with("devmind-token=")).expect("a cookie");
    assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
    let kept = cookie.split(';').next().unwrap();
    let ann = nobody.with("cookie", kept);
    assert_eq!(ann.get("/sign-in?signed_in=1&next=/log").await.header("location"), "/log");
    assert!(ann.get("/log").await.ok().contains("<bdi>ann</bdi>"));
    assert!(nobody.get("/sign-in?signed_in=1").await.text.contains("did not keep"), "without the cookie");

    // The scripts of our pages use the API with the same cookie; nobody else's page does.
    assert_eq!(ann.get("/api/conversations").await.status, 200);
    let ask = |from: &'static str, origin: String| {
        let body = format!(r#"{{"content":"hello","idempotency_key":"{from}"}}"#);
        ann.send(ann.http.post(format!("{}/api/turns", ann.base)).header(from, origin).body(body))
    };
    assert_eq!(ask("origin", ann.base.clone()).await.status, 200);
    for (name, value) in
        [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "same-site"), ("x-nothing", "")]
    {
        let refused = ask(name, value.to_owned()).await;
        assert!(refused.status == 403 && refused.text.contains("FORBIDDEN"), "{name}: {value}: {}", refused.text);
    }
    let forged = ann.with("sec-fetch-site", "cross-site").post("/sign-out", "").await;
    assert_eq!(forged.status, 403);
    let out = ann.post("/sign-out", "").await;
    let gone = out.headers.get_all(SET_COOKIE).iter().all(|cookie| cookie.to_str().unwrap().contains("Max-Age=0"));
    assert!(out.status == 303 && gone, "{:?}", out.headers);
    let log = server.log().all().await;
    assert!(log.iter().all(|fact| !fact.text.contains(token)), "the token is in no event");
    server.finish().await;
}

#[tokio::test]
async fn a_page_of_the_past_shows_nothing_later_and_nothing_that_acts() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let (claimed, ended) = (story.position("RunClaimed").await, story.position("RunSucceeded").await);
    let (run, conversation) = (&story.asked.run_id, &story.asked.conversation_id);
    for page in [format!("/runs/{run}"), format!("/history/{conversation}")] {
        let then = ann.get(&format!("{page}?at={claimed}")).await.ok();
        assert!(then.contains(&format!("as it was after event {claimed}")) && then.contains("> running<"), "{then}");
        assert!(!then.contains("method=\"post\"") && !then.contains(&format!("/log/{ended}\"")), "{then}");
        assert!(!then.contains("> completed<") && !then.contains("> succeeded<"), "{then}");
        let on =
            then.split("data-travel=\"on\"").next().and_then(|before| before.rsplit("at=").next()).unwrap_or_default();
        assert_eq!(on.split('"').next(), Some((claimed + 1).to_string().as_str()), "the next fact is a step away");
        let now = ann.get(&page).await.ok();
        assert!(now.contains("> completed<") && !now.contains("You see the past"), "{now}");
    }
    let beyond = ann.get(&format!("/history/{conversation}?at=99999")).await;
    assert!(beyond.status == 404 && beyond.text.contains("the log has no event 99999 yet"), "{}", beyond.text);
    let changed = ann.get(&format!("/history/{conversation}/changes?from={claimed}&to={ended}")).await.ok();
    assert!(
        changed.contains("<strong>Turn 1</strong>")
            && changed.contains("<del><bdi>running</bdi></del>")
            && changed.contains("<ins><bdi>completed</bdi></ins>"),
        "{changed}"
    );
    story.server.finish().await;
}

#[tokio::test]
async fn an_approval_is_answered_from_the_inbox_by_its_owner_once_whatever_is_pressed_again() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let inbox = ann.get("/approvals").await.ok();
    assert!(inbox.contains("demo_text") && inbox.contains(&story.interrupt), "{inbox}");
    let form = format!("interrupt_id={}&approved=", story.interrupt);
    for other in ["bob", "carol:auditor", "olga:operator"] {
        let refused = Browser::of(&story.server, other).post("/approvals", &format!("{form}true")).await;
        assert_eq!(refused.status, 403, "{other}");
    }
    let answered = ann.post("/approvals", &format!("{form}true")).await;
    let place = format!("/conversations/{}", story.waiting.conversation_id);
    assert_eq!((answered.status, answered.header("location")), (303, place.as_str()));
    assert_eq!(ann.post("/approvals", &format!("{form}true")).await.status, 303, "the same again");
    assert_eq!(ann.post("/approvals", &format!("{form}false")).await.status, 409, "the opposite");
    assert_eq!(story.server.log().of("InterruptResolved").await.len(), 1);
    assert!(ann.get("/approvals").await.ok().contains("Nothing waits"));
    story.server.finish().await;
}

#[tokio::test]
async fn following_the_log_gives_the_lines_of_the_page_and_after_a_break_neither_gap_nor_repeat() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let page = ann.get("/log?after=0").await.ok();
    let follow = |last: Option<&str>| {
        let mut request = ann.http.get(format!("{}/log/stream?after=0", ann.base)).header("cookie", "devmind-user=ann");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        async move { request.send().await.unwrap().bytes_stream().eventsource() }
    };
    let frames: Vec<_> = follow(None).await.take(8).map(|frame| frame.unwrap()).collect().await;
    for frame in &frames {
        assert!(page.contains(&frame.data), "the page has not: {}", frame.data);
    }
    let mut again = follow(Some(&frames[3].id)).await;
    let next = again.next().await.unwrap().unwrap();
    assert_eq!(next.id, frames[4].id);
    let head = story.server.log().all().await.len();
    story.server.client("ann").ask(&Question::new("something new")).await;
    let new = loop {
        let frame = again.next().await.unwrap().unwrap();
        if frame.id.parse::<usize>().unwrap() > head {
            break frame;
        }
    };
    assert!(new.data.contains("something new"), "{}", new.data);
    drop(again);
    story.server.finish().await;
}

#[tokio::test]
async fn a_verification_from_the_page_holds_and_names_the_first_bad_position_of_a_log_that_was_changed() {
    let story = Story::tell().await;
    let carol = Browser::of(&story.server, "carol:auditor");
    let verified = async || {
        let begun = carol.post("/verify", "").await;
        assert_eq!((begun.status, begun.header("location")), (303, "/verify"));
        eventually("the verification ends", async || {
            let page = carol.get("/verify").await.ok();
            if page.contains("data-running") { Err(page) } else { Ok(page) }
        })
        .await
    };
    assert!(verified().await.contains("everything holds"));
    let position = story.position("TurnPrepared").await;
    let app = story.server.app();
    drop(app.checkpoints.publish(now()).await);
    let mut change = String::from("DROP TRIGGER events_no_update;");
    let _ = write!(change, "UPDATE events SET payload = replace(payload, 'add', 'sub') WHERE position = {position}");
    story.server.change_ledger(&change).await;
    let found = verified().await;
    assert!(found.contains("The first bad position is"), "{found}");
    assert!(found.contains(&format!("<a href=\"/log/{position}\">{position}</a>")), "{found}");
    // As it was: the end of a test checks the log, too.
    let trigger = include_str!("../../migrations/sqlite/ledger/0002_redaction.sql");
    let (_, trigger) = trigger.split_once("CREATE TRIGGER events_no_update").expect("the trigger");
    let trigger = trigger.split_once("END;").expect("its end").0;
    let mend = format!(
        "UPDATE events SET payload = replace(payload, 'sub', 'add') WHERE position = {position}; \
         CREATE TRIGGER events_no_update {trigger} END;"
    );
    story.server.change_ledger(&mend).await;
    story.server.finish().await;
}

#[tokio::test]
async fn a_bundle_goes_out_and_comes_back_verified_and_is_never_written_to_the_log() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let sent = ann.get(&format!("/bundles/download?conversation_id={}", story.asked.conversation_id)).await;
    assert!(
        sent.header("content-disposition").starts_with("attachment; filename=\"conversation-"),
        "{:?}",
        sent.headers
    );
    let bundle = sent.ok();
    let before = story.server.log().all().await.len();
    let shown = ann.upload(&bundle).await.ok();
    assert!(shown.contains("everything holds") && shown.contains("signed by the key of this server"), "{shown}");
    assert!(!shown.contains("href=\"/log/"), "what stands elsewhere leads nowhere in this log: {shown}");
    assert!(shown.contains("asked question 1") && !shown.contains("<script>alert"), "{shown}");
    let changed = ann.upload(&bundle.replacen("add 1 and 2", "sub 1 and 2", 1)).await.ok();
    assert!(changed.contains("does not hold") && changed.contains("The first bad position is"), "{changed}");
    let cut = ann.upload(&bundle[..bundle.len() / 2]).await.ok();
    assert!(cut.contains("This is no sound bundle") && cut.contains("line "), "{cut}");
    assert_eq!(ann.upload("").await.status, 422);
    assert_eq!(story.server.log().all().await.len(), before, "nothing was written");
    story.server.finish().await;
}

#[tokio::test]
async fn operations_show_views_devices_and_calls_without_an_outcome_each_to_those_who_may_know() {
    let story = Story::tell().await;
    let device = RawDevice::new(story.server.address()).online(&story.server.client("ann")).await;
    let page = async |who: &str| Browser::of(&story.server, who).get("/operations").await.ok();
    let id = story.server.client("ann").devices().await[0]["device_id"].as_str().unwrap().to_owned();
    for (who, knows) in [("ann", true), ("bob", false), ("olga:operator", true)] {
        let shown = page(who).await;
        assert_eq!(shown.contains(&id), knows, "{who}");
        assert_eq!(shown.contains("demo_text"), knows, "{who}: a call that waits");
        assert!(shown.contains("up to date") && shown.contains("conversation"), "{shown}");
    }
    assert_eq!(story.server.log().of("DeviceRead").await.len(), 1, "the operator's look");
    device.close().await;
    story.server.finish().await;
}
