//! What the steps of a Transfer do to the kernel. Owns the sockets meanwhile; never decides which
//! step comes next, and never waits for an application.

use super::{Place, decide::Step};
use baton_adopter::{OpenNetns, Transfer, netns_cookie};
use baton_tcp_repair::{Connection, Frozen, Restoring, Warm};
use nix::ifaddrs::getifaddrs;
use rustix::{
    net::{AddressFamily, SocketType, connect_unspec, getpeername, getsockname, ipproto, sockopt},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Where a connection goes on this node.
#[derive(Debug)]
pub struct Target {
    pub cookie: u64,
    /// The connection's ends there.
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Target {
    /// `None` if the pod is gone, or has no such address.
    pub fn find(place: &Place, ask: &Transfer) -> Option<Self> {
        let is_wanted = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => ask.local().is_ipv4() && v4.octets() == ask.address_end(),
            IpAddr::V6(v6) => ask.local().is_ipv6() && v6.octets()[12..] == ask.address_end(),
        };
        Self::which(place, is_wanted, ask.port(), ask.peer())
    }

    /// The same, where both ends are said.
    pub fn at(place: &Place, local: SocketAddr, remote: SocketAddr) -> Option<Self> {
        Self::which(place, |ip| *ip == local.ip(), local.port(), remote)
    }

    fn which(
        place: &Place,
        is_wanted: impl Fn(&IpAddr) -> bool,
        port: u16,
        remote: SocketAddr,
    ) -> Option<Self> {
        let open = place.netns.open().ok()?;
        if open.cookie() != place.cookie {
            return None;
        }
        let there = open.within(|| addresses_in_this_netns(&place.interface));
        let ip = there.ok()?.into_iter().find(is_wanted)?;
        Some(Self { cookie: open.cookie(), local: SocketAddr::new(ip, port), remote })
    }
}

/// The ends of a connection in a pod of another node, if the Transfer says them.
pub fn far_ends(ask: &Transfer) -> Option<(SocketAddr, SocketAddr)> {
    let ip = match ask.local().ip() {
        IpAddr::V4(_) => IpAddr::from(ask.address_end()),
        IpAddr::V6(own) => ask.far_address(own)?.into(),
    };
    Some((SocketAddr::new(ip, ask.port()), ask.peer()))
}

/// Where a connection goes.
#[derive(Debug)]
pub enum Destination {
    Here(Target),
    /// To a pod of another node.
    Far {
        local: SocketAddr,
        remote: SocketAddr,
        /// Over this channel.
        channel: u64,
    },
}

impl Destination {
    pub fn ends(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Here(target) => (target.local, target.remote),
            Self::Far { local, remote, .. } => (*local, *remote),
        }
    }

    pub fn here(&self) -> Option<&Target> {
        match self {
            Self::Here(target) => Some(target),
            Self::Far { .. } => None,
        }
    }

    pub fn channel(&self) -> Option<u64> {
        match self {
            Self::Here(_) => None,
            Self::Far { channel, .. } => Some(*channel),
        }
    }
}

/// Addresses of an interface that others can reach.
fn addresses_in_this_netns(interface: &str) -> Vec<IpAddr> {
    let all = getifaddrs().into_iter().flatten();
    all.filter(|found| found.interface_name == interface)
        .filter_map(|found| {
            let address = found.address?;
            match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
                (_, Some(v6)) if !v6.ip().is_unicast_link_local() => Some(IpAddr::V6(v6.ip())),
                _ => None,
            }
        })
        .collect()
}

/// Whether a descriptor is the connection that a Transfer asks for.
pub fn fits(descriptor: BorrowedFd<'_>, ask: &Transfer) -> bool {
    is_tcp_of(descriptor, ask.netns())
        && ends_of(descriptor).is_some_and(|ends| ends == (ask.local(), ask.remote()))
}

/// Whether it is a TCP socket of a namespace. (MPTCP's is none.)
pub fn is_tcp_of(descriptor: BorrowedFd<'_>, cookie: u64) -> bool {
    netns_cookie(descriptor).is_ok_and(|of| of == cookie)
        && sockopt::socket_protocol(descriptor).is_ok_and(|p| p == Some(ipproto::TCP))
}

/// Whether an application's descriptor is a socket that a connection can come into. Whether it is
/// new, the kernel says when it is put into it; what else its application has done to it, or does
/// meanwhile, is its own loss.
pub fn can_take(descriptor: BorrowedFd<'_>, target: &Target) -> bool {
    let family = if target.local.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    is_tcp_of(descriptor, target.cookie)
        && sockopt::socket_type(descriptor).is_ok_and(|of| of == SocketType::STREAM)
        && sockopt::socket_domain(descriptor).is_ok_and(|of| of == family)
}

/// Its ends, if it is connected.
pub fn ends_of(descriptor: BorrowedFd<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let end = |of: rustix::net::SocketAddrAny| {
        let end = SocketAddr::try_from(of).ok()?;
        Some(SocketAddr::new(end.ip().to_canonical(), end.port()))
    };
    let local = end(getsockname(descriptor).ok()?)?;
    Some((local, end(getpeername(descriptor).ok()??)?))
}

/// A connection under way.
#[derive(Debug)]
pub struct Moving {
    /// As it was handed out. Not the last descriptor of its socket: closing that may take as long
    /// as its application likes (SO_LINGER).
    pub out: OwnedFd,
    frozen: Option<Frozen>,
    since: Instant,
    /// What was exported, with the ends that it will have.
    pub exported: Option<Connection>,
    /// Number of the next byte that the old socket would have sent.
    pub written_to: u32,
    /// Its new socket, if that is on this node.
    pub arriving: Arriving,
}

/// A connection on its way into a new socket.
#[derive(Debug, Default)]
pub struct Arriving {
    /// As its application gave it. Not to be closed here: see [`Moving::out`].
    pub socket: Option<OwnedFd>,
    restoring: Option<Restoring>,
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Moving {
    pub fn new(out: OwnedFd) -> Self {
        Self {
            out,
            frozen: None,
            since: Instant::now(),
            exported: None,
            written_to: 0,
            arriving: Arriving::default(),
        }
    }

    /// For how long it has stood still.
    pub fn stood(&self) -> Duration {
        self.since.elapsed()
    }

    /// Those steps that are the kernel's alone.
    pub fn take(
        &mut self,
        step: Step,
        destination: &Destination,
        warm: &dyn Warm,
    ) -> Result<(), String> {
        match step {
            Step::Freeze => {
                self.since = Instant::now();
                let copy = self.out.try_clone().map_err(words)?;
                self.frozen = Some(Frozen::new(copy).map_err(words)?);
            }
            Step::Export => {
                let frozen = self.frozen.as_mut().ok_or("not frozen")?;
                let mut connection = frozen.export().map_err(words)?;
                (connection.local, connection.remote) = destination.ends();
                let queued = u32::try_from(connection.unacknowledged.len()).map_err(words)?;
                self.written_to = connection.acknowledged_to.wrapping_add(queued);
                self.exported = Some(connection);
            }
            Step::Restore => {
                let connection = self.exported.take().ok_or("not exported")?;
                let target = destination.here().ok_or("not on this node")?;
                self.arriving.restore(connection, target, warm)?;
            }
            Step::Drop => {
                let frozen = self.frozen.take().ok_or("not frozen")?;
                frozen.commit().map_err(words)?;
            }
            Step::Speak => self.arriving.speak()?,
            Step::Send | Step::Remember | Step::Give | Step::Go => {}
        }
        Ok(())
    }

    /// The old socket goes on as if nothing had been.
    pub fn undo(&mut self) {
        self.arriving.abort();
        if let Some(frozen) = self.frozen.take()
            && let Err(error) = frozen.abort()
        {
            tracing::error!(%error, "a connection stays frozen: report this");
        }
    }
}

impl Arriving {
    /// Puts a connection into a socket that says nothing yet, if it is the one of these ends.
    pub fn restore(
        &mut self,
        mut connection: Connection,
        target: &Target,
        warm: &dyn Warm,
    ) -> Result<(), String> {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        if (plain(connection.local), plain(connection.remote)) != (target.local, target.remote) {
            return Err("the connection has other ends than were offered".into());
        }
        // IPv4 on a socket of IPv6 goes on as IPv4.
        (connection.local, connection.remote) = (target.local, target.remote);
        let socket = self.socket.as_ref().ok_or("no socket")?;
        let copy = socket.try_clone().map_err(words)?;
        self.restoring = Some(Restoring::new(copy, &connection, warm).map_err(words)?);
        Ok(())
    }

    /// It talks from now on.
    pub fn speak(&mut self) -> Result<(), String> {
        let restoring = self.restoring.take().ok_or("not restored")?;
        let socket = restoring.commit().map_err(words)?;
        // Until its application knows: see `baton_sdk`.
        reset_when_closed(&socket).map_err(words)
    }

    /// It resets its peer, whoever has a descriptor of it.
    pub fn reset(&mut self) {
        if let Some(socket) = &self.socket
            && let Err(problem) = connect_unspec(socket)
        {
            tracing::debug!(%problem, "a connection is reset when its application closes it");
        }
    }

    /// It ends without a word.
    pub fn abort(&mut self) {
        if let Some(restoring) = self.restoring.take() {
            restoring.abort();
        }
    }
}

/// Nobody has said that it may talk.
impl Drop for Arriving {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Runs `work` in a namespace on this thread: another one would have to be waited for, which takes
/// milliseconds on a busy node while the connection stands still.
pub fn visit<T>(
    netns: &OpenNetns,
    home: BorrowedFd<'_>,
    work: impl FnOnce() -> T,
) -> rustix::io::Result<T> {
    let network = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(netns.as_fd(), network)?;
    let done = work();
    // Nothing else of this thread depends on where it is; the next visit ends at home again.
    if let Err(error) = move_into_link_name_space(home, network) {
        tracing::error!(%error, "a pod's namespace is held: report this");
    }
    Ok(done)
}

/// Whoever closes it last resets the peer, rather than say that all was said.
fn reset_when_closed(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

/// A socket that a host-shim left behind which ended while it moved it: does its application have
/// the connection? `moved`: another pod has it.
pub fn settle(descriptor: OwnedFd, moved: bool) -> io::Result<bool> {
    let is_open = ends_of(descriptor.as_fd()).is_some();
    match Frozen::left_behind(descriptor)? {
        Some(frozen) if moved => frozen.commit().map(|()| false),
        Some(frozen) => frozen.abort().map(|()| true),
        None => Ok(is_open),
    }
}
