//! Sockets for checks whose local port the dataplane does not steer away from the kernel.
//!
//! Frames to the dataplane's own addresses and a leg's port, or a frontend's, go to the packet
//! worker, so the kernel would never see the answer to a check from such a port, and the worker
//! would answer for a flow that it does not know. `preflight` refuses to start where the kernel's
//! ephemeral ports overlap the legs', but an admin can change `net.ipv4.ip_local_port_range` later,
//! and a frontend may have a port of it: so each port is looked at before it is used. Never changes
//! a setting.

use crate::steering::SteeredPorts;
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};
use tokio::net::TcpSocket;

/// Ports that are looked at for one check. With half of the kernel's ports taken, all are with 1 in
/// 65,536.
const TRIES_MAX: usize = 16;

/// Why there is no socket. Passes when the admin changes something, or when files are closed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The kernel gives none: too many open files, or no free port.
    #[error("no socket for the check: {0}")]
    Socket(#[from] io::Error),
    /// The kernel gives only ports that are steered.
    #[error(
        "no port for the check: the kernel's own (net.ipv4.ip_local_port_range) are those of legs or frontends; reserve \
         these (net.ipv4.ip_local_reserved_ports)"
    )]
    OnlySteered,
}

/// Makes sockets.
#[derive(Debug)]
pub struct Source {
    legs: RangeInclusive<u16>,
    /// Those of frontends, each until its last flow is gone.
    frontends: SteeredPorts,
}

impl Source {
    /// `legs` are the ports of the dataplane's legs, `frontends` those that are steered besides.
    pub fn new(legs: RangeInclusive<u16>, frontends: SteeredPorts) -> Self {
        Self { legs, frontends }
    }

    fn is_steered(&self, port: u16) -> bool {
        self.legs.contains(&port) || self.frontends.lock().is_ok_and(|f| f.contains(&port))
    }

    /// A socket that is bound to a port of the kernel's choice and not connected.
    ///
    /// It closes with RST: nothing is left to say at the end of a check, and a port in TIME_WAIT
    /// for each would use up the kernel's 28,232 within a minute at 470 checks a second.
    ///
    /// # Errors
    /// There is none.
    pub fn socket(&self, ipv6: bool) -> Result<TcpSocket, SourceError> {
        // Held until one fits, or the kernel would give the same again.
        let mut unfit = Vec::new();
        while unfit.len() < TRIES_MAX {
            let (socket, any) = if ipv6 {
                (TcpSocket::new_v6()?, Ipv6Addr::UNSPECIFIED.into())
            } else {
                (TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into())
            };
            socket.set_zero_linger()?;
            socket.bind(SocketAddr::new(any, 0))?;
            if !self.is_steered(socket.local_addr()?.port()) {
                return Ok(socket);
            }
            unfit.push(socket);
        }
        Err(SourceError::OnlySteered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn port(source: &Source, ipv6: bool) -> Result<u16, SourceError> {
        let socket = source.socket(ipv6)?;
        Ok(socket.local_addr()?.port())
    }

    #[tokio::test]
    async fn ports_of_legs_and_frontends_are_never_taken() {
        // A quarter of the kernel's usual ports, by a range and one by one: of 16 in a row, not all
        // are among them.
        let (legs, frontend) = (32_768..=36_000, 36_001..=39_800);
        let steered = SteeredPorts::default();
        let source = Source::new(legs.clone(), Arc::clone(&steered));
        steered.lock().expect("no panic").extend(frontend.clone());
        for i in 0..500 {
            let port = port(&source, i % 2 == 0).expect("a port");
            assert!(!legs.contains(&port) && !frontend.contains(&port), "{port}");
        }
        let source = Source::new(1_024..=u16::MAX, SteeredPorts::default());
        let error = port(&source, false).expect_err("all are legs'");
        assert!(error.to_string().contains("ip_local_port_range"), "{error}");
        assert!(port(&Source::new(1..=2, SteeredPorts::default()), true).is_ok());
    }
}
