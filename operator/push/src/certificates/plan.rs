//! Which certificates are due. Pure: owns the dates, makes nothing.

use super::{Authority, Certificate, Existing, Leaf, Role};
use crate::UnixSeconds;
use std::{fmt, time::Duration};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// How long a CA is good for.
pub const CA_LIFE: Duration = Duration::from_secs(3_650 * 24 * 3_600);
/// How long before its end the next CA is made: four times as long as a leaf lives, so that no leaf
/// outlives its CA.
pub const CA_NEXT_BEFORE_END: Duration = Duration::from_secs(365 * 24 * 3_600);
/// How long a leaf is good for. It is made anew when two thirds have passed.
pub const LEAF_LIFE: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Certificates are good from so long before they are made, for peers whose clocks are behind.
pub const SKEW: Duration = Duration::from_secs(3_600);
/// How long everybody has to take what is trusted, or a new leaf: Secrets reach pods within
/// minutes, a day leaves room for nodes that are away.
pub const SPREAD: Duration = DAY;

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A CA, where there is none that could sign.
    CreateAuthority,
    /// The next CA, which is trusted beside the current one and does not sign yet.
    AddNext,
    /// The next CA signs from now on; the old one stays trusted.
    Promote,
    /// CAs that nothing is signed by any more are no longer trusted.
    DropOld,
    /// A leaf.
    Issue(Role, Reason),
    /// What a holder trusts, with no new leaf.
    Trust(Role),
}

/// Why a leaf is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is none, or none that can be read, or its key is another one's.
    Missing,
    /// Not of this name or for this use.
    WrongName,
    /// Another CA than the current one signed it.
    OldAuthority,
    /// Two thirds of its life have passed.
    Due,
    /// It is not good yet: somebody's clock was wrong.
    NotYetGood,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateAuthority => f.write_str("a CA is made"),
            Self::AddNext => f.write_str("the next CA is made and trusted; it signs in a day"),
            Self::Promote => f.write_str("the next CA signs from now on"),
            Self::DropOld => f.write_str("old CAs are no longer trusted"),
            Self::Issue(role, reason) => {
                let reason = match reason {
                    Reason::Missing => "there is none that can be used",
                    Reason::WrongName => "the old one has another name or use",
                    Reason::OldAuthority => "another CA signed the old one",
                    Reason::Due => "two thirds of the old one's life have passed",
                    Reason::NotYetGood => "the old one is not good yet",
                };
                write!(f, "the certificate of {role} is made: {reason}")
            }
            Self::Trust(role) => write!(f, "{role} is told which CAs to trust"),
        }
    }
}

/// What is due now: a step of the CA, or if there is none, what leaves need. Plan again once it is
/// done.
#[must_use]
pub fn plan(now: UnixSeconds, existing: &Existing) -> Vec<Action> {
    let Some(authority) = &existing.authority else {
        return vec![Action::CreateAuthority];
    };
    if let Some(action) = authority_step(now, authority, existing) {
        return vec![action];
    }
    Role::ALL
        .into_iter()
        .filter_map(|role| leaf_step(now, role, existing.leaves.get(&role), authority))
        .collect()
}

/// When [`plan`] has something to do if nothing else changes. Not before now.
#[must_use]
pub fn next_look(now: UnixSeconds, existing: &Existing) -> UnixSeconds {
    let Some(authority) = &existing.authority else {
        return now;
    };
    if !plan(now, existing).is_empty() {
        return now;
    }
    let mut dates = vec![match &authority.next {
        None => authority.current.not_after.minus(CA_NEXT_BEFORE_END),
        Some(next) => spread_by(next).min(authority.current.not_after),
    }];
    dates.extend(existing.leaves.values().map(|leaf| renewed_at(&leaf.certificate)));
    if old(authority).next().is_some() {
        dates.extend(existing.leaves.values().map(|l| spread_by(&l.certificate)));
    }
    let later = dates.into_iter().filter(|date| *date > now);
    later.min().unwrap_or(now.plus(DAY))
}

fn authority_step(now: UnixSeconds, authority: &Authority, existing: &Existing) -> Option<Action> {
    let over = now >= authority.current.not_after;
    match &authority.next {
        Some(next) if over || now >= spread_by(next) => return Some(Action::Promote),
        None if over => return Some(Action::CreateAuthority),
        None if now.plus(CA_NEXT_BEFORE_END) >= authority.current.not_after => {
            return Some(Action::AddNext);
        }
        _ => {}
    }
    let is_used = |leaf: Option<&Leaf>| {
        leaf.is_none_or(|leaf| !leaf.is_signed_by_current || now < spread_by(&leaf.certificate))
    };
    let some_use = Role::ALL.iter().any(|role| is_used(existing.leaves.get(role)));
    (!some_use && old(authority).next().is_some()).then_some(Action::DropOld)
}

/// Trusted CAs that are neither the current nor the next one.
fn old(authority: &Authority) -> impl Iterator<Item = &Certificate> {
    authority.trusted.iter().filter(|certificate| {
        **certificate != authority.current && Some(*certificate) != authority.next.as_ref()
    })
}

/// When everybody has what was made with this certificate.
fn spread_by(certificate: &Certificate) -> UnixSeconds {
    certificate.not_before.plus(SKEW + SPREAD)
}

/// When two thirds of a certificate's life have passed.
fn renewed_at(certificate: &Certificate) -> UnixSeconds {
    let made = certificate.not_before.plus(SKEW);
    made.plus(certificate.not_after.since(made) / 3 * 2)
}

fn leaf_step(
    now: UnixSeconds,
    role: Role,
    leaf: Option<&Leaf>,
    authority: &Authority,
) -> Option<Action> {
    let Some(leaf) = leaf else {
        return Some(Action::Issue(role, Reason::Missing));
    };
    let reason = if !leaf.is_for_role {
        Reason::WrongName
    } else if !leaf.is_signed_by_current {
        Reason::OldAuthority
    } else if now < leaf.certificate.not_before {
        Reason::NotYetGood
    } else if now >= renewed_at(&leaf.certificate) {
        Reason::Due
    } else {
        return (leaf.trusts != authority.trusted).then_some(Action::Trust(role));
    };
    Some(Action::Issue(role, reason))
}
