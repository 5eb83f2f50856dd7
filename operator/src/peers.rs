//! What dataplanes and shims say of their adoption keys, for the rotation.
//!
//! Owns the latest word of each. The core writes, the rotation reads.

use baton_push::{
    UnixSeconds,
    keys::{Peer, PeerKind},
};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// All of them.
#[derive(Debug, Default)]
pub struct Peers {
    /// Those that are asked; none before it is known who there is.
    known: Mutex<Option<BTreeMap<String, Word>>>,
    changed: Notify,
}

/// One's.
#[derive(Debug)]
struct Word {
    peer: Peer,
    /// It has said something, or it cannot be reached: either way there is something to go by.
    heard: bool,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<String, Word>>> {
        // Words are replaced whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are asked now, and no others; nothing while it is not known who there is.
    pub fn ask(&self, names: Option<&BTreeMap<String, PeerKind>>) {
        let mut known = self.lock();
        let mut before = known.take().unwrap_or_default();
        *known = names.map(|names| {
            let word = |(name, kind): (&String, &PeerKind)| {
                let word = before.remove(name).unwrap_or_else(|| Word {
                    peer: Peer {
                        name: name.clone(),
                        kind: *kind,
                        live: Vec::new(),
                        signs_with: None,
                        unreachable_since: None,
                    },
                    heard: false,
                });
                (name.clone(), word)
            };
            names.iter().map(word).collect()
        });
        drop(known);
        self.changed.notify_one();
    }

    /// One said something.
    pub fn said(&self, peer: Peer) {
        let mut known = self.lock();
        let Some(word) = known.as_mut().and_then(|known| known.get_mut(&peer.name)) else {
            return;
        };
        let news = !word.heard || word.peer != peer;
        *word = Word { peer, heard: true };
        drop(known);
        if news {
            self.changed.notify_one();
        }
    }

    /// One cannot be reached.
    pub fn silent(&self, name: &str, now: UnixSeconds) {
        if let Some(word) = self.lock().as_mut().and_then(|known| known.get_mut(name)) {
            word.peer.unreachable_since.get_or_insert(now);
            word.heard = true;
        }
    }

    /// All, if each was heard of; nothing before.
    pub fn all(&self) -> Option<Vec<Peer>> {
        let known = self.lock();
        let words = known.as_ref()?.values();
        words
            .map(|word| word.heard.then(|| word.peer.clone()))
            .collect()
    }

    /// Waits until there is something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, live: &[u8]) -> Peer {
        Peer {
            name: name.to_owned(),
            kind: PeerKind::Dataplane,
            live: live.to_vec(),
            signs_with: live.first().copied(),
            unreachable_since: None,
        }
    }

    #[test]
    fn all_are_known_when_each_was_heard_of() {
        let peers = Peers::default();
        peers.said(peer("a", &[1]));
        assert!(peers.all().is_none(), "nobody is asked yet");
        let both: BTreeMap<_, _> = ["a", "b"]
            .map(|n| (n.to_owned(), PeerKind::Dataplane))
            .into();
        peers.ask(Some(&both));
        peers.said(peer("a", &[1]));
        peers.said(peer("stranger", &[1]));
        assert!(peers.all().is_none(), "b has not been heard of");
        peers.silent("b", UnixSeconds(7));
        peers.silent("b", UnixSeconds(9));
        let all = peers.all().expect("all");
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].unreachable_since, Some(UnixSeconds(7)));
        peers.said(peer("b", &[1, 2]));
        assert_eq!(peers.all().expect("all")[1], peer("b", &[1, 2]));
        let one: BTreeMap<_, _> = [("b".to_owned(), PeerKind::Dataplane)].into();
        peers.ask(Some(&one));
        assert_eq!(peers.all().expect("all").len(), 1);
        peers.ask(None);
        assert!(peers.all().is_none());
    }
}
