//! What an aggregate is here, and its adapter to the cqrs-es family.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A consistency boundary: a state, the commands it decides and the events it folds.
///
/// `decide` holds all rules. `evolve` holds none: it is total, so that history always loads.
/// The shape is Chassaing's "decider"; [`cqrs_es::Aggregate`] is a thin adapter over the two
/// (see the `adapt_to_cqrs_es` macro), which makes cqrs-es's given/when/then tests and tools work.
pub trait Decider: Default + Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stream's kind, the column `aggregate_type`.
    const TYPE: crate::event::AggregateType;
    /// The shape and the fold of the state. A stored state of another number is not used: raise it
    /// whenever `evolve` or a field of the state changes (a test over golden states says when).
    const STATE_VERSION: u32;
    /// What can be asked.
    type Command: Send;
    /// What can have happened.
    type Event: crate::event::EventSet;
    /// Why a command can be refused.
    type Error: std::error::Error + Send;

    /// The events a command causes; `Ok(vec![])` means that it is already so.
    ///
    /// # Errors
    /// When the rules refuse the command; nothing has happened then.
    fn decide(&self, command: Self::Command) -> Result<Vec<Self::Event>, Self::Error>;

    /// Folds one event into the state.
    fn evolve(&mut self, event: &Self::Event);

    /// About how many bytes the state holds beyond its own size, for caches.
    fn held_bytes(&self) -> usize {
        0
    }
}

/// Implements [`cqrs_es::Aggregate`] for a [`Decider`].
macro_rules! adapt_to_cqrs_es {
    ($state:ty, $name:literal) => {
        impl cqrs_es::Aggregate for $state {
            const TYPE: &'static str = $name;
            type Command = <$state as $crate::Decider>::Command;
            type Event = <$state as $crate::Decider>::Event;
            type Error = <$state as $crate::Decider>::Error;
            type Services = ();

            async fn handle(
                &mut self,
                command: Self::Command,
                (): &Self::Services,
                sink: &cqrs_es::event_sink::EventSink<Self>,
            ) -> Result<(), Self::Error> {
                for event in $crate::Decider::decide(self, command)? {
                    sink.write(event, self).await;
                }
                Ok(())
            }

            fn apply(&mut self, event: Self::Event) {
                $crate::Decider::evolve(self, &event);
            }
        }
    };
}
pub(crate) use adapt_to_cqrs_es;

#[cfg(test)]
mod tests {
    use crate::Decider;

    #[test]
    fn an_aggregate_has_one_name_in_this_crate_and_in_the_cqrs_es_family() {
        fn check<A: Decider + cqrs_es::Aggregate>() {
            assert_eq!(<A as cqrs_es::Aggregate>::TYPE, <A as Decider>::TYPE.as_str());
        }
        check::<crate::conversation::Conversation>();
        check::<crate::thread::Thread>();
        check::<crate::tool_call::ToolCall>();
        check::<crate::device::Device>();
        check::<crate::node::Node>();
        check::<crate::redaction::Redaction>();
    }
}
