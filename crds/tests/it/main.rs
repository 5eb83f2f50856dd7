//! The custom resources and the check of manifests. One program, which is linked once.

mod cases;
mod common;
mod definition;
mod generated;
mod manifests;
mod snapshot;
