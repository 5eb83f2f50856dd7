//! A small universe in which everything meets everything: few names, addresses, ports and ages.

pub mod fleet;
pub mod reference;
pub mod universe;
