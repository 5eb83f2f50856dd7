//! The rules of `iptables-legacy` (x_tables), IPv4 and IPv6. Owns how they are read, and that the
//! table `nat` redirects, whatever is in it, as its being there has the kernel track and translate.
//!
//! Only tables that are there are looked at: to ask for another one would make it.

use super::{
    extensions::{self, Part},
    shown,
};
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
    /// `target_offset` and `next_offset` of an entry, and its first match.
    target_at: usize,
    next_at: usize,
    matches_at: usize,
}

const FAMILIES: [Family; 2] = [
    Family {
        command: "iptables-legacy",
        tables: "/proc/thread-self/net/ip_tables_names",
        domain: AddressFamily::INET,
        level: libc::IPPROTO_IP,
        target_at: 88,
        next_at: 90,
        matches_at: 112,
    },
    Family {
        command: "ip6tables-legacy",
        tables: "/proc/thread-self/net/ip6_tables_names",
        domain: AddressFamily::INET6,
        level: libc::IPPROTO_IPV6,
        target_at: 140,
        next_at: 142,
        matches_at: 168,
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
/// `struct xt_entry_match` and `xt_entry_target`: the size of all, a name, and what is its own.
const PART_NAME_AT: usize = 2;
const PART_DATA_AT: usize = 32;
/// A table longer than this is not read through again and again.
const TABLE_BYTES_MAX: usize = 1 << 20;

/// What was read of them.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    /// A rule that redirects.
    pub(super) redirect: Option<String>,
    /// Rules have connections tracked.
    pub(super) tracks: bool,
}

/// Reads them.
///
/// # Errors
/// They cannot be read. That the kernel has no x_tables is none.
pub(super) fn read() -> io::Result<Legacy> {
    let mut found = Legacy::default();
    for family in &FAMILIES {
        let tables = match fs::read_to_string(family.tables) {
            Ok(tables) => tables,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for table in tables.lines() {
            let how = match table {
                "nat" => Some("NAT"),
                _ => read_table(family, table, &mut found.tracks)?,
            };
            if let Some(how) = how {
                let name = shown(table.as_bytes());
                found.redirect = Some(format!("{how} in {}'s table `{name}`", family.command));
                return Ok(found);
            }
        }
    }
    Ok(found)
}

fn socket(family: &Family) -> io::Result<std::os::fd::OwnedFd> {
    Ok(socket_with(family.domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
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

/// How one of a table's rules redirects.
fn read_table(family: &Family, table: &str, tracks: &mut bool) -> io::Result<Option<&'static str>> {
    if table.len() >= NAME_BYTES {
        return Err(unknown());
    }
    let socket = socket(family)?;
    let size = word(&info(socket.as_fd(), family, table)?, SIZE_AT);
    let bytes = usize::try_from(size).unwrap_or(usize::MAX);
    if bytes > TABLE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "table `{}` is longer than 1 MiB",
            shown(table.as_bytes())
        )));
    }
    let mut rules = vec![0; ENTRIES_AT + bytes];
    rules[..table.len()].copy_from_slice(table.as_bytes());
    rules[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&size.to_ne_bytes());
    // Fails (EAGAIN) if the table changed meanwhile: then it is read at the next look.
    sys::get_option(socket.as_fd(), family.level, GET_ENTRIES, &mut rules)?;
    let mut rest = &rules[ENTRIES_AT..];
    while !rest.is_empty() {
        let next = half(rest, family.next_at);
        let (rule, after) = rest.split_at_checked(next).filter(|_| next > 0).ok_or_else(unknown)?;
        for part in parts(family, rule)? {
            match part {
                Part::Redirects(how) => return Ok(Some(how)),
                Part::Tracks => *tracks = true,
            }
        }
        rest = after;
    }
    Ok(None)
}

/// What a rule's matches and its target say of it.
fn parts(family: &Family, rule: &[u8]) -> io::Result<Vec<Part>> {
    let target_at = half(rule, family.target_at);
    let target = rule.get(target_at + PART_NAME_AT..).ok_or_else(unknown)?;
    let mut found: Vec<Part> = extensions::target(target).into_iter().collect();
    let mut matches = rule.get(family.matches_at..target_at).ok_or_else(unknown)?;
    while !matches.is_empty() {
        let (one, after) = matches
            .split_at_checked(half(matches, 0))
            .filter(|(one, _)| one.len() >= PART_DATA_AT)
            .ok_or_else(unknown)?;
        found.extend(extensions::matching(&one[PART_NAME_AT..PART_DATA_AT], &one[PART_DATA_AT..]));
        matches = after;
    }
    Ok(found)
}

fn unknown() -> io::Error {
    io::Error::other("a table of x_tables is laid out in an unknown way")
}
