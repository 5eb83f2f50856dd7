//! What listens in the dataplane's network beside itself: on a node's own network, its SSH and its
//! kubelet.
//!
//! Owns reading that from the kernel, and saying which policies would take clients away from there.
//! Never whether they are refused for it.
//!
//! # Decisions
//!
//! - **A pushed policy for a port at which another process listens is refused**: the kernel's
//!   tables of listeners are read with each snapshot, and every 5 s while a policy waits.
//!   `sock_diag` would say the same; `/proc` has listeners first, so few lines are read. A file's
//!   policies are its owner's choice.

use baton_api::{Endpoint, Snapshot, SnapshotError};
use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// State of a listening socket, as the kernel's tables have it (`TCP_LISTEN`,
/// include/net/tcp_states.h).
const LISTEN: &str = "0A";

/// Reads who listens in this network namespace. The kernel has listening sockets first in its
/// tables (`tcp_seq_start`), so that no others are read.
///
/// # Errors
/// `/proc` is not there.
pub fn listening() -> io::Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        match File::open(table) {
            Ok(file) => all.extend(listeners_of(BufReader::new(file))?),
            // Without IPv6 there is no such table.
            Err(e) if e.kind() == io::ErrorKind::NotFound && table.ends_with('6') => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

fn listeners_of(table: impl BufRead) -> io::Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    for line in table.lines().skip(1) {
        let line = line?;
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        if state != Some(LISTEN) {
            break;
        }
        let address = local.and_then(address_of);
        let no_address = || io::Error::other(format!("no address in `{line}`"));
        all.push(address.ok_or_else(no_address)?);
    }
    Ok(all)
}

/// Words of the address in the machine's order, each in hexadecimal, and the port.
fn address_of(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = [0; 16];
    let words = address.len() / 8;
    for word in 0..words {
        let word_text = address.get(8 * word..8 * word + 8)?;
        let word_bytes = u32::from_str_radix(word_text, 16).ok()?.to_ne_bytes();
        bytes.get_mut(4 * word..4 * word + 4)?.copy_from_slice(&word_bytes);
    }
    let ip: IpAddr = match words {
        1 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        4 => Ipv6Addr::from(bytes).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Policies with a frontend where somebody else listens: each one's place, and the first such field
/// of it. `own` are the dataplane's addresses.
pub fn objections(
    snapshot: &Snapshot,
    own: &[IpAddr],
    listening: &[SocketAddr],
) -> Vec<(usize, SnapshotError)> {
    let all = snapshot.policies.iter().enumerate();
    let objection = |(p, policy): (usize, &baton_api::Policy)| {
        let mut all = policy.frontends.iter().enumerate();
        let error = all.find_map(|(i, frontend)| {
            let found = listening.iter().find(|at| is_at(*frontend, **at, own))?;
            Some(SnapshotError {
                path: format!("policies[{p}].frontends[{i}]"),
                problem: format!(
                    "{frontend} is where another process of this machine listens ({found}): choose another port, or stop that process"
                ),
            })
        })?;
        Some((p, error))
    };
    all.filter_map(objection).collect()
}

/// Whether clients of the frontend would find that listener, were there no dataplane.
fn is_at(frontend: Endpoint, listener: SocketAddr, own: &[IpAddr]) -> bool {
    let (at, here) = (frontend.address(), listener.ip());
    // Linux gives a listener on `::` what comes to IPv4 addresses too, unless it does not want
    // that.
    let any = here.is_unspecified() && (here.is_ipv6() || at.is_ipv4());
    let addressed = if at.is_unspecified() {
        own.contains(&here) && at.is_ipv4() == here.is_ipv4()
    } else {
        at == here
    };
    let ours = at.is_unspecified() || own.contains(&at);
    frontend.port() == listener.port() && (any && ours || addressed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [&str; 2] = ["10.0.0.7", "fd00::7"];

    fn own() -> Vec<IpAddr> {
        OWN.map(|a| a.parse().expect("an address")).to_vec()
    }

    fn at(frontend: &str, listener: &str) -> bool {
        let frontend = frontend.parse().expect("an endpoint");
        is_at(frontend, listener.parse().expect("an address"), &own())
    }

    #[test]
    fn tables_of_the_kernel_are_read_as_far_as_they_list_listeners() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
            0: 0100007F:0016 00000000:0000 0A 00000000:00000000\n\
            1: 00000000000000000000000000000000:280A 00000000000000000000000000000000:0000 0A 0\n\
            2: 0700000A:0050 0100000A:A000 01 00000000:00000000\n\
            3: what is behind is not read\n";
        let found = listeners_of(table.as_bytes()).expect("a table");
        let expected: Vec<SocketAddr> =
            ["127.0.0.1:22", "[::]:10250"].map(|a| a.parse().expect("an address")).to_vec();
        assert_eq!(found, expected);
        assert!(listeners_of("\n 0: ZZ:0016 0 0A\n".as_bytes()).is_err());
    }

    #[test]
    fn this_machines_listeners_are_found() {
        let here = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = here.local_addr().expect("an address");
        assert!(listening().expect("/proc").contains(&address));
        drop(here);
        assert!(!listening().expect("/proc").contains(&address));
    }

    #[test]
    fn a_frontend_is_refused_where_its_clients_would_find_another_listener() {
        for (frontend, listener) in [
            ("10.0.0.7:22", "0.0.0.0:22"),
            ("10.0.0.7:22", "[::]:22"),
            ("10.0.0.7:22", "10.0.0.7:22"),
            ("0.0.0.0:22", "10.0.0.7:22"),
            ("0.0.0.0:22", "0.0.0.0:22"),
            ("[fd00::7]:22", "[::]:22"),
            ("[::]:22", "[fd00::7]:22"),
        ] {
            assert!(at(frontend, listener), "{frontend} {listener}");
        }
        for (frontend, listener) in [
            ("10.0.0.7:23", "0.0.0.0:22"),
            // Not ours: nothing there is the machine's.
            ("10.9.9.9:22", "0.0.0.0:22"),
            ("10.0.0.7:22", "127.0.0.1:22"),
            ("0.0.0.0:22", "127.0.0.1:22"),
            ("0.0.0.0:22", "[fd00::7]:22"),
            ("[fd00::7]:22", "0.0.0.0:22"),
        ] {
            assert!(!at(frontend, listener), "{frontend} {listener}");
        }
    }
}
