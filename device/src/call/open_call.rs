//! A call under way: who hears of it, how far it has got, and whether it is still wanted.

use super::{Peer, fitting, lock};
use crate::journal::Owner;
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::{CallRequest, CallResult, DeviceFrame};
use devmind_domain::tool_call::Phase;
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

pub(super) struct OpenCall {
    call_hash: String,
    /// Cancelled when the server takes back the newest attempt.
    pub(super) cancel: CancellationToken,
    tool_call_id: ToolCallId,
    owner: Owner,
    max_message_bytes: usize,
    now: Mutex<Now>,
}

/// What changes while the call is open.
struct Now {
    /// The connection that asked last.
    peer: Arc<dyn Peer>,
    /// The newest attempt that this execution answers.
    attempt_no: u32,
    /// `None` while it is judged.
    phase: Option<Phase>,
}

impl OpenCall {
    pub(super) fn new(peer: Arc<dyn Peer>, request: &CallRequest) -> Self {
        Self {
            call_hash: request.call_hash.clone(),
            cancel: CancellationToken::new(),
            tool_call_id: request.tool_call_id.clone(),
            owner: peer.owner().clone(),
            max_message_bytes: peer.max_message_bytes(),
            now: Mutex::new(Now { peer, attempt_no: request.attempt_no, phase: None }),
        }
    }

    /// Whether a request asks for what is under way, for the one that it is under way for.
    pub(super) fn is_the_same(&self, request: &CallRequest, owner: &Owner) -> bool {
        self.call_hash == request.call_hash && self.owner == *owner
    }

    /// A repeated request is answered by what is already under way.
    pub(super) fn join(&self, peer: Arc<dyn Peer>, attempt_no: u32) -> Option<Phase> {
        let mut now = lock(&self.now);
        now.peer = peer;
        now.attempt_no = now.attempt_no.max(attempt_no);
        now.phase
    }

    /// A cancel of an attempt that a newer one has joined means nothing any more.
    pub(super) fn cancel_up_to(&self, attempt_no: u32) {
        if lock(&self.now).attempt_no <= attempt_no {
            self.cancel.cancel();
        }
    }

    /// Whom the result belongs to: who asked first.
    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// The call has got so far; the server is told.
    pub(super) async fn enter(&self, phase: Phase) {
        lock(&self.now).phase = Some(phase);
        self.say(|id, attempt_no| DeviceFrame::Received { tool_call_id: id.clone(), attempt_no, phase }).await;
    }

    /// Says how the call ended to whom asked last, in a frame that they take.
    pub(super) async fn say_result(&self, result: CallResult) {
        let peer = lock(&self.now).peer.clone();
        peer.send(fitting(result, peer.max_message_bytes())).await;
    }

    /// Says something to whom asked last.
    pub(super) async fn say(&self, frame: impl FnOnce(&ToolCallId, u32) -> DeviceFrame) {
        let (peer, frame) = {
            let now = lock(&self.now);
            (now.peer.clone(), frame(&self.tool_call_id, now.attempt_no))
        };
        peer.send(frame).await;
    }
}
