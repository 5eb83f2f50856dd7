//! A server made by Go as Go makes it: `net/http`, whose listener is MPTCP by default (Go 1.24 and
//! newer), and which the kernel therefore does not let adopt.
//!
//! Owns its source and its building, once for each lab.

use crate::{
    node::{lab::Pod, process::Spec},
    servers::server::Server,
};
use anyhow::{Context, Result, ensure};
use std::{fs, net::SocketAddr, path::PathBuf, process::Command};

/// The version says what the program's defaults are.
const MODULE: &str = "module server\n\ngo 1.24\n";
/// `/echo/…` as nginx has it; the address listened at and the pod's name are its arguments.
const SOURCE: &str = r#"// Written by baton-lab.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body := "ok"
		if strings.HasPrefix(r.URL.Path, "/echo/") {
			body = fmt.Sprintf("pod-independent body: %s %s\n", r.URL.Path, r.Header.Get("X-Nonce"))
		}
		w.Header().Set("X-Pod", os.Args[2])
		fmt.Fprint(w, body)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[1], nil))
	os.Exit(1)
}
"#;

impl Pod {
    /// Starts it. The first one of a lab is built, which takes seconds.
    ///
    /// # Errors
    /// Without Go (`make setup` installs it), or if it ends or stays silent, with what it said.
    pub fn go(&self, port: u16) -> Result<Server> {
        let address = SocketAddr::new(self.ipv4(), port).to_string();
        let arguments = [address, self.name().to_owned()];
        self.serve(Spec::new(self.go_program()?, arguments).named("go"), port)
    }

    pub(crate) fn go_program(&self) -> Result<PathBuf> {
        let folder = self.lab.directory().join("go");
        let program = folder.join("server");
        if program.exists() {
            return Ok(program);
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        fs::write(folder.join("go.mod"), MODULE)?;
        fs::write(folder.join("main.go"), SOURCE)?;
        let go = baton_kubernetes::go().context("there is no Go: `make setup` installs it")?;
        let output = Command::new(go)
            .args(["build", "-o", "server", "."])
            .env("GOTOOLCHAIN", "local")
            .current_dir(&folder)
            .output()
            .context("starting `go build`")?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`go build`: {problem}");
        Ok(program)
    }
}
