//! Labs of namespaces, what runs in them, and their end. One program, which is linked once.

mod cleanup;
mod clients;
mod failure;
mod faults;
mod layout;
mod phases;
mod throttle;
