//! The policies of this process: the configured rules, and policies of other kinds after them.
//!
//! Rules are pure and answer at once. What another policy does is not known: it is heard on a thread of its own, for so
//! long, and one that panics, hangs or lies refuses the call that it was heard about and nothing else. What
//! a verdict makes of a call, and what is recorded of it, is left to `runs`.

use devmind_domain::tools::{Policy, PolicyCall, Rules, Verdict, hear, is_policy_id};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// How long a policy may take, the wait for its turn included.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Calls that one policy is heard about at a time. One that hangs keeps no more threads than these.
const HEARD_AT_ONCE: usize = 16;

/// A policy that is not configured.
#[derive(Clone)]
struct Other {
    id: String,
    policy: Arc<dyn Policy>,
    turns: Arc<Semaphore>,
}

/// The policies of a process, in their order.
pub struct Policies {
    rules: Rules,
    others: RwLock<Vec<Other>>,
    asks: bool,
}

impl Policies {
    /// Configured rules; `asks`: whether people are asked at all.
    pub fn new(rules: Rules, asks: bool) -> Self {
        Self { rules, others: RwLock::default(), asks }
    }

    /// Whether a run may ask a person.
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// Adds a policy behind all others; whether its id is one, and of no other policy.
    pub fn add(&self, id: &str, policy: Arc<dyn Policy>) -> bool {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if !is_policy_id(id)
            || self.rules.ids().chain(others.iter().map(|other| other.id.as_str())).any(|own| own == id)
        {
            return false;
        }
        others.push(Other { id: id.to_owned(), policy, turns: Arc::new(Semaphore::new(HEARD_AT_ONCE)) });
        true
    }

    /// What the first policy says that has a word about the call.
    pub async fn first_word(&self, call: &PolicyCall) -> Option<Verdict> {
        if let Some(verdict) = self.rules.first_word(call) {
            return Some(verdict);
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        for other in others {
            if let Some(verdict) = other.heard(call.clone()).await {
                return Some(verdict);
            }
        }
        None
    }
}

impl Other {
    async fn heard(&self, call: PolicyCall) -> Option<Verdict> {
        let verdict = match timeout(ANSWER_WITHIN, self.answer(call)).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_gone)) => Some(Verdict::of_fault(&self.id, "could not be heard")),
            Err(_elapsed) => Some(Verdict::of_fault(&self.id, "did not answer in time")),
        };
        if let Some(fault) = verdict.as_ref().filter(|verdict| verdict.is_fault()) {
            tracing::error!(policy.id = self.id, reason = fault.reason, "a policy has a fault");
        }
        verdict
    }

    async fn answer(&self, call: PolicyCall) -> Result<Option<Verdict>, oneshot::error::RecvError> {
        let turn = self.turns.clone().acquire_owned().await;
        let (sender, answer) = oneshot::channel();
        let (id, policy) = (self.id.clone(), self.policy.clone());
        // Not one of the runtime's threads: the process would wait for it at its end.
        let heard = move || {
            let _turn = turn;
            drop(sender.send(hear(&id, policy.as_ref(), &call)));
        };
        // Where there is no thread, the sender is gone, and the answer says so.
        drop(thread::Builder::new().name("policy".to_owned()).spawn(heard));
        answer.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::tool_call::{Decision, Risk, Target};
    use devmind_domain::tools::{Approval, PolicyAnswer};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    fn call() -> PolicyCall {
        PolicyCall {
            conversation_id: "c".into(),
            user_id: "ann".into(),
            device_id: None,
            tool: "add".into(),
            tool_version: "1".into(),
            target: Target::Server,
            risk: Risk::Low,
            approval: Approval::Never,
            arguments: serde_json::json!({}),
        }
    }

    struct Says(fn() -> PolicyAnswer);

    impl Policy for Says {
        fn judge(&self, _: &PolicyCall) -> PolicyAnswer {
            (self.0)()
        }
    }

    /// Says that it is heard, and hangs until it is let go.
    struct Hangs(Sender<()>, Mutex<Receiver<()>>);

    impl Policy for Hangs {
        fn judge(&self, _: &PolicyCall) -> PolicyAnswer {
            let _ = self.0.send(());
            drop(self.1.lock().map(|held| held.recv()));
            PolicyAnswer::Allow
        }
    }

    /// What lets it go, what tells of each call it is heard about, and the policy.
    fn hangs() -> (Sender<()>, Receiver<()>, Hangs) {
        let ((let_go, held), (tells, heard)) = (channel(), channel());
        (let_go, heard, Hangs(tells, Mutex::new(held)))
    }

    #[tokio::test]
    async fn each_is_heard_in_its_order_until_one_has_a_word() {
        let policies = Policies::new(Rules::default(), true);
        assert!(policies.add("passes", Arc::new(Says(|| PolicyAnswer::Pass))));
        assert_eq!(policies.first_word(&call()).await, None);
        assert!(policies.add("asks", Arc::new(Says(|| PolicyAnswer::Ask { reason: String::new() }))));
        assert!(policies.add("panics", Arc::new(Says(|| panic!("never heard")))));
        let verdict = policies.first_word(&call()).await.expect("a word");
        assert_eq!((verdict.decision, verdict.by.as_str()), (Decision::Ask, "policy:asks"));
        for taken in ["asks", "", "a:b"] {
            assert!(!policies.add(taken, Arc::new(Says(|| PolicyAnswer::Allow))), "{taken}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_refuses_every_call_it_is_heard_about_and_keeps_so_many_threads() {
        let (let_go, heard, hangs) = hangs();
        let policies = Policies::new(Rules::default(), true);
        assert!(policies.add("hangs", Arc::new(hangs)));
        let calls = (0..HEARD_AT_ONCE + 2).map(|_| async { policies.first_word(&call()).await });
        let all = timeout(10 * ANSWER_WITHIN, futures::future::join_all(calls)).await;
        for verdict in all.expect("nobody waits for a policy that hangs") {
            let verdict = verdict.expect("a word");
            assert_eq!((verdict.decision, verdict.code.as_str()), (Decision::Deny, "POLICY_FAILED"));
        }
        let turns = policies.others.read().expect("unpoisoned")[0].turns.available_permits();
        assert_eq!(turns, 0, "what hangs keeps its turns, and no more");
        // With the last thread that has the policy goes what it tells with.
        drop((let_go, policies));
        assert_eq!(heard.iter().count(), HEARD_AT_ONCE, "as many threads as it was heard on at once");
    }

    #[tokio::test]
    async fn one_that_panics_refuses_that_call_and_is_heard_about_the_next() {
        static FIRST: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);
        let policies = Policies::new(Rules::default(), true);
        let policy = Says(|| {
            assert!(!FIRST.swap(false, std::sync::atomic::Ordering::Relaxed), "a fault");
            PolicyAnswer::Allow
        });
        assert!(policies.add("panics", Arc::new(policy)));
        let codes = [policies.first_word(&call()).await, policies.first_word(&call()).await];
        let codes: Vec<_> = codes.into_iter().flatten().map(|verdict| verdict.code).collect();
        assert_eq!(codes, ["POLICY_FAILED", "TOOL_ALLOWED"]);
    }
}
