//! Container images made without Docker and without a registry: OCI archives, packed from files of
//! this machine.
//!
//! Owns: layers, the archive's format, what a dynamically linked program needs besides itself, the
//! list of Baton's images and their bills of materials. Never builds code, never starts a container
//! and never speaks to a network.
//!
//! What holds: equal inputs give equal bytes. Nothing of the machine's clock, users or file order
//! gets into an image.
#![forbid(unsafe_code)]

mod archive;
mod closure;
mod digest;
mod layer;
mod product;
mod sbom;

pub use archive::{Image, Written};
pub use closure::{add_program, strip};
pub use layer::Layer;
pub use product::{PRODUCTS, Product, Source, metadata};
pub use sbom::bill_of_materials;
