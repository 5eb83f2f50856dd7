//! What a load is made of, whoever sends it: requests and the check of their answers, when they are
//! due, its figures.

pub(crate) mod arrivals;
pub(crate) mod exchange;
pub(crate) mod stats;
