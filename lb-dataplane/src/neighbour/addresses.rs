//! The addresses of an interface, as netlink messages tell them, and what each is good for. Pure.

use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use std::net::IpAddr;

/// Global addresses of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Those that peers can reach and that will stay.
    pub lasting: Vec<IpAddr>,
    /// Those that go with another one, or are to be used no longer (`secondary`, `deprecated`): to
    /// be named by an admin who wants them.
    pub others: Vec<IpAddr>,
    /// Those that the kernel does not use yet: it is still asking whether somebody else has them.
    pub tentative: Vec<IpAddr>,
}

impl Addresses {
    /// Notes an address if it is one of `ifindex`.
    pub fn note(&mut self, message: &AddressMessage, ifindex: u32) {
        let Some(address) = universal_address(message, ifindex) else {
            return;
        };
        let flags = message.header.flags;
        let has = |flag| flags.intersects(flag);
        if has(AddressHeaderFlags::Dadfailed) {
            return;
        }
        let list = if has(AddressHeaderFlags::Tentative) {
            &mut self.tentative
        } else if has(AddressHeaderFlags::Secondary | AddressHeaderFlags::Deprecated) {
            &mut self.others
        } else {
            &mut self.lasting
        };
        list.push(address);
    }
}

/// An address of `ifindex` that peers can reach and that will stay.
pub fn global_address(message: &AddressMessage, ifindex: u32) -> Option<IpAddr> {
    let mut addresses = Addresses::default();
    addresses.note(message, ifindex);
    addresses.lasting.pop()
}

/// An address of `ifindex` that is not of one link alone.
fn universal_address(message: &AddressMessage, ifindex: u32) -> Option<IpAddr> {
    let header = &message.header;
    if header.index != ifindex || header.scope != AddressScope::Universe {
        return None;
    }
    // On a point-to-point link `Address` is the peer's and `Local` is ours.
    let find = |local| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    #[test]
    fn only_lasting_global_addresses_count() {
        let mut message = AddressMessage::default();
        message.header.index = 7;
        message.attributes.push(AddressAttribute::Address(IpAddr::V4(Ipv4Addr::BROADCAST)));
        message.attributes.push(AddressAttribute::Local(IpAddr::V4(V4)));
        assert_eq!(global_address(&message, 7), Some(IpAddr::V4(V4)));
        assert_eq!(global_address(&message, 8), None);
        for (flags, [others, tentative]) in [
            (AddressHeaderFlags::Secondary, [1, 0]),
            (AddressHeaderFlags::Deprecated, [1, 0]),
            (AddressHeaderFlags::Tentative, [0, 1]),
            (AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed, [0, 0]),
        ] {
            message.header.flags = flags;
            assert_eq!(global_address(&message, 7), None);
            let mut found = Addresses::default();
            found.note(&message, 7);
            assert_eq!(found.others.len(), others, "{flags:?}");
            assert_eq!(found.tentative.len(), tentative, "{flags:?}");
        }
        message.header.flags = AddressHeaderFlags::empty();
        message.header.scope = AddressScope::Link;
        assert_eq!(global_address(&message, 7), None);
    }
}
