//! What the machine must have before traffic is taken, told in words. Asks the kernel, changes
//! nothing.

use crate::{
    config::{Config, Ports},
    neighbour::Addresses,
};
use rustix::net::{
    AddressFamily, SocketType,
    netdevice::{index_to_name, name_to_index},
    socket,
};
use std::{fs, net::IpAddr, ops::RangeInclusive};

/// Why this machine cannot run this configuration. Fatal at start; an admin has to change
/// something.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PreflightError {
    /// The kernel gives ports of the range to outgoing connections.
    #[error(
        "port range in use: `ports: {ports}` overlaps net.ipv4.ip_local_port_range ({}-{}), from which the kernel takes ports for its own connections: reserve it (`sysctl -w net.ipv4.ip_local_reserved_ports={ports}`) or choose ports outside", .local.start(), .local.end()
    )]
    LocalPortRange {
        /// Configured.
        ports: Ports,
        /// The kernel's.
        local: RangeInclusive<u16>,
    },
    /// Something listens in the range.
    #[error(
        "port range in use: a process listens on TCP port {port}, which is in `ports: {ports}`: choose other ports or stop it"
    )]
    Listening {
        /// Configured.
        ports: Ports,
        /// Where something listens.
        port: u16,
    },
    /// No such interface.
    #[error("`interface: {name}`: there is no such interface here; there are: {}", .existing.join(", "))]
    NoInterface {
        /// Configured.
        name: String,
        /// Those that exist.
        existing: Vec<String>,
    },
    /// No default route says which interface.
    #[error(
        "`interface: auto` is that of the default route, and there is none: expected the name of one of {}", .existing.join(", ")
    )]
    NoDefaultRoute {
        /// Those that exist.
        existing: Vec<String>,
    },
    /// The interface has no address to use.
    #[error("{name} has no global address: give it one, or set `address`")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// A configured address is not the interface's.
    #[error("`address`: {address} is not an address of {name}, which has: {existing}")]
    ForeignAddress {
        /// Configured.
        address: IpAddr,
        /// The interface.
        name: String,
        /// What it has.
        existing: String,
    },
}

/// The index of the configured interface.
///
/// # Errors
/// It does not exist; the error lists those that do.
pub fn interface_index(name: &str) -> Result<u32, PreflightError> {
    // Not from /sys: its view of the network is that of whoever mounted it.
    let index = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .and_then(|socket| name_to_index(socket, name));
    index.map_err(|_| {
        let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        PreflightError::NoInterface { name: name.to_owned(), existing: interfaces(&table) }
    })
}

/// The name of the interface of the default route.
///
/// # Errors
/// There is none; the error lists those that could be meant.
pub fn interface_name(of_default_route: Option<u32>) -> Result<String, PreflightError> {
    let name = of_default_route.and_then(|index| {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
        index_to_name(socket, index).ok()
    });
    name.ok_or_else(|| {
        let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        PreflightError::NoDefaultRoute { existing: interfaces(&table) }
    })
}

/// The names in the text of `/proc/net/dev`, sorted.
fn interfaces(table: &str) -> Vec<String> {
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect();
    names.sort();
    names
}

/// The dataplane's own addresses: the configured ones, or else the interface's that last.
///
/// # Errors
/// There is none, or a configured one is not the interface's (the kernel would then not answer ARP
/// for it, and no backend could answer us).
pub fn own_addresses(
    config: &Config,
    of_interface: Addresses,
) -> Result<Vec<IpAddr>, PreflightError> {
    let Addresses { lasting, others, .. } = of_interface;
    if config.address.is_empty() {
        return match lasting.is_empty() {
            true => Err(PreflightError::NoAddress { name: config.interface.clone() }),
            false => Ok(lasting),
        };
    }
    let has = |address: &IpAddr| lasting.contains(address) || others.contains(address);
    match config.address.iter().find(|a| !has(a)) {
        None => Ok(config.address.clone()),
        Some(foreign) => {
            let all = lasting.iter().chain(&others);
            let all: Vec<_> = all.map(ToString::to_string).collect();
            Err(PreflightError::ForeignAddress {
                address: *foreign,
                name: config.interface.clone(),
                existing: match all.is_empty() {
                    true => "none".to_owned(),
                    false => all.join(", "),
                },
            })
        }
    }
}

/// Checks that nobody else uses the legs' ports in this network namespace.
///
/// # Errors
/// Somebody does.
pub fn check_ports(ports: Ports) -> Result<(), PreflightError> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    check_local_range(
        ports,
        &read("/proc/sys/net/ipv4/ip_local_port_range"),
        &read("/proc/sys/net/ipv4/ip_local_reserved_ports"),
    )?;
    for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        if let Some(port) = listening(&read(table)).find(|port| ports.contains(*port)) {
            return Err(PreflightError::Listening { ports, port });
        }
    }
    Ok(())
}

fn check_local_range(ports: Ports, local: &str, reserved: &str) -> Result<(), PreflightError> {
    let mut words = local.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next()) else {
        // A kernel without the setting has nothing to overlap with.
        return Ok(());
    };
    let reserved = parse_reserved(reserved);
    let taken = ports.range().any(|port| {
        (first..=last).contains(&port) && !reserved.iter().any(|range| range.contains(&port))
    });
    if taken {
        return Err(PreflightError::LocalPortRange { ports, local: first..=last });
    }
    Ok(())
}

/// Text form `8080,9000-9010`; empty if nothing is reserved.
fn parse_reserved(text: &str) -> Vec<RangeInclusive<u16>> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        })
        .collect()
}

/// Ports on which something listens, from the text of `/proc/net/tcp` or `tcp6`.
fn listening(table: &str) -> impl Iterator<Item = u16> {
    // TCP_LISTEN, include/net/tcp_states.h.
    const LISTEN: &str = "0A";
    table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        (words.nth(1)? == LISTEN)
            .then(|| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(text: &str) -> Ports {
        text.parse().expect("a range")
    }

    #[test]
    fn the_kernels_ports_must_be_reserved() {
        let local = "32768\t60999\n";
        assert_eq!(check_local_range(ports("20000-32767"), local, ""), Ok(()));
        for (range, reserved) in
            [("20000-32768", ""), ("40000-41000", "40000-40999\n"), ("60999-61100", "1,2")]
        {
            let error = check_local_range(ports(range), local, reserved).expect_err(range);
            let text = error.to_string();
            assert!(text.starts_with("port range in use: "), "{text}");
            assert!(text.contains(&format!("ip_local_reserved_ports={range}")), "{text}");
        }
        assert_eq!(
            check_local_range(ports("20000-59999"), local, "8080,32768-40000,40001-59999\n"),
            Ok(())
        );
        assert_eq!(check_local_range(ports("20000-59999"), "", ""), Ok(()));
    }

    #[test]
    fn listeners_are_read_from_the_kernels_table() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:26AC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:4E20 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1
";
        assert_eq!(listening(table).collect::<Vec<_>>(), [9900]);
    }

    #[test]
    fn a_real_listener_in_the_range_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let found = listening(&fs::read_to_string("/proc/net/tcp").expect("the kernel's table"))
            .any(|p| p == port);
        assert!(found, "{port}");
    }

    #[test]
    fn what_does_not_last_is_used_if_it_is_named() {
        let parse = |address: &str| {
            let text = format!("interface: eth0\naddress: [{address}]\n");
            Config::parse(std::path::Path::new("test.yaml"), &text).expect("good")
        };
        let [first, second] = ["10.0.0.5", "10.0.0.6"].map(|a| a.parse().expect("an address"));
        let of_interface =
            Addresses { lasting: vec![first], others: vec![second], tentative: Vec::new() };
        let own = |config| own_addresses(&config, of_interface.clone());
        assert_eq!(own(parse("")), Ok(vec![first]));
        assert_eq!(own(parse("10.0.0.6")), Ok(vec![second]));
        let error = own(parse("10.0.0.7")).expect_err("another's").to_string();
        assert!(error.ends_with("which has: 10.0.0.5, 10.0.0.6"), "{error}");
        let none = own_addresses(&parse(""), Addresses::default());
        assert!(matches!(none, Err(PreflightError::NoAddress { .. })));
    }

    #[test]
    fn an_interface_that_is_not_there_is_told_with_those_that_are() {
        let error = interface_index("nosuch0").expect_err("no such interface");
        let text = error.to_string();
        assert!(text.contains("nosuch0") && text.contains("lo"), "{text}");
        assert_eq!(interface_index("lo"), Ok(1));
        assert_eq!(interface_name(Some(1)).as_deref(), Ok("lo"));
        let error = interface_name(None).expect_err("no default route");
        let text = error.to_string();
        assert!(text.contains("auto") && text.contains("lo"), "{text}");
    }
}
