//! Compiles the BPF programs with clang: faults for `src/path/fault_program.rs`, a generator of
//! packets for `src/path/blast.rs`.

use libbpf_cargo::SkeletonBuilder;
use std::{env, path::PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian and Ubuntu keep <asm/types.h> in a directory of the architecture, which clang does not
    // search for target bpf. Elsewhere the directory does not exist, and clang ignores it.
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    // cpu v3: atomic additions that give the value before.
    let arguments = ["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-I", &multiarch];
    for name in ["faults", "blast"] {
        SkeletonBuilder::new()
            .source(format!("src/bpf/{name}.bpf.c"))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args(arguments)
            .build()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot compile src/bpf/{name}.bpf.c (clang 14 or newer and the Linux user-space headers are \
                     needed, on Debian and Ubuntu: apt-get install clang linux-libc-dev): {error:?}"
                )
            });
    }
    println!("cargo:rerun-if-changed=src/bpf");
}
