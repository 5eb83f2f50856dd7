//! Which backend a flow gets and when it leaves it: policies, their members, the algorithms, the
//! judgement of a pool.
//!
//! Owns the choice. It never touches a flow and never sends anything.

pub(crate) mod allowed;
pub(crate) mod maglev;
pub(crate) mod member;
pub(crate) mod placement;
pub(crate) mod policy;
pub(crate) mod pool;
pub(crate) mod standing;
pub(crate) mod wrr;
