//! One server process's name and its starts.
//!
//! A start is one `NodeStarted` with the next epoch. Appending it is all the clean-up a crash
//! needs: whatever an older epoch had under way is unknown from then on, live and in any replay.

use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::{AggregateType, event_set};
use crate::ids::NodeId;
use serde::{Deserialize, Serialize};

/// The process began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStarted {
    /// The process's name.
    pub node_id: NodeId,
    /// 1, 2, 3 … with every start.
    pub epoch: u64,
    /// The program's version.
    pub version: String,
}

/// The process ended in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStopped {
    /// The process's name.
    pub node_id: NodeId,
    /// The start that ended.
    pub epoch: u64,
}

/// Another process found this one gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLost {
    /// The process's name.
    pub node_id: NodeId,
    /// The start that ended.
    pub epoch: u64,
}

event_set! {
    /// What can happen to a server process.
    NodeEvent of Node {
        NodeStarted = 1,
        NodeStopped = 1,
        NodeLost = 1,
    }
}

/// What can be asked of a node.
#[derive(Clone, Debug)]
pub enum NodeCommand {
    /// The process begins.
    Start {
        /// Its name.
        node_id: NodeId,
        /// Its version.
        version: String,
    },
    /// The process ends in order.
    Stop {
        /// The start that ends.
        epoch: u64,
    },
    /// Another process has found a start of it gone.
    Lose {
        /// The start.
        epoch: u64,
    },
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// A newer start exists.
    #[error("a newer start of this server process exists (epoch {current})")]
    Superseded {
        /// The newest epoch.
        current: u64,
    },
}

/// What must be known about a server process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub node_id: NodeId,
    /// Its newest start; 0 before the first.
    pub epoch: u64,
    /// Whether that start has ended in order or is known to be lost.
    pub ended: bool,
}

impl Node {
    /// Whether this start of it is under way, as far as the log knows.
    pub fn runs(&self, epoch: u64) -> bool {
        self.epoch == epoch && !self.ended
    }
}

impl Decider for Node {
    const TYPE: AggregateType = AggregateType::Node;
    const STATE_VERSION: u32 = 1;
    type Command = NodeCommand;
    type Event = NodeEvent;
    type Error = NodeError;

    fn decide(&self, command: NodeCommand) -> Result<Vec<NodeEvent>, NodeError> {
        match command {
            NodeCommand::Start { node_id, version } => {
                Ok(vec![NodeStarted { node_id, epoch: self.epoch + 1, version }.into()])
            }
            NodeCommand::Stop { epoch } if epoch != self.epoch => Err(NodeError::Superseded { current: self.epoch }),
            NodeCommand::Stop { .. } if self.ended => Ok(vec![]),
            NodeCommand::Stop { epoch } => Ok(vec![NodeStopped { node_id: self.node_id.clone(), epoch }.into()]),
            // A newer start says by itself that the older one is over.
            NodeCommand::Lose { epoch } if epoch == 0 || epoch != self.epoch || self.ended => Ok(vec![]),
            NodeCommand::Lose { epoch } => Ok(vec![NodeLost { node_id: self.node_id.clone(), epoch }.into()]),
        }
    }

    fn evolve(&mut self, event: &NodeEvent) {
        match event {
            NodeEvent::NodeStarted(e) => {
                self.node_id = e.node_id.clone();
                self.epoch = e.epoch;
                self.ended = false;
            }
            NodeEvent::NodeStopped(e) => self.ended |= e.epoch == self.epoch,
            NodeEvent::NodeLost(e) => self.ended |= e.epoch == self.epoch,
        }
    }
}

adapt_to_cqrs_es!(Node, "node");

#[cfg(test)]
mod tests {
    use super::*;
    use cqrs_es::test::TestFramework;

    fn start() -> NodeCommand {
        NodeCommand::Start { node_id: "n".into(), version: "1".into() }
    }
    fn started(epoch: u64) -> NodeEvent {
        NodeStarted { node_id: "n".into(), epoch, version: "1".into() }.into()
    }

    #[test]
    fn every_start_has_the_next_epoch() {
        TestFramework::<Node>::with(()).given_no_previous_events().when(start()).then_expect_events(vec![started(1)]);
        TestFramework::<Node>::with(()).given(vec![started(1)]).when(start()).then_expect_events(vec![started(2)]);
    }

    #[test]
    fn a_process_is_lost_once_and_one_that_ended_in_order_never() {
        let lost: NodeEvent = NodeLost { node_id: "n".into(), epoch: 1 }.into();
        let stopped: NodeEvent = NodeStopped { node_id: "n".into(), epoch: 1 }.into();
        for (given, expected) in [
            (vec![], vec![]),
            (vec![started(1)], vec![lost.clone()]),
            (vec![started(1), lost.clone()], vec![]),
            (vec![started(1), stopped], vec![]),
            // What was found gone is the older start, and a newer one lives.
            (vec![started(1), started(2)], vec![]),
        ] {
            let lose = NodeCommand::Lose { epoch: 1 };
            TestFramework::<Node>::with(()).given(given).when(lose).then_expect_events(expected);
        }
    }

    #[test]
    fn an_older_start_cannot_stop_a_newer_one() {
        TestFramework::<Node>::with(())
            .given(vec![started(1), started(2)])
            .when(NodeCommand::Stop { epoch: 1 })
            .then_expect_error(NodeError::Superseded { current: 2 });
    }

    #[test]
    fn a_start_ends_in_order_once() {
        let stopped: NodeEvent = NodeStopped { node_id: "n".into(), epoch: 1 }.into();
        let stop = || NodeCommand::Stop { epoch: 1 };
        let given = vec![started(1)];
        TestFramework::<Node>::with(()).given(given).when(stop()).then_expect_events(vec![stopped.clone()]);
        let lost: NodeEvent = NodeLost { node_id: "n".into(), epoch: 1 }.into();
        for end in [stopped, lost] {
            TestFramework::<Node>::with(()).given(vec![started(1), end]).when(stop()).then_expect_events(vec![]);
        }
    }

    #[test]
    fn a_late_end_of_an_older_start_does_not_end_the_newer_one() {
        let mut node = Node::default();
        let late: NodeEvent = NodeLost { node_id: "n".into(), epoch: 1 }.into();
        for event in [started(1), started(2), late] {
            node.evolve(&event);
        }
        assert!(!node.ended && node.epoch == 2);
    }
}
