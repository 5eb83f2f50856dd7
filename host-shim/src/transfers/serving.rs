//! All that the thread of Transfers knows at a time.
//!
//! Owns the form alone. Who waits for what is `serve`'s, who is connected `doors`', what is done of
//! it `handing`'s and `between::heirs`'.

use super::{
    Figures, Warmth,
    between::{Cut, Settings, channel::Channel, offered::Heir, wire::Id},
    closers::Closers,
    decide::LinkId,
    links::{Link, Pod},
    open::Open,
    paused::Paused,
};
use baton_adopter::{Transfer, Transfers};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fs::File,
    os::fd::OwnedFd,
    sync::atomic::AtomicBool,
};

pub struct Serving<'a> {
    pub transfers: &'a Transfers,
    pub warm: &'a Warmth,
    pub figures: &'a Figures,
    pub epoll: OwnedFd,
    pub pods: BTreeMap<u64, Pod>,
    pub links: HashMap<LinkId, Link>,
    /// Which pod's listener.
    pub listeners: HashMap<u64, u64>,
    pub open: BTreeMap<u64, Open>,
    pub settings: Settings,
    /// Connections to and from other nodes' host-shims.
    pub channels: HashMap<u64, Channel>,
    /// Which pod's door for them.
    pub doors: HashMap<u64, u64>,
    /// What other nodes offer.
    pub heirs: BTreeMap<u64, Heir>,
    /// Of these, the ones that were given to their applications lately.
    pub spoken: VecDeque<Id>,
    /// In front of the numbers of what this process offers to others.
    pub nonce: u64,
    pub lost_channels: Vec<(u64, Cut)>,
    /// [`super::Shared::unbound`].
    pub unbound: &'a AtomicBool,
    pub asked: HashSet<Transfer>,
    pub next: u64,
    /// Applications that could not be told something.
    pub lost: Vec<LinkId>,
    pub closers: Closers,
    pub paused: Paused,
    /// This process ends once nothing is in progress.
    pub leaving: bool,
    /// This thread's namespace.
    pub home: File,
}
