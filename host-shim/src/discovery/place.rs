//! Where a Pod's adopter goes: the network namespace of one of its processes, and the interface
//! that has its address.
//!
//! Owns what makes a place unfit and how that reads. Attaches nothing.

use super::{Processes, WantedPod, processes::Member};
use baton_adopter::{Error, Netns, OpenNetns};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use std::net::IpAddr;

/// Addresses that are listed where the Pod's is not among them: a Pod may give itself as many as it
/// likes, and the list goes to the log, the operator and the policy's status.
const LISTED_MAX: usize = 8;

/// Namespaces of one Pod that are looked at for its address, which takes 0.1 ms each.
const NAMESPACES_MAX: usize = 64;

/// A namespace and an interface in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The namespace, by one of the Pod's processes.
    pub netns: Netns,
    /// Device and inode of the namespace.
    pub identity: (u64, u64),
    /// The Pod's end of its link to the node.
    pub interface: String,
}

/// Why there is no place.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    /// For people, with what to change.
    pub reason: String,
    /// What follows for the shim.
    pub cause: Cause,
}

/// What it means that a Pod has no adopter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There is nothing yet that an adopter could be on.
    Absent,
    /// Nothing of it runs for now, but its namespace is there: a predecessor's adopter may be on
    /// it.
    Waits,
    /// It is of a kind that never has one: nothing of ours is on it, and the shim can do nothing
    /// about it.
    Never,
    /// Something is wrong, with the Pod or with the shim. A predecessor's adopter may be on it.
    Trouble,
}

impl Place {
    /// Opens the namespace.
    ///
    /// # Errors
    /// It is not there, or the process that stands for it has ended and its number is another's.
    pub fn open(&self) -> Result<OpenNetns, Unfit> {
        let open = self.netns.open().map_err(|error| Unfit::from(&error))?;
        if open.identity().ok() != Some(self.identity) {
            return Err(Unfit::new("its namespace is another one by now"));
        }
        Ok(open)
    }

    /// Leads to the same namespace by another process of the Pod, as the one that led there has
    /// ended. Whether there is one; without any process of the Pod the place stays as it is.
    pub fn follow(&mut self, members: &[Member]) -> bool {
        let other = members.iter().find(|other| other.netns == self.identity);
        if let Some(other) = other {
            self.netns = Netns::Pid(other.pid);
        }
        other.is_some() || members.is_empty()
    }
}

impl Unfit {
    fn new(reason: impl Into<String>) -> Self {
        Self::because(Cause::Trouble, reason)
    }

    fn because(cause: Cause, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { reason, cause }
    }
}

/// What a failure to attach means. Where there is no interface of that kind, nothing of ours can be
/// on it.
impl From<&Error> for Unfit {
    fn from(error: &Error) -> Self {
        let cause = match error {
            Error::NetnsMissing { .. }
            | Error::InterfaceMissing { .. }
            | Error::NotEthernet { .. } => Cause::Absent,
            _ => Cause::Trouble,
        };
        Self::because(cause, error.to_string())
    }
}

/// Looks for the place of a Pod among processes that were read just now.
///
/// # Errors
/// There is none, or it is no good.
pub fn find(processes: &mut Processes, wanted: &WantedPod) -> Result<Place, Unfit> {
    if let Some(obstacle) = wanted.obstacle {
        let cause = if wanted.pod.host_network { Cause::Never } else { Cause::Trouble };
        return Err(Unfit::because(cause, obstacle));
    }
    let is_there = |pid| {
        let there = Netns::Pid(pid).open().map(|open| interface(&open, &wanted.pod.addresses));
        !wanted.pod.addresses.is_empty() && matches!(there, Ok(Ok(_)))
    };
    let members = processes.members(&wanted.pod.uids);
    let Some(member) = in_its_own(&members, is_there) else {
        if wanted.pod.running
            && !wanted.pod.deleting
            && let Some(runtime) = processes.runtime_apart(&wanted.pod.uids, is_there)
        {
            return Err(under(runtime));
        }
        let (cause, reason) = if wanted.pod.deleting {
            (Cause::Absent, "its processes have ended")
        } else if !wanted.pod.running {
            (Cause::Absent, "it has no process yet: it is not started")
        } else if wanted.pod.containers.is_empty() {
            (
                Cause::Waits,
                "none of its containers runs now: it is looked for again when one is started",
            )
        } else {
            (
                Cause::Trouble,
                "none of its processes is found in /proc: host-shim must run with hostPID: true on the Pod's node",
            )
        };
        return Err(Unfit::because(cause, reason));
    };
    if wanted.pod.addresses.is_empty() && !processes.sees_node() {
        // Without its address a namespace might be the node's, which a starting process is still
        // in.
        return Err(Unfit::because(Cause::Absent, "it has no address yet"));
    }
    if let Some(runtime) = member.sandbox {
        return Err(under(runtime));
    }
    let netns = Netns::Pid(member.pid);
    let open = netns.open().map_err(|error| Unfit::new(error.to_string()))?;
    if netns.identity().ok() != Some(member.netns) {
        return Err(Unfit::new("its process ended just now"));
    }
    if syncookies_off(&open) {
        return Err(Unfit::new(
            "net.ipv4.tcp_syncookies is 0 in it, with which the kernel ignores adoptions: set it to 1, the default, or \
             remove it from the Pod's securityContext.sysctls",
        ));
    }
    Ok(Place { interface: interface(&open, &wanted.pod.addresses)?, netns, identity: member.netns })
}

/// One in the Pod's namespace, which has the Pod's address: containers within a container may have
/// namespaces of their own. Without the address it is the first.
fn in_its_own(members: &[Member], is_there: impl Fn(u32) -> bool) -> Option<&Member> {
    let first = members.first()?;
    let mut looked_at = members.iter().take(NAMESPACES_MAX);
    let found = looked_at.find(|member| members.len() == 1 || is_there(member.pid));
    Some(found.unwrap_or(first))
}

/// A runtime that keeps TCP to itself.
fn under(runtime: &str) -> Unfit {
    Unfit::because(
        Cause::Never,
        format!(
            "it runs under {runtime}, whose TCP stack is its own: connections cannot be moved to it; use a runtimeClass \
             of runc or crun"
        ),
    )
}

fn syncookies_off(open: &OpenNetns) -> bool {
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies");
    matches!(open.within(read), Ok(Ok(value)) if value.trim() == "0")
}

/// The interface that has one of the Pod's addresses; before these are known, the only one that has
/// any.
fn interface(open: &OpenNetns, addresses: &[IpAddr]) -> Result<String, Unfit> {
    let there = || addresses_in_this_netns().map(|there| choose(there, addresses));
    match open.within(there) {
        Ok(Ok(chosen)) => chosen,
        Ok(Err(error)) => Err(Unfit::new(format!("its addresses cannot be read: {error}"))),
        Err(error) => Err(Unfit::new(error.to_string())),
    }
}

fn choose(
    mut there: impl Iterator<Item = (String, IpAddr)>,
    addresses: &[IpAddr],
) -> Result<String, Unfit> {
    if addresses.is_empty() {
        return match there.next() {
            Some((first, _)) if there.all(|(name, _)| name == first) => Ok(first),
            _ => Err(Unfit::because(Cause::Absent, "it has no address yet")),
        };
    }
    let (mut listed, mut more) = (Vec::new(), 0);
    for (name, ip) in there {
        if addresses.contains(&ip) {
            return Ok(name);
        }
        if listed.len() < LISTED_MAX {
            listed.push(format!("{name} {ip}"));
        } else {
            more += 1;
        }
    }
    if listed.is_empty() {
        listed.push("none".to_owned());
    }
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    let wanted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Err(Unfit::new(format!(
        "no interface in it has the Pod's address {}; there are: {}",
        wanted.join(" or "),
        listed.join(", ")
    )))
}

/// Interfaces and their addresses that others can reach.
fn addresses_in_this_netns() -> nix::Result<impl Iterator<Item = (String, IpAddr)>> {
    let all = getifaddrs()?;
    let usable = all.filter(|i| !i.flags.contains(InterfaceFlags::IFF_LOOPBACK));
    Ok(usable.filter_map(|i| {
        let address = i.address?;
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) if !v6.ip().is_unicast_link_local() => IpAddr::V6(v6.ip()),
            _ => return None,
        };
        Some((i.interface_name, ip))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::NodePod;
    use std::{path::Path, sync::Arc};

    fn there(pairs: &[(&str, &str)]) -> Vec<(String, IpAddr)> {
        let parsed =
            |(name, ip): &(&str, &str)| ((*name).to_owned(), ip.parse().expect("an address"));
        pairs.iter().map(parsed).collect()
    }

    #[test]
    fn the_interface_with_the_pods_address_is_taken() {
        let two = there(&[("eth0", "10.0.0.5"), ("net1", "192.168.0.5"), ("net1", "fd00::5")]);
        let choose = |addresses: &[&str]| {
            let parsed: Vec<IpAddr> = addresses.iter().map(|a| a.parse().expect("one")).collect();
            super::choose(two.clone().into_iter(), &parsed)
        };
        assert_eq!(choose(&["192.168.0.5"]).as_deref(), Ok("net1"));
        assert_eq!(choose(&["10.0.0.5", "fd00::9"]).as_deref(), Ok("eth0"));
        let none = choose(&["10.0.0.6"]).expect_err("none");
        assert!(none.reason.contains("10.0.0.6; there are: eth0 10.0.0.5, net1"), "{none:?}");
        assert_eq!(none.cause, Cause::Trouble);
        assert!(!none.reason.contains("more"), "{none:?}");
        assert_eq!(
            choose(&[]).expect_err("two").cause,
            Cause::Absent,
            "which of the two is not known yet"
        );
    }

    #[test]
    fn the_addresses_of_a_pod_that_has_many_are_not_all_listed() {
        let many = (0..=u16::MAX).map(|n| {
            let [high, low] = n.to_be_bytes();
            ("net1".to_owned(), IpAddr::from([10, 1, high, low]))
        });
        let wanted = [IpAddr::from([10, 0, 0, 6])];
        let none = choose(many.clone(), &wanted).expect_err("none");
        assert!(none.reason.ends_with("net1 10.1.0.7, and 65528 more"), "{none:?}");
        let last = [IpAddr::from([10, 1, 255, 255])];
        assert_eq!(choose(many, &last).as_deref(), Ok("net1"));
    }

    fn members(all: &[(u32, u64)]) -> Vec<Member> {
        let member =
            |(pid, inode): &(u32, u64)| Member { pid: *pid, netns: (4, *inode), sandbox: None };
        all.iter().map(member).collect()
    }

    #[test]
    fn a_namespace_within_the_pods_own_is_not_taken_for_it() {
        let two = members(&[(10, 1), (20, 2)]);
        let found = |address_is_at: u32| {
            let member = in_its_own(&two, |pid| pid == address_is_at);
            member.expect("one").pid
        };
        assert_eq!((found(10), found(20)), (10, 20));
        assert_eq!(found(30), 10, "as before its address is known");
        let alone = in_its_own(&two[1..], |_| panic!("there is no choice"));
        assert_eq!(alone.map(|member| member.pid), Some(20));
        assert_eq!(in_its_own(&[], |_| true), None);
    }

    #[test]
    fn a_place_goes_on_by_whichever_process_is_in_it() {
        let of_10 = Place { netns: Netns::Pid(10), identity: (4, 2), interface: "eth0".into() };
        let follow = |all: &[(u32, u64)]| {
            let mut place = of_10.clone();
            (place.follow(&members(all)), place.netns)
        };
        assert_eq!(follow(&[(20, 1), (30, 2)]), (true, Netns::Pid(30)));
        assert_eq!(follow(&[(20, 1)]), (false, Netns::Pid(10)));
        assert_eq!(follow(&[]), (true, Netns::Pid(10)));
    }

    /// Numbers of processes begin anew: what was found by one must not be done in another's.
    #[test]
    fn a_place_whose_name_leads_elsewhere_by_now_is_not_opened() {
        let netns = Netns::Pid(std::process::id());
        let identity = netns.identity().expect("this process has one");
        let interface = "eth0".to_owned();
        let here = Place { netns, identity, interface };
        let open = here.open().expect("it is still there");
        assert_eq!(open.identity().expect("it is open"), identity);
        let elsewhere = Place { identity: (identity.0, identity.1 + 1), ..here };
        let unfit = elsewhere.open().expect_err("another one");
        assert_eq!(unfit.cause, Cause::Trouble);
        assert!(unfit.reason.contains("another one"), "{unfit:?}");
    }

    #[test]
    fn why_there_is_no_process_is_told_by_what_runs() {
        let mut processes = Processes::new(Path::new("/proc")).expect("/proc");
        let mut cause = |pod: NodePod| {
            let wanted = WantedPod {
                name: "shop/web-0".into(),
                pod: Arc::new(pod),
                multipath: Default::default(),
                obstacle: None,
            };
            let unfit = find(&mut processes, &wanted).expect_err("no process was read");
            (unfit.cause, unfit.reason.contains("hostPID"))
        };
        let running = NodePod { running: true, ..NodePod::default() };
        let deleting = NodePod { deleting: true, ..running.clone() };
        let seen = NodePod { containers: vec!["cri-o://1".into()], ..running.clone() };
        assert_eq!(cause(NodePod::default()), (Cause::Absent, false));
        assert_eq!(cause(deleting), (Cause::Absent, false));
        assert_eq!(cause(running), (Cause::Waits, false));
        assert_eq!(cause(seen), (Cause::Trouble, true));
    }

    #[test]
    fn before_the_address_is_known_the_only_interface_is_taken() {
        let one = there(&[("eth0", "10.0.0.5"), ("eth0", "fd00::5")]);
        assert_eq!(choose(one.into_iter(), &[]).as_deref(), Ok("eth0"));
        let none = choose(std::iter::empty(), &[]).expect_err("none");
        assert_eq!(none.cause, Cause::Absent);
    }
}
