//! The node's processes by the Pod that they belong to, from /proc of the node (`hostPID: true`).
//!
//! Owns what was read and when it is read again. Judges nothing about Pods.

use super::cgroup;
use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirEntryExt, MetadataExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A runtime starts a process in its own control group and moves it into the Pod's a moment later.
/// One that belongs to no Pod by then never will.
const MOVES_WITHIN: Duration = Duration::from_secs(10);
/// A path of a control group is some 200 bytes, of which version 1 has a dozen.
const CGROUP_BYTES_MAX: u64 = 64 * 1024;

/// Runtimes whose Pods have a TCP stack of their own in user space or in a virtual machine, by how
/// the names of their processes begin (15 bytes at most, `comm` of proc(5)).
const SANDBOXES: [(&str, &str); 6] = [
    ("runsc", "gVisor"),
    ("qemu-system", "Kata Containers (QEMU)"),
    ("qemu-kvm", "Kata Containers (QEMU)"),
    ("cloud-hyperviso", "Kata Containers (Cloud Hypervisor)"),
    ("firecracker", "Kata Containers (Firecracker)"),
    ("containerd-shim-kata", "Kata Containers"),
];

/// Processes by Pod.
#[derive(Debug)]
pub struct Processes {
    proc: PathBuf,
    known: HashMap<u32, Known>,
    /// Device and inode of the node's own network namespace, and of this process's.
    nodes: Vec<(u64, u64)>,
    sees_node: bool,
}

/// What is known of a process.
#[derive(Debug)]
struct Known {
    /// Of its directory: another process with its number has another one.
    inode: u64,
    first_seen: Instant,
    uid: Option<String>,
    /// The runtime of a process that is in no Pod's control group: Kata Containers keep only their
    /// virtual CPUs there unless `sandbox_cgroup_only` is set.
    apart: Option<&'static str>,
}

/// A process that is in a Pod's network namespace.
#[derive(Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub pid: u32,
    /// Device and inode of the network namespace.
    pub netns: (u64, u64),
    /// The runtime has a TCP stack of its own.
    pub sandbox: Option<&'static str>,
}

/// What a process of a Pod turned out to be.
enum Checked {
    Member(Member),
    /// In the node's network namespace, with the runtime that it is of if that has a TCP stack of
    /// its own.
    OfNode(Option<&'static str>),
    Other,
}

impl Processes {
    /// Of `/proc`, or a directory that looks like it.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn new(proc: &Path) -> io::Result<Self> {
        fs::read_dir(proc)?;
        let netns = |process: &str| {
            let file = fs::metadata(proc.join(process).join("ns/net")).ok()?;
            Some((file.dev(), file.ino()))
        };
        let node = netns("1");
        Ok(Self {
            proc: proc.to_owned(),
            known: HashMap::new(),
            nodes: node.into_iter().chain(netns("self")).collect(),
            sees_node: node.is_some(),
        })
    }

    /// Whether the first process can be seen, and so which network namespace is the node's.
    #[must_use]
    pub fn sees_node(&self) -> bool {
        self.sees_node
    }

    /// Reads what is new.
    ///
    /// # Errors
    /// /proc cannot be listed.
    pub fn look(&mut self, now: Instant) -> io::Result<()> {
        let mut gone: HashMap<u32, Known> = std::mem::take(&mut self.known);
        for entry in fs::read_dir(&self.proc)? {
            let process =
                entry.ok().and_then(|e| Some((e.file_name().to_str()?.parse().ok()?, e.ino())));
            let Some((pid, inode)) = process else {
                continue;
            };
            let same = gone.remove(&pid).filter(|known| known.inode == inode);
            let known = match same {
                Some(known) if known.uid.is_some() => known,
                Some(known) if now.duration_since(known.first_seen) > MOVES_WITHIN => known,
                before => self.read(pid, inode, before.map_or(now, |k| k.first_seen)),
            };
            self.known.insert(pid, known);
        }
        Ok(())
    }

    /// A process of a Pod in each network namespace other than the node's: the one with the lowest
    /// number, by which they are sorted. The first of all is the sandbox's as a rule and lives as
    /// long as the Pod, unless numbers have begun anew and the Pod has namespaces within its own.
    /// Which runtime it is may be told by another one there: helpers of a sandbox have other names
    /// or none, and lower numbers if they are older or numbers have begun anew.
    #[must_use]
    pub fn members(&mut self, uids: &[String]) -> Vec<Member> {
        let of_pod = |known: &Known| known.uid.as_ref().is_some_and(|uid| uids.contains(uid));
        let mut pids: Vec<u32> =
            self.known.iter().filter(|(_, known)| of_pod(known)).map(|(pid, _)| *pid).collect();
        pids.sort_unstable();
        let mut found: Vec<Member> = Vec::new();
        for pid in pids {
            match self.check(pid, uids) {
                Checked::Member(member) => {
                    match found.iter_mut().find(|first| first.netns == member.netns) {
                        Some(first) => first.sandbox = first.sandbox.or(member.sandbox),
                        None => found.push(member),
                    }
                }
                Checked::OfNode(_) => {}
                // Another process by now, or none: it is read again at the next look.
                Checked::Other => {
                    self.known.remove(&pid);
                }
            }
        }
        found
    }

    /// The runtime that keeps the Pod's TCP to itself, where none of its processes is both in the
    /// Pod's control group and in its network namespace: one in the group alone, or one in no group
    /// that is in the namespace, as `is_there` says of a number.
    #[must_use]
    pub fn runtime_apart(
        &self,
        uids: &[String],
        is_there: impl Fn(u32) -> bool,
    ) -> Option<&'static str> {
        let here = |(pid, known): (&u32, &Known)| match (&known.uid, known.apart) {
            (Some(uid), _) if uids.contains(uid) => match self.check(*pid, uids) {
                Checked::OfNode(runtime) => runtime,
                Checked::Member(_) | Checked::Other => None,
            },
            (None, Some(runtime)) => {
                let netns = self.open(*pid).and_then(|dir| netns_of(&dir)).ok()?;
                (!self.nodes.contains(&netns) && is_there(*pid)).then_some(runtime)
            }
            _ => None,
        };
        self.known.iter().find_map(here)
    }

    /// What a process is. It may end meanwhile.
    fn read(&self, pid: u32, inode: u64, first_seen: Instant) -> Known {
        let dir = self.open(pid).ok();
        let uid = dir.as_ref().and_then(uid_in);
        // Machines have names of their own, which is all that is read of so many processes.
        let alone = dir.as_ref().filter(|_| uid.is_none());
        let apart = alone.and_then(|dir| by_name(&read(dir, "comm")?));
        Known { inode, first_seen, uid, apart }
    }

    /// The number may be another process's by now, so all is read through one handle of it.
    fn check(&self, pid: u32, uids: &[String]) -> Checked {
        let Ok(dir) = self.open(pid) else {
            return Checked::Other;
        };
        if !uid_in(&dir).is_some_and(|uid| uids.contains(&uid)) {
            return Checked::Other;
        }
        match netns_of(&dir) {
            // A runtime's process that has not changed over yet is still in the node's.
            Ok(netns) if self.nodes.contains(&netns) => Checked::OfNode(sandbox(&dir)),
            Ok(netns) => Checked::Member(Member { pid, netns, sandbox: sandbox(&dir) }),
            Err(_) => Checked::Other,
        }
    }

    fn open(&self, pid: u32) -> io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let path = self.proc.join(pid.to_string());
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    }
}

/// Device and inode of an open process's network namespace.
fn netns_of(dir: &OwnedFd) -> io::Result<(u64, u64)> {
    let netns = rustix::fs::statat(dir, "ns/net", rustix::fs::AtFlags::empty())?;
    Ok((netns.st_dev, netns.st_ino))
}

/// The Pod of an open process.
fn uid_in(dir: &OwnedFd) -> Option<String> {
    cgroup::pod_uid(&read(dir, "cgroup")?)
}

fn read(dir: &OwnedFd, name: &str) -> Option<String> {
    use io::Read;
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir.as_fd(), name, flags, Mode::empty()).ok()?;
    let mut text = String::new();
    let mut limited = fs::File::from(file).take(CGROUP_BYTES_MAX);
    limited.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Whether the process is a runtime that keeps TCP to itself.
fn sandbox(dir: &OwnedFd) -> Option<&'static str> {
    let comm = read(dir, "comm").unwrap_or_default();
    // gVisor runs itself again by a name that the kernel shows as `exe`; its first argument says
    // what it is.
    let argument = read(dir, "cmdline").unwrap_or_default();
    let first = argument.split('\0').next().unwrap_or_default();
    let first = first.rsplit('/').next().unwrap_or_default();
    by_name(&comm).or_else(|| by_name(first))
}

fn by_name(name: &str) -> Option<&'static str> {
    let mut sandboxes = SANDBOXES.iter();
    let found = sandboxes.find(|(begin, _)| name.starts_with(begin));
    found.map(|(_, runtime)| *runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::fs::symlink,
        sync::atomic::{AtomicU32, Ordering},
    };

    const UID: &str = "1f0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5";

    /// A directory that looks like /proc, with files for network namespaces.
    struct Proc(PathBuf);

    impl Proc {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("bt-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("namespaces")).expect("a directory");
            let proc = Self(dir);
            for file in ["node", "a", "b"] {
                fs::write(proc.0.join("namespaces").join(file), "").expect("a file");
            }
            proc.process(1, "0::/init.scope\n", "node", "init");
            proc
        }

        fn process(&self, pid: u32, cgroup: &str, netns: &str, command: &str) {
            let dir = self.0.join(pid.to_string());
            let _ = fs::remove_dir_all(dir.join("ns"));
            fs::create_dir_all(dir.join("ns")).expect("a directory");
            fs::write(dir.join("cgroup"), cgroup).expect("a file");
            fs::write(dir.join("comm"), format!("{command}\n")).expect("a file");
            fs::write(dir.join("cmdline"), format!("/usr/bin/{command}\0-x\0")).expect("a file");
            let netns = self.0.join("namespaces").join(netns);
            symlink(netns, dir.join("ns/net")).expect("a link");
        }

        fn in_pod(&self, pid: u32, netns: &str, command: &str) {
            self.process(pid, &format!("0::/kubepods/pod{UID}/{pid}\n"), netns, command);
        }

        fn ends(&self, pid: u32) {
            // It keeps its inode, so that the next process with its number has another one.
            static ENDED: AtomicU32 = AtomicU32::new(0);
            let ended = format!("ended-{}", ENDED.fetch_add(1, Ordering::Relaxed));
            fs::rename(self.0.join(pid.to_string()), self.0.join(ended)).expect("a process");
        }
    }

    impl Drop for Proc {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Processes {
        fn member(&mut self, uids: &[String]) -> Option<Member> {
            self.members(uids).into_iter().next()
        }
    }

    fn uids() -> Vec<String> {
        vec!["another".into(), UID.into()]
    }

    #[test]
    fn the_lowest_process_of_the_pod_in_a_namespace_of_its_own_is_taken() {
        let (proc, now) = (Proc::new("lowest"), Instant::now());
        // A runtime's helper in the Pod's group but in the node's namespace, the sandbox, an
        // application.
        proc.in_pod(10, "node", "conmon");
        proc.in_pod(20, "a", "pause");
        proc.in_pod(30, "a", "nginx");
        proc.process(15, "0::/system.slice/sshd.service\n", "node", "sshd");
        let mut processes = Processes::new(&proc.0).expect("a proc");
        assert_eq!(processes.member(&uids()), None, "not read yet");
        processes.look(now).expect("a look");
        let member = processes.member(&uids()).expect("a member");
        assert_eq!((member.pid, member.sandbox), (20, None));
        proc.ends(20);
        assert_eq!(processes.member(&uids()).map(|m| m.pid), Some(30));
        assert_eq!(processes.member(&["x".into()]), None);
    }

    #[test]
    fn a_number_that_is_another_process_now_is_not_believed() {
        let (proc, now) = (Proc::new("reused"), Instant::now());
        proc.in_pod(20, "a", "pause");
        let mut processes = Processes::new(&proc.0).expect("a proc");
        processes.look(now).expect("a look");
        proc.process(20, "0::/system.slice/sshd.service\n", "b", "sshd");
        assert_eq!(processes.member(&uids()), None);
        // And if it is one of the Pod once more, it is found.
        proc.in_pod(20, "b", "nginx");
        assert_eq!(processes.member(&uids()), None, "not read again yet");
        processes.look(now).expect("a look");
        assert_eq!(processes.member(&uids()).map(|m| m.pid), Some(20));
    }

    #[test]
    fn another_process_with_the_number_of_an_ended_one_is_read() {
        let (proc, now) = (Proc::new("number"), Instant::now());
        let other = format!("0::/kubepods/pod{}/x\n", UID.replace('1', "2"));
        let mut processes = Processes::new(&proc.0).expect("a proc");
        let mut at = now;
        for cgroup in [other.as_str(), "0::/system.slice/sshd.service\n"] {
            proc.process(20, cgroup, "b", "x");
            processes.look(at).expect("a look");
            at += MOVES_WITHIN + Duration::from_secs(1);
            processes.look(at).expect("a look");
            proc.ends(20);
            // No look in between.
            proc.in_pod(20, "a", "pause");
            processes.look(at).expect("a look");
            assert_eq!(processes.member(&uids()).map(|m| m.pid), Some(20), "{cgroup}");
            proc.ends(20);
        }
    }

    #[test]
    fn a_process_that_moves_into_the_group_later_is_found_then() {
        let (proc, now) = (Proc::new("later"), Instant::now());
        proc.process(20, "0::/system.slice/containerd.service\n", "node", "runc");
        let mut processes = Processes::new(&proc.0).expect("a proc");
        processes.look(now).expect("a look");
        proc.in_pod(20, "a", "pause");
        processes.look(now + Duration::from_secs(1)).expect("a look");
        assert_eq!(processes.member(&uids()).map(|m| m.pid), Some(20));
        // One that stays where it is is not read for ever.
        proc.process(21, "0::/\n", "node", "x");
        let mut at = now;
        processes.look(at).expect("a look");
        at += MOVES_WITHIN + Duration::from_secs(1);
        processes.look(at).expect("a look");
        proc.ends(20);
        proc.in_pod(21, "a", "x");
        processes.look(at).expect("a look");
        assert_eq!(processes.member(&uids()), None);
    }

    #[test]
    fn runtimes_with_a_tcp_stack_of_their_own_are_told() {
        let (proc, now) = (Proc::new("sandbox"), Instant::now());
        let mut processes = Processes::new(&proc.0).expect("a proc");
        for (command, runtime) in [
            ("runsc-sandbox", Some("gVisor")),
            ("qemu-system-x86_64", Some("Kata Containers (QEMU)")),
            ("firecracker", Some("Kata Containers (Firecracker)")),
            ("nginx", None),
        ] {
            proc.in_pod(20, "a", command);
            processes.look(now).expect("a look");
            let member = processes.member(&uids()).expect("a member");
            assert_eq!(member.sandbox, runtime, "{command}");
        }
    }

    #[test]
    fn a_runtime_is_told_by_any_process_in_the_pods_namespace() {
        let (proc, now) = (Proc::new("helpers"), Instant::now());
        // As gVisor has them after process numbers began anew, and Kata as a rule.
        proc.in_pod(10, "a", "exe");
        proc.in_pod(20, "a", "runsc-sandbox");
        let mut processes = Processes::new(&proc.0).expect("a proc");
        processes.look(now).expect("a look");
        let member = processes.member(&uids()).expect("a member");
        assert_eq!((member.pid, member.sandbox), (10, Some("gVisor")));
        // What runs in a namespace of its own within the Pod says nothing about the Pod's.
        proc.in_pod(20, "b", "firecracker");
        let members = processes.members(&uids());
        let told: Vec<_> = members.iter().map(|m| (m.pid, m.sandbox)).collect();
        let nested = Some("Kata Containers (Firecracker)");
        assert_eq!(told, [(10, None), (20, nested)]);
        assert_ne!(members[0].netns, members[1].netns);
    }

    #[test]
    fn a_runtime_is_told_where_no_process_is_in_both_the_pods_group_and_its_namespace() {
        let (proc, now) = (Proc::new("apart"), Instant::now());
        let told = |is_there: bool| {
            let mut processes = Processes::new(&proc.0).expect("a proc");
            processes.look(now).expect("a look");
            assert_eq!(processes.member(&uids()), None);
            processes.runtime_apart(&uids(), |_| is_there)
        };
        proc.process(10, "0::/system.slice/sshd.service\n", "a", "nginx");
        assert_eq!(told(true), None);
        // Kata Containers by default: the virtual machine's process is in a group of Kata's own and
        // in the Pod's namespace.
        proc.process(20, "0::/kata_overhead/ab12\n", "a", "qemu-system-x86_64");
        assert_eq!(told(true), Some("Kata Containers (QEMU)"));
        assert_eq!(told(false), None, "it is another Pod's");
        // A virtual machine of the node's, which no Pod has to do with.
        proc.process(20, "0::/machine.slice\n", "node", "qemu-system-x86_64");
        assert_eq!(told(true), None);
        // The one whose virtual machine is a part of the shim, a thread of which is in the Pod's
        // namespace.
        proc.in_pod(30, "node", "containerd-shim-kata-v2");
        assert_eq!(told(false), Some("Kata Containers"));
    }
}
