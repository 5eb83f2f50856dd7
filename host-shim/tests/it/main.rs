//! The program: what it says, and what it does in pods. One program, which is linked once.

mod cli;
mod control_tls;
mod daemon;
mod discovered;
mod left;
mod release;
mod run;
#[path = "../../../common/tls/tests/it/support/mod.rs"]
mod support;
mod transfer;
