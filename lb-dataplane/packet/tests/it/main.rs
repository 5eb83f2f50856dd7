//! Frames read, rewritten and built. One program, which is linked once.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test that cannot go on shall panic")]

mod across;
mod adoption;
mod decode;
mod icmp;
mod options;
mod rewrite;
mod shift;
mod support;
mod vectors;
