//! The log as a stream of JSON: the same rows as the pages of the log, then what comes.

use devmind_tests::{Question, TestServer, eventually};
use eventsource_stream::Eventsource;
use futures::{Stream, StreamExt};
use serde_json::Value;

async fn open(server: &TestServer, query: &str, last: Option<&str>) -> reqwest::Response {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let mut request = http.get(format!("{}/api/ledger/stream?{query}", server.url())).header("x-dev-user", "ann");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    request.send().await.expect("an answer")
}

async fn rows(
    server: &TestServer,
    query: &str,
    last: Option<&str>,
) -> impl Stream<Item = (String, Value)> + Unpin + use<> {
    let frames = open(server, query, last).await.bytes_stream().eventsource();
    Box::pin(frames.map(|frame| {
        let frame = frame.expect("a frame");
        (frame.id, serde_json::from_str(&frame.data).expect("JSON"))
    }))
}

#[tokio::test]
async fn the_stream_of_the_log_has_the_rows_of_its_pages_then_what_comes_and_after_a_break_neither_gap_nor_repeat() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    ann.converse(&Question::new("add 1 and 2")).await;
    server.client("bob").converse(&Question::new("of bob alone")).await;
    let page = ann.get("/api/ledger/events?limit=1000").await.ok();
    let (listed, head) = (page["events"].as_array().expect("rows"), page["position"].as_u64().expect("a head"));
    // Up to a position, and it ends.
    let whole: Vec<_> = rows(&server, &format!("until={head}"), None).await.collect().await;
    assert_eq!(whole.iter().map(|(_, row)| row).collect::<Vec<_>>(), listed.iter().collect::<Vec<_>>());
    assert!(whole.iter().all(|(id, row)| id.parse().ok() == row["position"].as_u64()));
    let of_a_type: Vec<_> = rows(&server, &format!("until={head}&type=RunClaimed"), None).await.collect().await;
    assert_eq!(of_a_type.len(), 1);
    // From the middle, and on.
    let mut on = rows(&server, "after=0", Some(&whole[2].0)).await;
    assert_eq!(on.next().await.as_ref(), Some(&whole[3]));
    for expected in &whole[4..] {
        assert_eq!(on.next().await.as_ref(), Some(expected));
    }
    ann.ask(&Question::new("something new")).await;
    let new = on.next().await.expect("it goes on");
    assert!(new.0.parse::<u64>().is_ok_and(|position| position > head), "{new:?}");
    drop(on);

    let ahead = open(&server, "", Some("999999")).await;
    assert_eq!(ahead.status(), 422);
    let mut streams = Vec::new();
    for _ in 0..6 {
        streams.push(
            eventually("room for a stream", || async {
                let stream = open(&server, "", None).await;
                if stream.status() == 200 { Ok(stream) } else { Err(stream.status().to_string()) }
            })
            .await,
        );
    }
    assert_eq!(open(&server, "", None).await.status(), 429, "a seventh");
    drop(streams);
    server.finish().await;
}
