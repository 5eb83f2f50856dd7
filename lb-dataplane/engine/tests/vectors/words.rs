//! The words in which cases say their world and what people and pods do in it.
//!
//! Owns their meaning only; the world itself is the harness's.

use super::{names::Names, options::key_bytes};
use crate::common::{
    Conn, Listener, World, conn::*, endpoint, pod, pod_mac, pod_name, policy, router, settings,
};
use baton_api::{
    Affinity, BackendFailure, ClientAddress, ClientIp, Legs, Micros, MigrationMode, MoveMethod,
    OnDeadline, OnStall, Policy, Protocol,
};
use baton_engine::{DropReason, Route, Settings, Verdict, Via};
use baton_packet::{AdoptionKey, Flags, Reason};
use std::net::Ipv4Addr;

/// What the scene does by itself.
pub struct Ambient {
    /// Pods answer probes, and neither is shown frame by frame.
    pub probes: bool,
    /// Likewise questions to listeners.
    pub questions: bool,
    /// The first probes were answered before the case begins.
    pub probed: bool,
}

/// First client port of the connections that are not named.
const OTHERS_FROM: u16 = 100;

fn wrong(words: &str) -> String {
    format!("`{words}` means nothing here")
}

pub fn duration_us(text: &str) -> Result<u64, String> {
    let micros: Micros = text.parse().map_err(|e| format!("{e}"))?;
    Ok(micros.0)
}

pub fn duration_text(us: u64) -> String {
    Micros(us).to_string()
}

/// Settings, policy, what is ambient, and whether it is about IPv6, from words such as `pods 3,
/// protocol RESP`. Later ones win.
pub fn world<'a>(
    said: impl Iterator<Item = &'a String>,
) -> Result<(Settings, Policy, Ambient, bool), String> {
    let mut pods = 2;
    let (mut v6, mut other_family) = (false, false);
    let mut rest = Vec::new();
    for words in said.flat_map(|line| line.split(',')).map(str::trim) {
        match *words.split_whitespace().collect::<Vec<_>>() {
            ["pods", n] => pods = n.parse().map_err(|_| wrong(words))?,
            ["ipv6"] => v6 = true,
            ["other-family"] => other_family = true,
            _ => rest.push(words),
        }
    }
    let (mut s, mut p) = (settings(), policy(pods));
    p.backends.retain(|b| b.endpoint.address().is_ipv6() == (v6 != other_family));
    if other_family {
        s.addresses.retain(|address| address.is_ipv6() == v6);
    }
    let mut ambient = Ambient { probes: true, questions: true, probed: true };
    for words in rest {
        match *words.split_whitespace().collect::<Vec<_>>() {
            ["probes", "shown"] => ambient.probes = false,
            ["questions", "shown"] => ambient.questions = false,
            ["unprobed"] => ambient.probed = false,
            ["flows", n] => s.limits.flows = n.parse().map_err(|_| wrong(words))?,
            ["closing-legs", n] => s.limits.closing_legs = n.parse().map_err(|_| wrong(words))?,
            ["kept-segments", n] => s.limits.kept_segments = n.parse().map_err(|_| wrong(words))?,
            ["guarded-flows", n] => s.limits.guarded_flows = n.parse().map_err(|_| wrong(words))?,
            ["resp-sessions", n] => s.limits.resp_sessions = n.parse().map_err(|_| wrong(words))?,
            ["affinities", n] => s.limits.affinities = n.parse().map_err(|_| wrong(words))?,
            ["ports", n] => {
                let last = 40_000 + n.parse::<u16>().map_err(|_| wrong(words))? - 1;
                s.ports = 40_000..=last;
            }
            _ => set_policy(&mut p, words)?,
        }
    }
    Ok((s, p, ambient, v6))
}

/// Changes what one word of a policy says.
fn set_policy(p: &mut Policy, words: &str) -> Result<(), String> {
    let duration = |text: &str| text.parse::<Micros>().map_err(|e| format!("{e}"));
    match *words.split_whitespace().collect::<Vec<_>>() {
        ["protocol", name] => {
            p.protocol = match name {
                "None" => Protocol::None,
                "RequestResponse" => Protocol::RequestResponse,
                "HTTP1" => Protocol::Http1,
                "RESP" => Protocol::Resp,
                "Memcached" => Protocol::Memcached,
                _ => return Err(wrong(words)),
            }
        }
        ["failure", name] => {
            p.on_backend_failure = match name {
                "ReplayIdempotent" => BackendFailure::ReplayIdempotent,
                "Replay" => BackendFailure::Replay,
                "AdoptIdleOnly" => BackendFailure::AdoptIdleOnly,
                "Reset" => BackendFailure::Reset,
                _ => return Err(wrong(words)),
            }
        }
        ["allow", network] => {
            let network = network.parse().map_err(|_| wrong(words))?;
            p.allow_from.get_or_insert_default().push(network);
        }
        ["stall", name] => {
            p.on_stall = match name {
                "Release" => OnStall::Release,
                "Wait" => OnStall::Wait,
                _ => return Err(wrong(words)),
            }
        }
        ["migration", name] => {
            p.migration.mode = match name {
                "Never" => MigrationMode::Never,
                "DrainOnly" => MigrationMode::DrainOnly,
                "WhenBetter" => MigrationMode::WhenBetter,
                "Always" => MigrationMode::Always,
                _ => return Err(wrong(words)),
            }
        }
        ["method", name] => {
            p.migration.method = match name {
                "Auto" => MoveMethod::Auto,
                "Adoption" => MoveMethod::Adoption,
                "Translation" => MoveMethod::Translation,
                _ => return Err(wrong(words)),
            }
        }
        ["legs", name] => {
            p.migration.legs = match name {
                "Private" => Legs::Private,
                "Shared" => Legs::Shared,
                _ => return Err(wrong(words)),
            }
        }
        ["client-address", "Restore"] => p.client_address = ClientAddress::Restore,
        ["client-address", "ProxyV2"] => p.client_address = ClientAddress::ProxyV2,
        ["moves-per-second", n] => {
            p.migration.per_second = n.parse().map_err(|_| wrong(words))?;
        }
        ["moves-per-flow", n] => {
            p.migration.per_flow = n.parse().map_err(|_| wrong(words))?;
        }
        ["moves-per-pod-per-second", n] => {
            p.migration.per_backend_per_second = n.parse().map_err(|_| wrong(words))?;
        }
        ["affinity", time] => {
            let timeout = duration(time)?;
            p.affinity = Some(Affinity { client_ip: ClientIp { timeout } });
        }
        ["failures", n] => p.health.failure_threshold = n.parse().map_err(|_| wrong(words))?,
        ["response-timeout", time] => p.response_timeout = Some(duration(time)?),
        ["idle", time] => p.timeouts.idle = duration(time)?,
        ["handshake", time] => p.timeouts.handshake = duration(time)?,
        ["half-closed", time] => p.timeouts.half_closed = duration(time)?,
        ["drain-quiet", time] => p.drain.quiet = duration(time)?,
        ["drain-deadline", time] => {
            p.drain.deadline = duration(time)?;
            p.drain.on_deadline = OnDeadline::Close;
        }
        ["weight", index, n] => {
            let index: usize = index.parse().map_err(|_| wrong(words))?;
            let backend = p.backends.get_mut(index).ok_or_else(|| wrong(words))?;
            backend.weight = n.parse().map_err(|_| wrong(words))?;
        }
        _ => return Err(wrong(words)),
    }
    Ok(())
}

fn reason(text: &str) -> Result<Option<Reason>, String> {
    if text == "silent" {
        return Ok(None);
    }
    let found = (1..=7).filter_map(Reason::from_code).find(|r| r.label() == text);
    found.map(Some).ok_or_else(|| wrong(text))
}

fn pod_of(name: &str, names: &mut Names) -> Result<usize, String> {
    names.pod(name).ok_or_else(|| wrong(name))
}

/// Does what a `do` step says.
pub fn command(text: &str, w: &mut World, names: &mut Names) -> Result<(), String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let v6 = names.v6;
    match *words {
        ["drain", pod, on @ ("on" | "off")] => {
            let name = pod_name(v6, pod_of(pod, names)?);
            assert_eq!(w.engine.drain(w.now, None, &name, on == "on"), 1);
        }
        ["adopters", "all", said] => w.adopters.fill(reason(said)?),
        ["adopter", pod, said] => w.adopters[pod_of(pod, names)?] = reason(said)?,
        ["listener", pod, said] => {
            w.listeners[pod_of(pod, names)?] = match said {
                "listens" => Listener::Listens,
                "refuses" => Listener::Refuses,
                "silent" => Listener::Silent,
                _ => return Err(wrong(text)),
            }
        }
        ["stop", pod] => w.stops(pod_of(pod, names)?),
        ["start", pod] => w.starts(pod_of(pod, names)?),
        ["vanish", pod] => w.vanishes(pod_of(pod, names)?),
        ["adopters", "forget"] => {
            for told in &mut w.told {
                told.forgets = true;
            }
        }
        ["adopters", "restore"] => {
            for told in &mut w.told {
                (told.marks_exits, told.restores) = (true, true);
            }
        }
        ["applications", "cooperate"] => {
            for told in &mut w.told {
                told.transfers = true;
            }
        }
        ["told", pod, id] => {
            let id = id.parse().map_err(|_| wrong(text))?;
            let told = &mut w.told[pod_of(pod, names)?];
            told.marks_exits = true;
            told.listener = Some(baton_packet::Listener {
                id,
                holders: std::num::NonZeroU8::MIN,
                several: false,
            });
        }
        ["ports", "shared"] => {
            // What is left to the node goes to no pod and no client.
            w.strict = false;
            w.engine.share_ports();
        }
        ["behind", said @ ("on" | "off")] => w.engine.is_behind(said == "on"),
        ["link", said @ ("down" | "up")] => w.engine.set_link(w.now, said == "up"),
        ["frames", "all"] => w.out.free = usize::MAX,
        ["frames", n] => w.out.free = n.parse().map_err(|_| wrong(text))?,
        ["keys", "none"] => w.engine.set_keys(&[]),
        ["keys", epochs] => {
            let keys: Result<Vec<_>, _> = epochs.split(',').map(str::parse).collect();
            let keys = keys.map_err(|_| wrong(text))?;
            let with_key = |e: u8| (e, AdoptionKey::from_bytes(key_bytes(e)));
            w.engine.set_keys(&keys.into_iter().map(with_key).collect::<Vec<_>>());
        }
        ["routes", "to-pods"] => {
            let pods = if v6 { "fd00::" } else { "10.0.0.0" };
            w.engine.set_routes(&[Route {
                prefix: pods.parse().expect("an address"),
                prefix_len: if v6 { 64 } else { 16 },
                via: Via::Link,
            }]);
        }
        ["neighbour", who, known @ ("known" | "unknown")] => {
            let (ip, mac) = if who == "router" {
                (router(v6), crate::common::ROUTER_MAC)
            } else {
                let index = pod_of(who, names)?;
                (pod(v6, index).ip(), pod_mac(index))
            };
            w.engine.set_neighbour(ip, (known == "known").then_some(mac));
        }
        ["remove", pod] => {
            let name = pod_name(v6, pod_of(pod, names)?);
            w.change(|s| s.policies[0].backends.retain(|b| b.name != name));
        }
        ["another-policy"] => w.change(|s| {
            let mut other = s.policies[0].clone();
            other.name = "other".into();
            let at = other.frontends[0].address();
            other.frontends = vec![endpoint(std::net::SocketAddr::new(at, 99))];
            s.policies.push(other);
        }),
        ["remove-policy"] => w.change(|s| s.policies.clear()),
        ["weight", pod, n] => {
            let name = pod_name(v6, pod_of(pod, names)?);
            let weight = n.parse().map_err(|_| wrong(text))?;
            w.change(|s| {
                let mut backends = s.policies[0].backends.iter_mut();
                backends.find(|b| b.name == name).expect("it is there").weight = weight;
            });
        }
        ["policy", ref words @ ..] => {
            let mut changed = Ok(());
            w.change(|s| changed = set_policy(&mut s.policies[0], &words.join(" ")));
            changed?;
        }
        ["health", who, said @ ("good" | "bad")] => {
            let at = endpoint(pod(v6, pod_of(who, names)?));
            w.engine.set_health(w.now, "web", at, Some(said == "good"));
        }
        ["strays", n] => strays(w, n.parse().map_err(|_| wrong(text))?),
        ["others", n, how] => {
            let n: u16 = n.parse().map_err(|_| wrong(text))?;
            for number in OTHERS_FROM..OTHERS_FROM + n {
                other(w, Conn::of(number, v6), how)?;
            }
        }
        _ => return Err(wrong(text)),
    }
    Ok(())
}

/// Segments of no flow, each answered with a reset.
fn strays(w: &mut World, n: usize) {
    let frame = w.client_wire(&Conn::new(OTHERS_FROM), Flags::ACK, &[]).build();
    for _ in 0..n {
        let mut buffer = frame.clone();
        let verdict = w.engine.frame(w.now, &mut buffer, frame.len(), &mut w.out);
        assert_eq!(verdict, Verdict::Drop(DropReason::NoFlow));
        assert_eq!(w.out.take().len(), 1, "a reset");
    }
}

/// So many segments behind a missing one.
fn early(w: &mut World, c: &Conn, count: u32) {
    for number in 1..=count {
        let mut wire = w.client_wire(c, PSH_ACK, b"x");
        wire.seq = wire.seq.wrapping_add(number);
        w.inject(&wire.build());
    }
}

/// A connection that is not shown, driven by the harness.
fn other(w: &mut World, mut c: Conn, how: &str) -> Result<(), String> {
    let here = how.strip_suffix("-elsewhere");
    if here.is_some() {
        // From a network of its own.
        let ip = Ipv4Addr::from_bits(0x0a40_0000 + u32::from(c.client.port()));
        c.client.set_ip(ip.into());
    }
    let how = here.unwrap_or(how);
    match how {
        "syn" | "late-syn" => {
            if how == "late-syn" {
                c.client.set_port(c.client.port() + 1_000);
            }
            let syn = w.syn_wire(&c).build();
            w.inject(&syn);
        }
        // It leaves a pod that drains, and nothing else does.
        "leaving" => {
            c.client.set_port(c.client.port() + 1_000);
            let mut c = w.idle_as(c);
            let pod = format!("pod-{}", c.pod);
            w.engine.drain(w.now, None, &pod, true);
            w.moves(&mut c, GET);
            w.engine.drain(w.now, None, &pod, false);
        }
        "open" => {
            w.open_as(c);
        }
        "moving" => {
            let mut c = w.idle_as(c);
            w.moves(&mut c, GET);
        }
        "moved" => {
            let mut c = w.idle_as(c);
            w.moves(&mut c, GET);
            w.responds(&mut c, OK);
            w.ack(&mut c);
        }
        // A request of unknown length, of which the new owner has confirmed the beginning.
        "begun" => {
            let mut c = w.idle_as(c);
            w.moves(&mut c, CHUNKED);
            let confirms = w.pod_wire(&c, Flags::ACK, &[]).build();
            w.inject(&confirms);
        }
        // Bytes behind missing ones.
        _ if how.starts_with("early-") => {
            let count = how["early-".len()..].parse().map_err(|_| wrong(how))?;
            let c = w.idle_as(c);
            early(w, &c, count);
        }
        _ => {
            // The same and so many segments behind it, of which nothing is confirmed.
            let segments = how.strip_prefix("upload-").ok_or_else(|| wrong(how))?;
            let mut c = w.idle_as(c);
            w.moves(&mut c, CHUNKED);
            w.data(&mut c, b"fffffff\r\n");
            for _ in 1..segments.parse().map_err(|_| wrong(how))? {
                w.data(&mut c, &[b'x'; 1_000]);
            }
        }
    }
    Ok(())
}
