//! What buttons do. Each is a form: without scripts it leads to the page that shows what came of it, with them the
//! script asks for JSON and the page's own stream shows it.
//!
//! A page prepares a run and starts it in one request, and the run belongs to the server: whoever looks reads the
//! log, so that a closed window, a reload or a second tab stops nothing.

use super::Viewer;
use super::view::MAX_RUNNING;
use crate::agui::Audience;
use crate::error::{ApiError, ApiResult};
use crate::http::{ClientId, Content, IdempotencyKey, Title};
use crate::places::Turn;
use crate::runs::prepare::{Prepared, Question, prepare_rerun, prepare_resume, prepare_turn};
use crate::runs::start as start_run;
use crate::runs::stop::stop as stop_run;
use crate::state::App;
use crate::ui::audit::parts::chat_link;
use crate::ui::error::PageError;
use crate::ui::grants;
use crate::ui::session::to;
use axum::Json;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::event::Actor;
use devmind_domain::ids::{ConversationId, RunId, UserId};
use devmind_ledger::execute;
use devmind_projections::RunRow;
use futures::StreamExt as _;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use std::sync::Arc;

type Body<T> = Result<Form<T>, FormRejection>;

/// A field that a form sends empty where nothing was chosen.
fn maybe<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ClientId>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Ok(None) } else { ClientId::try_from(text).map(Some).map_err(serde::de::Error::custom) }
}

fn read<T>(body: Body<T>) -> ApiResult<T> {
    body.map(|Form(body)| body).map_err(|rejection| match rejection.status().as_u16() {
        413 => ApiError::of(ErrorCode::BodyTooLarge),
        _ => {
            let text = rejection.body_text();
            let problem = text.rsplit_once("form body: ").map_or(text.as_str(), |(_, problem)| problem);
            ApiError::new(ErrorCode::ValidationFailed, problem)
        }
    })
}

/// What came of it: a place, or a refusal; for a script or for a person.
fn done(headers: &HeaderMap, came: ApiResult<String>) -> Response {
    let for_script = headers.get(header::ACCEPT).is_some_and(|accept| accept == "application/json");
    match came {
        Ok(place) if for_script => Json(json!({ "place": place })).into_response(),
        Ok(place) => to(&place),
        Err(error) if for_script => error.into_response(),
        Err(error) => PageError(error).into_response(),
    }
}

fn place(id: &ConversationId) -> String {
    chat_link(id.as_str())
}

/// Browsers send the lines of a form with CR LF.
fn lines(content: Content) -> String {
    String::from(content).replace("\r\n", "\n")
}

impl Viewer {
    /// The name of somebody who may change what is theirs.
    fn author(&self) -> ApiResult<UserId> {
        if self.caller.role.changes() {
            Ok(self.caller.user_id.clone())
        } else {
            Err(ApiError::of(ErrorCode::ReadOnlyRole))
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Ask {
    content: Content,
    key: IdempotencyKey,
    #[serde(default, deserialize_with = "maybe")]
    conversation_id: Option<ClientId>,
    #[serde(default, deserialize_with = "maybe")]
    device_id: Option<ClientId>,
}

pub(super) async fn ask(State(app): State<Arc<App>>, viewer: Viewer, headers: HeaderMap, body: Body<Ask>) -> Response {
    let came = async {
        let (user, body) = (viewer.author()?, read(body)?);
        let existing: Option<ConversationId> = body.conversation_id.map(ClientId::id);
        let room = room(&app, &user, existing.as_ref()).await?;
        let question = Question {
            content: lines(body.content),
            must_exist: existing.is_some(),
            conversation_id: existing,
            device_id: body.device_id.map(ClientId::id),
        };
        begin(&app, &prepare_turn(&app, &user, body.key.into(), question).await?, room).await
    };
    done(&headers, came.await)
}

#[derive(Deserialize)]
pub(super) struct Rerun {
    turn_id: ClientId,
    #[serde(default)]
    content: Option<Content>,
    key: IdempotencyKey,
}

pub(super) async fn rerun(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body<Rerun>,
) -> Response {
    let came = async {
        let (user, body) = (viewer.author()?, read(body)?);
        let turn = body.turn_id.id();
        let own = app.views.conversation_of_turn(&turn).await?;
        let room = room(&app, &user, own.as_ref()).await?;
        let content = body.content.map(lines);
        begin(&app, &prepare_rerun(&app, &user, body.key.into(), turn, content).await?, room).await
    };
    done(&headers, came.await)
}

#[derive(Deserialize)]
pub(super) struct Decide {
    interrupt_id: ClientId,
    approved: bool,
    /// What is allowed from now on, beside the one call.
    #[serde(default)]
    grant: String,
}

pub(super) async fn decide(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body<Decide>,
) -> Response {
    let came = async {
        let (user, body) = (viewer.author()?, read(body)?);
        // The same card answers once, whichever tab it is pressed in.
        let key = format!("approval:{}", body.interrupt_id.as_str());
        let decisions = vec![(body.interrupt_id.clone().id(), body.approved)];
        let grants = grants::read(&body.grant)?.map(|grant| (body.interrupt_id.id(), grant));
        let prepared = prepare_resume(&app, &user, key, decisions, grants.into_iter().collect()).await?;
        go_on(&app, &user, &prepared).await
    };
    done(&headers, came.await)
}

#[derive(Deserialize)]
pub(super) struct OfRun {
    run_id: ClientId,
}

/// Starts a run that was prepared and never begun: what prepared it was cut off, or an approval expired.
pub(super) async fn start(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body<OfRun>,
) -> Response {
    let came = async {
        let run = own_run(&app, &viewer, &read(body)?.run_id.id()).await?;
        let place = place(&run.conversation_id);
        let room = room(&app, &run.user_id, Some(&run.conversation_id)).await?;
        execute_run(&app, run, room).await?;
        Ok(place)
    };
    done(&headers, came.await)
}

pub(super) async fn stop(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body<OfRun>,
) -> Response {
    let came = async {
        let run = own_run(&app, &viewer, &read(body)?.run_id.id()).await?;
        stop_run(&app, &viewer.caller.user_id, &run).await?;
        Ok(place(&run.conversation_id))
    };
    done(&headers, came.await)
}

#[derive(Deserialize)]
pub(super) struct Rename {
    conversation_id: ClientId,
    title: Title,
}

pub(super) async fn rename(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body<Rename>,
) -> Response {
    let came = async {
        let (user_id, body) = (viewer.author()?, read(body)?);
        let id = body.conversation_id.id();
        let title = body.title.into();
        command(&app, &id, &user_id, ConversationCommand::Rename { user_id: user_id.clone(), title }).await?;
        Ok(place(&id))
    };
    done(&headers, came.await)
}

#[derive(Deserialize)]
pub(super) struct Delete {
    conversation_id: ClientId,
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    viewer: Viewer,
    headers: HeaderMap,
    body: Body<Delete>,
) -> Response {
    let came = async {
        let (user_id, body) = (viewer.author()?, read(body)?);
        let id = body.conversation_id.id();
        command(&app, &id, &user_id, ConversationCommand::Delete { user_id: user_id.clone() }).await?;
        Ok("/".to_owned())
    };
    done(&headers, came.await)
}

async fn command(app: &App, id: &ConversationId, user: &UserId, command: ConversationCommand) -> ApiResult<()> {
    let metadata = app.metadata(Actor::user(user)).conversation(id);
    execute::<Conversation>(&app.ledger, id.as_str(), &metadata, command, None).await?;
    Ok(())
}

async fn own_run(app: &App, viewer: &Viewer, id: &RunId) -> ApiResult<RunRow> {
    let user = viewer.author()?;
    app.caught_up(&["conversation"]).await?;
    let run = app.views.find_run(id).await?.ok_or_else(|| ApiError::of(ErrorCode::RunNotFound))?;
    if run.user_id == user { Ok(run) } else { Err(ApiError::of(ErrorCode::Forbidden)) }
}

/// Room for one more run of a person, until the run is claimed.
struct Room(#[expect(dead_code, reason = "held")] Turn);

/// Only so many conversations of one person run at the same time: a run costs money. Runs of a person begin one after
/// the other, so that nothing comes between this look and the claim.
async fn room(app: &App, user: &UserId, own: Option<&ConversationId>) -> ApiResult<Room> {
    let turn = app.beginning.take(user).await;
    app.caught_up(&["conversation"]).await?;
    let rows = app.views.conversations(user).await?;
    let others = rows.iter().filter(|row| row.latest_turn_status.as_deref() == Some("running") && Some(&row.id) != own);
    if others.count() < MAX_RUNNING {
        return Ok(Room(turn));
    }
    let message = format!("{MAX_RUNNING} conversations are running: wait until one of them ends, or stop one");
    Err(ApiError::new(ErrorCode::RateLimited, message))
}

/// Starts what an answer prepared, unless other approvals of the turn still wait. Without room the answer counts all
/// the same, and the run waits to be started.
pub(in crate::ui) async fn go_on(app: &Arc<App>, user: &UserId, prepared: &Prepared) -> ApiResult<String> {
    if prepared.run_id.is_none() {
        return Ok(place(&prepared.conversation_id));
    }
    let room = room(app, user, Some(&prepared.conversation_id)).await.map_err(|error| match error.code {
        ErrorCode::RateLimited => {
            ApiError::new(error.code, format!("your answer is recorded, but {}; then start it", error.message))
        }
        _ => error,
    })?;
    begin(app, prepared, room).await
}

/// Starts what was prepared.
async fn begin(app: &Arc<App>, prepared: &Prepared, room: Room) -> ApiResult<String> {
    if let Some(run_id) = &prepared.run_id {
        app.caught_up(&["conversation"]).await?;
        if let Some(run) = app.views.find_run(run_id).await? {
            execute_run(app, run, room).await?;
        }
    }
    Ok(place(&prepared.conversation_id))
}

async fn execute_run(app: &Arc<App>, run: RunRow, _until_it_is_claimed: Room) -> ApiResult<()> {
    let audience =
        Audience { thread_id: run.conversation_id.to_string(), run_id: run.run_id.to_string(), declared: true };
    match start_run(app, run, audience).await {
        Ok(events) => {
            // Nobody reads it here, and it must not be taken for a client that went away.
            drop(app.run_tasks.spawn(events.for_each(|_| std::future::ready(()))));
            Ok(())
        }
        // The same request again, or another tab was quicker.
        Err(error) if matches!(error.code, ErrorCode::RunAlreadyClaimed) => Ok(()),
        Err(error) => Err(error),
    }
}
