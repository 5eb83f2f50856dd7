//! Keeps the engine's view of routes and neighbours as the kernel has it, through rtnetlink.
//!
//! The engine's packets never pass the kernel's stack, so the kernel would neither resolve nor
//! refresh a neighbour for them: this task makes it (`NTF_USE`), and hands on what it learns. It
//! never sends ARP or NDP itself and never changes a route or address.

mod addresses;
mod kernel;
mod messages;
mod table;

use crate::{
    commands::{Notice, WorkerError, aside},
    steering::Steerer,
    workers::Workers,
};
pub use addresses::Addresses;
use baton_engine::{Route, Routes};
use baton_packet::Mac;
use futures_util::StreamExt;
pub use kernel::{default_interface, interface_addresses};
use messages::{Link, gateways, in_order, routers};
use rtnetlink::{
    Handle, MulticastGroup, packet_core::NetlinkPayload, packet_route::RouteNetlinkMessage,
};
use std::{
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use table::{Action, FlowLookup, Table};
use tokio::{sync::mpsc, time};
use tracing::{debug, info, warn};

/// Addresses that the worker asks for and the task has not taken yet.
pub const ASKS_MAX: usize = 1_024;

/// Between two looks at what is still unresolved: the kernel itself gives up after 3 probes, 1 s
/// apart.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two whole reads of the kernel's tables, which make up for messages lost in a
/// burst.
const TICKS_PER_DUMP: u64 = 10;
/// Between two warnings that something could not be read or told.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Route changes come in bursts (an interface's all at once); they are read once, this long after
/// the first.
const ROUTES_QUIET: Duration = Duration::from_millis(50);

/// Why netlink cannot be used. What of it is fatal [`ends`] says.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No socket.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[source] io::Error),
    /// A table could not be read.
    #[error("cannot read the kernel's {table}: {source}")]
    Read {
        /// Which.
        table: &'static str,
        /// Why.
        source: rtnetlink::Error,
    },
    /// A table was not read within [`kernel::READ_LIMIT`]. Passes also at the start: it is read
    /// again with the next look.
    #[error("the kernel did not list its tables within 2 s")]
    Late,
    /// The kernel closed the connection.
    #[error("the netlink connection ended")]
    Ended,
    /// The worker is gone or stuck.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// What others may know of the network, kept by the task.
#[derive(Debug)]
pub struct Health {
    /// The interface has carrier.
    pub link_up: AtomicBool,
    /// The kernel's routes were read once.
    pub routes_read: AtomicBool,
    /// Each family's best default route has a router whose link-layer address is known, or no
    /// router.
    pub gateway_resolved: AtomicBool,
    /// What is wrong with the interface's MTU, in words.
    pub mtu_problem: Mutex<Option<String>>,
    /// Times that the link went up or down.
    pub link_changes: AtomicU64,
    /// Times that the kernel was asked to resolve or confirm a neighbour.
    pub resolutions: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            // As the engine has it before it is told.
            link_up: AtomicBool::new(true),
            routes_read: AtomicBool::new(false),
            gateway_resolved: AtomicBool::new(false),
            mtu_problem: Mutex::new(None),
            link_changes: AtomicU64::new(0),
            resolutions: AtomicU64::new(0),
        }
    }
}

impl Health {
    /// Whether the interface is up, and how often that has changed: two that are equal, and up, say
    /// that it was up all the time in between.
    pub fn link(&self) -> (bool, u64) {
        (self.link_up.load(Ordering::Relaxed), self.link_changes.load(Ordering::Relaxed))
    }
}

/// Where the dataplane is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The interface that it serves.
    pub ifindex: u32,
    /// The hardware address that it has at the start.
    pub mac: Mac,
    /// The MTU that its packets are made for.
    pub mtu: u32,
    /// What the kernel routes through others is given to it.
    pub host: bool,
}

/// The task.
pub struct Neighbours {
    handle: Handle,
    place: Place,
    workers: Workers,
    steerer: Steerer,
    health: Arc<Health>,
    table: Table,
    routes: Vec<Route>,
    /// The first look is over: from now on connections may be served.
    looked: bool,
    /// All was read once; until then it is tried with each tick.
    complete: bool,
    /// Some workers may not have heard the last of the link or the routes, while others have.
    link_untold: bool,
    routes_untold: bool,
    warned: Option<time::Instant>,
}

/// Runs until the worker or netlink is gone. `asks` are the addresses that the engine needs.
///
/// # Errors
/// What ended it. Fatal: without it the engine's view grows old. What may pass is no reason to end
/// once connections are served: the next look or tick sets it right.
pub async fn run(
    place: Place,
    workers: Workers,
    steerer: Steerer,
    mut asks: mpsc::Receiver<IpAddr>,
    health: Arc<Health>,
) -> Result<(), NetlinkError> {
    let (connection, handle, mut events) = rtnetlink::new_multicast_connection(&[
        MulticastGroup::Neigh,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Link,
    ])
    .map_err(NetlinkError::Open)?;
    let mut connection = tokio::spawn(connection);
    let mut this = Neighbours {
        handle,
        place,
        workers,
        steerer,
        health,
        table: Table::default(),
        routes: Vec::new(),
        looked: false,
        complete: false,
        link_untold: false,
        routes_untold: false,
        warned: None,
    };
    // Subscribed first, read then: what changes in between is seen twice rather than never.
    this.look().await?;
    this.looked = true;
    let mut ticks = 0_u64;
    let mut tick = time::interval(TICK);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut routes_due: Option<time::Instant> = None;
    let mut lost = false;
    loop {
        let due = routes_due.unwrap_or_else(|| time::Instant::now() + TICK);
        let done = tokio::select! {
            event = events.next() => {
                let Some((message, _)) = event else { return Err(NetlinkError::Ended) };
                if let NetlinkPayload::InnerMessage(message) = message.payload {
                    if is_route(&message) {
                        routes_due.get_or_insert_with(|| time::Instant::now() + ROUTES_QUIET);
                        Ok(())
                    } else {
                        this.event(&message).await
                    }
                } else {
                    // Messages were lost: look at everything again.
                    lost = true;
                    routes_due.get_or_insert_with(|| time::Instant::now() + ROUTES_QUIET);
                    Ok(())
                }
            }
            asked = asks.recv() => {
                let Some(address) = asked else { return Err(WorkerError::Gone.into()) };
                let actions = this.table.want(address);
                this.perform(actions).await
            }
            () = time::sleep_until(due), if routes_due.is_some() => {
                routes_due = None;
                if std::mem::take(&mut lost) {
                    this.look().await
                } else {
                    this.read_routes().await
                }
            }
            _ = tick.tick() => {
                ticks += 1;
                let actions = this.table.tick();
                let told = this.perform(actions).await;
                this.pass(told)?;
                if ticks.is_multiple_of(TICKS_PER_DUMP) || !this.complete {
                    this.look().await?;
                    this.want_gateways().await
                } else {
                    Ok(())
                }
            }
            _ = &mut connection => return Err(NetlinkError::Ended),
        };
        this.pass(done)?;
        if this.judge_gateways() {
            // Another one may do.
            routes_due.get_or_insert_with(|| time::Instant::now() + ROUTES_QUIET);
        }
    }
}

/// Whether an error ends the task: there is nobody to ask, or nobody to tell. At the start also
/// what would not pass by itself: nothing is served yet.
fn ends(error: &NetlinkError, looked: bool) -> bool {
    match error {
        NetlinkError::Ended | NetlinkError::Worker(WorkerError::Gone) => true,
        NetlinkError::Late => false,
        NetlinkError::Open(_)
        | NetlinkError::Read { .. }
        | NetlinkError::Worker(WorkerError::Stuck) => !looked,
    }
}

fn is_route(message: &RouteNetlinkMessage) -> bool {
    matches!(message, RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_))
}

impl Neighbours {
    /// Goes on behind what may pass.
    fn pass(&mut self, done: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
        match done {
            Err(error) if ends(&error, self.looked) => return Err(error),
            Err(error) if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) => {
                self.warned = Some(time::Instant::now());
                warn!(%error, "routes and neighbours stay as they were for now");
            }
            Ok(()) | Err(_) => {}
        }
        Ok(())
    }

    async fn event(&mut self, message: &RouteNetlinkMessage) -> Result<(), NetlinkError> {
        match message {
            RouteNetlinkMessage::NewNeighbour(neighbour) => {
                let seen = messages::neighbour(neighbour, self.place.ifindex);
                // While nothing can be sent, that nobody answered says nothing of him.
                let says =
                    |&(_, sight): &(_, FlowLookup)| self.is_up() || sight != FlowLookup::Unknown;
                if let Some((address, sight)) = seen.filter(says) {
                    let actions = self.table.see(address, sight);
                    self.perform(actions).await?;
                }
            }
            RouteNetlinkMessage::DelNeighbour(neighbour) => {
                if let Some((address, _)) = messages::neighbour(neighbour, self.place.ifindex) {
                    let actions = self.table.let_go(address);
                    self.perform(actions).await?;
                }
            }
            RouteNetlinkMessage::NewLink(link) if messages::is_of(link, self.place.ifindex) => {
                self.link(Some(messages::link(link))).await?;
            }
            RouteNetlinkMessage::DelLink(link) if messages::is_of(link, self.place.ifindex) => {
                self.link(None).await?;
            }
            _ => {}
        }
        Ok(())
    }

    fn is_up(&self) -> bool {
        self.health.link_up.load(Ordering::Relaxed)
    }

    /// The kernel says this of the interface; nothing, if it is gone.
    async fn link(&mut self, link: Option<Link>) -> Result<(), NetlinkError> {
        if let Some(mtu) = link.and_then(|link| link.mtu) {
            self.judge_mtu(mtu);
        }
        if let Some(mac) = link.and_then(|link| link.mac)
            && mac != self.place.mac
        {
            info!(%mac, "the interface has another hardware address");
            let steerer = self.steerer.clone();
            aside(move || steerer.set_mac(mac)).await;
            self.place.mac = mac;
        }
        let up = link.is_some_and(|link| link.up);
        if self.is_up() == up && !self.link_untold {
            return Ok(());
        }
        self.link_untold = true;
        self.workers.tell(Notice::Link(up)).await?;
        self.link_untold = false;
        if self.health.link_up.swap(up, Ordering::Relaxed) == up {
            return Ok(());
        }
        self.health.link_changes.fetch_add(1, Ordering::Relaxed);
        if up {
            info!("the interface is up again");
            let actions = self.table.link_up();
            return self.perform(actions).await;
        }
        if link.is_some() {
            warn!("the interface is down: no traffic until it is up again");
        } else {
            warn!("the interface is gone");
        }
        Ok(())
    }

    /// Buffers and segment sizes are those of the start.
    fn judge_mtu(&self, mtu: u32) {
        let start = self.place.mtu;
        let problem = (mtu != start).then(|| {
            format!(
                "the interface's MTU is {mtu}, it was {start} at the start: restart the dataplane"
            )
        });
        let health = &self.health.mtu_problem;
        let mut known = health.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = &problem
            && *known != Some(problem.clone())
        {
            warn!("{problem}");
        }
        *known = problem;
    }

    async fn perform(&mut self, actions: Vec<Action>) -> Result<(), NetlinkError> {
        let mut actions = actions.into_iter();
        while let Some(action) = actions.next() {
            match action {
                Action::Tell(address, mac) => {
                    debug!(%address, mac = ?mac.map(|m| m.to_string()), "neighbour");
                    let told = self.workers.tell(Notice::Neighbour(address, mac)).await;
                    if let Err(error) = told {
                        self.table.untold(address);
                        actions.for_each(|left| {
                            if let Action::Tell(address, _) = left {
                                self.table.untold(address);
                            }
                        });
                        return Err(error.into());
                    }
                }
                Action::Resolve(address) => {
                    self.health.resolutions.fetch_add(1, Ordering::Relaxed);
                    kernel::resolve(&self.handle, self.place.ifindex, address).await;
                }
                Action::ResolveAnew(address) => {
                    self.health.resolutions.fetch_add(1, Ordering::Relaxed);
                    kernel::forget(&self.handle, self.place.ifindex, address).await;
                    kernel::resolve(&self.handle, self.place.ifindex, address).await;
                }
            }
        }
        Ok(())
    }

    /// Reads all that events tell of, at the start and in case that some were lost.
    async fn look(&mut self) -> Result<(), NetlinkError> {
        let link = self.read_link().await;
        // While it is down the kernel knows none, which says nothing of them.
        let neighbours = if self.is_up() { self.read_neighbours().await } else { Ok(()) };
        let routes = self.read_routes().await;
        let good = link.is_ok() && neighbours.is_ok() && routes.is_ok();
        for read in [link, neighbours, routes] {
            self.pass(read)?;
        }
        self.complete |= good;
        Ok(())
    }

    async fn read_link(&mut self) -> Result<(), NetlinkError> {
        self.link(kernel::link(self.place.ifindex).await?).await
    }

    async fn read_neighbours(&mut self) -> Result<(), NetlinkError> {
        let found = kernel::neighbours(self.place.ifindex).await?;
        let all = found.into_iter().filter(|(_, sight)| *sight != FlowLookup::Unknown).collect();
        let actions = self.table.see_all(&all);
        self.perform(actions).await
    }

    async fn read_routes(&mut self) -> Result<(), NetlinkError> {
        let answers = |router| self.table.sight(router) != FlowLookup::Unknown;
        let routes = in_order(kernel::routes(self.place).await?, answers);
        if routes == self.routes && !self.routes_untold {
            self.health.routes_read.store(true, Ordering::Relaxed);
            return Ok(());
        }
        info!(routes = routes.len(), "routes changed");
        let (given, steerer) = (routes.clone(), self.steerer.clone());
        let made = aside(move || {
            let made = Routes::new(&given);
            steerer.set_sources(made.sources());
            made
        });
        self.routes_untold = true;
        self.workers.routes(&made.await).await?;
        self.routes_untold = false;
        self.routes = routes;
        self.health.routes_read.store(true, Ordering::Relaxed);
        self.want_gateways().await
    }

    async fn want_gateways(&mut self) -> Result<(), NetlinkError> {
        let routers: Vec<IpAddr> = routers(&self.routes).collect();
        for router in routers {
            let actions = self.table.want(router);
            self.perform(actions).await?;
        }
        Ok(())
    }

    /// Whether one is silent since the last time.
    fn judge_gateways(&self) -> bool {
        let resolved =
            gateways(&self.routes).all(|router| self.table.sight(router) != FlowLookup::Unknown);
        let known = &self.health.gateway_resolved;
        known.swap(resolved, Ordering::Relaxed) && !resolved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_ends_nothing_once_connections_are_served() {
        let read =
            || NetlinkError::Read { table: "routes", source: rtnetlink::Error::RequestFailed };
        let open = || NetlinkError::Open(io::Error::from_raw_os_error(24));
        // EMFILE, a dump that failed, a worker that is stuck; at the start they end it.
        for error in [open(), read(), WorkerError::Stuck.into()] {
            assert!(!ends(&error, true), "{error}");
            assert!(ends(&error, false), "{error}");
        }
        assert!(!ends(&NetlinkError::Late, false));
        for error in [NetlinkError::Ended, WorkerError::Gone.into()] {
            assert!(ends(&error, true), "{error}");
        }
    }
}
