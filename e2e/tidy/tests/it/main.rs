//! The rules of this tree. One program, which is linked once.

mod chart;
mod crds;
mod dockerfile;
mod docs;
mod houses;
mod pages;
mod queries;
mod setup;
mod tidy;
mod values;
