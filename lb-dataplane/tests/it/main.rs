//! The program: what it says, and what it does on a real interface. One program, linked once.

mod cli;
mod common;
mod failing;
mod namespace;
