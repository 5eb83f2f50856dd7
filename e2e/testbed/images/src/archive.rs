//! An image as an OCI archive: one tar file that `ctr images import`, `podman load`, `skopeo` and
//! `kind load image-archive` read.
//!
//! Owns the documents of the image specification and their order in the archive. Never decides what
//! is in an image.

use crate::{
    digest::sha256,
    layer::{Layer, Packed},
};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
};
use tar::{Builder, Header};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image to be written.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its full name with a tag, as `localhost/baton/host-shim:0.1.0`.
    pub reference: String,
    /// What is in it, lowest first.
    pub layers: Vec<Layer>,
    /// The program and its fixed arguments.
    pub entrypoint: Vec<String>,
    /// Arguments unless the Pod gives others.
    pub command: Vec<String>,
    /// `UID:GID`, numeric: kubelet can tell from it that a container does not run as root.
    pub user: String,
    /// Environment beyond `PATH`.
    pub environment: BTreeMap<String, String>,
    /// `org.opencontainers.image.*` and others.
    pub labels: BTreeMap<String, String>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The archive.
    pub path: PathBuf,
    /// Digest of the manifest: the image's identity.
    pub digest: String,
    /// Of the compressed layers together.
    pub size_bytes: u64,
}

impl Image {
    /// Writes the archive. The file appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<Written> {
        let (bytes, digest, size_bytes) = self.pack()?;
        let unfinished = path.with_extension("unfinished");
        let write = || -> std::io::Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::File::create(&unfinished)?.write_all(&bytes)?;
            fs::rename(&unfinished, path)
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(Written { path: path.into(), digest, size_bytes })
    }

    /// The archive, the manifest's digest, and the bytes of all layers.
    fn pack(&self) -> Result<(Vec<u8>, String, u64)> {
        let tag = tag(&self.reference)?;
        ensure!(is_numeric(&self.user), "user {:?}: expected UID:GID in digits", self.user);
        let layers = self.layers.iter().map(Layer::pack);
        let layers = layers.collect::<Result<Vec<Packed>>>()?;
        let platform = json!({ "architecture": architecture(), "os": "linux" });
        let mut environment = vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()];
        environment.extend(self.environment.iter().map(|(k, v)| format!("{k}={v}")));
        let config = document(&json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "User": self.user,
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "Env": environment,
                "Labels": self.labels,
                "WorkingDir": "/",
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|l| l.diff_id.as_str()).collect::<Vec<_>>(),
            },
        }));
        let describe = |kind: &str, bytes: &[u8], digest: &str| json!({ "mediaType": kind, "digest": digest, "size": bytes.len() });
        let layer = |l: &Packed| describe(LAYER, &l.bytes, &l.digest);
        let manifest = document(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": describe(CONFIG, &config, &sha256(&config)),
            "layers": layers.iter().map(layer).collect::<Vec<_>>(),
            "annotations": self.labels,
        }));
        let digest = sha256(&manifest);
        let mut entry = describe(MANIFEST, &manifest, &digest);
        entry["platform"] = platform;
        entry["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": tag,
        });
        let index =
            document(&json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] }));
        let mut blobs: BTreeMap<String, &[u8]> = BTreeMap::new();
        for bytes in [&config, &manifest].into_iter().chain(layers.iter().map(|l| &l.bytes)) {
            let digest = sha256(bytes);
            let name = digest.replace(':', "/");
            blobs.insert(format!("blobs/{name}"), bytes);
        }
        let mut archive = Builder::new(Vec::new());
        add(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add(&mut archive, "index.json", &index)?;
        for (name, bytes) in blobs {
            add(&mut archive, &name, bytes)?;
        }
        let size = layers.iter().map(|l| l.bytes.len() as u64).sum();
        Ok((archive.into_inner().context("packing an archive")?, digest, size))
    }
}

fn document(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn add(archive: &mut Builder<Vec<u8>>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = Header::new_ustar();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes).with_context(|| format!("packing {name}"))
}

/// The machine's architecture as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn tag(reference: &str) -> Result<&str> {
    let last = reference.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let tag = tag.filter(|t| !t.is_empty() && *t != "latest");
    // With `latest` kubelet asks a registry by default, and there is none.
    tag.with_context(|| format!("image {reference:?}: expected NAME:TAG, and not `latest`"))
}

fn is_numeric(user: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    user.split_once(':').is_some_and(|(u, g)| digits(u) && digits(g))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        let mut layer = Layer::base().unwrap();
        layer.file("/usr/bin/x", b"program".to_vec(), 0o755).unwrap();
        Image {
            reference: "localhost/baton/x:1".into(),
            layers: vec![layer],
            entrypoint: vec!["/usr/bin/x".into()],
            command: vec![],
            user: "65532:65532".into(),
            environment: BTreeMap::from([("A".into(), "b".into())]),
            labels: BTreeMap::from([("org.opencontainers.image.title".into(), "x".into())]),
        }
    }

    #[test]
    fn equal_inputs_give_equal_bytes() {
        let first = image().pack().unwrap();
        assert_eq!(first, image().pack().unwrap());
        let mut other = image();
        other.labels.insert("more".into(), "1".into());
        assert_ne!(first.1, other.pack().unwrap().1);
        let mut other = image();
        other.layers[0].file("/usr/bin/y", vec![], 0o755).unwrap();
        assert_ne!(first.1, other.pack().unwrap().1);
    }

    #[test]
    fn every_blob_is_named_by_its_content_and_all_are_there() {
        let (bytes, digest, _) = image().pack().unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut blobs = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
            blobs.insert(entry.path().unwrap().display().to_string(), content);
        }
        let blob = |digest: &Value| {
            let digest = digest.as_str().unwrap();
            let content = &blobs[&format!("blobs/{}", digest.replace(':', "/"))];
            assert_eq!(sha256(content), digest);
            content
        };
        let index: Value = serde_json::from_slice(&blobs["index.json"]).unwrap();
        let manifest = &index["manifests"][0]["digest"];
        assert_eq!(manifest, &Value::from(digest));
        let manifest: Value = serde_json::from_slice(blob(manifest)).unwrap();
        let config: Value = serde_json::from_slice(blob(&manifest["config"]["digest"])).unwrap();
        assert_eq!(config["config"]["User"], "65532:65532");
        blob(&manifest["layers"][0]["digest"]);
        // oci-layout, index, manifest, config, layer.
        assert_eq!(blobs.len(), 5);
    }

    #[test]
    fn a_reference_without_a_tag_and_a_user_by_name_are_refused() {
        for reference in ["localhost/x", "localhost:5000/x", "localhost/x:latest", "localhost/x:"] {
            let image = Image { reference: reference.into(), ..image() };
            assert!(image.pack().is_err(), "{reference}");
        }
        for user in ["root", "0", "0:", "nobody:nogroup"] {
            let image = Image { user: user.into(), ..image() };
            assert!(image.pack().is_err(), "{user}");
        }
    }
}
