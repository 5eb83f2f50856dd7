//! `baton-images`: packs Baton's images from programs that are built already. `make images` builds
//! and packs.
#![forbid(unsafe_code)]

use anyhow::Result;
use baton_images::{PRODUCTS, Source, metadata};
use clap::Parser;
use std::{path::PathBuf, time::Instant};

/// Pack Baton's container images as OCI archives: no Docker, no registry.
#[derive(Debug, Parser)]
#[command(
    after_help = "Load one with `ctr -n k8s.io images import`, `podman load -i`, `kind load image-archive` \
or `skopeo copy oci-archive:FILE docker://...`."
)]
struct Arguments {
    /// Folder of the built programs.
    #[arg(long)]
    programs: PathBuf,
    /// The workspace with Cargo.lock.
    #[arg(long, default_value = ".")]
    workspace: PathBuf,
    /// Folder for the archives and bills of materials.
    #[arg(long, default_value = "target/images")]
    output: PathBuf,
    /// Registry and folder before each image's name.
    #[arg(long, default_value = "localhost/baton")]
    prefix: String,
    /// Tag of each image.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Commit that the programs were built from, for a label.
    #[arg(long, default_value = "")]
    revision: String,
    /// Platform of the programs, as rustc names it: what is linked in depends on it.
    #[arg(long, default_value = env!("BATON_IMAGES_TARGET"))]
    platform: String,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let metadata = metadata(&arguments.workspace, &arguments.platform)?;
    let source = Source {
        workspace: arguments.workspace,
        programs: arguments.programs,
        output: arguments.output,
        prefix: arguments.prefix,
        tag: arguments.tag,
        revision: arguments.revision,
    };
    for product in PRODUCTS {
        let start = Instant::now();
        let written = product.build(&source, &metadata)?;
        println!(
            "{} {}/{}:{} {:.1} MB {} ({:.1} s)",
            written.path.display(),
            source.prefix,
            product.name,
            source.tag,
            written.size_bytes as f64 / 1e6,
            written.digest,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
