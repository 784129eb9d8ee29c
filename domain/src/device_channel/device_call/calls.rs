//! All calls under way on a device: who is let in, and whom a cancel reaches.
//!
//! Inputs of one call are taken in the order in which they come, also when the first cancel comes
//! before the first request.

use super::early_cancels::EarlyCancels;
use super::step::{DeviceCall, Effect, Input};
use crate::ErrorCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// Calls being judged, asked about or executed at the same time, at most.
pub const MAX_OPEN_CALLS: usize = 32;

/// What a request is about, as far as letting it in is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The attempt.
    pub attempt_no: u32,
    /// Check 1: whether it is for this device.
    pub is_mine: bool,
    /// Whether content and owner are those of the call that is under way under its id; does not matter
    /// where none is.
    pub is_the_same: bool,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// A new call is under way.
    Opened(Vec<Effect>),
    /// The call was under way: whoever asks is answered by it from now on.
    Joined(Vec<Effect>),
    /// The attempt ends with this code, which is told to whoever asks.
    Refused(ErrorCode),
}

/// The calls under way, by a name `K` for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCalls<K: Ord> {
    open: BTreeMap<K, DeviceCall>,
    cancels: EarlyCancels<K>,
    is_stopping: bool,
}

impl<K: Ord> Default for DeviceCalls<K> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), cancels: EarlyCancels::default(), is_stopping: false }
    }
}

impl<K: Ord + Clone> DeviceCalls<K> {
    /// A request came, at the moment `now`.
    pub fn request(&mut self, call: &K, asked: Asked, now: Duration) -> Door {
        // Check 1 comes before everything, also before joining.
        if !asked.is_mine {
            return Door::Refused(ErrorCode::DeviceMismatch);
        }
        if self.is_stopping {
            return Door::Refused(ErrorCode::DeviceBusy);
        }
        let has_room = self.open.len() < MAX_OPEN_CALLS;
        match self.open.get_mut(call) {
            Some(_) if !asked.is_the_same => Door::Refused(ErrorCode::IdempotencyConflict),
            Some(open) => Door::Joined(open.step(Input::Requested { attempt_no: asked.attempt_no })),
            None if !has_room => Door::Refused(ErrorCode::DeviceBusy),
            None => {
                let (opened, effects) = DeviceCall::requested(asked.attempt_no, self.cancels.up_to(call, now));
                self.open.insert(call.clone(), opened);
                Door::Opened(effects)
            }
        }
    }

    /// This attempt and earlier ones are not wanted, whether the request has come or not. Remembered
    /// until the moment `until`.
    pub fn cancel(&mut self, call: &K, attempt_no: u32, until: Duration, now: Duration) -> Vec<Effect> {
        self.cancels.remember(call, attempt_no, until, now);
        self.step(call, Input::Cancelled { attempt_no })
    }

    /// Something came for a call; nothing is done where it is not under way any more.
    pub fn step(&mut self, call: &K, input: Input) -> Vec<Effect> {
        let Some(open) = self.open.get_mut(call) else { return vec![] };
        let effects = open.step(input);
        if open.has_ended() {
            self.open.remove(call);
        }
        effects
    }

    /// The program ends: no more calls are taken, and none begins.
    pub fn stop(&mut self) -> Vec<(K, Vec<Effect>)> {
        self.is_stopping = true;
        let stopped = |(call, open): (&K, &mut DeviceCall)| (call.clone(), open.step(Input::Stopping));
        self.open.iter_mut().map(stopped).collect()
    }

    /// A call under way.
    pub fn get(&self, call: &K) -> Option<&DeviceCall> {
        self.open.get(call)
    }
}
