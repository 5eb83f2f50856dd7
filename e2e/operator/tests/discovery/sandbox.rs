//! What a kubelet and a container runtime make of a Pod, as far as host-shim sees it. Knows nothing
//! of host-shim.

use anyhow::{Context, Result, ensure};
use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
};

/// A command that must succeed.
pub fn run(words: &[&str]) -> Result<()> {
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", words.join(" "));
    Ok(())
}

/// Where control groups can be made: version 2, or any hierarchy of version 1.
fn cgroups() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let of_kind = |kind: &str| {
        let mut lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        lines.find_map(|l| (l.get(2) == Some(&kind)).then(|| PathBuf::from(l[1])))
    };
    of_kind("cgroup2").or_else(|| of_kind("cgroup")).context("no control groups are mounted")
}

/// What a kubelet and a runtime make of a Pod: namespace, interface, control group, one process.
/// Gone on drop.
pub struct Sandbox {
    pub netns: String,
    group: PathBuf,
    pub process: Child,
}

impl Sandbox {
    /// With one process that sleeps.
    pub fn start(uid: &str, number: usize, ip: Ipv4Addr) -> Result<Self> {
        let group = format!("kubepods/burstable/pod{uid}/main");
        Self::with(&group, "sleep 1000", number, ip)
    }

    /// With a control group and a command of one's own.
    pub fn with(group: &str, command: &str, number: usize, ip: Ipv4Addr) -> Result<Self> {
        let netns = format!("bt-{}-d{number}", process::id());
        let _ = run(&["ip", "netns", "del", &netns]);
        run(&["ip", "netns", "add", &netns])?;
        let peer = format!("btd{}x{number}", process::id() % 10_000);
        run(&["ip", "-n", &netns, "link", "add", "eth0", "type", "veth", "peer", "name", &peer])?;
        run(&["ip", "-n", &netns, "addr", "add", &format!("{ip}/24"), "dev", "eth0"])?;
        run(&["ip", "-n", &netns, "link", "set", "eth0", "up"])?;
        let group = cgroups()?.join(format!("bt-{}/{group}", process::id()));
        fs::create_dir_all(&group)?;
        // The shell moves itself, then becomes what stays, as a runtime's first process does.
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec ip netns exec {netns} {command}",
            group.display()
        );
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "sh", "-c", &script])
            .stdin(Stdio::null())
            .spawn()
            .context("starting a process through setpriv (util-linux)")?;
        Ok(Self { netns, group, process })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = run(&["ip", "netns", "del", &self.netns]);
        let mut group = self.group.as_path();
        // Up to the test's own group; those that another pod uses still stay.
        while group.file_name().is_some_and(|name| !name.to_string_lossy().contains("cgroup")) {
            if fs::remove_dir(group).is_err() {
                break;
            }
            group = group.parent().unwrap_or(Path::new("/"));
        }
    }
}
