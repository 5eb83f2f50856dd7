//! The image of the tests' servers, made from this machine's Debian files. Needs no root and no
//! cluster.

use baton_cluster::server_image;
use std::{env, fs, path::PathBuf, process};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("baton-images-{name}-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn making_it_twice_gives_the_same_bytes() {
    let (one, other) = (Folder::new("one"), Folder::new("other"));
    let made = |folder: &Folder| fs::read(server_image(&folder.0).unwrap()).unwrap();
    // Not assert_eq, which would print megabytes.
    assert!(made(&one) == made(&other));
}
