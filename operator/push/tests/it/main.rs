//! What this crate does over real sockets, and over the lives of certificates and keys.

mod certificates;
mod common;
mod pushing;
mod rotation;
