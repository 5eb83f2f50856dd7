//! Images that the tests' Pods run: a pause program, servers and clients made from this machine's
//! own Debian files.
//!
//! Owns what is in them. The product's images are made elsewhere (`baton-images`).

use crate::{command, config::PAUSE_IMAGE};
use anyhow::{Context, Result};
use baton_images::{Image, Layer, add_program};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// nginx and redis. Without arguments nginx, which says the Pod's name on port 8080.
pub const SERVER_IMAGE: &str = "localhost/baton-cluster/server:1";
/// curl, wrk, redis-cli, redis-benchmark, sha256sum and a shell.
pub const CLIENT_IMAGE: &str = "localhost/baton-cluster/client:1";
/// Who runs in both.
const USER: &str = "65532:65532";

const SERVERS: &[&str] = &["/usr/sbin/nginx", "/usr/bin/redis-server"];
const CLIENTS: &[&str] = &[
    "/usr/bin/curl",
    "/usr/bin/wrk",
    "/usr/bin/redis-cli",
    "/usr/bin/redis-benchmark",
    "/usr/bin/sha256sum",
];
/// For people who look into a Pod, and for probes.
const TOOLS: &[&str] = &["/bin/sh", "/bin/cat", "/bin/ls", "/bin/sleep", "/bin/readlink"];

/// Names of ports.
const SERVICES: &str = "http 80/tcp\nhttps 443/tcp\nredis 6379/tcp\n";

/// Makes the server image as an OCI archive in `folder`.
pub fn server_image(folder: &Path) -> Result<PathBuf> {
    let mut layer = with_programs(&[SERVERS, TOOLS].concat())?;
    layer.file("/etc/nginx/nginx.conf", include_bytes!("nginx.conf").to_vec(), 0o644)?;
    let nginx = ["/usr/sbin/nginx", "-e", "stderr", "-c", "/etc/nginx/nginx.conf"];
    write(folder, "server", SERVER_IMAGE, layer, &nginx)
}

/// Makes the client image as an OCI archive in `folder`, with more programs of the caller's in
/// `/usr/bin`.
pub fn client_image(folder: &Path, more: &[PathBuf]) -> Result<PathBuf> {
    let mut layer = with_programs(&[CLIENTS, TOOLS].concat())?;
    // wrk looks up the port of `http`.
    layer.file("/etc/services", SERVICES.into(), 0o644)?;
    for program in more {
        let name = program.file_name().context("a program has a name")?;
        add_program(&mut layer, program, &format!("/usr/bin/{}", name.to_string_lossy()))?;
    }
    write(folder, "client", CLIENT_IMAGE, layer, &["/bin/sleep", "infinity"])
}

/// Makes the image whose only process holds a Pod's namespaces.
pub(crate) fn pause_image(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("pause.c"), folder.join("pause"));
    fs::write(&source, include_str!("pause.c")).context("writing pause.c")?;
    let (source, target) = (source.display().to_string(), program.display().to_string());
    command::run("cc", &["-static", "-Os", "-s", "-o", &target, &source])?;
    let mut layer = Layer::base()?;
    add_program(&mut layer, &program, "/pause")?;
    write(folder, "pause", PAUSE_IMAGE, layer, &["/pause"])
}

fn with_programs(programs: &[&str]) -> Result<Layer> {
    let mut layer = Layer::base()?;
    for program in programs {
        add_program(&mut layer, Path::new(program), program).context(
            "this image is made from files of Debian packages: `make setup` installs them",
        )?;
    }
    Ok(layer)
}

fn write(
    folder: &Path,
    name: &str,
    reference: &str,
    layer: Layer,
    command: &[&str],
) -> Result<PathBuf> {
    let image = Image {
        reference: reference.into(),
        layers: vec![layer],
        entrypoint: Vec::new(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        user: USER.into(),
        environment: BTreeMap::new(),
        labels: BTreeMap::from([(
            "org.opencontainers.image.title".into(),
            format!("baton-cluster {name}"),
        )]),
    };
    Ok(image.write(&folder.join(format!("{name}.tar")))?.path)
}
