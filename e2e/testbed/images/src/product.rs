//! Baton's own images: one per program.
//!
//! Owns the list, who runs as whom, and the labels. The programs come from a folder that somebody
//! else has built.

use crate::{
    archive::{Image, Written},
    closure,
    layer::Layer,
    sbom,
};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// One image of the product.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Name of the program, of its cargo package and of the image.
    pub name: &'static str,
    /// For people who find the image.
    pub description: &'static str,
    /// `UID:GID`. Root where the kernel asks for capabilities: Kubernetes gives added capabilities
    /// to no other user (they would need to be ambient). The chart drops all but the few that are
    /// needed.
    pub user: &'static str,
    /// Variables of the program.
    pub environment: &'static [(&'static str, &'static str)],
}

/// All images of the product.
pub const PRODUCTS: &[Product] = &[
    Product {
        name: "lb-dataplane",
        description: "Packet path of Baton, the load balancer that moves live TCP connections between pods",
        user: "0:0",
        // Tables in huge pages, where the node gives them (glibc manual, "Memory Allocation
        // Tunables"; `transparent_hugepage/enabled` is `madvise` or `always` nearly everywhere).
        environment: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
    },
    Product {
        name: "host-shim",
        description: "Lets the pods of a node adopt live TCP connections for Baton",
        user: "0:0",
        environment: &[],
    },
    Product {
        name: "baton-operator",
        description: "Controller of Baton: LoadBalancerPolicy objects program the dataplanes",
        user: "65532:65532",
        environment: &[],
    },
];

/// Where programs come from and how their images are named.
#[derive(Clone, Debug)]
pub struct Source {
    /// The workspace.
    pub workspace: PathBuf,
    /// Folder of the programs, as `target/release`.
    pub programs: PathBuf,
    /// Folder of the archives.
    pub output: PathBuf,
    /// Before the name, as `localhost/baton`.
    pub prefix: String,
    /// After it.
    pub tag: String,
    /// Commit, for the label; empty for none.
    pub revision: String,
}

impl Product {
    /// Packs the image as `OUTPUT/NAME.tar`, with its bill of materials beside it and inside. The
    /// program is stripped.
    pub fn build(&self, source: &Source, metadata: &Value) -> Result<Written> {
        let name = self.name;
        let program = source.programs.join(name);
        ensure!(program.is_file(), "{} is not there: `make images` builds it", program.display());
        fs::create_dir_all(&source.output)
            .with_context(|| format!("making {}", source.output.display()))?;
        let stripped = source.output.join(format!("{name}.stripped"));
        closure::strip(&program, &stripped)?;
        let mut layer = Layer::base()?;
        closure::add_program(&mut layer, &stripped, &format!("/usr/bin/{name}"))?;
        let native = closure::packages(&stripped)?;
        fs::remove_file(&stripped).context("removing the stripped program")?;

        let lock_path = source.workspace.join("Cargo.lock");
        let lock = fs::read_to_string(&lock_path)
            .with_context(|| format!("reading {}", lock_path.display()))?;
        let bill = sbom::bill_of_materials(name, metadata, &lock, &native)?;
        let version = bill["metadata"]["component"]["version"].clone();
        let bill = format!("{bill:#}\n").into_bytes();
        let bill_path = source.output.join(format!("{name}.cdx.json"));
        fs::write(&bill_path, &bill).with_context(|| format!("writing {}", bill_path.display()))?;
        layer.file(&format!("/usr/share/sbom/{name}.cdx.json"), bill, 0o644)?;

        let image = Image {
            reference: format!("{}/{name}:{}", source.prefix, source.tag),
            layers: vec![layer],
            entrypoint: vec![format!("/usr/bin/{name}")],
            command: vec!["run".into()],
            user: self.user.into(),
            environment: (self.environment.iter())
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            labels: self.labels(version.as_str().unwrap_or_default(), &source.revision),
        };
        image.write(&source.output.join(format!("{name}.tar")))
    }

    fn labels(&self, version: &str, revision: &str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        let mut label = |key: &str, value: &str| {
            if !value.is_empty() {
                labels.insert(format!("org.opencontainers.image.{key}"), value.to_owned());
            }
        };
        label("title", self.name);
        label("description", self.description);
        label("version", version);
        label("revision", revision);
        label("licenses", "Apache-2.0");
        label("vendor", "Baton");
        labels
    }
}

/// `cargo metadata` of the workspace, for the platform that the programs are built for.
pub fn metadata(workspace: &Path, platform: &str) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", platform])
        .current_dir(workspace)
        .output()
        .context("starting `cargo metadata`")?;
    ensure!(
        output.status.success(),
        "`cargo metadata` failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("reading what `cargo metadata` says")
}
