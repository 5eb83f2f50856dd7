//! The fold. One program, which is linked once.

mod common;
mod properties;
mod refusals;
mod scale;
