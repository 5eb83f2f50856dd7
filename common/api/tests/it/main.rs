//! Snapshots and policies as they are read. One program, which is linked once.

mod failure;
mod skew;
mod validation;
