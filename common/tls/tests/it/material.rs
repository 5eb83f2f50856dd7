//! Which texts and files are refused, and that what is refused changes nothing.

use crate::support::{Authority, Pair};
use baton_tls::{
    AUTHORITIES_MAX, CHAIN_MAX, Client, FILE_LIMIT_BYTES, Files, Material, MaterialError, Name,
    Part, Server,
};
use rcgen::{BasicConstraints, IsCa};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bt-tls-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn files(&self) -> Files {
        files(&self.0)
    }

    fn write(&self, authority: &Authority, pair: &Pair) {
        write(&self.0, authority, pair);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(folder: &Path) -> Files {
    Files {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        authority: folder.join("ca.crt"),
    }
}

fn write(folder: &Path, authority: &Authority, pair: &Pair) {
    let files = files(folder);
    fs::write(&files.certificate, &pair.certificate).expect("written");
    fs::write(&files.key, &pair.key).expect("written");
    mode(&files.key, 0o600);
    fs::write(&files.authority, &authority.pem).expect("written");
}

fn mode(file: &Path, mode: u32) {
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn refusal(read: Result<Material, MaterialError>) -> MaterialError {
    match read {
        Ok(_) => panic!("taken"),
        Err(error) => error,
    }
}

#[test]
fn bad_texts_are_refused_by_what_is_wrong() {
    let authority = Authority::new();
    let (good, other) = (authority.pair(Name::Dataplane), authority.pair(Name::Dataplane));
    let (certificate, key, ca) = (&good.certificate, &good.key, &authority.pem);
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let cases = [
        (
            half(certificate),
            key.clone(),
            ca.clone(),
            "the certificate is not PEM as expected: a section has no end",
        ),
        (
            certificate.clone(),
            half(key),
            ca.clone(),
            "the key is not PEM as expected: a section has no end",
        ),
        (
            certificate.clone(),
            key.clone(),
            half(ca),
            "the authority is not PEM as expected: a section has no end",
        ),
        (String::new(), key.clone(), ca.clone(), "the certificate has no CERTIFICATE section"),
        (key.clone(), key.clone(), ca.clone(), "the certificate has no CERTIFICATE section"),
        (
            certificate.clone(),
            certificate.clone(),
            ca.clone(),
            "the key has no PRIVATE KEY section",
        ),
        (
            certificate.clone(),
            key.clone(),
            String::new(),
            "the authority has no CERTIFICATE section",
        ),
        (
            certificate.clone(),
            other.key.clone(),
            ca.clone(),
            "the key does not belong to the certificate",
        ),
        (
            certificate.repeat(CHAIN_MAX + 1),
            key.clone(),
            ca.clone(),
            "the certificate has more than 8 certificates",
        ),
        (
            certificate.clone(),
            key.clone(),
            ca.repeat(AUTHORITIES_MAX + 1),
            "the authority has more than 16 certificates",
        ),
        (
            certificate.clone(),
            key.replace("\nM", "\n!"),
            ca.clone(),
            "the key is not PEM as expected: a section has characters that are not base64",
        ),
    ];
    for (certificate, key, authority, words) in cases {
        let error = refusal(Material::from_pem(
            certificate.as_bytes(),
            key.as_bytes(),
            authority.as_bytes(),
        ));
        assert!(error.to_string().starts_with(words), "{error}");
    }
    let itself = authority.sign(Name::Dataplane.as_str(), |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });
    let error = refusal(Material::from_pem(
        itself.certificate.as_bytes(),
        itself.key.as_bytes(),
        ca.as_bytes(),
    ));
    assert!(error.to_string().contains("CA:FALSE"), "{error}");
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let part = |error| match error {
        MaterialError::Certificate { part, .. } => part,
        other => panic!("{other}"),
    };
    let error = refusal(Material::from_pem(nonsense.as_bytes(), key.as_bytes(), ca.as_bytes()));
    assert_eq!(part(error), Part::Certificate);
    let error =
        refusal(Material::from_pem(certificate.as_bytes(), key.as_bytes(), nonsense.as_bytes()));
    assert_eq!(part(error), Part::Authority);
}

#[test]
fn nothing_of_a_key_is_shown() {
    let authority = Authority::new();
    let pair = authority.pair(Name::Dataplane);
    let secret: Vec<&str> = pair.key.lines().filter(|l| !l.starts_with("---")).collect();
    // Each cut and each changed character, as the reader may stumble anywhere.
    for cut in 0..pair.key.len() {
        let changed = format!("{}!{}", &pair.key[..cut], &pair.key[cut + 1..]);
        for text in [&pair.key[..cut], &changed] {
            let read = Material::from_pem(
                pair.certificate.as_bytes(),
                text.as_bytes(),
                authority.pem.as_bytes(),
            );
            let Err(error) = read else { continue };
            let shown = format!("{error} {error:?}");
            for line in &secret {
                assert!(!shown.contains(&line[..8.min(line.len())]), "{cut}: {shown}");
            }
        }
    }
    let material = authority.material(&pair);
    let server = Server::new(Name::Dataplane, Name::Operator, material).expect("a server");
    assert!(format!("{server:?}").contains("InForce(..)"));
}

#[test]
fn a_certificate_of_somebody_else_is_refused_at_once() {
    let authority = Authority::new();
    let material = |name| authority.material(&authority.pair(name));
    let error = Server::new(Name::Dataplane, Name::Operator, material(Name::Shim));
    let words =
        "the certificate is not one of `dataplane.baton`: expected that name in its subjectAltName";
    assert_eq!(error.expect_err("refused").to_string(), words);
    let client = Client::new(Name::Operator, material(Name::Operator)).expect("a client");
    let error = client.replace(material(Name::Shim)).expect_err("refused");
    assert!(matches!(error, MaterialError::Name { expected: Name::Operator }));
}

#[test]
fn files_are_read_unless_the_key_is_open_to_others() {
    let folder = Folder::new("modes");
    let authority = Authority::new();
    let pair = authority.pair(Name::Dataplane);
    folder.write(&authority, &pair);
    let files = folder.files();
    assert!(files.read().expect("good").same(&authority.material(&pair)));
    for open in [0o640, 0o604, 0o620, 0o610] {
        mode(&files.key, open);
        let error = refusal(files.read());
        assert!(matches!(&error, MaterialError::Exposed { mode, .. } if *mode == open), "{error}");
        assert!(error.to_string().contains("chmod 600 "), "{error}");
    }
    mode(&files.key, 0o400);
    files.read().expect("good");
    fs::write(&files.certificate, vec![b' '; FILE_LIMIT_BYTES as usize + 1]).expect("written");
    let error = refusal(files.read());
    assert!(error.to_string().contains("tls.crt is larger than 262144 bytes"), "{error}");
    fs::remove_file(&files.certificate).expect("removed");
    let error = refusal(files.read());
    assert!(error.to_string().starts_with("the certificate "), "{error}");
    assert!(error.to_string().contains("tls.crt cannot be read"), "{error}");
}

#[test]
fn half_a_rotation_is_refused_and_a_swapped_link_is_taken() {
    let folder = Folder::new("swap");
    let authority = Authority::new();
    let (first, second) = (authority.pair(Name::Dataplane), authority.pair(Name::Dataplane));
    // As kubelet mounts a Secret: names lead through `..data`, which is exchanged in one step.
    let at = |name: &str| folder.0.join(name);
    for (name, pair) in [("..1", &first), ("..2", &second)] {
        fs::create_dir(at(name)).expect("a folder");
        write(&at(name), &authority, pair);
    }
    symlink("..1", at("..data")).expect("a link");
    for name in ["tls.crt", "tls.key", "ca.crt"] {
        symlink(Path::new("..data").join(name), at(name)).expect("a link");
    }
    let files = folder.files();
    let read = files.read().expect("good");
    let server = Server::new(Name::Dataplane, Name::Operator, read).expect("a server");
    assert!(!server.replace(files.read().expect("good")).expect("the same"));

    symlink("..2", at("..next")).expect("a link");
    fs::rename(at("..next"), at("..data")).expect("exchanged");
    assert!(server.replace(files.read().expect("good")).expect("taken"));

    // Somebody who writes the files one by one: between the two, the pair does not fit.
    fs::write(&files.certificate, &first.certificate).expect("written");
    let error = refusal(files.read());
    assert!(matches!(error, MaterialError::Mismatch), "{error}");
    fs::write(&files.key, &first.key).expect("written");
    assert!(server.replace(files.read().expect("good")).expect("taken"));
}

#[test]
fn the_end_of_the_own_certificate_is_known_and_follows_the_one_in_force() {
    let authority = Authority::new();
    let ending = |year: i32| {
        let pair = authority.sign("dataplane.baton", |params| {
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
        });
        authority.material(&pair)
    };
    let server = Server::new(Name::Dataplane, Name::Operator, ending(2031)).expect("a server");
    // 2031-01-01 and 2041-01-01, 00:00 UTC.
    assert_eq!(server.ends(), 1_924_992_000);
    server.replace(ending(2041)).expect("taken");
    assert_eq!(server.ends(), 2_240_611_200);
}
