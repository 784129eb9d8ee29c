//! What a witness answers: to requests that are none, and to a ledger, whose side is held against answers that a test
//! plays.

use super::support::{Data, Running, code_of, node_stopped};
use super::{json_of, publish};
use devmind_domain::proof::{Note, NoteSigner, SignatureKind, Submission};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Sends a request, whole, and reads the answer to its end.
fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(request.as_bytes()).expect("sent");
    read(&mut stream, |_| false)
}

/// Reads until enough has come, or all.
fn read(stream: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut all = Vec::new();
    let mut some = [0; 4_096];
    while !enough(&String::from_utf8_lossy(&all)) {
        match stream.read(&mut some) {
            Ok(0) | Err(_) => break,
            Ok(read) => all.extend_from_slice(&some[..read]),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn signer(name: &str) -> NoteSigner {
    NoteSigner::from_seed(name, SignatureKind::Cosignature, &[5; 32]).expect("a key")
}

/// Status, media type and body, by the head that it is asked about.
type Answer = Box<dyn Fn(&Note) -> (&'static str, &'static str, String) + Send>;

/// A witness whose answers are a function of what it is asked, one after the other.
fn played(answers: Vec<Answer>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a connection");
            let whole = |text: &str| {
                let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                let length = head.to_lowercase();
                let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
                length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| body.len() >= length)
            };
            let request = read(&mut stream, whole);
            let (_, body) = request.split_once("\r\n\r\n").expect("a request");
            let note = Note::parse(&Submission::from_text(body).expect("a submission").note).expect("a note");
            let (status, kind, body) = answer(&note);
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close");
            drop(stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()));
        }
    });
    address
}

#[tokio::test]
async fn a_witness_takes_heads_that_are_posted_at_one_path_and_nothing_longer_than_one() {
    let data = Data::with_story().await;
    publish(&data).await;
    let log = std::fs::read_to_string(data.path().join("checkpoint.pub")).expect("the log's key");
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().to_str().expect("a plain path");
    let order = ["--json", "witness", "serve", "--listen", "127.0.0.1:0", "--state", folder, "--log", log.trim()];
    let mut running: Running = data.start(&order);
    let told: serde_json::Value = serde_json::from_str(&running.line().await).expect("JSON");
    let address =
        told["listening"].as_str().and_then(|url| url.strip_prefix("http://")).expect("an address").to_owned();
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let answers = tokio::task::spawn_blocking(move || {
        let get = "GET /add-checkpoint HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n";
        [post("/", "x"), get.to_owned(), post("/add-checkpoint", &"x".repeat(1 << 20)), post("/add-checkpoint", "x")]
            .map(|request| exchange(&address, &request))
    });
    let answers = answers.await.expect("answered");
    for (answer, status) in answers.iter().zip(["404", "405", "413", "400"]) {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
    running.kill().await;
    // A log's key is none of a witness, and the other way round.
    let cosigner = signer("w").public().to_string();
    let other = data.run(&["witness", "serve", "--state", folder, "--log", &cosigner]).await;
    assert!(other.status == 2 && other.stderr.contains("it is the key of a witness"), "{other:?}");
    for command in [&["verify", "--witness"][..], &["witness", "ask", "http://127.0.0.1:9", "--key"]] {
        let other = data.run(&[command, &[log.trim()]].concat()).await;
        assert!(other.status == 2 && other.stderr.contains("it is the key of a log"), "{other:?}");
    }
}

#[tokio::test]
async fn only_the_cosignature_that_was_asked_for_is_kept_and_an_answer_that_is_none_is_told_as_such() {
    let data = Data::with_story().await;
    publish(&data).await;
    // Of another log, with the same key, and noted last.
    let other = Data::with_story().await;
    publish(&other).await;
    let noted = |data: &Data| std::fs::read_to_string(data.path().join("checkpoints.jsonl")).expect("read");
    data.write("checkpoints.jsonl", &(noted(&data) + &noted(&other)));
    let kept = || std::fs::read_to_string(data.path().join("cosignatures.jsonl")).unwrap_or_default();
    let (key, second) = (signer("w").public().to_string(), signer("second").public().to_string());
    let ask = async |address: &str, key: &str| data.run(&["--json", "witness", "ask", address, "--key", key]).await;

    for (status, kind, body) in [
        ("200 OK", "text/plain", "thank you\n"),
        ("200 OK", "text/plain", ""),
        ("409 Conflict", "text/x.tlog.size", "many\n"),
        ("500 Internal Server Error", "text/plain", "oh\n"),
        ("302 Found", "text/plain", ""),
    ] {
        let refused = ask(&played(vec![Box::new(move |_| (status, kind, body.to_owned()))]), &key).await;
        assert_eq!((refused.status, code_of(&refused)), (1, "WITNESS_REFUSED"), "{status} {body}: {refused:?}");
    }
    let forged =
        played(vec![Box::new(|_| ("200 OK", "text/plain", format!("{}\n", signer("w").sign("another\n", 7))))]);
    let refused = ask(&forged, &key).await;
    assert_eq!((refused.status, code_of(&refused), kept().as_str()), (1, "WITNESS_REFUSED", ""), "{refused:?}");
    for status in ["409 Conflict", "422 Unprocessable Entity"] {
        let forked = ask(&played(vec![Box::new(move |_| (status, "text/plain", "no\n".to_owned()))]), &key).await;
        assert_eq!((forked.status, code_of(&forked)), (3, "LEDGER_FORKED"), "{forked:?}");
    }
    // It has seen so much of this log, and is asked again from there; twice, when somebody else asks, too.
    let has_seen =
        |size: usize| -> Answer { Box::new(move |_| ("409 Conflict", "text/x.tlog.size", format!("{size}\n"))) };
    let signs: Answer = Box::new(|note| {
        let all = [signer("second"), signer("w"), signer("w")].map(|one| format!("{}\n", one.sign(&note.text, 7)));
        ("200 OK", "text/plain", all.concat())
    });
    let signed = ask(&played(vec![has_seen(3), has_seen(5), signs]), &key).await;
    assert_eq!((signed.status, &json_of(&signed)["position"]), (0, &json!(data.events())), "{signed:?}");
    let line: serde_json::Value = serde_json::from_str(kept().lines().last().expect("kept")).expect("JSON");
    let note = Note::parse(line["note"].as_str().expect("a note")).expect("a note");
    assert_eq!(note.signatures.iter().filter(|one| one.name == "w").count(), 1, "{note:?}");
    assert!(note.signatures.iter().all(|one| one.name != "second"), "{note:?}");
    assert_eq!(data.run(&["verify", "--witness", &key]).await.status, 0);
    assert_eq!(data.run(&["verify", "--witness", &second]).await.status, 3);
    let early = data.run(&["export", "none.jsonl", "--witness", &second]).await;
    assert_eq!((early.status, code_of(&early)), (1, "NOT_READY"), "it has cosigned nothing: {early:?}");
    // What one has cosigned, another has not.
    let by_second: Answer =
        Box::new(|note| ("200 OK", "text/plain", format!("{}\n", signer("second").sign(&note.text, 7))));
    let again = ask(&played(vec![by_second]), &second).await;
    assert!(again.status == 0 && json_of(&again)["cosigned_at"].is_string(), "{again:?}");
    let export = data.path().join("b.jsonl");
    let export = export.to_str().expect("a plain path");
    assert_eq!(data.run(&["export", export, "--witness", &second]).await.status, 0);
    assert_eq!(data.run(&["verify", export, "--witness", &key]).await.status, 3, "it is under the other's");
    // Cosignatures of another log say nothing about this one.
    std::fs::copy(data.path().join("cosignatures.jsonl"), other.path().join("cosignatures.jsonl")).expect("copied");
    assert_eq!(other.run(&["verify", "--witness", &key]).await.status, 3);

    // A head that was signed and is not noted here any more: the log still has it.
    let ledger = data.open().await;
    data.append(&ledger, &node_stopped(1)).await;
    ledger.close().await;
    let third = signer("third").public().to_string();
    let ahead = ask(&played(vec![has_seen(data.events() + 1)]), &third).await;
    assert_eq!((ahead.status, &json_of(&ahead)["cosigned_at"]), (0, &serde_json::Value::Null), "{ahead:?}");
    let lost = ask(&played(vec![has_seen(data.events() + 2)]), &third).await;
    assert_eq!((lost.status, code_of(&lost)), (3, "LEDGER_FORKED"), "{lost:?}");
    // Again and again: what failed once may succeed.
    let failing: Answer = Box::new(|_| ("500 Internal Server Error", "text/plain", String::new()));
    let comes: Answer = Box::new(|note| ("200 OK", "text/plain", format!("{}\n", signer("third").sign(&note.text, 7))));
    let address = played(vec![failing, comes]);
    let mut asking = data.start(&["--json", "witness", "ask", &address, "--key", &third, "--every", "1"]);
    let told: serde_json::Value = serde_json::from_str(&asking.line().await).expect("JSON");
    assert_eq!(told["witness"], "third");
    asking.kill().await;
}
