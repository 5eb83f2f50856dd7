//! AF_XDP in real kernels, in namespaces of its own. One program, which is linked once.

mod common;
mod echo;
mod host;
mod kernel;
mod workers;
