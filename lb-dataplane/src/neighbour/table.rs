//! Which link-layer addresses the engine needs, what the kernel knows of them, and what is to do
//! about the difference. Pure: no netlink, no clock.

use baton_packet::Mac;
use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
};

/// Addresses that are kept fresh at one time: twice what the engine remembers (4,096), so that what
/// it has just forgotten does not push out what it uses.
pub const LIMIT_WANTED: usize = 8_192;

/// Ticks after which an address that nobody wants again is left alone. The engine asks once a
/// second for what it has no confirmed address of, and each 10 s for the others that it uses.
const UNWANTED_TICKS: u32 = 30;
/// An address that nobody answers for is asked for with each of so many ticks, ...
const TRIES_MAX: u32 = 30;
/// ... and then with each of these.
const SELDOM_TICKS: u32 = 5;

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLookup {
    /// It has a link-layer address that was confirmed.
    Fresh(Mac),
    /// It has one that the kernel would confirm before long if it were to use it.
    Stale(Mac),
    /// It has none.
    Unknown,
}

impl FlowLookup {
    fn mac(self) -> Option<Mac> {
        match self {
            Self::Fresh(mac) | Self::Stale(mac) => Some(mac),
            Self::Unknown => None,
        }
    }
}

/// What is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the engine.
    Tell(IpAddr, Option<Mac>),
    /// Make the kernel find or confirm it.
    Resolve(IpAddr),
    /// The same, whatever it waits for: what it asked while the link was down nobody heard, and it
    /// asks again only after a second (`net.ipv4.neigh.*.retrans_time_ms`).
    ResolveAnew(IpAddr),
}

#[derive(Default)]
struct Wanted {
    told: Option<Mac>,
    /// It was not heard: it is told again with the next tick.
    untold: bool,
    /// Ticks without an answer.
    tries: u32,
    /// Ticks since it was last wanted.
    age: u32,
}

/// The kernel's neighbours on our interface, and those that are wanted.
#[derive(Default)]
pub struct Table {
    known: HashMap<IpAddr, FlowLookup>,
    wanted: HashMap<IpAddr, Wanted>,
    /// In the order in which they were first wanted; may hold some that no longer are.
    order: VecDeque<IpAddr>,
}

impl Table {
    /// The engine (or readiness) wants this address.
    pub fn want(&mut self, address: IpAddr) -> Vec<Action> {
        let sight = self.sight(address);
        let new = !self.wanted.contains_key(&address);
        if new {
            self.make_room();
            self.order.push_back(address);
        }
        let wanted = self.wanted.entry(address).or_default();
        // Told again even if told before: the engine may have forgotten the address
        // meanwhile.
        wanted.told = sight.mac();
        wanted.age = 0;
        match sight {
            FlowLookup::Fresh(mac) => vec![Action::Tell(address, Some(mac))],
            FlowLookup::Stale(mac) => {
                vec![Action::Tell(address, Some(mac)), Action::Resolve(address)]
            }
            FlowLookup::Unknown if new => vec![Action::Resolve(address)],
            // With the ticks.
            FlowLookup::Unknown => Vec::new(),
        }
    }

    /// The kernel says this of a neighbour.
    pub fn see(&mut self, address: IpAddr, sight: FlowLookup) -> Vec<Action> {
        let before = match sight {
            FlowLookup::Unknown => self.known.remove(&address),
            _ => self.known.insert(address, sight),
        };
        let Some(wanted) = self.wanted.get_mut(&address) else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        if wanted.told != sight.mac() {
            wanted.told = sight.mac();
            actions.push(Action::Tell(address, sight.mac()));
        }
        match sight {
            FlowLookup::Fresh(_) => wanted.tries = 0,
            // The engine's packets do not go through the kernel, so that it would never look again.
            FlowLookup::Stale(_) => actions.push(Action::Resolve(address)),
            // Somebody had the kernel forget it, or it is gone: asked for at once, and then with
            // the ticks, or there would be a tight circle with one that is gone.
            FlowLookup::Unknown if before.is_some() => actions.push(Action::Resolve(address)),
            FlowLookup::Unknown => {}
        }
        actions
    }

    /// The kernel has let go of a neighbour: for want of room, or of carrier, or because it found
    /// nobody, which it says before. Else it is where it was as far as anybody knows.
    pub fn let_go(&mut self, address: IpAddr) -> Vec<Action> {
        match self.sight(address).mac() {
            Some(mac) if self.wanted.contains_key(&address) => {
                self.see(address, FlowLookup::Stale(mac))
            }
            _ => self.see(address, FlowLookup::Unknown),
        }
    }

    /// The link is up again: what could not be found or confirmed may be now.
    pub fn link_up(&self) -> Vec<Action> {
        let ask = |address: &IpAddr| match self.sight(*address) {
            FlowLookup::Fresh(_) => None,
            FlowLookup::Stale(_) => Some(Action::Resolve(*address)),
            FlowLookup::Unknown => Some(Action::ResolveAnew(*address)),
        };
        self.wanted.keys().filter_map(ask).collect()
    }

    /// The kernel's whole table: what is not in it is gone.
    pub fn see_all(&mut self, all: &HashMap<IpAddr, FlowLookup>) -> Vec<Action> {
        let gone: Vec<IpAddr> =
            self.known.keys().filter(|address| !all.contains_key(address)).copied().collect();
        let mut actions: Vec<Action> =
            gone.into_iter().flat_map(|address| self.see(address, FlowLookup::Unknown)).collect();
        for (address, sight) in all {
            actions.extend(self.see(*address, *sight));
        }
        actions
    }

    /// The engine was not told of this address after all.
    pub fn untold(&mut self, address: IpAddr) {
        if let Some(wanted) = self.wanted.get_mut(&address) {
            wanted.untold = true;
        }
    }

    /// Time passed: tells and asks again what was not heard or is still unknown, and gives up what
    /// nobody wants any more.
    pub fn tick(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let known = &self.known;
        self.wanted.retain(|address, wanted| {
            wanted.age += 1;
            if std::mem::take(&mut wanted.untold) {
                actions.push(Action::Tell(*address, wanted.told));
            }
            if !known.contains_key(address) {
                wanted.tries = wanted.tries.saturating_add(1);
                if wanted.tries <= TRIES_MAX || wanted.tries.is_multiple_of(SELDOM_TICKS) {
                    actions.push(Action::Resolve(*address));
                }
            }
            wanted.age < UNWANTED_TICKS
        });
        let wanted = &self.wanted;
        self.order.retain(|address| wanted.contains_key(address));
        actions
    }

    /// What is known of this address.
    #[must_use]
    pub fn sight(&self, address: IpAddr) -> FlowLookup {
        self.known.get(&address).copied().unwrap_or(FlowLookup::Unknown)
    }

    /// How many are wanted.
    #[cfg(test)]
    fn wanted(&self) -> usize {
        self.wanted.len()
    }

    fn make_room(&mut self) {
        while self.wanted.len() >= LIMIT_WANTED {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            self.wanted.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const M: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const N: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn a_wanted_address_is_resolved_and_told_once() {
        let mut table = Table::default();
        assert_eq!(table.want(A), [Action::Resolve(A)]);
        assert_eq!(table.see(A, FlowLookup::Fresh(M)), [Action::Tell(A, Some(M))]);
        assert_eq!(table.see(A, FlowLookup::Fresh(M)), []);
        assert_eq!(table.see(A, FlowLookup::Fresh(N)), [Action::Tell(A, Some(N))]);
        assert_eq!(table.tick(), []);
    }

    #[test]
    fn a_known_address_is_told_each_time_it_is_asked_for() {
        let mut table = Table::default();
        assert_eq!(table.see(A, FlowLookup::Fresh(M)), [], "nobody wants it");
        for _ in 0..2 {
            assert_eq!(table.want(A), [Action::Tell(A, Some(M))]);
        }
        assert_eq!(table.wanted(), 1);
    }

    #[test]
    fn what_goes_stale_in_use_is_confirmed_and_what_is_not_in_use_is_left_alone() {
        let mut table = Table::default();
        assert_eq!(table.see(A, FlowLookup::Stale(M)), []);
        assert_eq!(table.want(A), [Action::Tell(A, Some(M)), Action::Resolve(A)]);
        assert_eq!(table.see(A, FlowLookup::Fresh(M)), []);
        assert_eq!(table.see(A, FlowLookup::Stale(M)), [Action::Resolve(A)]);
    }

    #[test]
    fn a_lost_neighbour_is_told_and_asked_for_until_it_is_given_up() {
        let mut table = Table::default();
        table.want(A);
        table.see(A, FlowLookup::Fresh(M));
        assert_eq!(table.see(A, FlowLookup::Unknown), [Action::Tell(A, None), Action::Resolve(A)]);
        assert_eq!(table.see(A, FlowLookup::Unknown), []);
        for _ in 0..TRIES_MAX {
            assert_eq!(table.tick(), [Action::Resolve(A)]);
        }
        assert_eq!(table.tick(), []);
        assert_eq!(table.wanted(), 0);
        assert!(table.order.is_empty());
    }

    #[test]
    fn what_the_kernel_let_go_of_is_used_until_it_finds_nobody() {
        let mut table = Table::default();
        table.want(A);
        table.see(A, FlowLookup::Fresh(M));
        assert_eq!(table.let_go(A), [Action::Resolve(A)], "the engine goes on with it");
        assert_eq!(table.see(A, FlowLookup::Fresh(M)), []);
        table.let_go(A);
        assert_eq!(table.see(A, FlowLookup::Unknown), [Action::Tell(A, None), Action::Resolve(A)]);
        assert_eq!(table.let_go(A), [], "it had said so");
        let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        table.see(other, FlowLookup::Fresh(N));
        assert_eq!(table.let_go(other), [], "nobody wants it");
        assert_eq!(table.sight(other), FlowLookup::Unknown);
    }

    #[test]
    fn all_that_is_not_confirmed_is_resolved_once_the_link_is_up() {
        let mut table = Table::default();
        table.want(A);
        assert_eq!(table.link_up(), [Action::ResolveAnew(A)]);
        table.see(A, FlowLookup::Fresh(M));
        assert_eq!(table.link_up(), [], "the kernel said so since");
        table.let_go(A);
        assert_eq!(table.link_up(), [Action::Resolve(A)]);
    }

    #[test]
    fn what_is_not_wanted_again_is_left_alone() {
        let mut table = Table::default();
        table.want(A);
        table.see(A, FlowLookup::Fresh(M));
        for _ in 0..10 {
            assert_eq!(table.want(A), [Action::Tell(A, Some(M))]);
            for _ in 1..UNWANTED_TICKS {
                assert_eq!(table.tick(), []);
            }
        }
        assert_eq!(table.see(A, FlowLookup::Stale(M)), [Action::Resolve(A)]);
        assert_eq!(table.tick(), []);
        assert_eq!(table.wanted(), 0);
        assert_eq!(table.see(A, FlowLookup::Fresh(M)), []);
        assert_eq!(table.see(A, FlowLookup::Stale(M)), []);
    }

    #[test]
    fn what_nobody_answers_for_is_asked_for_seldom_however_often_it_is_wanted() {
        let mut table = Table::default();
        assert_eq!(table.want(A), [Action::Resolve(A)]);
        let mut asked = |ticks: u32| {
            let tick = |_| {
                assert_eq!(table.want(A), []);
                table.tick().len()
            };
            (0..ticks).map(tick).sum::<usize>()
        };
        assert_eq!(asked(TRIES_MAX), TRIES_MAX as usize);
        assert_eq!(asked(10 * SELDOM_TICKS), 10);
        table.see(A, FlowLookup::Fresh(M));
        table.see(A, FlowLookup::Unknown);
        assert_eq!(table.tick(), [Action::Resolve(A)], "it had answered");
    }

    #[test]
    fn one_that_comes_back_by_itself_is_told() {
        let mut table = Table::default();
        table.want(A);
        table.see(A, FlowLookup::Unknown);
        table.tick();
        assert_eq!(
            table.see(A, FlowLookup::Stale(N)),
            [Action::Tell(A, Some(N)), Action::Resolve(A)]
        );
    }

    #[test]
    fn a_whole_dump_makes_up_for_lost_messages() {
        let mut table = Table::default();
        table.want(A);
        table.see(A, FlowLookup::Fresh(M));
        assert_eq!(table.see_all(&HashMap::new()), [Action::Tell(A, None), Action::Resolve(A)]);
        let all = HashMap::from([(A, FlowLookup::Fresh(N))]);
        assert_eq!(table.see_all(&all), [Action::Tell(A, Some(N))]);
        assert_eq!(table.see_all(&all), []);
    }

    #[test]
    fn what_the_engine_did_not_hear_is_told_again() {
        let mut table = Table::default();
        table.want(A);
        table.see(A, FlowLookup::Fresh(M));
        table.untold(A);
        assert_eq!(table.tick(), [Action::Tell(A, Some(M))]);
        assert_eq!(table.tick(), []);
        table.see(A, FlowLookup::Unknown);
        table.untold(A);
        assert_eq!(table.tick(), [Action::Tell(A, None), Action::Resolve(A)]);
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut table = Table::default();
        let address =
            |i: usize| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + u32::try_from(i).expect("small")));
        for i in 0..=LIMIT_WANTED {
            assert_eq!(table.want(address(i)), [Action::Resolve(address(i))]);
        }
        assert_eq!(table.wanted(), LIMIT_WANTED);
        assert_eq!(table.see(address(0), FlowLookup::Fresh(M)), []);
        assert_eq!(
            table.see(address(1), FlowLookup::Fresh(M)),
            [Action::Tell(address(1), Some(M))]
        );
    }
}
