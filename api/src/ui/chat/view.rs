//! Everything that the chat shows, read as of one position of the log.

use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::ids::new_id;
use crate::state::App;
use crate::ui::session::Viewer;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, DeviceId};
use devmind_domain::thread::Thread;
use devmind_ledger::load;
use devmind_projections::{ConversationRow, DeviceRow, TurnRow};
use std::sync::Arc;

/// Turns on a page, at most. Each is sent again when it changes.
pub(super) const MAX_SHOWN_TURNS: u32 = 50;
/// Conversations of one person that may run at the same time.
pub(super) const MAX_RUNNING: usize = 4;

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
    /// Where the page ends: before the turn with this number. Absent: with the newest, and it goes on.
    pub before: Option<u32>,
    /// What the running turn has written so far.
    pub streamed: String,
    /// Whether it is the reader's own: others may look.
    pub own: bool,
}

impl Chat {
    /// Reads it; whether `id` may be read is checked before.
    pub(super) async fn read(
        app: &Arc<App>,
        Viewer { caller, device }: &Viewer,
        id: Option<&ConversationId>,
        before: Option<u32>,
    ) -> ApiResult<Self> {
        let position = app.caught_up(&["conversation", "tool_call", "device"]).await?;
        let conversations = app.views.conversations(&caller.user_id).await?;
        let open = match id {
            Some(id) => Some(Open::read(app, caller, id, before).await?),
            None => None,
        };
        let devices = app.views.devices(&caller.user_id).await?;
        let (user, key) = (caller.user_id.to_string(), new_id());
        Ok(Self { position, conversations, open, devices, own_device: device.clone(), user, key })
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
    async fn read(app: &Arc<App>, caller: &Caller, id: &ConversationId, before: Option<u32>) -> ApiResult<Self> {
        let found = app.views.conversation_row(id).await?.filter(|(.., deleted)| !deleted);
        let (owner, title, _) = found.ok_or_else(|| ApiError::of(ErrorCode::ConversationNotFound))?;
        let turns = app.views.turns_before(id, before, MAX_SHOWN_TURNS).await?;
        // A page that the newest turn is on is the one that goes on.
        let before = before.filter(|_| !turns.last().is_some_and(|turn| turn.is_latest));
        let streamed = match turns.last().filter(|turn| turn.status == "running") {
            Some(turn) => streamed(app, turn).await?,
            None => String::new(),
        };
        Ok(Self { id: id.clone(), title, turns, before, streamed, own: owner == caller.user_id })
    }

    /// The newest turn, where the page shows it.
    pub(super) fn latest(&self) -> Option<&TurnRow> {
        self.turns.last().filter(|turn| turn.is_latest)
    }

    /// The number of the first turn that is shown; turns are counted from 1 without gaps.
    pub(super) fn first(&self) -> u32 {
        self.turns.first().map_or(1, |turn| turn.sequence_no)
    }
}

/// What a running turn has written so far, as its thread has it.
async fn streamed(app: &Arc<App>, turn: &TurnRow) -> ApiResult<String> {
    let Some(active) = &turn.active_run else { return Ok(String::new()) };
    let Some(run) = app.views.find_run(&active.run_id).await? else { return Ok(String::new()) };
    let (thread, _) = load::<Thread>(app.ledger.reader(), run.graph_thread_id.as_str()).await?;
    Ok(thread.streamed_text().1)
}
