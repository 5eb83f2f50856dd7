//! What the tests of the operator share: a real API server with Baton's definitions and the
//! operator's RBAC installed.
//!
//! Owns how manifests get there and what the server says to them. The server itself is
//! `baton-apiserver`; what the operator does with the objects is tested in `tests/`.
#![forbid(unsafe_code)]

pub mod admin;
pub mod apply;
pub mod class;
pub mod cluster;
mod control;
pub mod dataplane;
pub mod fields;
pub mod manifests;
pub mod objects;
pub mod operator;
pub mod relay;
pub mod scene;
pub mod shim;
pub mod world;

/// Where the operator lives, as its manifests in `operator/rbac` say.
pub const OPERATOR_NAMESPACE: &str = "baton-system";
/// The operator's ServiceAccount there.
pub const OPERATOR: &str = "baton-operator";

/// What is there; a test for which it is not, as where no API server can be had, ends here.
#[macro_export]
macro_rules! or_skip {
    ($there:expr) => {
        match $there {
            Some(there) => there,
            None => return Ok(()),
        }
    };
}
