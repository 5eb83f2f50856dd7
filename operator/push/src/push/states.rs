//! Where the policies of dataplanes' states go: one by one, to whoever wants something of them.
//!
//! Owns the seam and nothing else. A state of many backends is large, what is kept of it is small
//! and not this crate's affair.

use baton_api::{PolicyState, State};

/// Takes what dataplanes say of policies.
pub trait States: Send + Sync + 'static {
    /// A state of this target begins.
    fn begin(&self, target: &str) -> Box<dyn Reading>;
}

/// One state under way. It is dropped if the rest does not come or is no state.
pub trait Reading: Send {
    /// The next policy.
    fn policy(&mut self, policy: PolicyState);

    /// That was all; `state` is the rest of it, without policies. [`super::Outcome::State`]
    /// follows.
    fn whole(self: Box<Self>, state: &State);
}

/// Keeps nothing.
impl States for () {
    fn begin(&self, _: &str) -> Box<dyn Reading> {
        Box::new(())
    }
}

impl Reading for () {
    fn policy(&mut self, _: PolicyState) {}

    fn whole(self: Box<Self>, _: &State) {}
}
