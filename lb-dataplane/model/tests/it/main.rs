//! The model explored, whole and without each safeguard. One program, which is linked once.

mod explore;
mod safeguards;
