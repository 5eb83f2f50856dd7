//! Network namespaces: how a pod's is named, opened and worked in. The caller's own namespace never
//! changes.

use crate::{Error, rules::PacketRules, sys};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
};

/// Where a network namespace is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Netns {
    /// `/run/netns/NAME`, as `ip netns` and most container runtimes make them.
    Name(String),
    /// A file that is a network namespace.
    Path(PathBuf),
    /// The namespace of a process.
    Pid(u32),
}

/// A network namespace that stays reachable even when its name or process is gone.
#[derive(Debug)]
pub struct OpenNetns {
    name: String,
    file: File,
    cookie: u64,
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Pid(pid) => write!(f, "of process {pid}"),
        }
    }
}

impl Netns {
    /// The file that stands for it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Name(name) => PathBuf::from("/run/netns").join(name),
            Self::Path(path) => path.clone(),
            Self::Pid(pid) => PathBuf::from(format!("/proc/{pid}/ns/net")),
        }
    }

    /// Device and inode of the namespace that the name leads to now: a cheap way to see that it
    /// leads to another one.
    ///
    /// # Errors
    /// The system's, if the name leads nowhere.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let file = std::fs::metadata(self.path())?;
        Ok((file.dev(), file.ino()))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Error::NetnsMissing`] if it is not there, [`Error::NetnsEnter`] if it is not a network
    /// namespace or the process may not enter it.
    pub fn open(&self) -> Result<OpenNetns, Error> {
        let (name, file) = self.file()?;
        let mut opened = OpenNetns { name, file, cookie: 0 };
        opened.cookie = opened
            .within(|| {
                let any = socket_with(
                    AddressFamily::UNIX,
                    SocketType::DGRAM,
                    SocketFlags::CLOEXEC,
                    None,
                )?;
                sys::netns_cookie(any.as_fd())
            })?
            .map_err(|source| Error::NetnsEnter { netns: opened.name.clone(), source })?;
        Ok(opened)
    }

    fn file(&self) -> Result<(String, File), Error> {
        let name = self.to_string();
        match File::open(self.path()) {
            Ok(file) => Ok((name, file)),
            Err(source) => Err(Error::NetnsMissing { netns: name, source }),
        }
    }

    /// Runs `work` inside the namespace that the name leads to now, whichever that is: one thread
    /// instead of the two of [`Self::open`] and [`OpenNetns::within`].
    pub(crate) fn within_unchecked<T: Send>(
        &self,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        let (name, file) = self.file()?;
        within(&file, &name, work)
    }
}

/// Runs `work` in the namespace that a file is.
fn within<T: Send>(file: &File, name: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let refuse = |source: io::Error| Error::NetnsEnter { netns: name.to_owned(), source };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok::<T, io::Error>(work())
            })
            .map_err(refuse)?;
        match thread.join() {
            Ok(result) => result.map_err(refuse),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// For threads of a caller's own that move into it.
impl AsFd for OpenNetns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl OpenNetns {
    /// As it was named.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's number for it, never used twice while the machine runs.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Its device and inode, as [`Netns::identity`] has them.
    ///
    /// # Errors
    /// The system's.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let file = self.file.metadata()?;
        Ok((file.dev(), file.ino()))
    }

    /// Runs `work` inside the namespace, on a thread of its own that ends with it.
    ///
    /// # Errors
    /// [`Error::NetnsEnter`] if the thread cannot be made or cannot enter.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        within(&self.file, &self.name, work)
    }

    /// Why nothing may be adopted there, as far as packet rules go.
    ///
    /// # Errors
    /// [`Error::NetnsEnter`].
    pub fn packet_rules(&self) -> Result<Option<String>, Error> {
        let rules = self.within(|| PacketRules::default().read_again())?;
        Ok(rules.refusal().map(str::to_owned))
    }

    /// The index of an interface.
    ///
    /// # Errors
    /// [`Error::InterfaceMissing`] names those that are there, [`Error::NotEthernet`] if it carries
    /// no Ethernet frames.
    pub fn ifindex(&self, interface: &str) -> Result<u32, Error> {
        let found = self.within(|| interface_in_this_netns(interface))?;
        match found {
            Ok((index, ETHERNET)) => Ok(index),
            Ok((_, kind)) => Err(Error::NotEthernet {
                netns: self.name.clone(),
                interface: interface.to_owned(),
                kind,
            }),
            Err(present) => Err(Error::InterfaceMissing {
                netns: self.name.clone(),
                interface: interface.to_owned(),
                present: listed(present),
            }),
        }
    }
}

/// A pod may make as many interfaces as it likes.
fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(LISTED_MAX);
    names.truncate(LISTED_MAX);
    if names.is_empty() {
        names.push("none".to_owned());
    }
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

/// Interfaces that are named where the wanted one is missing.
const LISTED_MAX: usize = 8;

/// `ARPHRD_ETHER` of linux/if_arp.h.
const ETHERNET: u32 = 1;

/// Index and type, or the names of the interfaces that are there.
fn interface_in_this_netns(interface: &str) -> Result<(u32, u32), Vec<String>> {
    // A socket knows the namespace of the thread that made it; /sys shows the namespace of its
    // mount instead.
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let Ok(socket) = socket else {
        return Err(Vec::new());
    };
    match rustix::net::netdevice::name_to_index(&socket, interface) {
        Ok(index) => Ok((index, sys::interface_kind(socket.as_fd(), interface).unwrap_or(0))),
        Err(_) => Err(names_in_this_netns()),
    }
}

/// From /proc/thread-self/net/dev, which shows the thread's own namespace.
fn names_in_this_netns() -> Vec<String> {
    std::fs::read_to_string("/proc/thread-self/net/dev")
        .unwrap_or_default()
        .lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect()
}

impl Netns {
    /// Searches the named namespaces and those of all processes for those with these cookies. Opens
    /// each once, however many processes are in it.
    pub(crate) fn by_cookies(cookies: &BTreeSet<u64>) -> BTreeMap<u64, (Self, OpenNetns)> {
        let names = |dir: &str| {
            std::fs::read_dir(dir)
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect::<Vec<_>>()
        };
        let named = names("/run/netns").into_iter().map(Self::Name);
        let processes =
            names("/proc").into_iter().filter_map(|name| name.parse().ok().map(Self::Pid));
        let (mut looked, mut found) = (BTreeSet::new(), BTreeMap::new());
        for netns in named.chain(processes) {
            if found.len() == cookies.len() {
                break;
            }
            let is_new = netns.identity().is_ok_and(|is| looked.insert(is));
            if let Some(open) = is_new.then(|| netns.open().ok()).flatten()
                && cookies.contains(&open.cookie)
            {
                found.insert(open.cookie, (netns, open));
            }
        }
        found
    }

    /// The one with this cookie.
    pub(crate) fn by_cookie(cookie: u64) -> Option<OpenNetns> {
        let (_, (_, open)) = Self::by_cookies(&[cookie].into()).pop_first()?;
        Some(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_all_of_many_interfaces_are_named() {
        let names = |count: usize| listed((0..count).map(|n| format!("eth{n}")).collect());
        assert_eq!(names(0), "none");
        assert_eq!(names(2), "eth0, eth1");
        assert!(names(LISTED_MAX).ends_with(", eth7"), "{}", names(8));
        assert!(names(LISTED_MAX + 3).ends_with("eth7, and 3 more"));
    }
}
