//! Pods' applications come and go: the socket in each pod's namespace, who is connected there, and
//! on which ports they listen. Owns these; what they say of a Transfer is [`super::serve`]'s.

use super::{
    Place,
    between::heir,
    decide::{Event, LinkId},
    links::{Heard, LINKS_MAX, Link, MESSAGES_IN_TURN, Pod, Refused},
    serving::Serving,
};
use baton_sdk::{packet, wire::Message};
use rustix::net::{SocketFlags, accept_with};
use std::{
    collections::{BTreeMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering,
};
use tracing::{info, warn};

impl Serving<'_> {
    /// Pods come and go. Returns whether each has its socket.
    pub fn know(&mut self, places: Vec<Place>) -> bool {
        let cookies: HashSet<u64> = places.iter().map(|place| place.cookie).collect();
        let gone: Vec<u64> = self.pods.keys().copied().collect();
        for cookie in gone.into_iter().filter(|c| !cookies.contains(c)) {
            let of_it = self.links.values().filter(|link| link.pod == cookie);
            let of_it: Vec<_> = of_it.map(|link| link.id).collect();
            for link in of_it {
                self.close(link, None);
            }
            self.shut(cookie);
            self.leave_pod(cookie);
            if let Some((id, socket)) = self.pods.remove(&cookie).and_then(|pod| pod.listener) {
                self.listeners.remove(&id);
                self.put_socket_away(cookie, socket);
            }
        }
        self.closers.retain(|pod| cookies.contains(&pod));
        let mut all_bound = true;
        for place in places {
            let cookie = place.cookie;
            let pod = self.pods.entry(cookie).or_insert_with(|| Pod {
                place: place.clone(),
                listener: None,
                ports: BTreeMap::new(),
                links: 0,
                told: false,
                door: None,
                door_told: false,
            });
            pod.place = place;
            if pod.listener.is_some() {
                all_bound &= self.reaches(cookie);
                continue;
            }
            match bind(&pod.place) {
                Ok(listener) => {
                    let id = self.number();
                    if let Err(problem) = self.watch(listener.as_fd(), id) {
                        warn!(%problem, "an application's connections cannot be waited for");
                        continue;
                    }
                    self.listeners.insert(id, cookie);
                    if let Some(pod) = self.pods.get_mut(&cookie) {
                        pod.listener = Some((id, listener));
                    }
                }
                Err(problem) => {
                    all_bound = false;
                    if !std::mem::replace(&mut pod.told, true) {
                        warn!(
                            netns = %pod.place.netns,
                            problem = format!("{problem:#}"),
                            "applications cannot connect there: does another process have the abstract socket `baton`?"
                        );
                    }
                }
            }
        }
        all_bound
    }

    pub fn accept(&mut self, cookie: u64) {
        for _ in 0..MESSAGES_IN_TURN {
            let Some(pod) = self.pods.get_mut(&cookie) else {
                return;
            };
            let Some((_, listener)) = &pod.listener else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(listener, flags) else {
                return;
            };
            if pod.links >= LINKS_MAX {
                self.figures.refuse(Refused::TooMany);
                let reason = format!("{LINKS_MAX} applications of the pod are connected");
                let _ = packet::send(&socket, &Message::Bye { reason }, None);
                self.put_away(cookie, socket);
                continue;
            }
            pod.links += 1;
            let id = self.number();
            if self.watch(socket.as_fd(), id).is_err() {
                if let Some(pod) = self.pods.get_mut(&cookie) {
                    pod.links -= 1;
                }
                self.put_away(cookie, socket);
                continue;
            }
            self.links.insert(id, Link::new(id, cookie, socket));
            self.figures.links.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn hear(&mut self, id: LinkId, space: &mut [u8]) {
        let mut strays = Vec::new();
        for _ in 0..MESSAGES_IN_TURN {
            let Some(link) = self.links.get_mut(&id) else {
                return;
            };
            let (pod, heard) = (link.pod, link.hear(space, &mut strays));
            for descriptor in strays.drain(..) {
                self.put_away(pod, descriptor);
            }
            match heard {
                Heard::Nothing => return,
                Heard::Closed(why) => {
                    self.close(id, why);
                    return;
                }
                Heard::Hello(ports) => {
                    self.listens(pod, &ports);
                }
                Heard::Said(message, descriptor) => self.said(id, pod, message, descriptor),
            }
        }
    }

    /// One more application that listens on these.
    fn listens(&mut self, cookie: u64, ports: &[u16]) {
        let Some(pod) = self.pods.get_mut(&cookie) else {
            return;
        };
        info!(netns = %pod.place.netns, ?ports, "an application is connected");
        for port in ports {
            *pod.ports.entry(*port).or_default() += 1;
        }
        if !self.reaches(cookie) {
            self.unbound.store(true, Ordering::Relaxed);
        }
    }

    pub fn close(&mut self, id: LinkId, why: Option<Refused>) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        self.put_socket_away(link.pod, link.socket);
        self.figures.links.fetch_sub(1, Ordering::Relaxed);
        if let Some(why) = why {
            self.figures.refuse(why);
            info!(why = why.label(), "an application's connection is closed");
        }
        if let Some(pod) = self.pods.get_mut(&link.pod) {
            pod.links -= 1;
            for port in link.ports.iter().flatten() {
                let Some(count) = pod.ports.get_mut(port) else {
                    continue;
                };
                *count -= 1;
                if *count == 0 {
                    pod.ports.remove(port);
                    let _ = self.transfers.set_cooperates(link.pod, *port, None);
                }
            }
            if pod.ports.is_empty() {
                self.shut(link.pod);
            }
        }
        for heir in self.heirs.keys().copied().collect::<Vec<_>>() {
            self.feed_heir(heir, heir::Event::Closed(id));
        }
        for transfer in self.open.keys().copied().collect::<Vec<_>>() {
            self.feed(transfer, Event::Closed(id));
        }
    }
}

/// The abstract socket in a pod's namespace.
fn bind(place: &Place) -> anyhow::Result<OwnedFd> {
    let open = place.netns.open()?;
    anyhow::ensure!(
        open.cookie() == place.cookie,
        "its namespace is another one"
    );
    Ok(open.within(packet::open)??)
}
