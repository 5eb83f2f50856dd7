//! Facts about a network interface, and its GRO switch. Asks the kernel of the calling thread's
//! network namespace.
#![expect(unsafe_code, reason = "the interface ioctls exchange a union and have no safe wrapper")]

use crate::{
    abi::{self, EthtoolChannels, EthtoolDriver, EthtoolValue},
    error::OpenError,
    sys,
};
use std::{
    ffi::{CStr, CString},
    io,
    mem::zeroed,
    os::fd::{AsRawFd, OwnedFd},
};

/// What a port must know of its interface.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) rx_queues: u32,
    pub(crate) tx_queues: u32,
    pub(crate) up: bool,
    /// It is the master of a bond.
    pub(crate) bond: bool,
}

impl Interface {
    pub(crate) fn find(name: &str) -> Result<Self, OpenError> {
        let unknown = || OpenError::NoInterface { name: name.to_owned(), existing: names() };
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(unknown());
        }
        let c_name = CString::new(name).map_err(|_| unknown())?;
        // SAFETY: a terminated string that outlives the call.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(unknown());
        }
        let asker = Asker::new(&c_name).map_err(OpenError::kernel("asking about the interface"))?;
        asker.describe(name, index).map_err(OpenError::kernel("asking about the interface"))
    }

    /// Turns software GRO off and says whether it was on.
    pub(crate) fn disable_gro(&self) -> io::Result<bool> {
        let asker = self.asker()?;
        let mut value = EthtoolValue { command: abi::ETHTOOL_GGRO, data: 0 };
        asker.ethtool(&mut value)?;
        if value.data == 0 {
            return Ok(false);
        }
        asker.ethtool(&mut EthtoolValue { command: abi::ETHTOOL_SGRO, data: 0 })?;
        Ok(true)
    }

    /// Turns software GRO on again.
    pub(crate) fn enable_gro(&self) -> io::Result<()> {
        self.asker()?.ethtool(&mut EthtoolValue { command: abi::ETHTOOL_SGRO, data: 1 })
    }

    fn asker(&self) -> io::Result<Asker> {
        let name = CString::new(self.name.as_str()).map_err(io::Error::other)?;
        Asker::new(&name)
    }
}

/// Names of all interfaces in this namespace.
fn names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: no arguments; the result is freed below.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return names;
    }
    let mut entry = list;
    loop {
        // SAFETY: the list ends with an entry whose name is null, where the loop stops.
        let this = unsafe { &*entry };
        if this.if_name.is_null() {
            break;
        }
        // SAFETY: each name is a terminated string that lives until the list is freed.
        let name = unsafe { CStr::from_ptr(this.if_name) };
        names.push(name.to_string_lossy().into_owned());
        // SAFETY: the end was not reached yet.
        entry = unsafe { entry.add(1) };
    }
    // SAFETY: the list that if_nameindex gave, once.
    unsafe { libc::if_freenameindex(list) };
    names
}

/// A socket to ask with, and the request with the interface's name in it.
struct Asker {
    socket: OwnedFd,
    request: libc::ifreq,
}

impl Asker {
    fn new(name: &CStr) -> io::Result<Self> {
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
            *to = from.cast_signed() as libc::c_char;
        }
        Ok(Self { socket, request })
    }

    fn ask(&self, number: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut request = self.request;
        // SAFETY: each number used here takes and fills an ifreq, which outlives the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), number, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(request)
    }

    fn ethtool<T>(&self, command: &mut T) -> io::Result<()> {
        let mut request = self.request;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
        // SAFETY: the command's first field tells the kernel its type; it outlives the call.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The driver's name, and zero bytes.
    fn driver(&self) -> io::Result<[u8; 32]> {
        let mut driver =
            EthtoolDriver { command: abi::ETHTOOL_GDRVINFO, name: [0; 32], rest: [0; 160] };
        self.ethtool(&mut driver)?;
        Ok(driver.name)
    }

    fn describe(&self, name: &str, index: u32) -> io::Result<Interface> {
        let answer = self.ask(libc::SIOCGIFHWADDR as libc::Ioctl)?;
        // SAFETY: SIOCGIFHWADDR fills this member.
        let bytes = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(bytes) {
            *to = from as u8;
        }
        let answer = self.ask(libc::SIOCGIFMTU as libc::Ioctl)?;
        // SAFETY: SIOCGIFMTU fills this member.
        let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
        let answer = self.ask(libc::SIOCGIFFLAGS as libc::Ioctl)?;
        // SAFETY: SIOCGIFFLAGS fills this member.
        let flags = unsafe { answer.ifr_ifru.ifru_flags };
        let mut channels =
            EthtoolChannels { command: abi::ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
        // A driver that does not know channels has one queue.
        let (rx_queues, tx_queues) = match self.ethtool(&mut channels) {
            Ok(()) => {
                ((channels.rx + channels.combined).max(1), (channels.tx + channels.combined).max(1))
            }
            Err(_) => (1, 1),
        };
        Ok(Interface {
            name: name.to_owned(),
            index,
            mac,
            mtu: u32::try_from(mtu).unwrap_or(0),
            rx_queues,
            tx_queues,
            up: i32::from(flags) & libc::IFF_UP != 0,
            bond: self.driver().is_ok_and(|name| is_bond(&name)),
        })
    }
}

/// Whether this is the driver of bonds' masters (`DRV_NAME`, include/net/bonding.h).
fn is_bond(driver: &[u8]) -> bool {
    driver.split(|byte| *byte == 0).next() == Some(b"bonding")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bond_is_known_by_its_driver() {
        let named = |name: &[u8]| {
            let mut driver = [0; 32];
            driver[..name.len()].copy_from_slice(name);
            driver
        };
        assert!(is_bond(&named(b"bonding")));
        for other in [&b""[..], b"veth", b"bond", b"bonding2"] {
            assert!(!is_bond(&named(other)));
        }
        assert!(!Interface::find("lo").expect("there").bond);
    }
}
