//! Rules of this aggregate.
