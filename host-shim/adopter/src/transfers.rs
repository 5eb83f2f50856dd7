//! Transfers (`docs/adoption-wire.md`), as far as the adopter's maps have a part in them: what is
//! asked, what became of it, and which pairs of ends have moved. Owns the layout of these; never
//! moves a connection and never decides.

use crate::{
    Error,
    asked::{Fate, map_error},
    object::TransferMaps,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use std::{
    cell::RefCell,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
    time::Duration,
};

/// `struct transfer` of `bpf/transfer.h`: `struct adoption`, then where to.
const TRANSFER_BYTES: usize = 88;
/// `of.zero`.
const SAYS_ADDRESS_AT: usize = 44;
/// `struct pair`.
const PAIR_BYTES: usize = 48;
/// `struct place`.
const PLACE_BYTES: usize = 16;

/// What one Transfer asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer([u8; TRANSFER_BYTES]);

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("netns", &self.netns())
            .field("local", &self.local())
            .field("remote", &self.remote())
            .field("namespace", &self.namespace())
            .finish_non_exhaustive()
    }
}

impl Transfer {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.0.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().unwrap_or([0; N])
    }

    fn end(&self, address_at: usize, port_at: usize) -> SocketAddr {
        let ip = Ipv6Addr::from(self.bytes::<16>(address_at)).to_canonical();
        SocketAddr::new(ip, u16::from_be_bytes(self.bytes(port_at)))
    }

    /// The peer's end, as the pod sees it.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.end(0, 32)
    }

    /// The pod's end.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.end(16, 34)
    }

    /// The namespace of the pod that has the connection, by [`crate::OpenNetns::cookie`].
    #[must_use]
    pub fn netns(&self) -> u64 {
        u64::from_ne_bytes(self.bytes(48))
    }

    /// The random number of the namespace of the pod that shall have it
    /// ([`crate::Adopter::namespace_number`]), unless a part of its address stands there.
    #[must_use]
    pub fn namespace(&self) -> Option<u64> {
        (!self.says_address()).then(|| u64::from_be_bytes(self.bytes(56)))
    }

    fn says_address(&self) -> bool {
        self.bytes(SAYS_ADDRESS_AT) != [0; 4]
    }

    /// That pod's IPv6 address, which begins as `own` does; `None` if the number stands there.
    #[must_use]
    pub fn far_address(&self, own: Ipv6Addr) -> Option<Ipv6Addr> {
        let mut address = own.octets();
        address[4..12].copy_from_slice(&self.bytes::<8>(56));
        address[12..].copy_from_slice(&self.address_end());
        self.says_address().then(|| address.into())
    }

    /// The last four bytes of that pod's address.
    #[must_use]
    pub fn address_end(&self) -> [u8; 4] {
        self.bytes(64)
    }

    /// The port of its application.
    #[must_use]
    pub fn port(&self) -> u16 {
        u16::from_be_bytes(self.bytes(68))
    }

    /// The end that the peer has there.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.end(72, 70)
    }
}

/// A pair of ends in a namespace, as the egress program looks for it.
fn pair(netns: u64, local: SocketAddr, remote: SocketAddr) -> [u8; PAIR_BYTES] {
    let mapped = |ip| match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut pair = [0; PAIR_BYTES];
    pair[..16].copy_from_slice(&mapped(remote.ip()));
    pair[16..32].copy_from_slice(&mapped(local.ip()));
    pair[32..34].copy_from_slice(&remote.port().to_be_bytes());
    pair[34..36].copy_from_slice(&local.port().to_be_bytes());
    pair[40..].copy_from_slice(&netns.to_ne_bytes());
    pair
}

/// How far connections of an application can go: what `transfers_on` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To pods of this node.
    Node = 1,
    /// To pods of other nodes too.
    Nodes = 3,
}

/// Has Transfers told of and answered. One at a time, as there is one loader of a pin directory at
/// a time.
#[derive(Debug)]
pub struct Transfers {
    transfers: MapHandle,
    asks: MapHandle,
    can: MapHandle,
    moved: MapHandle,
    on: MapHandle,
}

impl Transfers {
    pub(crate) fn new(maps: &TransferMaps) -> Result<Self, Error> {
        let copy = |map: &MapHandle| {
            MapHandle::try_from(map).map_err(|e| map_error("transfers", "opening", &e))
        };
        let transfers = Self {
            transfers: copy(&maps.transfers)?,
            asks: copy(&maps.asks)?,
            can: copy(&maps.can)?,
            moved: copy(&maps.moved)?,
            on: copy(&maps.on)?,
        };
        // Of a predecessor, whose applications have to connect again.
        for place in transfers.on.keys().collect::<Vec<_>>() {
            let _ = transfers.on.delete(&place);
        }
        transfers.enable(true)?;
        Ok(transfers)
    }

    /// Whether Transfers are asked, or answered Kept at once.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn enable(&self, able: bool) -> Result<(), Error> {
        let able = u64::from(able).to_ne_bytes();
        self.can
            .update(&0_u32.to_ne_bytes(), &able, MapFlags::ANY)
            .map_err(|e| map_error("can_transfer", "writing", &e))
    }

    /// Opens what the adopter writes asks to.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn asks(&self) -> Result<TransferAsks<'_>, Error> {
        let gathered = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&gathered);
        let refuse = |e: libbpf_rs::Error| map_error("transfer_asks", "opening", &e);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&self.asks, move |event: &[u8]| {
                if let Ok(transfer) = event.try_into().map(Transfer) {
                    into.borrow_mut().push(transfer);
                }
                0
            })
            .map_err(refuse)?;
        Ok(TransferAsks { ring: builder.build().map_err(refuse)?, map: &self.asks, gathered })
    }

    /// For how long a Transfer may still be acted upon; `None` if it is decided, forgotten, or its
    /// lease over.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn lease(&self, transfer: &Transfer) -> Result<Option<Duration>, Error> {
        match Fate::read(&self.transfers, "transfers", &transfer.0)? {
            Some(Fate::Asked(left)) => Ok(left),
            _ => Ok(None),
        }
    }

    /// The point of no return: the other pod has the connection, and what the kernel says of it in
    /// this one from now on is dropped. `written_to`: number of the next byte that the old socket
    /// would have sent.
    ///
    /// # Errors
    /// [`Error::Map`], also if the Transfer made room for others: nothing is remembered then.
    pub fn moved(&self, transfer: &Transfer, written_to: u32) -> Result<(), Error> {
        Fate::Done
            .write(&self.transfers, &transfer.0)
            .map_err(|e| map_error("transfers", "writing", &e))?;
        // Without it a reset goes out, from a leg that the dataplane has left.
        let old = pair(transfer.netns(), transfer.local(), transfer.remote());
        let _ = self.moved.update(&old, &written_to.to_ne_bytes(), MapFlags::ANY);
        Ok(())
    }

    /// A connection lives on this pair of ends (again).
    pub fn lives(&self, netns: u64, local: SocketAddr, remote: SocketAddr) {
        // Absent as a rule.
        let _ = self.moved.delete(&pair(netns, local, remote));
    }

    /// Whether the connection of a pair of ends was moved away: by what a predecessor remembered.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn is_moved(
        &self,
        netns: u64,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<bool, Error> {
        self.moved
            .lookup(&pair(netns, local, remote), MapFlags::ANY)
            .map(|found| found.is_some())
            .map_err(|e| map_error("moved", "reading", &e))
    }

    /// The connection stays, whatever comes.
    ///
    /// # Errors
    /// [`Error::Map`], also if the Transfer made room for others: its next copy asks again.
    pub fn kept(&self, transfer: &Transfer) -> Result<(), Error> {
        Fate::Kept
            .write(&self.transfers, &transfer.0)
            .map_err(|e| map_error("transfers", "writing", &e))
    }

    /// Whether, and how far, the application that listens on a port there hands connections out and
    /// takes them.
    ///
    /// # Errors
    /// [`Error::Map`]: 16,384 places have one.
    pub fn set_cooperates(&self, netns: u64, port: u16, reach: Option<Reach>) -> Result<(), Error> {
        let mut place = [0; PLACE_BYTES];
        place[..8].copy_from_slice(&netns.to_ne_bytes());
        place[8..12].copy_from_slice(&u32::from(port).to_ne_bytes());
        if let Some(reach) = reach {
            return self
                .on
                .update(&place, &[reach as u8], MapFlags::ANY)
                .map_err(|e| map_error("transfers_on", "writing", &e));
        }
        // Absent if the namespace's were taken before.
        let _ = self.on.delete(&place);
        Ok(())
    }
}

/// Where the adopter says which Transfers are asked.
pub struct TransferAsks<'a> {
    ring: RingBuffer<'a>,
    map: &'a MapHandle,
    gathered: Rc<RefCell<Vec<Transfer>>>,
}

impl std::fmt::Debug for TransferAsks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransferAsks").finish_non_exhaustive()
    }
}

/// Readable when there is something to gather.
impl AsFd for TransferAsks<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl TransferAsks<'_> {
    /// All that waits, at most what the buffer holds. The same one may come again.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn gather(&mut self) -> Result<Vec<Transfer>, Error> {
        self.ring.consume().map_err(|e| map_error("transfer_asks", "reading", &e))?;
        Ok(std::mem::take(&mut *self.gathered.borrow_mut()))
    }
}
