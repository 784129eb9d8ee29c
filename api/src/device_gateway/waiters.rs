//! Who waits for which call. A wake-up carries no result: the waiter reads the call's stream again,
//! so it can never be handed a result that is not durable, or one of another user.

use devmind_domain::device_channel::server_call::Refusal;
use devmind_domain::ids::{DeviceId, ToolCallId, UserId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// A call, as one user's device knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallKey {
    /// The user.
    pub user_id: UserId,
    /// The device.
    pub device_id: DeviceId,
    /// The call.
    pub tool_call_id: ToolCallId,
}

/// What a waiter is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// Grows with every wake-up: read the stream again.
    pub count: u64,
    /// The attempt that the device refused last; the call is not settled by it.
    pub refused: Option<Refusal>,
}

impl Wake {
    fn tell(&mut self, refused: Option<Refusal>) {
        self.count += 1;
        // Kept for whoever has not looked yet; it names the attempt that it is about.
        self.refused = refused.or(self.refused.take());
    }
}

/// Everybody who waits.
#[derive(Clone, Debug, Default)]
pub struct Waiters {
    waiting: Arc<Mutex<HashMap<CallKey, watch::Sender<Wake>>>>,
}

/// One who waits; leaves when dropped.
#[derive(Debug)]
pub struct Waiter {
    waiters: Waiters,
    key: CallKey,
    /// Changes with every wake-up.
    pub wake: watch::Receiver<Wake>,
}

impl Waiters {
    /// Enters a waiter. Must happen before the dispatch is appended, so that no result can slip
    /// between. Says whether somebody waited already: then an attempt is under way.
    pub fn enter(&self, key: CallKey) -> (Waiter, bool) {
        let mut waiting = self.lock();
        let joins = waiting.get(&key).is_some_and(|sender| sender.receiver_count() > 0);
        let sender = waiting.entry(key.clone()).or_insert_with(|| watch::channel(Wake::default()).0);
        let wake = sender.subscribe();
        drop(waiting);
        (Waiter { waiters: self.clone(), key, wake }, joins)
    }

    /// How many calls are waited for.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wakes whoever waits for the call.
    pub fn wake(&self, key: &CallKey, refused: Option<Refusal>) {
        if let Some(sender) = self.lock().get(key) {
            sender.send_modify(|wake| wake.tell(refused));
        }
    }

    /// Wakes whoever waits for the call of this id, whose ever it is.
    pub fn wake_call(&self, id: &ToolCallId, refused: Option<Refusal>) {
        self.wake_where(|key| key.tool_call_id == *id, refused.as_ref());
    }

    /// Wakes whoever waits for a call of the device.
    pub fn wake_device(&self, user_id: &UserId, device_id: &DeviceId) {
        self.wake_where(|key| key.user_id == *user_id && key.device_id == *device_id, None);
    }

    /// Wakes everybody.
    pub fn wake_all(&self) {
        self.wake_where(|_| true, None);
    }

    fn wake_where(&self, wanted: impl Fn(&CallKey) -> bool, refused: Option<&Refusal>) {
        for (_, sender) in self.lock().iter().filter(|(key, _)| wanted(key)) {
            sender.send_modify(|wake| wake.tell(refused.cloned()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<CallKey, watch::Sender<Wake>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.lock();
        // This one still counts as a receiver.
        if waiting.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str) -> CallKey {
        CallKey { user_id: user.into(), device_id: "d".into(), tool_call_id: "t:1".into() }
    }

    #[test]
    fn inv_x6_a_wake_up_reaches_every_waiter_of_the_call_and_nobody_elses() {
        let waiters = Waiters::default();
        let (mut first, joined_first) = waiters.enter(key("ann"));
        let (mut second, joined_second) = waiters.enter(key("ann"));
        let (other, _) = waiters.enter(key("bob"));
        assert!(!joined_first && joined_second);
        waiters.wake(&key("ann"), None);
        assert!(first.wake.has_changed().expect("open") && second.wake.has_changed().expect("open"));
        assert!(!other.wake.has_changed().expect("open"));
        assert_eq!(first.wake.borrow_and_update().count, second.wake.borrow_and_update().count);
    }

    #[test]
    fn a_refusal_is_not_lost_to_a_wake_up_that_follows_it() {
        let waiters = Waiters::default();
        let (mut waiter, _) = waiters.enter(key("ann"));
        let refusal = Refusal { attempt_no: 2, code: "DEVICE_BUSY".to_owned() };
        waiters.wake(&key("ann"), Some(refusal.clone()));
        waiters.wake(&key("ann"), None);
        assert_eq!(waiter.wake.borrow_and_update().refused, Some(refusal));
    }

    #[test]
    fn nobody_is_remembered_after_leaving() {
        let waiters = Waiters::default();
        let (first, _) = waiters.enter(key("ann"));
        let (second, _) = waiters.enter(key("ann"));
        drop(first);
        assert!(waiters.enter(key("ann")).1, "the second still waits");
        drop(second);
        assert!(!waiters.enter(key("ann")).1);
        assert!(waiters.lock().is_empty());
    }
}
