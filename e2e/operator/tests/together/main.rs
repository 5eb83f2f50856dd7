//! What one operator does for policies of many namespaces and dataplanes of many classes at one
//! time. The tests of this program share a server and an operator; each has a namespace and a class
//! of its own, and leaves the rest alone.

mod costs;
mod fields;
mod frontends;
mod reach;
mod refused;
mod slices;
mod slow;
mod tenants;
