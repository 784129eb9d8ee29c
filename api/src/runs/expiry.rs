//! Approvals that nobody answers in time.
//!
//! Silence is not a refusal: the interrupt is recorded as expired, and when no other is open the run
//! that goes on is prepared, so that the model can be told.

use crate::ids::{new_id, now};
use crate::state::App;
use devmind_domain::conversation::{Conversation, ConversationCommand};
use devmind_domain::ids::ConversationId;
use devmind_ledger::execute;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often overdue approvals are looked for; an answer that comes later is refused all the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Expires overdue approvals until the process stops.
pub async fn expire_overdue_approvals(app: Arc<App>) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            _ = ticks.tick() => {}
        }
        match app.views.conversations_with_overdue_interrupts(now()).await {
            Ok(overdue) => {
                for conversation_id in overdue {
                    expire(&app, &conversation_id).await;
                }
            }
            Err(error) => tracing::warn!(cause = %error, "overdue approvals cannot be looked for"),
        }
    }
}

async fn expire(app: &App, conversation_id: &ConversationId) {
    let run_id = devmind_domain::ids::RunId::from(new_id());
    let metadata = app.server_metadata().conversation(conversation_id).run(&run_id);
    let command = ConversationCommand::Expire { now: now(), run_id };
    match execute::<Conversation>(&app.ledger, conversation_id.as_str(), &metadata, command, None).await {
        Ok(_) => {}
        Err(error) => tracing::warn!(conversation.id = %conversation_id, cause = %error, "an approval was not expired"),
    }
}
