//! What an operator decided about a projection: that it passes over an event which it cannot apply.
//!
//! A skip is an event, because the log is all that a view is made of: views that are deleted, rebuilt or
//! kept by another process skip the same. It counts for one version of the projection alone, so that the
//! version that mends the fault sees the event. Carrying it out is left to `devmind-projections`.

use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::{AggregateType, event_set};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A projection passes over an event. Its stream is the projection's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProjectionEventSkipped {
    /// The version of the projection that cannot apply it.
    pub version: u32,
    /// The skipped event's position.
    pub position: u64,
    /// Its id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// What the projection failed with.
    pub failure: String,
    /// Why it may be passed over, in the operator's words.
    pub reason: String,
}

event_set! {
    /// What can be decided about a projection.
    ProjectionEvent of Projection {
        ProjectionEventSkipped = 1,
    }
}

/// What can be asked.
#[derive(Clone, Debug)]
pub enum ProjectionCommand {
    /// Pass over an event.
    Skip(ProjectionEventSkipped),
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProjectionError {
    /// No reason is given.
    #[error("a skip needs a reason")]
    NoReason,
}

/// The events that a projection passes over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProjectionSkips {
    skipped: BTreeSet<(u32, u64)>,
}

impl ProjectionSkips {
    /// The positions that a version of the projection passes over.
    pub fn of_version(&self, version: u32) -> BTreeSet<u64> {
        self.skipped.iter().filter(|(of, _)| *of == version).map(|(_, position)| *position).collect()
    }
}

impl Decider for ProjectionSkips {
    const TYPE: AggregateType = AggregateType::Projection;
    const STATE_VERSION: u32 = 1;
    type Command = ProjectionCommand;
    type Event = ProjectionEvent;
    type Error = ProjectionError;

    fn decide(&self, command: ProjectionCommand) -> Result<Vec<ProjectionEvent>, ProjectionError> {
        match command {
            ProjectionCommand::Skip(asked) if self.skipped.contains(&(asked.version, asked.position)) => Ok(vec![]),
            ProjectionCommand::Skip(asked) if asked.reason.trim().is_empty() => Err(ProjectionError::NoReason),
            ProjectionCommand::Skip(asked) => Ok(vec![asked.into()]),
        }
    }

    fn evolve(&mut self, event: &ProjectionEvent) {
        match event {
            ProjectionEvent::ProjectionEventSkipped(e) => {
                self.skipped.insert((e.version, e.position));
            }
        }
    }

    fn held_bytes(&self) -> usize {
        self.skipped.len() * size_of::<(u32, u64)>()
    }
}

adapt_to_cqrs_es!(ProjectionSkips, "projection");

#[cfg(test)]
mod tests {
    use super::*;
    use cqrs_es::test::TestFramework;

    fn skip(version: u32, position: u64, reason: &str) -> ProjectionEventSkipped {
        ProjectionEventSkipped {
            version,
            position,
            event_id: "e".to_owned(),
            event_type: "TurnPrepared".to_owned(),
            failure: "panicked".to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_skip_is_decided_once_for_each_version_and_never_without_a_reason() {
        let test = || TestFramework::<ProjectionSkips>::with(());
        let first = skip(1, 7, "a fault of ours");
        test()
            .given_no_previous_events()
            .when(ProjectionCommand::Skip(first.clone()))
            .then_expect_events(vec![first.clone().into()]);
        test()
            .given(vec![first.clone().into()])
            .when(ProjectionCommand::Skip(first.clone()))
            .then_expect_events(vec![]);
        let next = skip(2, 7, "still");
        test()
            .given(vec![first.into()])
            .when(ProjectionCommand::Skip(next.clone()))
            .then_expect_events(vec![next.into()]);
        test()
            .given_no_previous_events()
            .when(ProjectionCommand::Skip(skip(1, 7, " ")))
            .then_expect_error(ProjectionError::NoReason);
    }

    #[test]
    fn a_version_passes_over_its_own_skips_alone() {
        let mut skips = ProjectionSkips::default();
        for (version, position) in [(1, 7), (1, 9), (2, 9)] {
            skips.evolve(&skip(version, position, "r").into());
        }
        assert_eq!(skips.of_version(1), BTreeSet::from([7, 9]));
        assert_eq!(skips.of_version(2), BTreeSet::from([9]));
        assert_eq!(skips.of_version(3), BTreeSet::new());
    }
}
