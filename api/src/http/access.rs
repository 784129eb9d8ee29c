//! Who may read what: the owner, and auditors and operators, whose reads of what is not theirs are
//! events of what was read, recorded before the answer is sent.

use crate::error::{ApiError, ApiResult};
use crate::identity::Caller;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::device::{Device, DeviceCommand, stream_key};
use devmind_domain::event::Actor;
use devmind_domain::ids::{ConversationId, DeviceId, UserId};
use devmind_ledger::{ExecuteError, execute};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// Reads that are recorded side by side; the ledger commits them together.
const RECORDED_AT_ONCE: usize = 16;

/// What belongs to one person and was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A conversation with everything in it.
    Conversation(ConversationId),
    /// A device.
    Device(UserId, DeviceId),
}

/// Lets the caller read a conversation: the owner, or somebody who may read everything, which is then
/// recorded. Unknown → 404, somebody else's → 403.
///
/// # Errors
/// `CONVERSATION_NOT_FOUND`, `FORBIDDEN`, and what the ledger fails with.
pub async fn read_conversation(
    app: &Arc<App>,
    caller: &Caller,
    id: &ConversationId,
    what: &'static str,
) -> ApiResult<()> {
    match app.views.conversation_owner(id).await? {
        None => Err(ApiError::of(ErrorCode::ConversationNotFound)),
        Some(owner) if owner == caller.user_id => Ok(()),
        Some(_) if caller.role.reads_all() => record(app, caller, [Subject::Conversation(id.clone())], what).await,
        Some(_) => Err(ApiError::of(ErrorCode::Forbidden)),
    }
}

/// Whose list is asked for: the caller's own, or anybody's where everything may be read.
///
/// # Errors
/// `FORBIDDEN`.
pub fn whose(caller: &Caller, named: Option<UserId>) -> ApiResult<UserId> {
    match named {
        Some(other) if other != caller.user_id && !caller.role.reads_all() => Err(ApiError::of(ErrorCode::Forbidden)),
        Some(named) => Ok(named),
        None => Ok(caller.user_id.clone()),
    }
}

/// Records that the caller reads these; the caller's own are left out.
///
/// # Errors
/// What the ledger fails with: what cannot be recorded is not shown.
pub async fn record(
    app: &Arc<App>,
    caller: &Caller,
    subjects: impl IntoIterator<Item = Subject>,
    what: &'static str,
) -> ApiResult<()> {
    let others = subjects.into_iter().filter(|subject| !is_own(caller, subject));
    let recorded = others.map(|subject| record_one(app.clone(), caller.clone(), subject, what)).collect::<Vec<_>>();
    stream::iter(recorded).buffer_unordered(RECORDED_AT_ONCE).try_collect::<()>().await
}

fn is_own(caller: &Caller, subject: &Subject) -> bool {
    match subject {
        // The conversation itself knows.
        Subject::Conversation(_) => false,
        Subject::Device(owner, _) => *owner == caller.user_id,
    }
}

async fn record_one(app: Arc<App>, caller: Caller, subject: Subject, what: &'static str) -> ApiResult<()> {
    let Caller { user_id: by, role } = caller;
    let (metadata, what) = (app.metadata(Actor::user(&by)), what.to_owned());
    match subject {
        Subject::Conversation(id) => {
            let command = ConversationCommand::RecordRead { by, role, what };
            let metadata = metadata.conversation(&id);
            match execute::<Conversation>(&app.ledger, id.as_str(), &metadata, command, None).await {
                Ok(_) => Ok(()),
                // Events that name a conversation which never began: nobody's.
                Err(ExecuteError::Refused(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        Subject::Device(owner, device) => {
            let command = DeviceCommand::RecordRead { by, role, what };
            execute::<Device>(&app.ledger, &stream_key(&owner, &device), &metadata, command, None).await?;
            Ok(())
        }
    }
}
