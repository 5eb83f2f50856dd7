//! Compiles the BPF program with clang and hands the object to `src/object.rs`.

use libbpf_cargo::SkeletonBuilder;
use std::{env, path::PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian and Ubuntu keep <asm/types.h> in a directory of the architecture, which clang does not
    // search for target bpf. Elsewhere the directory does not exist, and clang ignores it.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    // cpu v3 (Linux 5.1): 32-bit comparisons, fewer instructions on the path that every packet
    // takes.
    let arguments = ["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-I", &multiarch];
    SkeletonBuilder::new()
        .source("src/bpf/adopter.bpf.c")
        .obj(out.join("adopter.bpf.o"))
        .clang_args(arguments)
        .build()
        .unwrap_or_else(|error| {
            panic!(
                "cannot compile src/bpf/adopter.bpf.c (clang 14 or newer and the Linux user-space headers are needed, \
                 on Debian and Ubuntu: apt-get install clang linux-libc-dev): {error:?}"
            )
        });
    println!("cargo:rerun-if-changed=src/bpf");
}
