//! Compiles the steering programs and writes their skeletons. Fails with the package to install,
//! not with a compiler's riddle.

use libbpf_cargo::SkeletonBuilder;
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, exit},
};

/// Each source and the skeleton that is made of it.
const SOURCES: [(&str, &str); 2] =
    [("src/bpf/steer.bpf.c", "steer.skel.rs"), ("src/bpf/host.bpf.c", "host.skel.rs")];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    for (source, skeleton) in SOURCES {
        if let Err(problem) = build(source, skeleton) {
            eprintln!("{problem}");
            exit(1);
        }
    }
}

fn build(source: &str, skeleton: &str) -> Result<(), String> {
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run this through cargo")?;
    let skeleton = PathBuf::from(out).join(skeleton);
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    Command::new(&clang)
        .arg("--version")
        .output()
        .map_err(|e| {
            format!(
                "cannot run `{clang}`, which compiles {source}: {e}\n\
                 install it (Debian, Ubuntu: `apt-get install clang`) or name another with CLANG=..."
            )
        })?;
    // <asm/types.h> is in the multiarch folder on Debian and Ubuntu, which `-target bpf` does not
    // search.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let multiarch = PathBuf::from(format!("/usr/include/{arch}-linux-gnu"));
    let searched = [multiarch.as_path(), Path::new("/usr/include")];
    if !searched.iter().any(|p| p.join("asm/types.h").exists()) {
        return Err(format!(
            "<asm/types.h> is neither in {} nor in /usr/include: install the kernel's headers for userspace \
             (Debian, Ubuntu: `apt-get install linux-libc-dev`)",
            multiarch.display()
        ));
    }
    SkeletonBuilder::new()
        .source(source)
        .clang(clang)
        .clang_args([
            "-Wall".as_ref(),
            "-Werror".as_ref(),
            "-I".as_ref(),
            multiarch.as_os_str(),
        ])
        .build_and_generate(&skeleton)
        .map_err(|e| {
            format!(
                "cannot compile {source}: {e:#}\n\
                 if a header is missing, install `linux-libc-dev`; libbpf's own headers come with libbpf-sys"
            )
        })
}
