//! Reads by auditors and operators.

use super::*;
use crate::event::Role;

#[test]
fn a_read_of_somebody_elses_conversation_is_recorded_and_changes_nothing() {
    let read = |by: &str| Command::RecordRead { by: by.into(), role: Role::Auditor, what: "turns".into() };
    let recorded: Event = ConversationRead { by: "carol".into(), role: Role::Auditor, what: "turns".into() }.into();
    for given in [queued(), running(), interrupted(), then(then(running(), succeeded("r1")), ConversationDeleted {})] {
        check(&given, read("carol"), Ok(vec![recorded.clone()]));
        check(&given, read("alice"), Ok(vec![]));
        let mut state = Conversation::default();
        given.iter().for_each(|event| state.evolve(event));
        let before = state.clone();
        state.evolve(&recorded);
        assert_eq!(state, before);
    }
    check(&[], read("carol"), Err(ConversationError::NotFound));
}
