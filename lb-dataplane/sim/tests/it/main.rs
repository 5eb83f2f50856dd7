//! The simulated worlds. One program, which is linked once.

mod seeds;
mod smol;
