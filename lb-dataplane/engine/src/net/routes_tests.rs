//! Tests of `routes`.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(text: &str, via: Option<&str>) -> Route {
    let (prefix, prefix_len) = text.split_once('/').unwrap();
    Route {
        prefix: ip(prefix),
        prefix_len: prefix_len.parse().unwrap(),
        via: via.map_or(Via::Link, |router| Via::Router(ip(router))),
    }
}

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

#[test]
fn the_longest_prefix_wins() {
    assert_eq!(Routes::default().next_hop(ip("10.0.0.1")), None);
    let routes = Routes::new(&[
        route("0.0.0.0/0", Some("192.168.1.1")),
        route("192.168.1.0/24", None),
        route("10.0.0.0/8", Some("192.168.1.2")),
        route("10.1.0.0/16", Some("192.168.1.3")),
        route("10.1.2.3/32", Some("192.168.1.4")),
        route("10.1.0.0/16", Some("192.168.1.99")),
    ]);
    for (to, hop) in [
        ("8.8.8.8", "192.168.1.1"),
        ("192.168.1.77", "192.168.1.77"),
        ("192.168.2.77", "192.168.1.1"),
        ("10.255.0.1", "192.168.1.2"),
        ("10.1.255.1", "192.168.1.3"),
        ("10.1.2.3", "192.168.1.4"),
        ("10.1.2.2", "192.168.1.3"),
    ] {
        assert_eq!(routes.next_hop(ip(to)), Some(ip(hop)), "to {to}");
    }
    assert_eq!(routes.next_hop(ip("fd00::1")), None, "0.0.0.0/0 is for IPv4 only");
}

#[test]
fn what_another_interface_leads_to_is_not_sent_to_the_router() {
    let pod = Route { via: Via::Elsewhere, ..route("10.244.2.58/32", None) };
    let routes = Routes::new(&[route("0.0.0.0/0", Some("172.18.0.1")), pod]);
    assert_eq!(routes.next_hop(ip("10.244.2.58")), None);
    assert_eq!(routes.via(ip("10.244.2.58")), Some(Via::Elsewhere));
    assert_eq!(routes.via(ip("fd00::1")), None, "no route at all");
    assert_eq!(routes.next_hop(ip("10.244.2.57")), Some(ip("172.18.0.1")));
}

#[test]
fn ipv6_and_sloppy_prefixes() {
    let routes = Routes::new(&[
        route("fd00:1::77/64", None),
        route("::/0", Some("fe80::1")),
        route("fd00:1::5/128", Some("fe80::2")),
        route("10.9.8.7/33", None),
        route("fd00::/129", None),
    ]);
    assert_eq!(routes.next_hop(ip("fd00:1::5")), Some(ip("fe80::2")));
    assert_eq!(routes.next_hop(ip("fd00:1::6")), Some(ip("fd00:1::6")));
    assert_eq!(routes.next_hop(ip("fd00:1:0:1::6")), Some(ip("fe80::1")));
    assert_eq!(routes.next_hop(ip("10.9.8.7")), None, "/33 matches nothing, ::/0 is for IPv6");
    assert_eq!(routes.next_hop(ip("fd00::")), Some(ip("fe80::1")), "/129 matches nothing");
}

#[test]
fn what_the_kernel_says_beats_what_frames_show() {
    let mut hops = Hops::new();
    let hop = hops.intern(ip("10.0.0.1")).unwrap();
    assert_eq!(hops.intern(ip("10.0.0.1")), Some(hop));
    assert_eq!(hops.mac(hop), None);
    hops.learn(hop, mac(1));
    assert_eq!(hops.mac(hop), Some(mac(1)));
    hops.learn(hop, mac(2));
    assert_eq!(hops.mac(hop), Some(mac(2)), "the newest frame counts");
    hops.set(ip("10.0.0.1"), Some(mac(3)));
    hops.learn(hop, mac(4));
    assert_eq!(hops.mac(hop), Some(mac(3)));
    hops.set(ip("10.0.0.1"), None);
    assert_eq!(hops.mac(hop), None);
    hops.learn(hop, mac(5));
    assert_eq!(hops.mac(hop), Some(mac(5)));
}

#[test]
fn addresses_of_others_are_not_remembered() {
    let mut hops = Hops::new();
    hops.set(ip("10.0.0.1"), Some(mac(1)));
    assert_eq!(hops.len(), 0);
    let hop = hops.intern(ip("10.0.0.1")).unwrap();
    assert_eq!(hops.mac(hop), None);
}

#[test]
fn each_unresolved_address_is_given_out_once() {
    let mut hops = Hops::new();
    assert_eq!(hops.next_unresolved(), None);
    let first = hops.intern(ip("10.0.0.1")).unwrap();
    hops.intern(ip("fd00::2")).unwrap();
    hops.intern(ip("10.0.0.3")).unwrap();
    hops.learn(first, mac(1));
    hops.set(ip("10.0.0.3"), Some(mac(3)));
    let mut asked = [hops.next_unresolved(), hops.next_unresolved()];
    asked.sort_unstable();
    assert_eq!(asked, [Some(ip("10.0.0.1")), Some(ip("fd00::2"))], "a provisional one too");
    assert_eq!(hops.next_unresolved(), None);

    hops.set(ip("fd00::2"), None);
    assert_eq!(hops.next_unresolved(), None, "a failure is not asked about in a circle");
    hops.ask_again();
    hops.set(ip("10.0.0.1"), Some(mac(1)));
    assert_eq!(hops.next_unresolved(), Some(ip("fd00::2")));
    assert_eq!(hops.next_unresolved(), None);

    hops.set(ip("10.0.0.3"), None);
    assert_eq!(hops.next_unresolved(), Some(ip("10.0.0.3")), "what was lost is asked for at once");
    assert_eq!(hops.next_unresolved(), None);
}

#[test]
fn the_table_has_a_limit_and_does_not_grow() {
    let mut hops = Hops::new();
    let (index_capacity, free_capacity) = (hops.by_address.capacity(), hops.free.capacity());
    let address = |number: usize| IpAddr::from(Ipv6Addr::from_bits(number as u128 * 7));
    let ids: BTreeSet<u16> =
        (0..LIMIT_HOPS).map(|number| hops.intern(address(number)).unwrap().0).collect();
    assert_eq!((ids.len(), hops.len()), (LIMIT_HOPS, LIMIT_HOPS));
    assert_eq!(hops.intern(address(LIMIT_HOPS)), None);
    assert!(hops.intern(address(5)).is_some(), "known ones are still found");

    let keep = hops.intern(address(9)).unwrap();
    hops.set(address(9), Some(mac(9)));
    hops.hold(keep);
    hops.evict();
    assert_eq!(hops.len(), LIMIT_HOPS, "not at once");
    hops.evict();
    assert_eq!((hops.len(), hops.mac(keep)), (1, Some(mac(9))));
    assert_eq!(hops.next_unresolved(), None);
    for number in LIMIT_HOPS..2 * LIMIT_HOPS - 1 {
        let hop = hops.intern(address(number)).unwrap();
        assert!(hop != keep && hops.mac(hop).is_none());
    }
    assert_eq!(hops.intern(address(0)), None);
    hops.let_go(keep);
    hops.evict();
    hops.evict();
    assert_eq!(hops.len(), 0);
    assert_eq!((index_capacity, free_capacity), (hops.by_address.capacity(), hops.free.capacity()));
}

#[test]
fn what_is_confirmed_is_asked_for_again_in_turn_and_the_host_never() {
    let mut hops = Hops::new();
    let address = |host: usize| IpAddr::from([10, 0, 0, host as u8]);
    let count = 2 * CONFIRMED_TURNS;
    for host in 0..count {
        hops.intern(address(host)).unwrap();
        hops.set(address(host), Some(mac(host as u8)));
    }
    hops.intern(host(false)).unwrap();
    hops.set(host(false), Some(Mac::HOST));
    assert_eq!(hops.next_unresolved(), None, "the kernel has just said it");
    let mut asked = Vec::new();
    for _ in 0..CONFIRMED_TURNS {
        hops.ask_again();
        let some: Vec<_> = std::iter::from_fn(|| hops.next_unresolved()).collect();
        assert_eq!(some.len(), count / CONFIRMED_TURNS);
        asked.extend(some);
    }
    asked.sort_unstable();
    assert_eq!(asked, (0..count).map(address).collect::<Vec<_>>());
}

#[derive(Debug, Clone)]
enum Op {
    Intern(u8),
    Set(u8, Option<u8>),
    Learn(u8, u8),
    Ask,
    AskAgain,
    Hold(u8),
    LetGo(u8),
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..12_u8).prop_map(Op::Intern),
        3 => (0..12_u8, any::<Option<u8>>()).prop_map(|(host, mac)| Op::Set(host, mac)),
        2 => (0..12_u8, any::<u8>()).prop_map(|(host, mac)| Op::Learn(host, mac)),
        4 => Just(Op::Ask),
        1 => Just(Op::AskAgain),
        2 => (0..12_u8).prop_map(Op::Hold),
        1 => (0..12_u8).prop_map(Op::LetGo),
        2 => Just(Op::Evict),
    ]
}

struct Known {
    id: HopId,
    mac: Option<u8>,
    confirmed: bool,
    asked: bool,
    uses: u32,
    spare: bool,
}

impl Known {
    fn new(id: HopId) -> Self {
        Self { id, mac: None, confirmed: false, asked: false, uses: 0, spare: false }
    }
}

proptest! {
    #[test]
    fn hops_agree_with_a_map(ops in prop::collection::vec(op(), 1..150)) {
        let address = |host: u8| IpAddr::from([10, 0, 0, host]);
        let mut hops = Hops::new();
        let mut model: BTreeMap<u8, Known> = BTreeMap::new();
        let mut turn = 0;
        for op in ops {
            match op {
                Op::Intern(host) => {
                    let id = hops.intern(address(host)).unwrap();
                    let known = model.entry(host).or_insert(Known::new(id));
                    prop_assert_eq!(known.id, id);
                }
                Op::Set(host, to) => {
                    hops.set(address(host), to.map(mac));
                    if let Some(known) = model.get_mut(&host) {
                        known.asked = to.is_some() || known.asked && !known.confirmed;
                        known.mac = to;
                        known.confirmed = to.is_some();
                    }
                }
                Op::Learn(host, to) => {
                    if let Some(known) = model.get_mut(&host) {
                        hops.learn(known.id, mac(to));
                        known.mac = if known.confirmed { known.mac } else { Some(to) };
                    }
                }
                Op::Ask => {
                    match hops.next_unresolved() {
                        None => prop_assert!(model.values().all(|k| k.asked), "one was not given out"),
                        Some(given) => {
                            let host = (0..12).find(|host| address(*host) == given).unwrap();
                            let known = model.get_mut(&host).unwrap();
                            prop_assert!(!std::mem::replace(&mut known.asked, true));
                        }
                    }
                }
                Op::AskAgain => {
                    hops.ask_again();
                    turn = (turn + 1) % CONFIRMED_TURNS;
                    for known in model.values_mut() {
                        let later = usize::from(known.id.0) % CONFIRMED_TURNS != turn;
                        known.asked &= known.confirmed && later;
                    }
                }
                Op::Hold(host) => {
                    if let Some(known) = model.get_mut(&host) {
                        hops.hold(known.id);
                        known.uses += 1;
                        known.spare = false;
                    }
                }
                Op::LetGo(host) => {
                    if let Some(known) = model.get_mut(&host).filter(|known| known.uses > 0) {
                        hops.let_go(known.id);
                        known.uses -= 1;
                    }
                }
                Op::Evict => {
                    hops.evict();
                    model.retain(|_, k| k.uses > 0 || !std::mem::replace(&mut k.spare, true));
                }
            }
            prop_assert_eq!(hops.len(), model.len());
            let to_ask = model.values().filter(|known| !known.asked).count();
            prop_assert_eq!(hops.to_ask, to_ask);
            for known in model.values() {
                prop_assert_eq!(hops.mac(known.id), known.mac.map(mac));
            }
            let ids: BTreeSet<u16> = model.values().map(|known| known.id.0).collect();
            prop_assert_eq!(ids.len(), model.len());
        }
    }
}
