//! Requests to the kernel over rtnetlink: what it lists, and that it resolves a neighbour.
//!
//! Owns how long its answers are waited for. Keeps nothing, and never listens to events.

use super::{
    NetlinkError, Place,
    addresses::Addresses,
    messages::{self, Link, Rank, Sources},
    table::FlowLookup,
};
use baton_engine::Route;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use rtnetlink::{
    Handle,
    packet_core::ErrorMessage,
    packet_route::{
        AddressFamily,
        address::AddressMessage,
        neighbour::{NeighbourFlags, NeighbourState},
        route::RouteMessage,
    },
};
use rustix::io::Errno;
use std::{net::IpAddr, time::Duration};
use tokio::time;
use tracing::{debug, warn};

/// The kernel answers a request within the call that sends it. After this long its answer is lost,
/// as happens while the socket is full of events.
const ANSWER_LIMIT: Duration = Duration::from_millis(100);
/// One table of the kernel is read within this.
pub const READ_LIMIT: Duration = Duration::from_secs(2);
/// The kernel asks for a second by default, after as much by chance, whether an IPv6 address is
/// somebody else's (`dad_transmits`), and does not use it meanwhile.
const TENTATIVE_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at that.
const TENTATIVE_LOOK: Duration = Duration::from_millis(100);

/// The global addresses of an interface, IPv4 first. Waits for those that are not settled, if all
/// are `wanted` (none is named) or these are among them: what is left out at the start is left out
/// for ever.
///
/// # Errors
/// Netlink cannot be used.
pub async fn interface_addresses(
    ifindex: u32,
    wanted: &[IpAddr],
) -> Result<Addresses, NetlinkError> {
    let until = time::Instant::now() + TENTATIVE_LIMIT;
    loop {
        let mut found: Addresses = ask(|handle| async move {
            dump_addresses(&handle)
                .try_fold(Addresses::default(), async |mut found, message| {
                    found.note(&message, ifindex);
                    Ok(found)
                })
                .await
        })
        .await?;
        found.lasting.sort_by_key(IpAddr::is_ipv6);
        let mut tentative = found.tentative.clone();
        tentative.retain(|address| wanted.is_empty() || wanted.contains(address));
        if tentative.is_empty() {
            return Ok(found);
        }
        if time::Instant::now() >= until {
            warn!(
                ?tentative,
                "the kernel still asks whether these addresses are somebody else's: they are not used"
            );
            return Ok(found);
        }
        time::sleep(TENTATIVE_LOOK).await;
    }
}

/// The index of the interface that the best default route leads through, IPv4's before IPv6's;
/// `None` if there is none.
///
/// # Errors
/// Netlink cannot be used.
pub async fn default_interface() -> Result<Option<u32>, NetlinkError> {
    let mut routes: Vec<_> = ask(|handle| async move {
        dump_routes(&handle)
            .try_filter_map(async |message| Ok(messages::default_route(&message)))
            .try_collect()
            .await
    })
    .await?;
    routes.sort_unstable();
    Ok(routes.first().map(|(.., interface)| *interface))
}

/// Reads from the kernel on a socket of its own, where no event can push out an answer and no
/// earlier dump is still under way.
async fn ask<T, F>(read: impl FnOnce(Handle) -> F) -> Result<T, NetlinkError>
where
    F: Future<Output = Result<T, NetlinkError>>,
{
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Open)?;
    let connection = tokio::spawn(connection);
    let found = time::timeout(READ_LIMIT, read(handle)).await;
    connection.abort();
    found.unwrap_or(Err(NetlinkError::Late))
}

fn dump_addresses(handle: &Handle) -> impl Stream<Item = Result<AddressMessage, NetlinkError>> {
    let dump = handle.address().get().execute();
    dump.map_err(|source| NetlinkError::Read { table: "addresses", source })
}

/// All routes of both families, one after the other: the kernel refuses a second dump on a socket
/// while the first is under way (EBUSY, `__netlink_dump_start`).
fn dump_routes(handle: &Handle) -> impl Stream<Item = Result<RouteMessage, NetlinkError>> {
    stream::iter([AddressFamily::Inet, AddressFamily::Inet6])
        .flat_map(|family| {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            handle.route().get(request).execute().boxed()
        })
        .map_err(|source| NetlinkError::Read { table: "routes", source })
}

/// Our interface; `None` if it is gone.
pub async fn link(ifindex: u32) -> Result<Option<Link>, NetlinkError> {
    ask(|handle| async move {
        let mut found = handle.link().get().match_index(ifindex).execute();
        match found.try_next().await {
            Ok(link) => Ok(link.as_ref().map(messages::link)),
            Err(rtnetlink::Error::NetlinkError(error)) if is_gone(&error) => Ok(None),
            Err(source) => Err(NetlinkError::Read { table: "interfaces", source }),
        }
    })
    .await
}

fn is_gone(error: &ErrorMessage) -> bool {
    error.raw_code() == -Errno::NODEV.raw_os_error()
}

/// The neighbours on our interface.
pub async fn neighbours(ifindex: u32) -> Result<Vec<(IpAddr, FlowLookup)>, NetlinkError> {
    ask(|handle| async move {
        let dump = handle.neighbours().get().execute();
        dump.try_filter_map(async |message| Ok(messages::neighbour(&message, ifindex)))
            .try_collect()
            .await
            .map_err(|source| NetlinkError::Read { table: "neighbours", source })
    })
    .await
}

/// The routes, each with its rank.
pub async fn routes(place: Place) -> Result<Vec<(Rank, Route)>, NetlinkError> {
    ask(|handle| async move {
        let mut sources = Sources::new();
        if place.host {
            let mut addresses = dump_addresses(&handle);
            while let Some(message) = addresses.try_next().await? {
                messages::note_source(&mut sources, &message);
            }
        }
        dump_routes(&handle)
            .try_fold(Vec::new(), async |mut all, message| {
                all.extend(messages::route(&message, place, &sources));
                Ok(all)
            })
            .await
    })
    .await
}

/// Makes the kernel resolve or confirm, as if it had a packet to send there.
pub async fn resolve(handle: &Handle, ifindex: u32, address: IpAddr) {
    let request = handle
        .neighbours()
        .add(ifindex, address)
        .state(NeighbourState::None)
        .flags(NeighbourFlags::Use)
        .replace();
    match time::timeout(ANSWER_LIMIT, request.execute()).await {
        Ok(Ok(())) => {}
        // It is asked again with the next tick; the link may be down.
        Ok(Err(error)) => debug!(%address, %error, "the kernel does not resolve a neighbour"),
        Err(_) => debug!(%address, "the kernel's answer about a neighbour was lost"),
    }
}

/// Has the kernel forget what it knows of a neighbour and what it waits for, if anything.
pub async fn forget(handle: &Handle, ifindex: u32, address: IpAddr) {
    let add = handle.neighbours().add(ifindex, address);
    let message = { add }.message_mut().clone();
    let request = handle.neighbours().del(message);
    if time::timeout(ANSWER_LIMIT, request.execute()).await.is_err() {
        debug!(%address, "the kernel's answer about a neighbour was lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future, net::Ipv4Addr};

    #[tokio::test(start_paused = true)]
    async fn an_answer_of_the_kernel_that_was_lost_is_not_waited_for() {
        // Nobody serves this connection.
        let (_connection, handle, _) = rtnetlink::new_connection().expect("a socket");
        let asked = resolve(&handle, 1, IpAddr::V4(Ipv4Addr::LOCALHOST));
        time::timeout(READ_LIMIT, asked).await.expect("in time");
        let read = ask(|_| future::pending::<Result<(), _>>());
        let read = time::timeout(READ_LIMIT * 2, read).await.expect("in time");
        assert!(matches!(read, Err(NetlinkError::Late)));
    }
}
