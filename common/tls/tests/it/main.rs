//! Handshakes, and material that is read. One program, which is linked once.

mod handshakes;
mod material;
mod support;
