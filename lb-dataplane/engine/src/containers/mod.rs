//! Containers: look-ups and their hashes, a timing wheel, shares of a pool, limits per second,
//! going through all of something a piece at a time, the notes of a batch.
//!
//! Owns memory and order, and knows no flow. What an entry means is for whoever has the container.

pub(crate) mod ahead;
pub(crate) mod index;
pub(crate) mod keyed;
pub(crate) mod lookup;
pub(crate) mod memberships;
pub(crate) mod pace;
pub(crate) mod pass;
pub(crate) mod shares;
pub(crate) mod slots;
pub(crate) mod wheel;
