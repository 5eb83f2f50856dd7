//! What setting a machine up does and says, with stand-ins for its programs.

use baton_tidy::root;
use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{self, Command},
};

/// A machine with Debian's packages, an old cargo among them, and what `tools/setup.sh` calls.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Self {
        let machine = Self(env::temp_dir().join(format!("baton-{name}-{}", process::id())));
        fs::create_dir_all(machine.0.join("bin")).expect("a folder");
        for name in ["bash", "sh", "env", "sed", "mkdir", "chmod", "cat"] {
            let real = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
            let real = real.iter().find(|path| path.exists()).expect(name);
            symlink(real, machine.0.join("bin").join(name)).expect("a link");
        }
        machine.program("id", "echo 0");
        machine.program("dpkg-query", "printf installed");
        machine.program("go", "echo go1.99");
        machine.program("cargo", "echo cargo 1.85.0");
        machine
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.0.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an executable");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn debians_cargo_stays_and_the_installers_is_said_to_be_elsewhere() {
    let machine = Machine::new("setup");
    // As apt-get does where a package conflicts with others: it removes them, unless told not to.
    machine.program(
        "apt-get",
        r#"case " $* " in *" --no-remove "*) exit 100;; esac; echo removed > "$HOME/cargo""#,
    );
    machine.program(
        "curl",
        r##"mkdir -p ~/.cargo/bin
printf '#!/bin/sh\necho cargo 1.95.0' > ~/.cargo/bin/cargo
chmod +x ~/.cargo/bin/cargo"##,
    );
    let output = Command::new("bash")
        .arg(root().join("tools/setup.sh"))
        .env_clear()
        .env("HOME", &machine.0)
        .env("PATH", machine.0.join("bin"))
        .output()
        .expect("bash");
    assert!(output.status.success(), "{output:?}");
    assert!(!machine.0.join("cargo").exists(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("run `. ~/.cargo/env`"), "{said}");
}

#[test]
fn a_newer_rusts_lints_are_shown_and_not_refused() {
    let machine = Machine::new("lint");
    let refused = |version: &str| {
        machine.program(
            "cargo",
            &format!(r#"[ "$1" = --version ] && echo "cargo {version} (date)" || echo "$@""#),
        );
        let cargo = format!("CARGO={}", machine.0.join("bin/cargo").display());
        let output = Command::new("make")
            .args(["--silent", "lint", &cargo])
            .env_remove("MAKEFLAGS")
            .current_dir(root())
            .output()
            .expect("make");
        let ran = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(ran.contains("clippy "), "{output:?}");
        ran.contains("-- -D warnings")
    };
    assert!(refused(&format!("{}.3", env!("CARGO_PKG_RUST_VERSION"))));
    assert!(!refused("1.99.1"));
}

#[test]
fn an_old_linux_is_named_before_anything_is_built() {
    let make = |linux: &str| {
        let output = Command::new("make")
            .args(["--silent", "linux", &format!("LINUX={linux}")])
            .env_remove("MAKEFLAGS")
            .current_dir(root())
            .output()
            .expect("make");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let (old, said) = make("6.8.0-45-generic");
    assert!(!old && said.contains("Linux 6.8.0-45-generic: "), "{said}");
    assert!(said.contains("Linux 6.9 or newer"), "{said}");
    for new in ["6.9.0", "6.12.9+deb13-amd64", "10.0"] {
        assert_eq!(make(new), (true, String::new()), "{new}");
    }
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    for target in ["demo", "test"] {
        let first = format!("\n{target}: linux ");
        assert!(makefile.contains(&first), "{target} builds first");
    }
}
