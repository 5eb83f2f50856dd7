//! Folders of keys, good and bad, and the two forms of the field.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

const OTHERS: u32 = 0o077;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bt-keys-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.0.join(name);
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    }

    fn key(&self, epoch: u16) {
        self.write(&format!("epoch-{epoch}"), &format!("{:02x}", epoch % 256).repeat(16));
    }

    fn read(&self) -> Result<Vec<FolderKey>, FolderError> {
        let name = self.0.file_name().expect("a name");
        let folder = KeyFolder { directory: name.into() };
        // Relative to where the configuration lies.
        folder.read(self.0.parent().expect("a parent"), OTHERS)
    }

    fn epochs(&self) -> Vec<u8> {
        let keys = self.read().expect("good");
        for key in &keys {
            assert_eq!(key.key, Key([key.epoch; 16]));
        }
        keys.iter().map(|key| key.epoch).collect()
    }

    fn refusal(&self) -> String {
        let text = self.read().expect_err("refused").to_string();
        text.replace(&self.0.display().to_string(), "DIR")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_rotation_step_by_step() {
    let folder = Folder::new("rotation");
    folder.key(7);
    folder.write("current", "7\n");
    assert_eq!(folder.epochs(), [7]);
    folder.key(8);
    assert_eq!(folder.epochs(), [7, 8]);
    folder.write("current", "8");
    assert_eq!(folder.epochs(), [8, 7]);
    fs::remove_file(folder.0.join("epoch-7")).expect("removed");
    assert_eq!(folder.epochs(), [8]);
}

#[test]
fn a_mounted_secret_is_read_through_its_links() {
    let folder = Folder::new("secret");
    for (version, epoch) in [("..1", 1), ("..2", 2)] {
        fs::create_dir(folder.0.join(version)).expect("a folder");
        folder.write(&format!("{version}/epoch-{epoch}"), &format!("{epoch:02x}").repeat(16));
        folder.write(&format!("{version}/current"), &epoch.to_string());
    }
    let link = |to: &str, name: &str| symlink(to, folder.0.join(name)).expect("a link");
    link("..1", "..data");
    link("..data/current", "current");
    link("..data/epoch-1", "epoch-1");
    assert_eq!(folder.epochs(), [1]);
    // As kubelet does it: new names first, then the exchange, then the old names go.
    link("..data/epoch-2", "epoch-2");
    assert!(folder.refusal().starts_with("DIR/epoch-2: cannot be read"));
    link("..2", "..next");
    fs::rename(folder.0.join("..next"), folder.0.join("..data")).expect("exchanged");
    assert!(folder.refusal().starts_with("DIR/epoch-1: cannot be read"));
    fs::remove_file(folder.0.join("epoch-1")).expect("removed");
    assert_eq!(folder.epochs(), [2]);
}

#[test]
fn bad_folders_are_refused_by_the_name_of_the_file() {
    let folder = Folder::new("bad");
    assert!(folder.refusal().contains("DIR has 0 files epoch-N: expected one, or two"));
    folder.key(3);
    assert!(folder.refusal().starts_with("DIR/current cannot be read"));
    for wrong in ["", "4", "03", "+3", "3 4", "epoch-3", "259", &"3".repeat(100)] {
        folder.write("current", wrong);
        assert_eq!(folder.refusal(), "DIR/current names no key that is there: expected 3");
    }
    folder.write("current", " 3\n");
    for name in ["epoch-", "epoch-03", "epoch-256", "epoch-3.old", "epoch--1"] {
        folder.write(name, "");
        assert_eq!(
            folder.refusal(),
            format!(
                "DIR/{name} is no name of a key file: expected epoch-N with N from 0 to 255, as epoch-7"
            )
        );
        fs::remove_file(folder.0.join(name)).expect("removed");
    }
    folder.key(19);
    assert_eq!(
        folder.refusal(),
        "DIR/epoch-19 is the epoch of DIR/epoch-3 on the wire: expected two that differ modulo 16"
    );
    fs::remove_file(folder.0.join("epoch-19")).expect("removed");
    folder.write("epoch-4", "0011");
    assert!(folder.refusal().starts_with("DIR/epoch-4: an adoption key is 32 hexadecimal digits"));
    folder.key(4);
    folder.key(5);
    assert!(folder.refusal().contains("DIR has 3 files epoch-N"));
    fs::remove_file(folder.0.join("epoch-5")).expect("removed");
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(folder.0.join("epoch-4"), open).expect("a mode");
    assert_eq!(folder.refusal(), "DIR/epoch-4: is open to others (mode 0644)");
    // Other files are nobody's business.
    folder.key(4);
    fs::set_permissions(folder.0.join("epoch-4"), fs::Permissions::from_mode(0o400))
        .expect("a mode");
    folder.write("README", "of the admin");
    assert_eq!(folder.epochs(), [3, 4]);
}

#[test]
fn the_field_is_a_list_or_a_folder() {
    let read = |text: &str| serde_saphyr::from_str::<KeysField>(text);
    let list = read("[{epoch: 1, file: a}, {epoch: 2, file: b}]\n").expect("a list");
    assert!(matches!(list, KeysField::Files(files) if files.len() == 2 && files[1].epoch == 2));
    let folder = read("{directory: keys}\n").expect("a folder");
    assert!(matches!(folder, KeysField::Folder(folder) if folder.directory == Path::new("keys")));
    for (bad, words) in [
        ("x\n", KEYS_EXPECTED),
        ("1\n", KEYS_EXPECTED),
        ("{directory: keys, epoch: 1}\n", "epoch"),
        ("{folder: keys}\n", "folder"),
        ("{}\n", "directory"),
        ("[{epoch: 1}]\n", "file"),
        ("[{epoch: 256, file: a}]\n", "u8"),
    ] {
        let error = read(bad).expect_err(bad).to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}
