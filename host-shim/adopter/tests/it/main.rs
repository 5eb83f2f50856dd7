//! The adopter in real kernels, in namespaces of its own. One program, which is linked once.

mod adopt;
mod answers;
mod checksum;
mod common;
mod exit_mark;
mod fates;
mod forged;
mod forget;
mod listener_report;
mod load_report;
mod release;
mod replayed;
mod restart;
mod restored;
mod rules;
mod strangers;
mod transfer;
mod unheard;
mod vectors;
#[path = "common/verified.rs"]
mod verified;
mod warm;
