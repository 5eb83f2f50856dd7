//! Tells the program for which platform it is built: the default of `--platform`.

fn main() {
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo::rustc-env=BATON_IMAGES_TARGET={target}");
    println!("cargo::rerun-if-changed=build.rs");
}
