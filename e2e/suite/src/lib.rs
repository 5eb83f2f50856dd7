//! What the tests in a real cluster share: the cluster itself, manifests, and clients under load.
//!
//! Owns how the cluster is reached: one of our own (`baton-cluster`) or any that
//! `BATON_E2E_KUBECONFIG` names. What must hold is in `tests/`.
#![forbid(unsafe_code)]

pub mod load;
pub mod site;

pub use load::{Load, Outcome};
pub use site::Site;
