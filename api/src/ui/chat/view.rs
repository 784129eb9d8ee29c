//! Everything that the chat shows, read as of one position of the log.

use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::ids::new_id;
use crate::state::App;
use axum::http::HeaderMap;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, DeviceId};
use devmind_domain::thread::Thread;
use devmind_ledger::load;
use devmind_projections::{ConversationRow, DeviceRow, TurnRow};
use std::sync::Arc;

/// Turns on a page, at most: the newest. Each is sent again when it changes.
pub(super) const MAX_SHOWN_TURNS: usize = 50;
/// Conversations of one person that may run at the same time.
pub(super) const MAX_RUNNING: usize = 4;
/// Names the computer that the page is shown on, where its device program shows it.
const DEVICE_HEADER: &str = "x-devmind-device";

/// What is shown.
pub(super) struct Chat {
    /// The log's position that it is shown as of, or a later one.
    pub position: u64,
    pub conversations: Vec<ConversationRow>,
    pub open: Option<Open>,
    pub devices: Vec<DeviceRow>,
    /// The computer that the page is shown on.
    pub own_device: Option<DeviceId>,
    pub user: String,
    /// Names a question, so that sending it twice asks once.
    pub key: String,
}

/// The conversation that is open.
pub(super) struct Open {
    pub id: ConversationId,
    pub title: String,
    pub turns: Vec<TurnRow>,
    /// Turns before those that are shown.
    pub earlier: usize,
    /// What the running turn has written so far.
    pub streamed: String,
    /// Whether it is the reader's own: others may look.
    pub own: bool,
}

/// The device that a request came through.
pub(super) fn own_device(headers: &HeaderMap) -> Option<DeviceId> {
    headers.get(DEVICE_HEADER).and_then(|id| id.to_str().ok()).map(DeviceId::from)
}

impl Chat {
    /// Reads it; whether `id` may be read is checked before.
    pub(super) async fn read(
        app: &Arc<App>,
        caller: &Caller,
        id: Option<&ConversationId>,
        own_device: Option<DeviceId>,
    ) -> ApiResult<Self> {
        let position = app.caught_up(&["conversation", "tool_call", "device"]).await?;
        let conversations = app.views.conversations(&caller.user_id).await?;
        let open = match id {
            Some(id) => Some(Open::read(app, caller, id, &conversations).await?),
            None => None,
        };
        let devices = app.views.devices(&caller.user_id).await?;
        let (user, key) = (caller.user_id.to_string(), new_id());
        Ok(Self { position, conversations, open, devices, own_device, user, key })
    }

    pub(super) fn title(&self) -> &str {
        self.open.as_ref().map_or("New conversation", |open| &open.title)
    }

    /// The devices whose tools may be used now, this computer's own first.
    pub(super) fn online(&self) -> Vec<&DeviceRow> {
        let mut online: Vec<_> = self.devices.iter().filter(|device| device.online).collect();
        online.sort_by_key(|device| self.own_device.as_ref() != Some(&device.device_id));
        online
    }
}

impl Open {
    async fn read(app: &Arc<App>, caller: &Caller, id: &ConversationId, listed: &[ConversationRow]) -> ApiResult<Self> {
        let owner = app.views.conversation_owner(id).await?;
        let owner = owner.ok_or_else(|| ApiError::of(ErrorCode::ConversationNotFound))?;
        let title = match listed.iter().find(|row| row.id == *id) {
            Some(row) => row.title.clone(),
            // Not among the newest hundred.
            None => app
                .views
                .conversations(&owner)
                .await?
                .into_iter()
                .find(|row| row.id == *id)
                .map_or_else(|| "Conversation".to_owned(), |row| row.title),
        };
        let mut turns = app.views.turns(id).await?;
        let earlier = turns.len().saturating_sub(MAX_SHOWN_TURNS);
        turns.drain(..earlier);
        let streamed = match turns.last().filter(|turn| turn.status == "running") {
            Some(turn) => streamed(app, turn).await?,
            None => String::new(),
        };
        Ok(Self { id: id.clone(), title, turns, earlier, streamed, own: owner == caller.user_id })
    }

    pub(super) fn latest(&self) -> Option<&TurnRow> {
        self.turns.last()
    }
}

/// What a running turn has written so far, as its thread has it.
async fn streamed(app: &Arc<App>, turn: &TurnRow) -> ApiResult<String> {
    let Some(active) = &turn.active_run else { return Ok(String::new()) };
    let Some(run) = app.views.find_run(&active.run_id).await? else { return Ok(String::new()) };
    let (thread, _) = load::<Thread>(app.ledger.reader(), run.graph_thread_id.as_str()).await?;
    Ok(thread.streamed_text().1)
}
