//! What a class of dataplanes shall serve, as the bytes that go to them.
//!
//! Owns the bytes of snapshots but for their generation. They are written when they are sent or
//! compared, which takes 3 us for a policy of ten backends; kept, those of 5,000 such policies
//! would take 8 MB. What is kept of them is their number and a digest, by which one version is told
//! from another.

use baton_api::Policy;
use hyper::body::Bytes;
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// All policies of a class by their names, which give their order in the snapshot. A policy that
/// did not change should be the same `Arc` as before: then it is not even looked at.
pub type PolicySet = Arc<BTreeMap<String, Arc<Policy>>>;

/// Counts the contents of one class, from 1, by one for each that differs from the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// The contents of one class: the newest, and how the next is made from it.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    newest: Option<Arc<Rendered>>,
}

/// One version of a class's content, as it goes to dataplanes.
#[derive(Debug)]
pub struct Rendered {
    version: Version,
    policies: Vec<Written>,
    /// Of all policies and the commas between them.
    body_bytes: u64,
    published: Instant,
}

#[derive(Clone, Debug)]
struct Written {
    policy: Arc<Policy>,
    bytes: u64,
    /// Of its bytes.
    digest: u64,
}

impl Written {
    /// Writes it once, and keeps how long that was and what it came to.
    fn new(policy: &Arc<Policy>) -> serde_json::Result<Self> {
        /// Counts and digests what is written.
        struct Measure(u64, DefaultHasher);
        impl io::Write for Measure {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len() as u64;
                self.1.write(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut measure = Measure(0, DefaultHasher::new());
        serde_json::to_writer(&mut measure, &**policy)?;
        Ok(Self { policy: Arc::clone(policy), bytes: measure.0, digest: measure.1.finish() })
    }

    fn name(&self) -> &str {
        &self.policy.name
    }

    fn json(&self) -> Bytes {
        // It was written before, and has not changed.
        serde_json::to_vec(&*self.policy).unwrap_or_default().into()
    }
}

impl Contents {
    /// Takes the class's policies. Gives the version that holds them: a new one if any byte differs
    /// from the newest so far.
    ///
    /// # Errors
    /// A policy cannot be written as JSON: a bug. Nothing changes then.
    pub fn update(&mut self, set: &PolicySet, now: Instant) -> serde_json::Result<Arc<Rendered>> {
        let old = self.newest.as_ref().map_or(&[][..], |r| &r.policies);
        let mut old = old.iter().peekable();
        let mut policies = Vec::with_capacity(set.len());
        let mut differs = false;
        for (name, policy) in set.iter() {
            while old.next_if(|o| o.name() < name.as_str()).is_some() {
                differs = true;
            }
            let known = old.next_if(|o| o.name() == name);
            policies.push(match known {
                Some(known) if Arc::ptr_eq(&known.policy, policy) => known.clone(),
                Some(known) => {
                    let written = Written::new(policy)?;
                    differs |= (written.bytes, written.digest) != (known.bytes, known.digest);
                    written
                }
                None => {
                    differs = true;
                    Written::new(policy)?
                }
            });
        }
        differs |= old.next().is_some();
        let (version, published) = match &self.newest {
            None => (Version(1), now),
            Some(newest) if differs => (Version(newest.version.0 + 1), now),
            Some(newest) => (newest.version, newest.published),
        };
        let commas = policies.len().saturating_sub(1) as u64;
        let rendered = Arc::new(Rendered {
            version,
            body_bytes: policies.iter().map(|p| p.bytes).sum::<u64>() + commas,
            policies,
            published,
        });
        self.newest = Some(Arc::clone(&rendered));
        Ok(rendered)
    }

    /// The newest version, if one was made.
    #[must_use]
    pub fn newest(&self) -> Option<&Arc<Rendered>> {
        self.newest.as_ref()
    }
}

/// How a snapshot begins, with the generation behind it.
pub(super) const HEAD: &str = r#"{"generation":"#;
/// What comes between the generation and the policies.
pub(super) const MIDDLE: &str = r#","policies":["#;
const TAIL: &str = "]}";

impl Rendered {
    /// Its version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// How long ago it became the newest.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.published)
    }

    /// The name of the policy at this place of the snapshot.
    #[must_use]
    pub fn policy_name(&self, index: usize) -> Option<&str> {
        self.policies.get(index).map(Written::name)
    }

    /// How many policies it holds.
    #[must_use]
    pub fn policies(&self) -> usize {
        self.policies.len()
    }

    /// Bytes of the snapshot with this generation.
    pub(super) fn len(&self, generation: u64) -> u64 {
        let frame = HEAD.len() + generation.to_string().len() + MIDDLE.len() + TAIL.len();
        self.body_bytes + frame as u64
    }

    /// The beginning of the snapshot with this generation.
    pub(super) fn head(generation: u64) -> Bytes {
        format!("{HEAD}{generation}{MIDDLE}").into()
    }

    /// What comes behind the head.
    pub(super) fn pieces(self: &Arc<Self>) -> Pieces {
        Pieces { rendered: Arc::clone(self), at: 0 }
    }
}

/// A snapshot behind its head, piece by piece: policies, the commas between them, and the end.
#[derive(Debug)]
pub(super) struct Pieces {
    rendered: Arc<Rendered>,
    at: usize,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let policies = &self.rendered.policies;
        let last = (2 * policies.len()).saturating_sub(1);
        let at = self.at;
        if at > last {
            return None;
        }
        self.at += 1;
        Some(if at == last {
            Bytes::from_static(TAIL.as_bytes())
        } else if at.is_multiple_of(2) {
            policies[at / 2].json()
        } else {
            Bytes::from_static(b",")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_api::Snapshot;

    fn policy(name: &str, ports: &[u16]) -> Arc<Policy> {
        let backends: Vec<String> = ports
            .iter()
            .map(|p| format!(r#"{{"name":"b{p}","endpoint":"10.0.0.1:{p}"}}"#))
            .collect();
        let text = format!(
            r#"{{"name":"{name}","frontends":["0.0.0.0:80"],"backends":[{}]}}"#,
            backends.join(",")
        );
        Arc::new(serde_json::from_str(&text).expect("a policy"))
    }

    fn set(policies: &[&Arc<Policy>]) -> PolicySet {
        Arc::new(policies.iter().map(|p| (p.name.clone(), Arc::clone(p))).collect())
    }

    fn text(rendered: &Arc<Rendered>, generation: u64) -> Vec<u8> {
        let mut text = Rendered::head(generation).to_vec();
        rendered.pieces().for_each(|p| text.extend_from_slice(&p));
        assert_eq!(text.len() as u64, rendered.len(generation));
        text
    }

    #[test]
    fn the_pieces_are_the_snapshot_as_serde_writes_it() {
        let all: Vec<_> = ["a", "b", "c"].iter().map(|n| policy(n, &[1, 2])).collect();
        for n in 0..=all.len() {
            let set = set(&all[..n].iter().collect::<Vec<_>>());
            let rendered = Contents::default().update(&set, Instant::now()).expect("written");
            let snapshot = Snapshot {
                generation: 77,
                policies: all[..n].iter().map(|p| (**p).clone()).collect(),
            };
            assert_eq!(
                text(&rendered, 77),
                serde_json::to_vec(&snapshot).expect("written"),
                "{n} policies"
            );
        }
    }

    #[test]
    fn a_version_is_new_exactly_if_a_byte_differs() {
        let (a, b, c) = (policy("a", &[1]), policy("b", &[1]), policy("c", &[1]));
        let (b_again, b_other) = (policy("b", &[1]), policy("b", &[2]));
        let mut contents = Contents::default();
        let now = Instant::now();
        for (policies, version) in [
            (vec![], 1),
            (vec![&b], 2),
            (vec![&b], 2),
            (vec![&b_again], 2),
            (vec![&a, &b], 3),
            (vec![&a, &b, &c], 4),
            (vec![&a, &b_other, &c], 5),
            (vec![&a, &c], 6),
            (vec![&c], 7),
            (vec![&a], 8),
            (vec![], 9),
            (vec![], 9),
            (vec![&a, &c], 10),
            (vec![&a], 11),
        ] {
            let rendered = contents.update(&set(&policies), now).expect("written");
            assert_eq!(rendered.version(), Version(version));
            let bytes = text(&rendered, version).len() as u64;
            assert_eq!(bytes, rendered.len(version), "as long as it says");
        }
    }
}
