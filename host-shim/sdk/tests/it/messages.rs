//! The format of the messages.

use baton_sdk::wire::{
    Malformed, Message, PACKET_BYTES_MAX, PORTS_MAX, REASON_BYTES_MAX, STATE_BYTES_MAX, reason,
};
use proptest::{collection::vec, prelude::*};
use std::net::{IpAddr, SocketAddr};

fn messages() -> impl Strategy<Value = Message> {
    let end = || (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
    let id = any::<u64>;
    let text = || "[a-zä ]{0,60}";
    let state = || vec(any::<u8>(), 0..300);
    prop_oneof![
        (any::<u16>(), vec(1_u16.., 0..=PORTS_MAX))
            .prop_map(|(version, ports)| Message::Hello { version, ports }),
        any::<u16>().prop_map(|version| Message::Welcome { version }),
        (id(), end(), end()).prop_map(|(id, local, remote)| Message::Want { id, local, remote }),
        (id(), state()).prop_map(|(id, state)| Message::Out { id, state }),
        id().prop_map(|id| Message::NotMine { id }),
        (id(), end(), end(), state()).prop_map(|(id, local, remote, state)| Message::Offer {
            id,
            local,
            remote,
            state
        }),
        id().prop_map(|id| Message::Take { id }),
        (id(), text()).prop_map(|(id, reason)| Message::Refuse { id, reason }),
        id().prop_map(|id| Message::Yours { id }),
        id().prop_map(|id| Message::Gone { id }),
        (id(), text()).prop_map(|(id, reason)| Message::Back { id, reason }),
        (id(), end(), end()).prop_map(|(id, local, remote)| Message::Doubt { id, local, remote }),
        text().prop_map(|reason| Message::Bye { reason }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in messages()) {
        prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn what_is_damaged_is_read_or_refused(
        message in messages(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let mut bytes = message.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len() + 1));
        let _ = Message::decode(&bytes);
    }
}

#[test]
fn limits_are_kept() {
    let end: SocketAddr = "[fd00::1]:80".parse().expect("an address");
    let offer =
        |bytes| Message::Offer { id: u64::MAX, local: end, remote: end, state: vec![1; bytes] };
    let longest = offer(STATE_BYTES_MAX).encode();
    assert_eq!(longest.len(), PACKET_BYTES_MAX);
    assert_eq!(Message::decode(&longest), Ok(offer(STATE_BYTES_MAX)));
    let longer = offer(STATE_BYTES_MAX + 1).encode();
    assert_eq!(Message::decode(&longer), Err(Malformed::Field("state")));
    let hello = |ports| Message::Hello { version: 1, ports }.encode();
    for ports in [vec![80; PORTS_MAX + 1], vec![80, 0]] {
        assert_eq!(Message::decode(&hello(ports)), Err(Malformed::Field("ports")));
    }
    let long = "ä".repeat(REASON_BYTES_MAX);
    assert_eq!(reason(&long), "ä".repeat(REASON_BYTES_MAX / 2));
    let mut odd = reason("x").into_bytes();
    odd.extend("ä".repeat(REASON_BYTES_MAX).bytes());
    let odd = String::from_utf8(odd).expect("text");
    assert_eq!(reason(&odd).len(), REASON_BYTES_MAX - 1);
    let bye = Message::Bye { reason: long }.encode();
    assert_eq!(Message::decode(&bye), Err(Malformed::Field("reason")));
    assert_eq!(Message::decode(&[]), Err(Malformed::Short));
    assert_eq!(Message::decode(&[0]), Err(Malformed::Kind(0)));
    assert_eq!(Message::decode(&[7, 0]), Err(Malformed::Short));
    assert_eq!(Message::decode(&[7; 10]), Err(Malformed::Long));
}
