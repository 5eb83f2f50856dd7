//! Who may have what: of all policies that ask for the same, the oldest gets it.
//!
//! Owns the claims and their outcome. A policy gets all that it claims or nothing, and one that
//! gets nothing stands in nobody's way: the outcome is that of going through all policies from the
//! oldest to the youngest and taking each that meets no taken one. Only policies that share a claim
//! with a changed one, directly or through others, are looked at.

use crate::{Family, Key, Text};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Order of precedence: older ones are smaller. The API server counts seconds; of two policies made
/// in the same one, that with the smaller key comes first, as in conflicts of Gateway API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age {
    pub created: i64,
    pub key: Key,
}

/// What only one policy can have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// A Service, for its pods.
    Service(Key),
    /// A Service, for clients to connect to.
    Front(Key),
    /// A port of a place in a class.
    Frontend { class: Text, place: Place, port: u16 },
}

/// Where a frontend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The dataplane's own address.
    Own(Family),
    /// Another one.
    Address(IpAddr),
}

#[derive(Debug)]
struct Party {
    age: Age,
    claims: Arc<[Claim]>,
    outcome: Outcome,
}

/// What became of a policy's claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has not been looked at yet.
    Open,
    /// It has all of them.
    Held,
    /// An older one has this.
    Lost { claim: Claim, winner: Key },
}

#[derive(Debug, Default)]
struct Contest {
    holder: Option<Age>,
    /// In order. A list, because nearly all have one entry.
    claimants: Vec<Age>,
}

/// All claims.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    parties: BTreeMap<Key, Party>,
    contests: BTreeMap<Claim, Contest>,
    /// Who is to be looked at again.
    queue: BTreeSet<Age>,
}

impl Claims {
    /// Makes these a policy's claims; without any it claims nothing.
    pub fn set(&mut self, key: &Key, claims: Option<(Age, Arc<[Claim]>)>) {
        if let (Some(party), Some((age, wanted))) = (self.parties.get(key), &claims)
            && party.age == *age
            && party.claims == *wanted
        {
            return;
        }
        if let Some(party) = self.parties.remove(key) {
            for claim in party.claims.iter() {
                self.release(claim, &party.age);
                if let Some(contest) = self.contests.get_mut(claim) {
                    if let Ok(at) = contest.claimants.binary_search(&party.age) {
                        contest.claimants.remove(at);
                    }
                    if contest.claimants.is_empty() {
                        self.contests.remove(claim);
                    }
                }
            }
        }
        let Some((age, claims)) = claims else { return };
        for claim in claims.iter() {
            let contest = self.contests.entry(claim.clone()).or_default();
            if let Err(at) = contest.claimants.binary_search(&age) {
                contest.claimants.reserve_exact(1);
                contest.claimants.insert(at, age.clone());
            }
        }
        self.queue.insert(age.clone());
        let outcome = Outcome::Open;
        self.parties.insert(key.clone(), Party { age, claims, outcome });
    }

    /// What became of a policy's claims.
    pub fn outcome(&self, key: &Key) -> Option<&Outcome> {
        self.parties.get(key).map(|party| &party.outcome)
    }

    /// Whether something is open.
    pub fn is_open(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether nobody claims anything.
    pub fn is_empty(&self) -> bool {
        self.parties.is_empty() && self.contests.is_empty()
    }

    /// Decides what is open. Gives the policies whose outcome changed.
    pub fn settle(&mut self) -> BTreeSet<Key> {
        let mut changed = BTreeSet::new();
        // Only younger ones are put into the queue from here on, so whoever is looked at finds all
        // older ones decided.
        while let Some(age) = self.queue.pop_first() {
            let Some(party) = self.parties.get(&age.key).filter(|p| p.age == age) else {
                continue;
            };
            let outcome = self.judge(party);
            if party.outcome == outcome {
                continue;
            }
            let claims = Arc::clone(&party.claims);
            let held = party.outcome == Outcome::Held;
            if outcome == Outcome::Held {
                self.take(&age, &claims, &mut changed);
            } else if held {
                for claim in claims.iter() {
                    self.release(claim, &age);
                }
            }
            if let Some(party) = self.parties.get_mut(&age.key) {
                party.outcome = outcome;
            }
            changed.insert(age.key);
        }
        changed
    }

    fn judge(&self, party: &Party) -> Outcome {
        let lost = party.claims.iter().find_map(|claim| {
            let holder = self.contests.get(claim)?.holder.as_ref()?;
            (*holder < party.age)
                .then(|| Outcome::Lost { claim: claim.clone(), winner: holder.key.clone() })
        });
        lost.unwrap_or(Outcome::Held)
    }

    /// Gives all of it to this one; younger holders lose all that they have.
    fn take(&mut self, age: &Age, claims: &[Claim], changed: &mut BTreeSet<Key>) {
        for claim in claims {
            let holder = self.contests.get(claim).and_then(|c| c.holder.clone());
            if let Some(younger) = holder.filter(|holder| holder != age) {
                self.evict(&younger, changed);
            }
            if let Some(contest) = self.contests.get_mut(claim) {
                contest.holder = Some(age.clone());
            }
            self.requeue(claim, age);
        }
    }

    fn evict(&mut self, age: &Age, changed: &mut BTreeSet<Key>) {
        let Some(party) = self.parties.get_mut(&age.key) else {
            return;
        };
        party.outcome = Outcome::Open;
        for claim in Arc::clone(&party.claims).iter() {
            self.release(claim, age);
        }
        self.queue.insert(age.clone());
        changed.insert(age.key.clone());
    }

    /// Nobody has it any more, if this one had it; who else wants it is looked at.
    fn release(&mut self, claim: &Claim, age: &Age) {
        let Some(contest) = self.contests.get_mut(claim) else {
            return;
        };
        if contest.holder.as_ref() == Some(age) {
            contest.holder = None;
            self.requeue(claim, age);
        }
    }

    /// Has those that are younger looked at again.
    fn requeue(&mut self, claim: &Claim, age: &Age) {
        if let Some(contest) = self.contests.get(claim) {
            let first = contest.claimants.partition_point(|other| other <= age);
            self.queue.extend(contest.claimants.iter().skip(first).cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn age(created: i64, name: u8) -> Age {
        Age { created, key: key(name) }
    }

    fn key(name: u8) -> Key {
        Key::new("ns", format!("p{name}"))
    }

    fn claim(what: u8) -> Claim {
        Claim::Service(Key::new("ns", format!("s{what}")))
    }

    /// From the oldest to the youngest, each that meets no taken one.
    fn naive(parties: &BTreeMap<u8, (i64, BTreeSet<Claim>)>) -> BTreeMap<Key, Outcome> {
        let mut order: Vec<_> = parties.iter().map(|(n, (c, _))| (age(*c, *n), *n)).collect();
        order.sort();
        let mut taken: BTreeMap<Claim, Key> = BTreeMap::new();
        let mut outcomes = BTreeMap::new();
        for (age, name) in order {
            let claims = &parties[&name].1;
            let lost = claims.iter().find(|c| taken.contains_key(c));
            let outcome = match lost {
                Some(claim) => Outcome::Lost { claim: claim.clone(), winner: taken[claim].clone() },
                None => {
                    taken.extend(claims.iter().map(|c| (c.clone(), age.key.clone())));
                    Outcome::Held
                }
            };
            outcomes.insert(age.key, outcome);
        }
        outcomes
    }

    proptest! {
        #[test]
        fn any_order_of_changes_comes_to_the_outcome_by_age(
            steps in prop::collection::vec(
                (0u8..8, prop::option::weighted(0.8, (0i64..4, prop::collection::btree_set(0u8..6, 1..4))), any::<bool>()),
                1..60,
            )
        ) {
            let mut claims = Claims::default();
            let mut truth = BTreeMap::new();
            let mut seen: BTreeMap<Key, Outcome> = BTreeMap::new();
            for (name, change, settle) in steps {
                match change {
                    Some((created, wanted)) => {
                        let wanted: BTreeSet<Claim> = wanted.into_iter().map(claim).collect();
                        claims.set(&key(name), Some((age(created, name), wanted.iter().cloned().collect())));
                        truth.insert(name, (created, wanted));
                    }
                    None => {
                        claims.set(&key(name), None);
                        truth.remove(&name);
                        seen.remove(&key(name));
                    }
                }
                if settle {
                    let changed = claims.settle();
                    let expected = naive(&truth);
                    for (key, outcome) in &expected {
                        prop_assert_eq!(claims.outcome(key), Some(outcome));
                        // Whoever is not named is as it was.
                        prop_assert!(changed.contains(key) || seen.get(key) == Some(outcome));
                    }
                    seen = expected;
                }
            }
            for name in 0..8 {
                claims.set(&key(name), None);
            }
            claims.settle();
            prop_assert!(claims.is_empty());
        }
    }

    #[test]
    fn the_loser_is_taken_at_once_when_the_winner_goes() {
        let mut claims = Claims::default();
        claims.set(&key(1), Some((age(1, 1), [claim(1)].into())));
        claims.set(&key(2), Some((age(2, 2), [claim(1)].into())));
        claims.settle();
        let lost = Outcome::Lost { claim: claim(1), winner: key(1) };
        assert_eq!(claims.outcome(&key(2)), Some(&lost));
        claims.set(&key(1), None);
        assert_eq!(claims.settle(), [key(2)].into());
        assert_eq!(claims.outcome(&key(2)), Some(&Outcome::Held));
    }

    #[test]
    fn only_who_is_concerned_is_looked_at() {
        let mut claims = Claims::default();
        for name in 0..100 {
            claims.set(&key(name), Some((age(1, name), [claim(name)].into())));
        }
        assert_eq!(claims.settle().len(), 100);
        claims.set(&key(200), Some((age(2, 200), [claim(7)].into())));
        assert_eq!(claims.queue.len(), 1);
        assert_eq!(claims.settle(), [key(200)].into());
    }
}
