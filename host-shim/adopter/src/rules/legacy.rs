//! The rules of `iptables-legacy` (x_tables), IPv4 and IPv6. Owns which of them redirect
//! connections: the table `nat`, whatever is in it, as its being there has the kernel track and
//! translate, and the target TPROXY in `mangle`, the only table that has it.
//!
//! Only tables that are there are looked at: to ask for another one would make it.

use super::shown;
use crate::sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
};

/// Where a family's structs have what is looked at (linux/netfilter_ipv4/ip_tables.h and its like).
struct Family {
    command: &'static str,
    tables: &'static str,
    domain: AddressFamily,
    level: i32,
    /// `target_offset` and `next_offset` of an entry.
    target_at: usize,
    next_at: usize,
}

const FAMILIES: [Family; 2] = [
    Family {
        command: "iptables-legacy",
        tables: "/proc/thread-self/net/ip_tables_names",
        domain: AddressFamily::INET,
        level: libc::IPPROTO_IP,
        target_at: 88,
        next_at: 90,
    },
    Family {
        command: "ip6tables-legacy",
        tables: "/proc/thread-self/net/ip6_tables_names",
        domain: AddressFamily::INET6,
        level: libc::IPPROTO_IPV6,
        target_at: 140,
        next_at: 142,
    },
];

/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`: the same numbers in both families.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// `struct ipt_getinfo`: a name, then numbers: the hooks, the first rule of each of five hooks,
/// their policies, how many, how long.
const NAME_BYTES: usize = 32;
const INFO_BYTES: usize = 84;
const SIZE_AT: usize = 80;
/// `struct ipt_get_entries` before its entries.
const ENTRIES_AT: usize = 40;
/// A target's name, behind its size.
const TARGET_NAME_AT: usize = 2;
/// A table longer than this is not read through again and again.
const TABLE_BYTES_MAX: usize = 1 << 20;

/// A rule that redirects.
///
/// # Errors
/// They cannot be read. That the kernel has no x_tables is none.
pub(super) fn read() -> io::Result<Option<String>> {
    for family in &FAMILIES {
        let tables = match fs::read_to_string(family.tables) {
            Ok(tables) => tables,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for table in tables.lines() {
            let how = match table {
                "nat" => Some("NAT"),
                "mangle" => tproxy(family)?.then_some("TPROXY"),
                _ => None,
            };
            if let Some(how) = how {
                let name = shown(table.as_bytes());
                return Ok(Some(format!(
                    "{how} in {}'s table `{name}`",
                    family.command
                )));
            }
        }
    }
    Ok(None)
}

fn socket(family: &Family) -> io::Result<std::os::fd::OwnedFd> {
    Ok(socket_with(
        family.domain,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn info(socket: BorrowedFd<'_>, family: &Family, table: &str) -> io::Result<[u8; INFO_BYTES]> {
    let mut info = [0; INFO_BYTES];
    info[..table.len()].copy_from_slice(table.as_bytes());
    sys::get_option(socket, family.level, GET_INFO, &mut info)?;
    Ok(info)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> usize {
    let half = bytes.get(at..).and_then(|rest| rest.first_chunk());
    half.map_or(0, |half| usize::from(u16::from_ne_bytes(*half)))
}

fn tproxy(family: &Family) -> io::Result<bool> {
    const TABLE: &str = "mangle";
    let socket = socket(family)?;
    let size = word(&info(socket.as_fd(), family, TABLE)?, SIZE_AT);
    let bytes = usize::try_from(size).unwrap_or(usize::MAX);
    if bytes > TABLE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "table `{TABLE}` is longer than 1 MiB"
        )));
    }
    let mut table = vec![0; ENTRIES_AT + bytes];
    table[..TABLE.len()].copy_from_slice(TABLE.as_bytes());
    table[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&size.to_ne_bytes());
    // Fails (EAGAIN) if the table changed meanwhile: then it is read at the next look.
    sys::get_option(socket.as_fd(), family.level, GET_ENTRIES, &mut table)?;
    let mut rest = &table[ENTRIES_AT..];
    while !rest.is_empty() {
        let target = rest.get(half(rest, family.target_at) + TARGET_NAME_AT..);
        if target.is_some_and(|name| name.starts_with(b"TPROXY\0")) {
            return Ok(true);
        }
        let next = half(rest, family.next_at);
        rest = match rest.get(next..) {
            Some(after) if next > 0 => after,
            _ => {
                return Err(io::Error::other(
                    "a table of x_tables is laid out in an unknown way",
                ));
            }
        };
    }
    Ok(false)
}
