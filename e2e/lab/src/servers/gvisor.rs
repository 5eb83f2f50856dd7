//! A server under gVisor, whose TCP is its own and not the node's kernel's: the same program as in
//! `go`, in a sandbox of `runsc` that takes the pod's interface over.
//!
//! Owns how the sandbox is set up. What the server answers is `go`'s.

use crate::{
    node::{lab::Pod, netns::Namespace, process::Spec},
    servers::server::Server,
};
use anyhow::{Context, Result};
use serde_json::json;
use std::{fs, net::SocketAddr};

/// Debian's runsc (2022) takes a namespace for the machine's first one where it sees this file of a
/// newer kernel, and refuses; so it sees none.
const START: &str = r#"mount -t tmpfs none /proc/sys/net/core && exec runsc --root "$0" --ignore-cgroups --platform=ptrace --network=sandbox run -bundle "$1" "$2""#;

impl Pod {
    /// Starts it, and waits until `from` sees it listen: the pod's own namespace has no address any
    /// more, as the sandbox takes it. It can be started once.
    ///
    /// # Errors
    /// Without Go or runsc (`make test-gvisor` installs it), or if it ends or stays silent, with
    /// what it said.
    pub fn gvisor(&self, port: u16, from: &Namespace) -> Result<Server> {
        let address = SocketAddr::new(self.ipv4(), port).to_string();
        let program = self.go_program()?.display().to_string();
        let folder = self.lab.directory().join(format!("gvisor-{}", self.name()));
        let bundle = folder.join("bundle");
        fs::create_dir_all(&bundle).with_context(|| bundle.display().to_string())?;
        let config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "terminal": false,
                "user": {"uid": 0, "gid": 0},
                "args": [program, address, self.name()],
                "env": ["PATH=/usr/bin:/bin"],
                "cwd": "/",
            },
            "root": {"path": "/", "readonly": true},
            "hostname": self.name(),
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "mount"},
                {"type": "network", "path": format!("/run/netns/{}", self.namespace().name())},
            ]},
        });
        fs::write(bundle.join("config.json"), config.to_string())?;
        let text = |path: &std::path::Path| path.display().to_string();
        let arguments = [
            "-m".to_owned(),
            "sh".to_owned(),
            "-c".to_owned(),
            START.to_owned(),
            text(&folder.join("root")),
            text(&bundle),
            self.namespace().name().to_owned(),
        ];
        self.serve_for(from, Spec::new("unshare", arguments).named("gvisor"), port)
    }
}
