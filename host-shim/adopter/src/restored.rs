//! Legs that a client stands for (`docs/adoption-wire.md`, The client block), as far as user space
//! has a part in them: it asks for each leg whether a socket is on the client's pair, and has the
//! program forget those that nobody uses. Owns the list of legs; whether one is unused is found by
//! `bpf/restore.h`, which looks for the socket as the stack does. Never enters a leg.

use crate::{Adopter, Error, Netns, asked::map_error, sys};
use libbpf_rs::{MapCore, MapFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

/// So long no socket must have been found for a leg before it is forgotten: as long as a TIME_WAIT
/// lasts, during which late segments of the connection may come.
pub const LEG_PATIENCE: Duration = Duration::from_secs(60);

/// `struct restored_key` of `bpf/restore.h`.
const KEY_BYTES: usize = 48;
const REMOTE_PORT_AT: usize = 32;
const LOCAL_PORT_AT: usize = 34;
const BY_AT: usize = 36;
const NETNS_AT: usize = 40;
const BY_LEG: u32 = 1;
const BY_CLIENT: u32 = 2;
/// `struct restored`.
const PORT_AT: usize = 16;
const IFINDEX_AT: usize = 28;
/// `struct unused_ask`: what stands for an Ethernet header, the leg, the patience.
const ASK_BYTES: usize = ETHERNET_BYTES + KEY_BYTES + 8;
const ETHERNET_BYTES: usize = 16;

/// One leg that a client stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leg {
    key: [u8; KEY_BYTES],
    ifindex: u32,
    /// The end that the pod sees.
    pub client: SocketAddr,
}

fn end(address: &[u8], port: &[u8]) -> Option<SocketAddr> {
    let ip = IpAddr::V6(Ipv6Addr::from(*address.first_chunk::<16>()?)).to_canonical();
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port.first_chunk()?)))
}

impl Leg {
    fn new(key: &[u8], value: &[u8]) -> Option<Self> {
        let key: [u8; KEY_BYTES] = key.try_into().ok()?;
        (u32::from_ne_bytes(*key[BY_AT..].first_chunk()?) == BY_LEG).then_some(())?;
        Some(Self {
            key,
            ifindex: u32::from_ne_bytes(*value.get(IFINDEX_AT..)?.first_chunk()?),
            client: end(value, value.get(PORT_AT..)?)?,
        })
    }

    /// Of which namespace, by [`crate::OpenNetns::cookie`].
    #[must_use]
    pub fn netns(&self) -> u64 {
        self.key[NETNS_AT..].first_chunk().map_or(0, |cookie| u64::from_ne_bytes(*cookie))
    }

    /// The dataplane's end, as it is on the wire.
    #[must_use]
    pub fn dataplane(&self) -> Option<SocketAddr> {
        end(&self.key, &self.key[REMOTE_PORT_AT..])
    }

    /// The pod's.
    #[must_use]
    pub fn pod(&self) -> Option<SocketAddr> {
        end(&self.key[16..], &self.key[LOCAL_PORT_AT..])
    }

    fn ask(&self, patience: Duration) -> [u8; ASK_BYTES] {
        let mut ask = [0; ASK_BYTES];
        let (leg, wait) = ask[ETHERNET_BYTES..].split_at_mut(KEY_BYTES);
        leg.copy_from_slice(&self.key);
        let ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        wait.copy_from_slice(&ns.to_ne_bytes());
        ask
    }
}

/// The legs among keys, by namespace, each once: a walk through a table begins anew where the
/// entry that it is at goes (`htab_map_get_next_key`).
fn legs_of(
    keys: impl Iterator<Item = Vec<u8>>,
    read: impl Fn(Vec<u8>) -> Result<Option<Leg>, Error>,
) -> Result<BTreeMap<u64, Vec<Leg>>, Error> {
    let is_leg = |key: &Vec<u8>| key.get(BY_AT..BY_AT + 4) == Some(&BY_LEG.to_ne_bytes());
    let mut legs = BTreeMap::<u64, Vec<Leg>>::new();
    for key in keys.filter(is_leg) {
        if let Some(leg) = read(key)? {
            legs.entry(leg.netns()).or_default().push(leg);
        }
    }
    for legs in legs.values_mut() {
        legs.sort_unstable_by_key(|leg| leg.key);
        legs.dedup_by_key(|leg| leg.key);
    }
    Ok(legs)
}

impl Adopter {
    /// All legs of this node that a client stands for, by namespace. As many as the table holds at
    /// most; some that come or go meanwhile may be missing.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn legs(&self) -> Result<BTreeMap<u64, Vec<Leg>>, Error> {
        let map = &self.loaded().restored;
        let keys = map.keys().take(map.max_entries() as usize);
        let read = |key: Vec<u8>| {
            let value =
                map.lookup(&key, MapFlags::ANY).map_err(|e| map_error("restored", "reading", &e));
            value.map(|value| value.and_then(|value| Leg::new(&key, &value)))
        };
        legs_of(keys, read)
    }

    /// Says how many legs each namespace has by now. What none has is all others' to have.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn note_legs(&self, counts: &BTreeMap<u64, usize>) -> Result<(), Error> {
        let map = &self.loaded().legs_of;
        let all = counts.values().sum::<usize>();
        let counts = counts.iter().map(|(cookie, count)| (*cookie, *count));
        let counts: BTreeMap<u64, usize> = counts.chain([(0, all)]).collect();
        for key in map.keys() {
            let cookie = key.first_chunk().map(|cookie| u64::from_ne_bytes(*cookie));
            if cookie.is_none_or(|cookie| !counts.contains_key(&cookie)) {
                // Absent if somebody else has taken it away.
                let _ = map.delete(&key);
            }
        }
        for (cookie, count) in counts {
            let value = (count as u64).to_ne_bytes();
            map.update(&cookie.to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(|e| map_error("legs_of", "writing", &e))?;
        }
        Ok(())
    }

    /// Forgets those legs on whose client's pair no socket was found for so long, and those of
    /// namespaces that the adopter is in no more. The first look begins that time. `known` are
    /// names of namespaces by their cookies; others, such as one that a predecessor left, are
    /// searched for among all processes. Notes how many each has by now. Returns how many were
    /// forgotten.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::NetnsEnter`] and [`Error::Pass`], the first; the rest is still
    /// looked at.
    pub fn forget_unused(
        &self,
        known: &BTreeMap<u64, Netns>,
        patience: Duration,
    ) -> Result<usize, Error> {
        let mut legs = self.legs()?;
        let mut forgotten = 0;
        for (cookie, legs) in &mut legs {
            if self.namespace_number(*cookie)?.is_none() {
                forgotten += legs.len();
                legs.drain(..).for_each(|leg| self.drop_leg(&leg));
            }
        }
        legs.retain(|_, legs| !legs.is_empty());
        let strange = legs.keys().filter(|cookie| !known.contains_key(cookie));
        let strange: BTreeSet<u64> = strange.copied().collect();
        let found = match strange.is_empty() {
            true => BTreeMap::new(),
            false => Netns::by_cookies(&strange),
        };
        let mut left: BTreeMap<u64, usize> = legs.iter().map(|(c, l)| (*c, l.len())).collect();
        let mut problem = None;
        for (cookie, legs) in &legs {
            let found = found.get(cookie).map(|(netns, _)| netns);
            let Some(netns) = known.get(cookie).or(found) else {
                continue;
            };
            match self.look_at(netns, legs, patience) {
                Ok(count) => {
                    forgotten += count;
                    left.entry(*cookie).and_modify(|left| *left -= count);
                }
                // Its processes are gone; when its adopter is, so are its legs.
                Err(Error::NetnsMissing { .. }) => {}
                Err(other) => problem = problem.or(Some(other)),
            }
        }
        let noted = self.note_legs(&left);
        problem.map_or(noted.map(|()| forgotten), Err)
    }

    /// One namespace's; none is forgotten if the name leads to another one.
    fn look_at(&self, netns: &Netns, legs: &[Leg], patience: Duration) -> Result<usize, Error> {
        let looked = netns.within_unchecked(|| -> io::Result<usize> {
            let any =
                socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            let cookie = sys::netns_cookie(any.as_fd())?;
            let mut forgotten = 0;
            for leg in legs.iter().filter(|leg| leg.netns() == cookie) {
                let program = self.loaded().unused_leg.as_fd();
                match sys::test_run_at(program, leg.ifindex, &leg.ask(patience)) {
                    Ok(action) => forgotten += action as usize,
                    // Its interface is gone, and so is the adopter on it.
                    Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {
                        self.drop_leg(leg);
                        forgotten += 1;
                    }
                    Err(e) => return Err(e),
                }
            }
            Ok(forgotten)
        })?;
        looked.map_err(|source| Error::Pass { netns: netns.to_string(), source })
    }

    /// Of a place where no program looks any more.
    fn drop_leg(&self, leg: &Leg) {
        let mut pair = leg.key;
        let octets = match leg.client.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        pair[..16].copy_from_slice(&octets);
        pair[REMOTE_PORT_AT..LOCAL_PORT_AT].copy_from_slice(&leg.client.port().to_be_bytes());
        pair[BY_AT..NETNS_AT].copy_from_slice(&BY_CLIENT.to_ne_bytes());
        for key in [leg.key, pair] {
            // Absent if it was forgotten meanwhile.
            let _ = self.loaded().restored.delete(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(netns: u64, port: u16, by: u32) -> Vec<u8> {
        let mut key = vec![0; KEY_BYTES];
        key[REMOTE_PORT_AT..LOCAL_PORT_AT].copy_from_slice(&port.to_be_bytes());
        key[BY_AT..NETNS_AT].copy_from_slice(&by.to_ne_bytes());
        key[NETNS_AT..].copy_from_slice(&netns.to_ne_bytes());
        key
    }

    /// Counted twice, legs took others' part of the table away.
    #[test]
    fn a_leg_that_a_walk_comes_by_twice_is_one() {
        let first = [key(7, 1, BY_LEG), key(7, 1, BY_CLIENT), key(8, 2, BY_LEG)];
        // The entry that it was at is gone: it begins anew.
        let anew = [first.clone(), first].concat().into_iter();
        let walk = anew.chain([key(7, 3, BY_LEG)]);
        let read = |key: Vec<u8>| Ok(Leg::new(&key, &[0; 48]));
        let legs = legs_of(walk, read).expect("nothing fails");
        let counts: Vec<_> = legs.iter().map(|(n, legs)| (*n, legs.len())).collect();
        assert_eq!(counts, [(7, 2), (8, 1)]);
    }
}
