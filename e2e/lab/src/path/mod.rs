//! The way between interfaces: faults on it, connection tracking, floods.

pub(crate) mod blast;
pub(crate) mod fault_hold;
pub(crate) mod fault_program;
pub(crate) mod fault_sys;
pub(crate) mod faults;
pub(crate) mod tracker;
