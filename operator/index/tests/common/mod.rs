//! A small universe in which everything meets everything: few names, addresses, ports and ages.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod reference;
pub mod universe;
