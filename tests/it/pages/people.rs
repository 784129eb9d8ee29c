//! Who sees what, signs in, decides.

use super::{Browser, Story};
use devmind_api::config::TokenUser;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::Role;
use devmind_tests::{RawDevice, TestServer};
use reqwest::header::SET_COOKIE;

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

#[tokio::test]
async fn what_is_allowed_for_a_conversation_is_offered_with_its_exact_scope_listed_and_taken_back_by_its_owner_alone() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let inbox = ann.get("/approvals").await.ok();
    assert!(inbox.contains("demo_text, every call") && inbox.contains("Nothing is: each call"), "{inbox}");
    let form = |grant: &str| format!("interrupt_id={}&approved=true&grant={grant}", story.interrupt);
    for nonsense in ["everything", "folder:", "path"] {
        let refused = ann.post("/approvals", &form(nonsense)).await;
        assert!((400..500).contains(&refused.status), "{nonsense}: {}", refused.status);
    }
    assert_eq!(story.server.log().of("InterruptResolved").await.len(), 0);
    assert_eq!(ann.post("/approvals", &form("tool")).await.status, 303);
    let given = story.server.log().one("ToolGrantGiven").await;
    let listed = ann.get("/approvals").await.ok();
    assert!(listed.contains("action=\"/approvals/revoke\"") && listed.contains(&format!("/log/{}\"", given.position)));
    let carol = Browser::of(&story.server, "carol:auditor").get("/approvals?everybody=1").await.ok();
    assert!(carol.contains("every call") && !carol.contains("/approvals/revoke"), "{carol}");
    let read = story.server.log().of("ConversationRead").await;
    assert!(read.iter().any(|read| read.payload["what"] == "grants"), "the auditor's look");
    assert!(!Browser::of(&story.server, "bob").get("/approvals").await.ok().contains("every call"));
    let grant = given.payload["grant_id"].as_str().unwrap();
    let revoke = format!("conversation_id={}&grant_id={grant}", story.waiting.conversation_id);
    for other in ["bob", "carol:auditor", "olga:operator"] {
        assert_eq!(Browser::of(&story.server, other).post("/approvals/revoke", &revoke).await.status, 403, "{other}");
    }
    assert_eq!(ann.post("/approvals/revoke", &revoke).await.header("location"), "/approvals#grants");
    assert!(ann.get("/approvals").await.ok().contains("Nothing is: each call"));
    story.server.finish().await;
}
