//! Real connections of real kernels, in network namespaces of their own: a client's, and two pods'
//! with the same address.

mod exits;
mod export;
mod half_closed;
mod round_trip;
mod scene;
