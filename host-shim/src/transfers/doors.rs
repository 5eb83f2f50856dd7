//! Pods' applications come and go: the socket in each pod's namespace, who is connected there, and
//! on which ports they listen. Owns these; what they say of a Transfer is [`super::serve`]'s.

use super::{
    Place,
    between::heir,
    decide::{Event, LinkId},
    links::{Heard, Link, MESSAGES_IN_TURN, Pod, Refused, no_room},
    paused::heed,
    serving::Serving,
};
use baton_sdk::{packet, wire::Message};
use rustix::{
    io::Errno,
    net::{SocketFlags, accept_with},
};
use std::{
    collections::{BTreeMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering,
    time::Instant,
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
            let Some((id, listener)) = &pod.listener else {
                return;
            };
            let id = *id;
            if self.closers.is_full(cookie) {
                return self.pause(id, None);
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(problem) => return self.pause(id, Some(problem)),
            };
            if let Some(reason) = no_room(pod.links, self.links.len()) {
                self.figures.refuse(Refused::TooMany);
                let _ = packet::send(&socket, &Message::Bye { reason }, None);
                self.put_socket_away(cookie, socket);
                continue;
            }
            pod.links += 1;
            let id = self.number();
            if self.watch(socket.as_fd(), id).is_err() {
                if let Some(pod) = self.pods.get_mut(&cookie) {
                    pod.links -= 1;
                }
                self.put_socket_away(cookie, socket);
                continue;
            }
            self.links.insert(id, Link::new(Instant::now(), id, cookie, socket));
            self.figures.links.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Leaves a listener alone for a while, unless it is only that nobody waits there: its pod
    /// keeps too much open, or this process.
    pub fn pause(&mut self, id: u64, problem: Option<Errno>) {
        use Errno as E;
        if problem.is_some_and(|p| !matches!(p, E::MFILE | E::NFILE | E::NOBUFS | E::NOMEM)) {
            return;
        }
        let Some(listener) = self.listening(id) else {
            return;
        };
        heed(self.epoll.as_fd(), listener.as_fd(), id, false);
        let is_first = self.paused.add(Instant::now(), id);
        if let Some(problem) = problem.filter(|_| is_first) {
            warn!(%problem, "no connection is accepted for a while");
        }
    }

    /// Listeners that were left alone long enough.
    pub fn resume(&mut self, now: Instant) {
        for id in self.paused.due(now) {
            if let Some(listener) = self.listening(id) {
                heed(self.epoll.as_fd(), listener.as_fd(), id, true);
            }
        }
    }

    fn listening(&self, id: u64) -> Option<&OwnedFd> {
        let (pod, of_door) = match self.listeners.get(&id) {
            Some(pod) => (pod, false),
            None => (self.doors.get(&id)?, true),
        };
        let pod = self.pods.get(pod)?;
        let listener = if of_door { &pod.door } else { &pod.listener };
        listener.as_ref().map(|(_, socket)| socket)
    }

    /// Applications that are connected and say nothing.
    pub fn end_silent(&mut self, now: Instant) {
        let late = |link: &&mut Link| link.greets_by().is_some_and(|by| by <= now);
        let silent = self.links.values_mut().filter(late).map(|link| {
            link.refuse_silent();
            link.id
        });
        for id in silent.collect::<Vec<_>>() {
            self.close(id, Some(Refused::Silent));
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
                    let of_pod = self.pods.get(&pod);
                    if of_pod.is_some_and(|pod| !pod.has_room_for(&ports)) {
                        if let Some(link) = self.links.get_mut(&id) {
                            link.refuse_ports();
                        }
                        self.close(id, Some(Refused::TooMany));
                        return;
                    }
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
        if let Some(why) = why {
            // Who sees it closed finds it counted.
            self.figures.refuse(why);
            info!(why = why.label(), "an application's connection is closed");
        }
        self.put_socket_away(link.pod, link.socket);
        self.figures.links.fetch_sub(1, Ordering::Relaxed);
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
    anyhow::ensure!(open.cookie() == place.cookie, "its namespace is another one");
    Ok(open.within(packet::open)??)
}
