//! Channels come and go: where pods' host-shims listen, who is connected, and what is kept of all
//! of them. Owns that none costs the others more than its share; what is said of a Transfer is
//! `heirs`' and [`serve`](super::super::serve)'s.

use super::{
    BYTES_MAX, CHANNELS_MAX, Cut, PENDING_MAX, PENDING_OF_POD_MAX, Settings, channel,
    channel::Channel, heir,
};
use crate::transfers::{
    Place,
    decide::{Ended, Event, FAR},
    links::MESSAGES_IN_TURN,
    moving::visit,
    serving::Serving,
};
use baton_adopter::Reach;
use rustix::{
    event::epoll::EventFlags,
    io::Errno,
    net::{SocketFlags, accept_with, bind as bind_to, listen, sockopt::set_socket_reuseaddr},
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};
use tracing::{debug, warn};

use super::wire::Message;

/// Connections that come at one moment: as many as the standard library has wait.
const WAITING_MAX: i32 = 128;

impl Serving<'_> {
    /// Other settings, or other keys.
    pub fn settle_for(&mut self, settings: Settings) {
        if settings == self.settings {
            return;
        }
        let other_port = settings.port != self.settings.port;
        let before = std::mem::replace(&mut self.settings, settings);
        let key_of = |settings: &Settings, epoch: u8| {
            let found = settings.keys.iter().find(|(of, _)| *of == epoch);
            found.map(|(_, key)| *key)
        };
        let has_key = |channel: &Channel| {
            let is_same = |epoch| key_of(&before, epoch) == key_of(&self.settings, epoch);
            channel.epoch().is_none_or(is_same)
        };
        let stale = self.channels.iter().filter(|(_, c)| other_port || !has_key(c));
        let stale: Vec<_> = stale.map(|(id, _)| *id).collect();
        self.lost_channels.extend(stale.into_iter().map(|id| (id, Cut::Left)));
        for cookie in self.pods.keys().copied().collect::<Vec<_>>() {
            if other_port {
                self.shut(cookie);
            }
            self.reaches(cookie);
        }
    }

    /// Has a pod's door be as its applications and the settings want it, and dataplanes told.
    /// Returns whether it is.
    pub fn reaches(&mut self, cookie: u64) -> bool {
        let port = self.settings.port;
        let usable = self.settings.are_usable();
        let Some(pod) = self.pods.get_mut(&cookie) else {
            return true;
        };
        let wanted = usable && !pod.ports.is_empty();
        if wanted && pod.door.is_none() {
            match bind(&pod.place, port, self.home.as_fd()) {
                Ok(listener) => {
                    let id = self.number();
                    if self.watch(listener.as_fd(), id).is_ok()
                        && let Some(pod) = self.pods.get_mut(&cookie)
                    {
                        pod.door = Some((id, listener));
                        self.doors.insert(id, cookie);
                    }
                }
                Err(problem) => {
                    if !std::mem::replace(&mut pod.door_told, true) {
                        self.figures.shut_doors.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        warn!(
                            netns = %pod.place.netns,
                            port,
                            problem = format!("{problem:#}"),
                            "its connections move within this node only: does another process of the pod listen on transfers.port?"
                        );
                    }
                }
            }
        } else if !wanted {
            self.shut(cookie);
        }
        let Some(pod) = self.pods.get(&cookie) else {
            return true;
        };
        let open = pod.door.is_some();
        let reach = if open { Reach::Nodes } else { Reach::Node };
        for port in pod.ports.keys() {
            if let Err(problem) = self.transfers.set_cooperates(cookie, *port, Some(reach)) {
                warn!(%problem, "no dataplane will ask for its connections");
            }
        }
        open || !wanted
    }

    /// Nobody may connect to that pod any more.
    pub fn shut(&mut self, cookie: u64) {
        if let Some(pod) = self.pods.get_mut(&cookie) {
            pod.door_told = false;
            if let Some((id, _)) = pod.door.take() {
                self.doors.remove(&id);
            }
        }
    }

    /// Another host-shim connects to a pod.
    pub fn admit(&mut self, cookie: u64) {
        for _ in 0..MESSAGES_IN_TURN {
            let Some(pod) = self.pods.get(&cookie) else {
                return;
            };
            let Some((id, listener)) = &pod.door else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(problem) => return self.pause(*id, Some(problem)),
            };
            let tenant = pod.place.tenant.clone().unwrap_or_default();
            self.make_room(cookie);
            self.add(Channel::accepted(Instant::now(), cookie, &tenant, socket));
        }
    }

    /// Who has not shown that it has the key is the first to go.
    fn make_room(&mut self, cookie: u64) {
        let pending =
            || self.channels.iter().filter(|(_, c)| !c.is_authentic() && c.peer.is_none());
        let of_pod = pending().filter(|(_, c)| c.pod == cookie);
        let oldest = if of_pod.clone().count() >= PENDING_OF_POD_MAX {
            of_pod.min_by_key(|(_, c)| c.since)
        } else if pending().count() >= PENDING_MAX {
            pending().min_by_key(|(_, c)| c.since)
        } else {
            None
        };
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.cut(id, Cut::PushedOut);
        }
    }

    fn add(&mut self, channel: Channel) -> Option<u64> {
        if self.channels.len() >= CHANNELS_MAX + PENDING_MAX {
            self.figures.cut(Cut::TooMany);
            return None;
        }
        let id = self.number();
        self.watch(channel.as_fd(), id).ok()?;
        self.channels.insert(id, channel);
        Some(id)
    }

    /// The channel from a pod to another one, kept or new.
    pub fn reach(&mut self, cookie: u64, peer: SocketAddr) -> Result<u64, Ended> {
        let mut kept = self.channels.iter();
        let is_it = |c: &Channel| c.pod == cookie && c.peer == Some(peer);
        if let Some((id, _)) =
            kept.find(|(id, c)| is_it(c) && !self.lost_channels.iter().any(|(lost, _)| lost == *id))
        {
            return Ok(*id);
        }
        let key = *self.settings.keys.first().ok_or(Ended::NoPod)?;
        let place = self.pods.get(&cookie).ok_or(Ended::NoNamespace)?.place.clone();
        if self.channels.values().filter(|c| c.is_authentic()).count() >= CHANNELS_MAX {
            self.figures.cut(Cut::TooMany);
            return Err(Ended::Busy);
        }
        let open = place.netns.open().map_err(|_| Ended::NoNamespace)?;
        if open.cookie() != cookie {
            return Err(Ended::NoNamespace);
        }
        let begun = visit(&open, self.home.as_fd(), || channel::begin(peer));
        let socket = begun.and_then(|begun| begun).map_err(|problem| {
            debug!(%problem, %peer, "another host-shim cannot be connected to");
            Ended::Unreached
        })?;
        let tenant = place.tenant.unwrap_or_default();
        let channel = Channel::open(Instant::now(), cookie, &tenant, peer, socket, &key);
        let id = channel.and_then(|channel| self.add(channel)).ok_or(Ended::Busy)?;
        self.wait_for_room(id);
        Ok(id)
    }

    /// What there is to send goes as soon as it can.
    fn wait_for_room(&mut self, id: u64) {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        let wants = channel.has_more_to_send();
        if wants == channel.waits_for_room {
            return;
        }
        channel.waits_for_room = wants;
        let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if self.watch_for(id, flags).is_err() {
            self.lost_channels.push((id, Cut::Ended));
        }
    }

    /// Says something to another host-shim. If it cannot be, its Transfers hear that the channel
    /// has ended.
    pub fn tell(&mut self, id: u64, message: Message) {
        let Some(channel) = self.channels.get_mut(&id) else {
            self.lost_channels.push((id, Cut::Ended));
            return;
        };
        if let Err(why) = channel.say(Instant::now(), message) {
            self.lost_channels.push((id, why));
            return;
        }
        self.wait_for_room(id);
        self.keep_to_the_budget();
    }

    fn keep_to_the_budget(&mut self) {
        let is_lost = |id| self.lost_channels.iter().any(|(lost, _)| *lost == id);
        let all = self.channels.iter().filter(|(id, _)| !is_lost(**id));
        if let Some(id) = one_too_heavy(all.map(|(id, channel)| (*id, channel.keeps()))) {
            self.lost_channels.push((id, Cut::Memory));
        }
    }

    /// There is something of a channel, or room in it.
    pub fn hear_far(&mut self, id: u64, space: &mut [u8]) {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        let was_authentic = channel.is_authentic();
        let flushed = channel.flush();
        let (heard, ended) = channel.hear(Instant::now(), &self.settings.keys, space);
        let is_new = !was_authentic && channel.is_authentic();
        let authentic = self.channels.values().filter(|c| c.is_authentic()).count();
        if is_new && authentic > CHANNELS_MAX {
            self.cut(id, Cut::TooMany);
            return;
        }
        for message in heard {
            self.said_far(id, message);
        }
        match flushed.and(ended) {
            Err(why) => self.lost_channels.push((id, why)),
            Ok(()) => {
                self.wait_for_room(id);
                self.keep_to_the_budget();
            }
        }
    }

    /// Ends a channel, and what depends on it hears of it.
    pub fn cut(&mut self, id: u64, why: Cut) {
        if let Some(channel) = self.channels.remove(&id) {
            self.figures.cut(why);
            let (netns, peer) = (channel.pod, channel.peer);
            debug!(netns, ?peer, why = why.label(), "a channel to another node ends");
        }
        let of_it = self.open.iter().filter(|(_, open)| open.is_over_channel(id));
        for transfer in of_it.map(|(n, _)| *n).collect::<Vec<_>>() {
            let event = match why {
                Cut::OtherNamespace => Event::Declined(Ended::OtherTenant),
                Cut::TooMany | Cut::Memory => Event::Declined(Ended::Busy),
                _ => Event::Closed(FAR),
            };
            self.feed(transfer, event);
            // Behind the point of no return it is all the same.
            self.feed(transfer, Event::Closed(FAR));
        }
        let of_it = self.heirs.iter().filter(|(_, heir)| heir.channel == id);
        for heir in of_it.map(|(n, _)| *n).collect::<Vec<_>>() {
            self.feed_heir(heir, heir::Event::Cut);
        }
    }

    /// Channels whose time is over.
    pub fn end_channels(&mut self, now: Instant) {
        let all = self.channels.iter();
        let over = all.filter_map(|(id, channel)| Some((*id, channel.is_over(now)?)));
        for (id, why) in over.collect::<Vec<_>>() {
            self.cut(id, why);
        }
    }

    /// A pod is gone, or has no application any more.
    pub fn leave_pod(&mut self, cookie: u64) {
        let of_it = self.channels.iter().filter(|(_, c)| c.pod == cookie);
        for id in of_it.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.cut(id, Cut::Left);
        }
    }
}

/// The channel that keeps most, if all together keep more than they may.
fn one_too_heavy(kept: impl Iterator<Item = (u64, usize)> + Clone) -> Option<u64> {
    let all: usize = kept.clone().map(|(_, bytes)| bytes).sum();
    let most = kept.max_by_key(|(_, bytes)| *bytes);
    most.filter(|_| all > BYTES_MAX).map(|(id, _)| id)
}

/// Where other host-shims reach a pod.
fn bind(place: &Place, port: u16, home: std::os::fd::BorrowedFd<'_>) -> anyhow::Result<OwnedFd> {
    let open = place.netns.open()?;
    anyhow::ensure!(open.cookie() == place.cookie, "its namespace is another one");
    let bound = visit(&open, home, || bind_here(port))??;
    listen(&bound, WAITING_MAX)?;
    Ok(bound)
}

/// That port of the calling thread's network namespace, where nobody listens yet.
pub fn bind_here(port: u16) -> rustix::io::Result<OwnedFd> {
    let bound = |to: SocketAddr| {
        let socket = channel::socket_for(to)?;
        set_socket_reuseaddr(&socket, true)?;
        bind_to(&socket, &to)?;
        Ok(socket)
    };
    let both = bound((Ipv6Addr::UNSPECIFIED, port).into());
    both.or_else(|error| match error {
        Errno::ADDRINUSE => Err(error),
        // Without IPv6.
        _ => bound((Ipv4Addr::UNSPECIFIED, port).into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_that_keeps_most_makes_room() {
        let most = |kept: [usize; 3]| one_too_heavy([7, 8, 9].into_iter().zip(kept));
        assert_eq!(most([1, BYTES_MAX - 2, 1]), None);
        assert_eq!(most([1, BYTES_MAX - 1, 1]), Some(8));
        assert_eq!(most([BYTES_MAX, 2, 1]), Some(7));
        assert_eq!(one_too_heavy(std::iter::empty()), None);
    }
}
