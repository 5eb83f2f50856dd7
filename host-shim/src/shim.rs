//! The daemon's work without its loop: makes what is attached equal what is configured and
//! discovered, and says what is.

use crate::{
    config::{Config, Keys, Pod},
    discovery::{Cause, ListenerReport, Place, Processes, Unfit, WantedPod, place},
    multipath,
    pods::{AdopterState, Origin, PodState, When},
    releases::{self, Decider},
    restored,
    tracking::NodeNetwork,
    transfers::{self, Mover},
    view::{PodView, ReleasesView, State, TransfersView, by_name, named},
};
use baton_adopter::{Adopter, AttachmentId, EPOCHS, Error, Hook};
use baton_api::{EpochKeys, transfer_key};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::{Duration, Instant},
};
use tracing::{error, info, warn};

/// Packet rules that a pod gets while it runs are read within this time and one turn of the loop.
/// Until then the adopter refuses, as it sees that they are others.
const RULES_EVERY: Duration = Duration::from_millis(500);
/// So often each leg that a client stands for is looked at. One that is unused is forgotten within
/// this and twice `baton_adopter::LEG_PATIENCE` at most. A look takes 2 us.
const LEGS_EVERY: Duration = Duration::from_secs(20);

/// The loaded adopter and the pods of the last good configuration and of the cluster.
#[derive(Debug)]
pub struct Shim {
    /// Or why this node has none.
    adopter: Result<Adopter, Error>,
    pods: Vec<PodState>,
    started: Instant,
    swept: Swept,
    /// Epochs of the configured keys, or of those that the operator sent to this process, the one
    /// to sign with first.
    epochs: Vec<u8>,
    /// This node, if the operator sends its keys.
    keys_of: Option<String>,
    pub reloads: Reloads,
    attach_failures: u64,
    /// How many discovered pods got their adopter when, by the number of [`When`].
    attached: [u64; When::ALL.len()],
    discovery: Option<Discovery>,
    network: NodeNetwork,
    /// What decides Releases, or why this node has none.
    releases: Result<Decider, String>,
    /// What decides Transfers, or why this node has none.
    transfers: Result<Mover, String>,
    /// How they reach other nodes.
    between: transfers::Settings,
    /// When the pods' packet rules are looked at next.
    rules_due: Instant,
    /// When the legs that clients stand for are looked at next.
    legs_due: Instant,
}

/// Whether what a predecessor left is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    /// It is to be looked for.
    No,
    /// But for what writes clients' addresses: it is looked for again, as its namespaces go.
    Partly,
    Wholly,
}

/// What is needed to find pods.
#[derive(Debug)]
struct Discovery {
    processes: Processes,
    /// The API server has said once which pods there are.
    listed: bool,
    /// The turn in which the processes were read last.
    looked: Option<Instant>,
}

impl Discovery {
    /// Reads the node's processes, once in a turn.
    fn look(&mut self, now: Instant) {
        if self.looked.replace(now) != Some(now)
            && let Err(error) = self.processes.look(now)
        {
            warn!(%error, "the node's processes cannot be listed");
        }
    }
}

/// How often the configuration was read again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reloads {
    pub good: u64,
    pub refused: u64,
}

impl Shim {
    /// Loads the adopter, or takes over the one that a predecessor left. Where pods are discovered,
    /// a kernel that cannot have it is no reason to end: the policies shall say why these pods
    /// cannot adopt.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let adopter = match Adopter::load(Some(&config.pin)) {
            Ok(adopter) => Ok(adopter),
            Err(problem @ (Error::Load { .. } | Error::KernelLacks { .. }))
                if config.discovery.is_some() =>
            {
                error!(%problem, "no pod of this node can adopt");
                Err(problem)
            }
            Err(problem) => return Err(problem.into()),
        };
        if let Ok(adopter) = &adopter {
            if !adopter.reused_maps().is_empty() {
                info!(maps = ?adopter.reused_maps(), "took over the maps of a predecessor");
            }
            if !adopter.replaced_maps().is_empty() {
                warn!(
                    maps = ?adopter.replaced_maps(),
                    "a predecessor's maps have another layout; they begin empty"
                );
            }
        }
        let discovery = match &config.discovery {
            Some(discovery) => Some(Discovery {
                processes: Processes::new(&discovery.proc).map_err(|error| {
                    anyhow::anyhow!(
                        "discovery: no processes can be seen in {}: {error}",
                        discovery.proc.display()
                    )
                })?,
                listed: false,
                looked: None,
            }),
            None => None,
        };
        if discovery.as_ref().is_some_and(|d| !d.processes.sees_node()) {
            warn!(
                "the node's first process cannot be looked at: in a Pod, run with hostPID: true and CAP_SYS_PTRACE"
            );
        }
        let releases = match &adopter {
            Ok(adopter) => releases::start(adopter)?,
            Err(why) => Err(why.to_string()),
        };
        let transfers = match &adopter {
            Ok(adopter) => transfers::start(adopter)?,
            Err(why) => Err(why.to_string()),
        };
        let mut shim = Self {
            adopter,
            pods: Vec::new(),
            started: Instant::now(),
            swept: Swept::No,
            epochs: Vec::new(),
            keys_of: None,
            reloads: Reloads::default(),
            attach_failures: 0,
            attached: [0; When::ALL.len()],
            discovery,
            network: NodeNetwork::new(config.discovery.as_ref()),
            releases,
            transfers,
            between: transfers::Settings::default(),
            rules_due: Instant::now(),
            legs_due: Instant::now() + LEGS_EVERY,
        };
        shim.apply(config)?;
        Ok(shim)
    }

    /// Makes a configuration the current one. Keys first: an adopter without keys drops what it
    /// could adopt.
    pub fn apply(&mut self, config: &Config) -> Result<(), Error> {
        match &config.keys {
            Keys::Configured(keys) => {
                self.keys_of = None;
                let keys = keys.iter();
                let keys: Vec<_> =
                    keys.map(|k| (k.epoch, k.key.0, transfer_key(&k.key.0))).collect();
                self.set_keys(&keys)?;
            }
            // Those that a predecessor was sent go on in the adopter's maps until the operator
            // sends others.
            Keys::Operator { node } => self.keys_of = Some(node.clone()),
        }
        self.between.port = config.transfers_port;
        self.reach_nodes();
        let gone = self.take(|state| match &state.origin {
            Origin::Configured(pod) => !config.pods.contains(pod),
            Origin::Discovered { .. } => false,
        });
        for pod in &config.pods {
            let known =
                |state: &PodState| matches!(&state.origin, Origin::Configured(p) if p == pod);
            if !self.pods.iter().any(known) {
                self.pods.push(PodState::configured(pod.clone()));
            }
        }
        self.swept = Swept::No;
        self.release(gone);
        self.attend(Instant::now());
        Ok(())
    }

    /// The node whose keys the operator is to send; none if they are configured.
    pub fn keys_of(&self) -> Option<&str> {
        self.keys_of.as_deref()
    }

    /// Makes these keys the live ones, and no others.
    pub fn set_keys(&mut self, keys: &[EpochKeys]) -> Result<(), Error> {
        if let Ok(adopter) = &self.adopter {
            for (epoch, key, _) in keys {
                adopter.set_key(*epoch, key)?;
            }
            for epoch in adopter.live_epochs()? {
                if !keys.iter().any(|(e, ..)| e % EPOCHS == epoch) {
                    adopter.retire_key(epoch)?;
                    info!(epoch, "key epoch retired");
                }
            }
        }
        let epochs: Vec<u8> = keys.iter().map(|(epoch, ..)| *epoch).collect();
        if epochs != self.epochs {
            info!(?epochs, "key epochs live");
            self.epochs = epochs;
        }
        let keys = keys.iter();
        self.between.keys = keys.map(|(epoch, _, key)| (epoch % EPOCHS, *key)).collect();
        self.reach_nodes();
        Ok(())
    }

    fn reach_nodes(&self) {
        if let Ok(mover) = &self.transfers {
            mover.reach(self.between.clone());
        }
    }

    /// Takes what the cluster says of which pods shall have the adopter. Those that are gone from
    /// it keep what they have until their namespace goes: after a forced deletion their processes
    /// live on for seconds, and their last segments need the mark.
    pub fn want(&mut self, told: &ListenerReport, now: Instant) {
        if let Some(discovery) = &mut self.discovery
            && !discovery.listed
        {
            discovery.listed = true;
            self.swept = Swept::No;
        }
        // A pod that was made anew under its name is another one.
        let identity = |w: &WantedPod| (w.name.clone(), w.pod.uids.clone());
        let wanted = told.wanted.iter().cloned();
        let mut news: BTreeMap<_, _> = wanted.map(|w| (identity(&w), w)).collect();
        for state in &mut self.pods {
            if let Origin::Discovered { wanted, gone, unwanted, .. } = &mut state.origin {
                *gone = told.is_gone(&wanted.pod);
                *unwanted = !news.contains_key(&identity(wanted));
            }
        }
        for state in &mut self.pods {
            if let Origin::Discovered { wanted, .. } = &state.origin
                && let Some(update) = news.remove(&identity(wanted))
            {
                state.update(update, now);
            }
        }
        let more = news.into_values().map(|w| PodState::discovered(w, now));
        self.pods.extend(more);
        self.let_go();
        self.attend(now);
    }

    /// Takes the adopter off pods that nobody wants any more. Where it writes clients' addresses it
    /// stays until no leg is remembered there: those connections go on without a policy too.
    fn let_go(&mut self) {
        let is_left = |state: &PodState| state.is_unwanted() && !state.stays_to_the_end();
        if !self.pods.iter().any(is_left) {
            return;
        }
        let in_use = match &self.adopter {
            Ok(adopter) => restored::in_use(adopter),
            Err(_) => Some(BTreeSet::new()),
        };
        // The next turn finds out.
        let Some(in_use) = in_use else { return };
        let serves = |state: &PodState| {
            let attachment = state.attachment();
            attachment.is_some_and(|attachment| in_use.contains(&attachment.id().netns))
        };
        let gone = self.take(|state| is_left(state) && !serves(state));
        self.release(gone);
    }

    /// Whether some pod is worth a look right away.
    pub fn is_eager(&self, now: Instant) -> bool {
        self.adopter.is_ok() && self.pods.iter().any(|state| state.is_eager(now))
    }

    fn take(&mut self, gone: impl Fn(&PodState) -> bool) -> Vec<PodState> {
        self.pods.extract_if(.., |state| gone(state)).collect()
    }

    /// Takes the adopter off pods that shall not have it any more. A renamed pod keeps it: nothing
    /// is taken off in between.
    fn release(&self, gone: Vec<PodState>) {
        let Ok(adopter) = &self.adopter else {
            return;
        };
        for state in gone {
            let name = state.name().to_owned();
            let AdopterState::Attached(attachment) = state.adopter else {
                continue;
            };
            let here = |pod: &Pod| {
                let same = |p: &Place| (&p.netns, &p.interface) == (&pod.netns, &pod.interface);
                state.place.as_ref().is_some_and(same)
            };
            let renamed =
                |other: &PodState| matches!(&other.origin, Origin::Configured(pod) if here(pod));
            if self.pods.iter().any(renamed) {
                continue;
            }
            info!(pod = name, "detaching: not wanted any more");
            if let Err(error) = adopter.detach(attachment) {
                warn!(pod = name, %error, "not detached");
            }
        }
    }

    /// Attaches what is due, and notices interfaces and namespaces that went away or were made
    /// anew.
    pub fn attend(&mut self, now: Instant) {
        let adopter = match &self.adopter {
            Ok(adopter) => adopter,
            Err(why) => {
                let cause = match why {
                    Error::KernelLacks { .. } => Cause::Never,
                    _ => Cause::Trouble,
                };
                for state in self.pods.iter_mut().filter(|s| s.is_due(now)) {
                    let reason = format!("no pod of its node can adopt: {why}");
                    state.failed(Unfit { reason, cause }, now);
                }
                return;
            }
        };
        for state in &mut self.pods {
            if is_lost(state, self.discovery.as_mut(), now) {
                if state.is_ending() || state.is_gone() {
                    info!(pod = state.name(), "it has ended");
                } else {
                    warn!(
                        pod = state.name(),
                        "its namespace or interface is gone or was made anew"
                    );
                }
                let before = std::mem::replace(&mut state.adopter, AdopterState::New);
                if let AdopterState::Attached(attachment) = before
                    && let Err(error) = adopter.detach(attachment)
                {
                    warn!(pod = state.name(), %error, "not detached");
                }
            }
            if state.is_gone() || !state.is_due(now) {
                continue;
            }
            let found = match (&state.origin, &mut self.discovery) {
                (Origin::Configured(pod), _) => Ok(Place {
                    netns: pod.netns.clone(),
                    // Asked first: if the name leads elsewhere in between, the next look finds out.
                    identity: pod.netns.identity().unwrap_or_default(),
                    interface: pod.interface.clone(),
                }),
                (Origin::Discovered { wanted, .. }, Some(discovery)) => {
                    discovery.look(now);
                    place::find(&mut discovery.processes, wanted)
                }
                (Origin::Discovered { .. }, None) => continue,
            };
            let unfit = match found {
                Ok(place) => {
                    // Before anything of the pod listens, if that is still to come.
                    multipath::attend(state, &place);
                    let attached = place.open().and_then(|open| {
                        let attached = adopter.attach_in(&open, &place.interface);
                        attached.map_err(|error| Unfit::from(&error))
                    });
                    let interface = place.interface.clone();
                    state.place = Some(place);
                    match attached {
                        Ok(attachment) => {
                            // One that a predecessor attached is no news.
                            let now = Instant::now();
                            let when = state.attached_at(now).filter(|_| !attachment.taken_over());
                            if let Some(when) = when {
                                self.attached[when as usize] += 1;
                            }
                            if let Some(reason) = attachment.refusal() {
                                warn!(pod = state.name(), reason, "adoptions are refused");
                            }
                            info!(
                                pod = state.name(),
                                interface,
                                hook = attachment.id().hook.name(),
                                taken_over = attachment.taken_over(),
                                when = when.map(When::name),
                                runs_for_ms = state.runs_for(now).map(|t| t.as_millis() as u64),
                                "attached"
                            );
                            state.adopter = AdopterState::Attached(attachment);
                            continue;
                        }
                        Err(unfit) => {
                            self.attach_failures += 1;
                            unfit
                        }
                    }
                }
                Err(unfit) => unfit,
            };
            let reason = unfit.reason.clone();
            if state.failed(unfit, now) {
                warn!(pod = state.name(), reason, "not attached; will be tried again");
            }
        }
        self.pods.retain(|state| !state.is_gone() || state.stays_to_the_end());
        if self.swept == Swept::No {
            self.swept = self.sweep();
        }
        if let Ok(decider) = &self.releases {
            let places = self.pods.iter().filter_map(|state| {
                let cookie = state.attachment()?.id().netns;
                Some((cookie, state.place.as_ref()?.netns.clone()))
            });
            decider.know(places);
        }
        if let Ok(mover) = &self.transfers {
            mover.know(self.pods.iter().filter_map(|s| transferable(s, adopter)).collect());
        }
        self.look_at_rules(now);
        if now >= self.legs_due {
            self.legs_due = now + LEGS_EVERY;
            if let Ok(adopter) = &self.adopter {
                restored::attend(adopter, &self.pods);
            }
            self.let_go();
            if self.swept == Swept::Partly {
                self.swept = Swept::No;
            }
        }
    }

    /// Looks at the packet rules of all pods that have the adopter: whoever may change them in a
    /// pod may do so at any time.
    fn look_at_rules(&mut self, now: Instant) {
        if now < self.rules_due {
            return;
        }
        self.rules_due = now + RULES_EVERY;
        let Ok(adopter) = &self.adopter else { return };
        for state in &mut self.pods {
            if let Some(place) = state.place.clone() {
                multipath::attend(state, &place);
            }
            let name = state.name().to_owned();
            let (AdopterState::Attached(attachment), Some(place)) =
                (&mut state.adopter, &state.place)
            else {
                continue;
            };
            match adopter.look_at_rules(&place.netns, attachment) {
                Ok(false) => {}
                Ok(true) => match attachment.refusal() {
                    Some(reason) => warn!(pod = name, reason, "adoptions are refused"),
                    None => info!(pod = name, "its packet rules redirect nothing any more"),
                },
                // Its processes are gone.
                Err(Error::NetnsMissing { .. }) => {}
                Err(error) => warn!(pod = name, %error, "its packet rules cannot be looked at"),
            }
        }
    }

    /// Removes what a predecessor left and nobody wants, but for where clients' addresses are
    /// written in a namespace that is there still. Waits while a pod's adopter may be among it, or
    /// while nothing is known of the pods yet.
    fn sweep(&self) -> Swept {
        let Ok(adopter) = &self.adopter else {
            return Swept::Wholly;
        };
        let unlisted = self.discovery.as_ref().is_some_and(|d| !d.listed);
        if unlisted || self.pods.iter().any(PodState::is_unsure) {
            return Swept::No;
        }
        let wanted: HashSet<AttachmentId> =
            self.pods.iter().filter_map(|state| Some(state.attachment()?.id())).collect();
        let Some(in_use) = restored::in_use(adopter) else {
            return Swept::No;
        };
        let serves = |id: &AttachmentId| in_use.contains(&id.netns) && adopter.is_on(*id);
        match adopter.pinned() {
            Ok(pinned) => {
                let others = pinned.into_iter().filter(|id| !wanted.contains(id));
                let (stay, go): (Vec<_>, Vec<_>) = others.partition(serves);
                for id in go {
                    info!(attachment = %id, "removing what a predecessor left");
                    if let Err(error) = adopter.detach_id(id) {
                        warn!(attachment = %id, %error, "not removed");
                    }
                }
                if stay.is_empty() { Swept::Wholly } else { Swept::Partly }
            }
            Err(error) => {
                warn!(%error, "cannot look for what a predecessor left");
                Swept::No
            }
        }
    }

    /// Takes the adopter off all pods and leaves nothing.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.releases = Err("stopped".into());
        self.transfers = Err("stopped".into());
        self.pods.clear();
        match &mut self.adopter {
            Ok(adopter) => adopter.unpin_all(),
            Err(_) => Ok(()),
        }
    }

    /// The current state.
    pub fn state(&self) -> Result<State, Error> {
        let adopter = self.adopter.as_ref().ok();
        let mut pods = Vec::new();
        for state in &self.pods {
            let cookie = state.attachment().map(|a| a.id().netns);
            let counters = match adopter.zip(cookie) {
                Some((adopter, cookie)) => Some(adopter.counters_of_cookie(cookie)?),
                None => None,
            };
            pods.push(PodView::new(state, counters.as_ref()));
        }
        let (live, segments) = match adopter {
            Some(adopter) => (adopter.live_epochs()?, by_name(&adopter.counters()?)),
            None => Default::default(),
        };
        Ok(State {
            version: env!("CARGO_PKG_VERSION"),
            kernel: baton_adopter::kernel::release(),
            uptime_seconds: self.started.elapsed().as_secs(),
            unable: self.adopter.as_ref().err().map(ToString::to_string),
            key_epochs: named(&live, &self.epochs),
            signing_epoch: self.epochs.first().copied(),
            takes_keys: self.keys_of.is_some(),
            config_reloads: self.reloads.good,
            config_refusals: self.reloads.refused,
            attach_failures: self.attach_failures,
            attached: When::ALL.map(|when| (when.name(), self.attached[when as usize])).into(),
            discovered: self.discovery.as_ref().map(|d| d.listed),
            adoption_segments: segments,
            conn_tracking: self.network.tracking(),
            releases: ReleasesView::new(&self.releases),
            transfers: TransfersView::new(&self.transfers),
            pods,
        })
    }

    /// Pods that have the adopter, and all pods.
    pub fn attached(&self) -> (usize, usize) {
        let attached = self.pods.iter().filter(|s| s.attachment().is_some()).count();
        (attached, self.pods.len())
    }

    /// Why this shim is not ready: nothing is known of the node's pods yet, none can adopt, or
    /// something is wrong here. One broken pod must not take the node's shim out of service. Nor
    /// must a node's old kernel, which no shim can do anything about, hold up the shims of other
    /// nodes while these are replaced: the policies name it.
    pub fn unready(&self) -> Option<String> {
        match &self.adopter {
            Ok(_) | Err(Error::KernelLacks { .. }) => {}
            Err(why) => return Some(why.to_string()),
        }
        if self.discovery.as_ref().is_some_and(|d| !d.listed) {
            return Some("the API server has not told yet which pods there are".into());
        }
        if let (Ok(adopter), Some(node)) = (&self.adopter, &self.keys_of)
            && adopter.live_epochs().is_ok_and(|live| live.is_empty())
        {
            return Some(format!("the operator has not sent the keys of node {node} yet"));
        }
        let (attached, all) = self.attached();
        (attached == 0 && self.pods.iter().any(PodState::is_wrong))
            .then(|| format!("{attached} of {all} pods have the adopter"))
    }
}

/// Where applications of a pod may connect. Its socket there keeps the namespace alive: only as
/// long as the name leads to it, which is as long as the pod has a process.
fn transferable(state: &PodState, adopter: &Adopter) -> Option<transfers::Place> {
    let cookie = state.attachment()?.id().netns;
    let place = state.place.as_ref()?;
    let same = place.netns.identity().ok()? == place.identity;
    same.then_some(())?;
    Some(transfers::Place {
        cookie,
        number: adopter.namespace_number(cookie).ok()??,
        netns: place.netns.clone(),
        interface: place.interface.clone(),
        tenant: state.tenant().map(str::to_owned),
    })
}

/// Whether a pod has an adopter on an interface that is gone, or that its name leads to no more.
fn is_lost(state: &mut PodState, discovery: Option<&mut Discovery>, now: Instant) -> bool {
    let AdopterState::Attached(attachment) = &state.adopter else {
        return false;
    };
    if !attachment.alive() {
        return true;
    }
    let Some(place) = &mut state.place else {
        return false;
    };
    let moved = !place.netns.identity().is_ok_and(|now| now == place.identity);
    match (&state.origin, discovery) {
        // That process ended. The namespace is another one's as well, which may have begun since,
        // or the pod is going: the link says so.
        (Origin::Discovered { wanted, .. }, Some(discovery)) if moved => {
            discovery.look(now);
            return !place.follow(&discovery.processes.members(&wanted.pod.uids));
        }
        _ if moved => return true,
        _ => {}
    }
    // A link knows when its interface goes; a filter does not, and must be looked for, which takes
    // two threads.
    attachment.id().hook == Hook::Clsact
        && !place.netns.open().is_ok_and(|open| {
            open.ifindex(&place.interface).is_ok_and(|index| index == attachment.id().ifindex)
        })
}
