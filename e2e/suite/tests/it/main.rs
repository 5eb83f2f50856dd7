//! The chart before a real API server. One program, which is linked once.

mod hooks;
mod places;
mod rendered;
