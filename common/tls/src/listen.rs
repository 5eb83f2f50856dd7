//! Listeners that clients of both IP families reach, and the addresses of who comes.
//!
//! Owns how an unspecified address is bound, and that IPv4 clients of such a listener have their
//! IPv4 addresses: the kernel shows them as `::ffff:10.0.0.1`, which is equal to no IPv4 address
//! and in no loopback range.

use rustix::net::sockopt::set_ipv6_v6only;
use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that wait to be accepted: what the standard library and tokio have.
const WAITING_MAX: u32 = 1_024;

/// Listens. `[::]` means the addresses of both families, whatever `net.ipv6.bindv6only` says, and
/// all IPv4 addresses where the kernel has no IPv6.
///
/// # Errors
/// The address is in use, or is none of this machine.
///
/// # Panics
/// Outside a tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    or_ipv4(address, |address| {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if address.ip() == Ipv6Addr::UNSPECIFIED {
            set_ipv6_v6only(&socket, false)?;
        }
        // Connections of the process before are no reason to refuse the place.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(WAITING_MAX)
    })
}

/// `open` of the address; of `[::]` where that cannot be, `open` of `0.0.0.0`.
fn or_ipv4<T>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    open(address).or_else(|error| {
        // Who has the port has it of both families, or this process is to be told.
        if address.ip() != Ipv6Addr::UNSPECIFIED || error.kind() == ErrorKind::AddrInUse {
            return Err(error);
        }
        open((Ipv4Addr::UNSPECIFIED, address.port()).into())
    })
}

/// The next connection, with the address of its other end.
///
/// # Errors
/// The process has no more file descriptors, as a rule.
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    Ok((stream, peer))
}

/// Whether it came to a loopback address. One that is gone already is answered by nobody.
#[must_use]
pub fn is_loopback(stream: &TcpStream) -> bool {
    let here = stream.local_addr();
    here.is_ok_and(|here| here.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(port: u16) -> SocketAddr {
        (Ipv6Addr::UNSPECIFIED, port).into()
    }

    #[tokio::test]
    async fn both_families_reach_an_unspecified_address_with_their_own_addresses() {
        let listener = bind(any(0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        for to in ["127.0.0.1", "::1"] {
            let client = TcpStream::connect((to, port)).await.expect("reached");
            let (stream, peer) = accept(&listener).await.expect("a connection");
            assert_eq!(peer, client.local_addr().expect("its address"));
            assert!(is_loopback(&stream), "{to}");
        }
    }

    #[tokio::test]
    async fn a_port_that_somebody_has_in_one_family_is_refused() {
        let listener = bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let taken = bind(any(port)).expect_err("somebody is there");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn without_ipv6_it_is_all_of_ipv4() {
        let no_ipv6 = |kind: ErrorKind| {
            move |at: SocketAddr| at.is_ipv4().then_some(at).ok_or_else(|| kind.into())
        };
        let opened = or_ipv4(any(9_900), no_ipv6(ErrorKind::Unsupported));
        assert_eq!(opened.ok(), Some(([0, 0, 0, 0], 9_900).into()));
        let taken = or_ipv4(any(9_900), no_ipv6(ErrorKind::AddrInUse));
        assert!(taken.is_err(), "another process has it");
        let own = "[fd00::5]:9900".parse().expect("an address");
        let absent = or_ipv4(own, no_ipv6(ErrorKind::AddrNotAvailable));
        assert!(absent.is_err(), "not an address of this machine");
    }
}
