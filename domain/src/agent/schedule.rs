//! Which calls of one message may begin now: a pure function of what became of the calls before.
//!
//! The model's order comes in, and the prompt has it again; in between every call goes its own way. Calls that may run
//! beside others share a bounded pool, a call that runs alone waits for all earlier ones and holds back all later ones.
//! A call that waits for a person is not among them yet (`next_step`), so that it holds back nobody. Carrying calls out,
//! and recording what came of them, is left to the caller.

use super::PlannedCall;
use crate::limits::{DEVICE_SLOTS, MAX_PARALLEL_CALLS};
use crate::tool_call::Target;
use crate::tools::{Registry, admit};

/// How a call runs with respect to the others of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Alone: nothing of the message is under way meanwhile. What is not known to be safe runs so.
    Alone,
    /// Beside others.
    Shared,
    /// Beside others, on the device, which serves so many at once.
    Device,
}

impl Lane {
    /// The lane of a call: shared only where its tool says so of exactly these arguments.
    pub fn of(tools: &Registry, planned: &PlannedCall) -> Self {
        let admission = admit(tools, &planned.call, planned.over_limit);
        match admission.target {
            _ if !tools.may_run_beside_others(&admission.tool, &admission.arguments) => Self::Alone,
            Target::Server => Self::Shared,
            Target::Device => Self::Device,
        }
    }
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Ready,
    UnderWay,
    Ended,
}

/// The calls of one message that nothing but each other is in the way of.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// In the model's order.
    calls: Vec<(Lane, Progress)>,
    /// Calls under way at once, at most.
    pool: usize,
    /// Of these, on the device.
    device_pool: usize,
}

impl Schedule {
    /// Nothing has begun. The calls are in the model's order, and are known by their index from here on.
    pub fn new(lanes: impl IntoIterator<Item = Lane>) -> Self {
        Self::with_pools(lanes, MAX_PARALLEL_CALLS, DEVICE_SLOTS)
    }

    /// The same for planned calls.
    pub fn of(tools: &Registry, planned: &[PlannedCall]) -> Self {
        Self::new(planned.iter().map(|call| Lane::of(tools, call)))
    }

    pub(super) fn with_pools(lanes: impl IntoIterator<Item = Lane>, pool: usize, device_pool: usize) -> Self {
        let calls = lanes.into_iter().map(|lane| (lane, Progress::Ready)).collect();
        Self { calls, pool, device_pool }
    }

    /// The calls that begin now, in the model's order; they count as under way.
    pub fn begin(&mut self) -> Vec<usize> {
        let under_way = |lane: Option<Lane>| {
            let own = |call: &&(Lane, Progress)| call.1 == Progress::UnderWay && lane.is_none_or(|lane| call.0 == lane);
            self.calls.iter().filter(own).count()
        };
        let mut room = self.pool.saturating_sub(under_way(None));
        let mut device_room = self.device_pool.saturating_sub(under_way(Some(Lane::Device)));
        let (mut begun, mut all_ended) = (Vec::new(), true);
        for (index, (lane, progress)) in self.calls.iter_mut().enumerate() {
            match (*progress, *lane) {
                (Progress::Ended, _) => continue,
                (Progress::Ready, Lane::Alone) if all_ended => {
                    *progress = Progress::UnderWay;
                    begun.push(index);
                    break;
                }
                (Progress::Ready | Progress::UnderWay, Lane::Alone) => break,
                (Progress::Ready, Lane::Device) if device_room == 0 => {}
                (Progress::Ready, Lane::Shared | Lane::Device) if room > 0 => {
                    *progress = Progress::UnderWay;
                    room -= 1;
                    device_room -= usize::from(*lane == Lane::Device);
                    begun.push(index);
                }
                (Progress::Ready | Progress::UnderWay, Lane::Shared | Lane::Device) => {}
            }
            all_ended = false;
        }
        begun
    }

    /// A call has ended.
    pub fn end(&mut self, index: usize) {
        if let Some((_, progress)) = self.calls.get_mut(index) {
            *progress = Progress::Ended;
        }
    }

    /// Whether a call has begun and not ended.
    pub fn is_under_way(&self, index: usize) -> bool {
        self.calls.get(index).is_some_and(|(_, progress)| *progress == Progress::UnderWay)
    }

    /// Whether every call has ended.
    pub fn is_over(&self) -> bool {
        self.calls.iter().all(|(_, progress)| *progress == Progress::Ended)
    }
}
