//! A port: one interface's frames in and out, in whichever mode works.
//!
//! Owns the choice of the mode, and joins the interface's frames with the host's; [`crate::xdp`]
//! and [`crate::packet`] do the work. Knows no flows.

use crate::{
    capability,
    config::{Config, Steering},
    error::{Missing, MissingList, OpenError},
    frames::FrameAccount,
    handler::{Disposition, Handler, Tx},
    host::Host,
    host_send::Sender,
    interface::Interface,
    matched::SteeringMaps,
    mode::Mode,
    packet::PacketPort,
    stats::Stats,
    steer::Steer,
    xdp::XdpPort,
};
use std::{io, os::fd::BorrowedFd, time::Duration};

/// One interface opened for packet I/O, or a worker's part of it. For one thread at a time;
/// dropping it detaches everything.
///
/// The loop of a caller is `while port.process(..) > 0 {}`, then timers with [`Port::tx`], then
/// [`Port::wait`], which flushes before it sleeps. [`Port::flush`] is for frames of [`Port::tx`]
/// that cannot wait for either.
pub struct Port {
    interface: Interface,
    mode: Mode,
    fallbacks: Vec<(Mode, String)>,
    inner: Inner,
    host: Option<Host>,
}

#[expect(clippy::large_enum_variant, reason = "a worker has one, and looks into it for each batch")]
enum Inner {
    Xdp(XdpPort),
    Packet(PacketPort),
}

/// Sends what is the host's there.
struct PastHost<'a, H> {
    handler: &'a mut H,
    sender: &'a mut Sender,
}

impl<H: Handler> Handler for PastHost<'_, H> {
    fn look(&mut self, frame: &[u8]) {
        self.handler.look(frame);
    }

    fn looked(&mut self) {
        self.handler.looked();
    }

    fn frame(&mut self, buffer: &mut [u8], len: usize, tx: &mut Tx<'_>) -> Disposition {
        let mut tx = tx.with_host(self.sender);
        match self.handler.frame(buffer, len, &mut tx) {
            Disposition::Transmit(len) if Sender::takes(buffer) => {
                self.sender.send(&buffer[..len.min(buffer.len())]);
                Disposition::Release
            }
            other => other,
        }
    }
}

impl Port {
    /// Opens an interface of the calling thread's network namespace, with one port for each worker
    /// (`Config::workers`), and any of them the first to end detaches all. What is steered to the
    /// ports is changed by the maps that come with them, on whatever thread.
    ///
    /// # Errors
    /// See [`OpenError`]; all are fatal for this configuration, and nothing stays attached.
    pub fn open(
        config: &Config,
        steering: &Steering,
    ) -> Result<(Vec<Self>, SteeringMaps), OpenError> {
        config.check()?;
        steering.check()?;
        let interface = Interface::find(&config.interface)?;
        if let Some(missing) = capability::missing_for_any_mode() {
            return Err(OpenError::Missing(missing));
        }
        if !interface.up {
            return Err(OpenError::InterfaceDown { name: interface.name });
        }
        let mut fallbacks = Vec::new();
        let candidates = config.mode.candidates();
        for mode in candidates {
            match Self::open_in(*mode, config, steering, &interface) {
                Ok((mut ports, matched)) => {
                    for port in &mut ports {
                        port.fallbacks.clone_from(&fallbacks);
                    }
                    return Ok((ports, matched));
                }
                Err(e) if candidates.len() == 1 => return Err(e),
                Err(e) => fallbacks.push((*mode, e.to_string())),
            }
        }
        Err(OpenError::NoMode { name: interface.name, reasons: fallbacks })
    }

    /// The same in one mode.
    fn open_in(
        mode: Mode,
        config: &Config,
        steering: &Steering,
        interface: &Interface,
    ) -> Result<(Vec<Self>, SteeringMaps), OpenError> {
        let config = &Config { workers: config.workers_in(mode)?, ..config.clone() };
        let (inners, matched) = match mode {
            Mode::Packet => {
                let (port, matched) = PacketPort::open(config, steering, interface)?;
                (vec![Inner::Packet(port)], matched)
            }
            // The driver takes the program for its slaves, whose frames AF_XDP does not give to
            // sockets of the master (`xsk_rcv_check`): all would be lost, uncounted.
            Mode::Native if interface.bond => {
                return Err(OpenError::XdpRefused {
                    name: interface.name.clone(),
                    mode,
                    why: "it is a bond, whose frames come in by other interfaces: use mode packet or auto"
                        .to_owned(),
                });
            }
            // Said in our words: the verifier's are a page about registers.
            Mode::Native | Mode::Generic if !capability::may_compute_with_packets() => {
                return Err(OpenError::Missing(MissingList(vec![Missing::CapPerfmon])));
            }
            Mode::Native | Mode::Generic => {
                let (ports, matched) = XdpPort::open(config, steering, interface, mode)?;
                (ports.into_iter().map(Inner::Xdp).collect(), matched)
            }
        };
        let ports = inners.into_iter().map(|inner| {
            let open_host = |steer: &Steer, frame_bytes| {
                Host::open(config, steer, &matched, interface, frame_bytes)
            };
            let host = config.host.then(|| match &inner {
                Inner::Xdp(port) => {
                    let opened = port.with_steer(|steer| open_host(steer, port.frame_bytes()));
                    opened.expect("the program is there until a port is dropped")
                }
                Inner::Packet(port) => open_host(port.steer(), port.frame_bytes()),
            });
            Ok(Self {
                host: host.transpose()?,
                interface: interface.clone(),
                mode,
                fallbacks: Vec::new(),
                inner,
            })
        });
        let ports: Result<Vec<_>, _> = ports.collect();
        Ok((ports?, matched))
    }

    /// The mode in use.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The modes that did not work, each with its reason.
    #[must_use]
    pub fn fallbacks(&self) -> &[(Mode, String)] {
        &self.fallbacks
    }

    /// The interface's hardware address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    /// The interface's index.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.interface.index
    }

    /// The interface's MTU when it was opened.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.interface.mtu
    }

    /// Receive queues in use.
    #[must_use]
    pub fn queues(&self) -> usize {
        match &self.inner {
            Inner::Xdp(port) => port.queues(),
            Inner::Packet(_) => 1,
        }
    }

    /// Whether [`Self::wait`] may look at the rings before it sleeps (`busy_poll_us`): not where
    /// CPU time is rationed.
    pub fn allow_spinning(&mut self, allowed: bool) {
        match &mut self.inner {
            Inner::Xdp(port) => port.spin().allow(allowed),
            Inner::Packet(port) => port.spin().allow(allowed),
        }
    }

    /// Flushes, then blocks until a frame may be there, `wake` (an eventfd) is readable, or the
    /// time is over. May return for nothing. Returns at once, without looking at `wake`, while
    /// frames are waiting. Tells whether `wake` was found readable.
    ///
    /// # Errors
    /// The interface is gone. Fatal: open another port.
    pub fn wait(&mut self, timeout: Option<Duration>, wake: BorrowedFd<'_>) -> io::Result<bool> {
        let host = self.host.as_ref().map(|host| host.receiver.fd());
        match &mut self.inner {
            Inner::Xdp(port) => port.wait(timeout, wake, host),
            Inner::Packet(port) => port.wait(timeout, wake, host),
        }
    }

    /// Takes up to `batch` frames of each queue, and of what came through the host. For each, the
    /// callback gets the whole buffer with the frame at its start, the frame's length and a [`Tx`],
    /// and says what becomes of it. What it sends through the [`Tx`] leaves before the frame
    /// itself. All of them have been given to the kernel on return. Returns the number of frames
    /// seen.
    pub fn process(&mut self, f: &mut impl Handler) -> usize {
        let Some(Host { receiver, sender }) = &mut self.host else {
            return match &mut self.inner {
                Inner::Xdp(port) => port.process(f),
                Inner::Packet(port) => port.process(f),
            };
        };
        let mut past_host = PastHost { handler: f, sender };
        let seen = match &mut self.inner {
            Inner::Xdp(port) => port.process(&mut past_host),
            Inner::Packet(port) => port.process(&mut past_host),
        };
        receiver.hear(sender);
        let mut tx = match &mut self.inner {
            Inner::Xdp(port) => Tx::xdp(port.sender()),
            Inner::Packet(port) => Tx::packet(port.sender()),
        };
        tx.host = Some(sender);
        let of_host = receiver.process(&mut |buffer, len| {
            // Its place is not one of the interface's buffers.
            if let Disposition::Transmit(len) = f.frame(buffer, len, &mut tx)
                && let frame = &buffer[..len.min(buffer.len())]
                && let Some(room) = tx.frame().and_then(|room| room.get_mut(..frame.len()))
            {
                room.copy_from_slice(frame);
                tx.send(frame.len());
            }
        });
        if of_host > 0 {
            self.flush();
        }
        seen + of_host
    }

    /// Sends outside of [`Self::process`].
    pub fn tx(&mut self) -> Tx<'_> {
        let mut tx = match &mut self.inner {
            Inner::Xdp(port) => Tx::xdp(port.sender()),
            Inner::Packet(port) => Tx::packet(port.sender()),
        };
        tx.host = self.host.as_mut().map(|host| &mut host.sender);
        tx
    }

    /// Hands all frames to the kernel, takes back the buffers of those it has sent, and refills.
    pub fn flush(&mut self) {
        match &mut self.inner {
            Inner::Xdp(port) => port.flush(),
            Inner::Packet(port) => port.flush(),
        }
    }

    /// Counters since the port was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = match &self.inner {
            Inner::Xdp(port) => port.stats(),
            Inner::Packet(port) => port.stats(),
        };
        let host = self.host.as_ref().map(Host::stats).unwrap_or_default();
        Stats { host, ..stats }
    }

    /// Where each buffer is.
    #[must_use]
    pub fn frames(&self) -> FrameAccount {
        match &self.inner {
            Inner::Xdp(port) => port.frames(),
            Inner::Packet(port) => port.frames(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bond_is_refused_in_native_mode() {
        let bond = Interface { bond: true, ..Interface::find("lo").expect("there") };
        let config = Config::new("lo");
        let steering = Steering {
            frontends: Vec::new(),
            by_address: Vec::new(),
            addresses: Vec::new(),
            ports: 20_000..=20_001,
            backends: None,
        };
        let refused = Port::open_in(Mode::Native, &config, &steering, &bond);
        let error = refused.err().expect("refused").to_string();
        assert!(error.contains("it is a bond"), "{error}");
    }
}
