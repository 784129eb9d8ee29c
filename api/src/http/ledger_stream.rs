//! The log as it grows: what is there, then what comes, for programs and for the pages.

use super::access::Subject;
use super::agent::sse;
use super::extract::Query;
use super::fields::ClientId;
use super::ledger::{EventRow, MAX_LIMIT, check_filter, list, parse_stream, safe};
use super::openapi::{LedgerStreamFrame, refusals};
use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::state::App;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use devmind_domain::ErrorCode;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::EventFilter;
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Which events.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct StreamQuery {
    /// Events after this position; `Last-Event-ID` counts before it.
    #[param(maximum = 9_007_199_254_740_991_u64, default = 0)]
    after: u64,
    /// The stream ends when everything up to this position was sent; absent: it goes on.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    until: Option<u64>,
    /// Those of a conversation.
    conversation_id: Option<ClientId>,
    /// Those of a run.
    run_id: Option<ClientId>,
    /// Those of a tool call.
    tool_call_id: Option<ClientId>,
    /// Those of a stream: `aggregate_type/aggregate_id`.
    #[param(max_length = 500, pattern = "/")]
    stream: Option<String>,
    /// Those of a type, for example `TurnPrepared`.
    r#type: Option<ClientId>,
    /// Those that somebody caused, for example `user:ann`.
    actor: Option<ClientId>,
}

/// The id of a frame of this stream: a position.
#[derive(ToSchema)]
#[schema(pattern = r"^[0-9]{1,15}$")]
pub struct LastPosition(#[expect(dead_code, reason = "only described here")] String);

refusals!(StreamRefusals: PERSONAL, QUERY; Forbidden, ConversationNotFound, RunNotFound, RateLimited);

/// Events as they are recorded: what is there after a position, then what comes, each frame with its position as id.
///
/// Of the caller's own conversations and devices, or, for auditors and operators, all, which is recorded. A frame
/// of the event `refused` holds a refusal and ends the stream. A person may have 6 of these open at a time.
#[utoipa::path(get, path = "/api/ledger/stream", tag = "ledger", operation_id = "follow_events",
    params(StreamQuery, ("Last-Event-ID" = Option<LastPosition>, Header, description = "The last frame that was seen.")),
    responses((status = 200, description = "The events, one a frame.",
        content_type = "text/event-stream", body = LedgerStreamFrame), StreamRefusals))]
pub async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<StreamQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    safe("after", query.after)?;
    safe("until", query.until.unwrap_or_default())?;
    let filter = EventFilter {
        conversation_id: query.conversation_id.map(ClientId::id),
        run_id: query.run_id.map(ClientId::id),
        tool_call_id: query.tool_call_id.map(ClientId::id),
        stream: query.stream.as_deref().map(parse_stream).transpose()?,
        event_type: query.r#type.map(String::from),
        actor: query.actor.map(String::from),
    };
    let head = app.caught_up(&["conversation"]).await?;
    let after = last_seen(&headers, head)?.unwrap_or(query.after);
    let open =
        app.open_streams.take(Some(caller.user_id.clone())).ok_or_else(|| ApiError::of(ErrorCode::RateLimited))?;
    check_filter(&app, &caller, &filter).await?;
    let frames = follow(app, caller, filter, after, query.until).flat_map(move |batch| {
        let _counted = &open;
        let frames = match batch {
            Ok(events) => events.iter().map(|event| frame(event)).collect(),
            Err(refusal) => vec![Event::default().event("refused").data(refusal.body().to_string())],
        };
        stream::iter(frames.into_iter().map(Ok::<_, Infallible>))
    });
    Ok(sse(frames))
}

/// The position in `Last-Event-ID`, which no log that goes on is behind of.
fn last_seen(headers: &HeaderMap, head: u64) -> ApiResult<Option<u64>> {
    let Some(text) = headers.get("last-event-id") else { return Ok(None) };
    let seen = text.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    match seen {
        Some(seen) if seen <= head => Ok(Some(seen)),
        Some(_) => Err(ApiError::field("Last-Event-ID", format!("is beyond the log's head, {head}"))),
        None => Err(ApiError::field("Last-Event-ID", "must be a position")),
    }
}

fn frame(event: &RecordedEvent) -> Event {
    let data = serde_json::to_string(&EventRow::of(event)).unwrap_or_default();
    Event::default().id(event.position.to_string()).data(data)
}

/// What is there after a position and may be seen, then what comes, up to `until` where that is said. It ends with
/// the process, and with the first refusal.
pub(crate) fn follow(
    app: Arc<App>,
    caller: Caller,
    filter: EventFilter,
    after: u64,
    until: Option<u64>,
) -> impl Stream<Item = ApiResult<Vec<Arc<RecordedEvent>>>> {
    let begin = Some((after, BTreeSet::<Subject>::new()));
    stream::unfold(begin, move |at| {
        let (app, caller, filter) = (app.clone(), caller.clone(), filter.clone());
        async move {
            let (mut after, mut known) = at?;
            loop {
                if until.is_some_and(|until| after >= until) {
                    return None;
                }
                let mut found = match list(&app, &caller, &filter, after, MAX_LIMIT, &mut known).await {
                    Ok(found) => found,
                    Err(error) => return Some((Err(error), None)),
                };
                after = found.next_after;
                found.events.retain(|event| until.is_none_or(|until| event.position <= until));
                if !found.events.is_empty() {
                    return Some((Ok(found.events), Some((after, known))));
                }
                if found.at_head && until.is_none_or(|until| after < until) {
                    let mut news = app.ledger.reader().follow(after);
                    tokio::select! {
                        () = app.stopping.cancelled() => return None,
                        news = news.next() => if let Err(error) = news {
                            return Some((Err(error.into()), None));
                        },
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::ledger::list_to;
    use super::*;
    use crate::Server;
    use crate::config::ServerConfig;
    use crate::runs::prepare::{Question, prepare_turn};
    use devmind_domain::event::Role;

    async fn ask(app: &Arc<App>, content: &str) -> u64 {
        let question =
            Question { content: content.to_owned(), conversation_id: None, must_exist: false, device_id: None };
        prepare_turn(app, &"ann".into(), content.to_owned(), question).await.expect("asked");
        app.ledger.reader().head().await.expect("a head").position
    }

    #[tokio::test]
    async fn what_comes_while_a_follower_reads_is_left_for_its_next_look_and_never_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = ServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            data: folder.path().to_owned(),
            node_id: Some("test".to_owned()),
            ..ServerConfig::default()
        };
        let server = Server::open(&config).await.expect("a server").spawn();
        let app = &server.app;
        let caller = Caller { user_id: "ann".into(), role: Role::User };
        let (filter, mut known) = (EventFilter::default(), BTreeSet::new());
        let before = ask(app, "first").await;
        let known_up_to = app.caught_up(&["conversation"]).await.expect("the views are there");
        assert_eq!(known_up_to, before);
        // Between the moment up to which the views are known and the look at the log, more comes.
        let head = ask(app, "second").await;
        let found = list_to(app, &caller, &filter, 0, MAX_LIMIT, &mut known, known_up_to).await.expect("read");
        assert_eq!((found.next_after, found.at_head), (before, true), "the rest is left, of {head}");
        assert!(found.events.iter().all(|event| event.position <= before));
        let next = list(app, &caller, &filter, found.next_after, MAX_LIMIT, &mut known).await.expect("read");
        assert_eq!(next.events.first().map(|event| event.position), Some(before + 1));
        assert_eq!(next.next_after, head);
        server.stop().await;
    }
}
