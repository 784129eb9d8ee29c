//! A call under way: who hears of it, and how its task is reached.

use super::{Peer, fitting, lock};
use crate::clock::Deadline;
use crate::journal::Owner;
use devmind_domain::device_channel::device_call::Effect;
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::{CallRequest, CallResult, DeviceFrame};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) struct OpenCall {
    pub(super) tool_call_id: ToolCallId,
    call_hash: String,
    owner: Owner,
    max_message_bytes: usize,
    /// When it is too late to begin.
    pub(super) deadline: Deadline,
    /// Cancelled when a question or a look is no longer waited for.
    pub(super) interrupt: CancellationToken,
    /// Cancelled when the tool is to stop.
    pub(super) abort: CancellationToken,
    /// What is to be performed. Bounded by the machine: it emits the next step when it has the outcome
    /// of the one before.
    effects: mpsc::UnboundedSender<Effect>,
    /// The connection that asked last.
    peer: Mutex<Arc<dyn Peer>>,
}

impl OpenCall {
    pub(super) fn new(
        peer: Arc<dyn Peer>,
        request: &CallRequest,
        deadline: Deadline,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Effect>) {
        let (effects, queue) = mpsc::unbounded_channel();
        let call = Self {
            tool_call_id: request.tool_call_id.clone(),
            call_hash: request.call_hash.clone(),
            owner: peer.owner().clone(),
            max_message_bytes: peer.max_message_bytes(),
            deadline,
            interrupt: CancellationToken::new(),
            abort: CancellationToken::new(),
            effects,
            peer: Mutex::new(peer),
        };
        (Arc::new(call), queue)
    }

    /// Takes effects: what breaks off the step under way is done at once, the rest in its order.
    pub(super) fn take(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Interrupt => self.interrupt.cancel(),
                Effect::Abort => self.abort.cancel(),
                // Fails only when the task has ended, and the call with it.
                in_order => drop(self.effects.send(in_order)),
            }
        }
    }

    /// Whether a request asks for what is under way, for the one that it is under way for.
    pub(super) fn is_the_same(&self, request: &CallRequest, owner: &Owner) -> bool {
        self.call_hash == request.call_hash && self.owner == *owner
    }

    /// From now on this peer hears of it.
    pub(super) fn answers(&self, peer: Arc<dyn Peer>) {
        *lock(&self.peer) = peer;
    }

    /// Whom the result belongs to: who asked first.
    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// Says how the call ended to whom asked last, in a frame that they take.
    pub(super) async fn say_result(&self, result: CallResult) {
        let peer = lock(&self.peer).clone();
        peer.send(fitting(result, peer.max_message_bytes())).await;
    }

    /// Says something to whom asked last.
    pub(super) async fn say(&self, frame: DeviceFrame) {
        let peer = lock(&self.peer).clone();
        peer.send(frame).await;
    }
}
