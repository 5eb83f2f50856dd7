//! What dataplanes and shims say of their adoption keys, for the rotation.
//!
//! Owns the latest report of each peer. The core writes, the rotation reads.

use baton_push::{UnixSeconds, keys::Peer};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// All of them.
#[derive(Debug, Default)]
pub struct Peers {
    /// Those that are asked; none before it is known who there is.
    known: Mutex<Option<BTreeMap<String, PeerReport>>>,
    changed: Notify,
}

/// What one of them reported.
#[derive(Debug)]
struct PeerReport {
    peer: Peer,
    /// It has said something, or it cannot be reached: either way there is something to go by.
    heard: bool,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<String, PeerReport>>> {
        // Reports are replaced whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are asked now, and no others; nothing while it is not known who there is.
    pub fn ask(&self, peers: Option<Vec<Peer>>) {
        let mut known = self.lock();
        let mut before = known.take().unwrap_or_default();
        *known = peers.map(|peers| {
            let report = |peer: Peer| {
                let same = |report: &PeerReport| report.peer.node == peer.node;
                let report = before.remove(&peer.name).filter(same);
                let name = peer.name.clone();
                (name, report.unwrap_or(PeerReport { peer, heard: false }))
            };
            peers.into_iter().map(report).collect()
        });
        drop(known);
        self.changed.notify_one();
    }

    /// One said something. Where it is, it does not say.
    pub fn said(&self, mut peer: Peer) {
        let mut known = self.lock();
        let Some(report) = known.as_mut().and_then(|known| known.get_mut(&peer.name)) else {
            return;
        };
        peer.node.clone_from(&report.peer.node);
        let news = !report.heard || report.peer != peer;
        *report = PeerReport { peer, heard: true };
        drop(known);
        if news {
            self.changed.notify_one();
        }
    }

    /// One cannot be reached.
    pub fn silent(&self, name: &str, now: UnixSeconds) {
        if let Some(report) = self.lock().as_mut().and_then(|known| known.get_mut(name)) {
            report.peer.unreachable_since.get_or_insert(now);
            report.heard = true;
        }
    }

    /// All, if each was heard of; nothing before.
    pub fn all(&self) -> Option<Vec<Peer>> {
        let known = self.lock();
        let words = known.as_ref()?.values();
        words.map(|report| report.heard.then(|| report.peer.clone())).collect()
    }

    /// Waits until there is something new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_push::keys::PeerKind;

    fn unheard(name: &str) -> Peer {
        Peer::unheard(name, PeerKind::Dataplane, Some("node".to_owned()))
    }

    fn peer(name: &str, live: &[u8]) -> Peer {
        Peer { live: live.to_vec(), signs_with: live.first().copied(), ..unheard(name) }
    }

    #[test]
    fn all_are_known_when_each_was_heard_of() {
        let peers = Peers::default();
        peers.said(peer("a", &[1]));
        assert!(peers.all().is_none(), "nobody is asked yet");
        peers.ask(Some(["a", "b"].map(unheard).into()));
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
        // What it says does not say where it is.
        peers.said(Peer { node: None, ..peer("b", &[2]) });
        assert_eq!(peers.all().expect("all")[1], peer("b", &[2]));
        peers.ask(Some(vec![unheard("b")]));
        assert_eq!(peers.all().expect("all").len(), 1);
        peers.ask(None);
        assert!(peers.all().is_none());
    }
}
