//! One layer of an image: files, folders and links at their paths, packed in the order of their
//! names.
//!
//! Owns what a file looks like in a layer: time zero, numeric owners, no names of users. Never
//! reads the machine's file metadata except whether a file may be executed, and that only where the
//! caller asks for it.

use crate::digest::sha256;
use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, GzBuilder};
use std::{
    collections::BTreeMap,
    io::Write,
    path::{Component, Path},
};
use tar::{Builder, EntryType, Header};

/// Operating system "unknown" in a gzip header: the machine that packs is no part of the image.
const GZIP_ANY_SYSTEM: u8 = 255;
/// Where compression stops to pay: higher levels take twice the time for 2 % less.
const COMPRESSION: u32 = 6;

#[derive(Clone, Debug)]
enum Content {
    Folder,
    File(Vec<u8>),
    /// A symbolic link and where it leads.
    Link(String),
}

#[derive(Clone, Debug)]
struct Entry {
    content: Content,
    mode: u32,
    owner: u32,
}

/// Files that go into an image together.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// By path without the leading slash; sorted, so that a folder comes before what is in it.
    entries: BTreeMap<String, Entry>,
}

/// A layer as it goes into an archive.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) bytes: Vec<u8>,
    /// Of the compressed bytes.
    pub(crate) digest: String,
    /// Of the bytes before compression.
    pub(crate) diff_id: String,
}

impl Layer {
    /// A layer with what a container's root file system needs in any case: the folders that
    /// runtimes mount on, a `/tmp` for all, and names for root and nobody.
    pub fn base() -> Result<Self> {
        let mut layer = Self::default();
        for folder in ["/dev", "/proc", "/sys", "/etc", "/run"] {
            layer.folder(folder, 0o755, 0)?;
        }
        layer.folder("/tmp", 0o1777, 0)?;
        let users =
            "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n";
        layer.file("/etc/passwd", users.into(), 0o644)?;
        layer.file("/etc/group", b"root:x:0:\nnogroup:x:65534:\n".to_vec(), 0o644)?;
        Ok(layer)
    }

    /// Adds a file of root's.
    ///
    /// # Errors
    /// If the path is not absolute and plain, or is taken by other content.
    pub fn file(&mut self, path: &str, content: Vec<u8>, mode: u32) -> Result<()> {
        self.add(path, Content::File(content), mode, 0)
    }

    /// Adds a folder that belongs to user and group `owner`.
    pub fn folder(&mut self, path: &str, mode: u32, owner: u32) -> Result<()> {
        self.add(path, Content::Folder, mode, owner)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.add(path, Content::Link(target.into()), 0o777, 0)
    }

    fn add(&mut self, path: &str, content: Content, mode: u32, owner: u32) -> Result<()> {
        let name = plain(path)?;
        let mut parent = Path::new(&name).parent();
        while let Some(folder) = parent.filter(|p| !p.as_os_str().is_empty()) {
            let text = folder.to_str().context("a path in an image is text")?;
            let there = self.entries.entry(text.to_owned()).or_insert(Entry {
                content: Content::Folder,
                mode: 0o755,
                owner: 0,
            });
            ensure!(
                matches!(there.content, Content::Folder),
                "/{text} is no folder, but {path} should be in it"
            );
            parent = folder.parent();
        }
        let entry = Entry { content, mode, owner };
        if let Some(there) = self.entries.get(&name) {
            let same = match (&there.content, &entry.content) {
                // A folder made for what is in it may get its own mode later.
                (Content::Folder, Content::Folder) => true,
                (Content::File(a), Content::File(b)) => a == b && there.mode == mode,
                (Content::Link(a), Content::Link(b)) => a == b,
                _ => false,
            };
            ensure!(same, "{path} is in the layer already, with other content");
        }
        self.entries.insert(name, entry);
        Ok(())
    }

    pub(crate) fn pack(&self) -> Result<Packed> {
        let mut builder = Builder::new(Vec::new());
        for (name, entry) in &self.entries {
            let mut header = Header::new_ustar();
            header.set_mode(entry.mode);
            header.set_uid(entry.owner.into());
            header.set_gid(entry.owner.into());
            header.set_mtime(0);
            let written = match &entry.content {
                Content::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_size(0);
                    builder.append_data(&mut header, format!("{name}/"), &[][..])
                }
                Content::File(bytes) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(bytes.len() as u64);
                    builder.append_data(&mut header, name, bytes.as_slice())
                }
                Content::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_size(0);
                    builder.append_link(&mut header, name, target)
                }
            };
            written.with_context(|| format!("packing /{name}"))?;
        }
        let raw = builder.into_inner().context("packing a layer")?;
        let mut gzip = GzBuilder::new()
            .mtime(0)
            .operating_system(GZIP_ANY_SYSTEM)
            .write(Vec::new(), Compression::new(COMPRESSION));
        gzip.write_all(&raw).context("compressing a layer")?;
        let bytes = gzip.finish().context("compressing a layer")?;
        Ok(Packed { digest: sha256(&bytes), diff_id: sha256(&raw), bytes })
    }
}

/// The path as layers have it: no leading slash, nothing that leads elsewhere.
fn plain(path: &str) -> Result<String> {
    let Some(name) = path.strip_prefix('/') else {
        bail!("{path:?} is not absolute");
    };
    let is_plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    ensure!(is_plain && !name.is_empty() && !name.ends_with('/'), "{path:?} is not a plain path");
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_adding_does_not_show() {
        let mut one = Layer::base().unwrap();
        one.file("/usr/bin/a", vec![1], 0o755).unwrap();
        one.link("/usr/bin/b", "a").unwrap();
        let mut other = Layer::default();
        other.link("/usr/bin/b", "a").unwrap();
        other.file("/usr/bin/a", vec![1], 0o755).unwrap();
        for (name, entry) in Layer::base().unwrap().entries {
            other.entries.insert(name, entry);
        }
        assert_eq!(one.pack().unwrap().digest, other.pack().unwrap().digest);
        other.file("/usr/bin/c", vec![], 0o644).unwrap();
        assert_ne!(one.pack().unwrap().digest, other.pack().unwrap().digest);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let mut layer = Layer::default();
        for path in ["etc/passwd", "/../x", "/a/../b", "/", "/a/"] {
            assert!(layer.file(path, vec![], 0o644).is_err(), "{path}");
        }
        layer.file("/a", vec![1], 0o644).unwrap();
        assert!(layer.file("/a", vec![2], 0o644).is_err());
        assert!(layer.file("/a/b", vec![2], 0o644).is_err());
        layer.file("/a", vec![1], 0o644).unwrap();
    }

    #[test]
    fn folders_come_before_what_is_in_them_and_keep_their_owner() {
        let mut layer = Layer::default();
        layer.file("/data/redis/x", vec![7; 3], 0o600).unwrap();
        layer.folder("/data/redis", 0o700, 65532).unwrap();
        let packed = layer.pack().unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.bytes.as_slice()));
        let seen: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                (path, header.uid().unwrap(), header.mode().unwrap(), header.mtime().unwrap())
            })
            .collect();
        let expected = [
            ("data/", 0, 0o755, 0),
            ("data/redis/", 65532, 0o700, 0),
            ("data/redis/x", 0, 0o600, 0),
        ];
        let expected: Vec<_> = expected.map(|(p, o, m, t)| (p.to_owned(), o, m, t)).into();
        assert_eq!(seen, expected);
    }
}
