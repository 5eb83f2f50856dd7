//! Runs the steps of a case against an engine, and says what each of them led to.
//!
//! Owns the order and the words of results: `<` a frame of the engine's own making, `=` the verdict
//! and the rewritten frame, `~` what the pods' kernels and adopters were asked and said, `+`
//! counters, `:` rows taken, `@` flows. The engine runs in the world of the harness that all its
//! tests share.

use super::{
    cases::Case,
    frames,
    names::Names,
    options::key_bytes,
    words::{self, Ambient},
};
use crate::common::{Dest, Listener, Sent, World};
use baton_engine::{Instant, Verdict};
use baton_packet::{AdoptionKey, Decoded, decode};
use std::collections::BTreeMap;

/// Room in a frame's buffer, beyond the largest packet.
const BUFFER_BYTES: usize = 70_000;

/// What a step led to.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub lines: Vec<String>,
    /// Rows taken, as `State + Event`.
    pub rows: Vec<String>,
    /// Counters that grew.
    pub counters: Vec<String>,
    /// State of the flow of `client` before and after.
    pub before: Option<String>,
    pub after: Option<String>,
    pub transmitted: bool,
}

pub struct Scene {
    pub w: World,
    pub names: Names,
    ambient: Ambient,
    /// Questions and probes since the step began: who, what they said, how often.
    asked: Vec<(String, u64)>,
    /// Own frames since the step began.
    left: Vec<String>,
    began: Instant,
}

type Counts = BTreeMap<(String, String), u64>;

impl Scene {
    /// A scene in the world that the words of these cases say.
    pub fn new(chain: &[&Case]) -> Result<Self, String> {
        let said = chain.iter().flat_map(|c| &c.world);
        let (settings, policy, ambient, v6) = words::world(said)?;
        let mut w = World::unprobed(settings, policy);
        w.more_keys = (0..16).map(|epoch| AdoptionKey::from_bytes(key_bytes(epoch))).collect();
        if ambient.probed {
            w.poll();
        }
        let began = w.now;
        Ok(Self { w, names: Names::new(v6), ambient, asked: Vec::new(), left: Vec::new(), began })
    }

    /// Does what the step says.
    pub fn step(&mut self, act: &str) -> Result<Seen, String> {
        let (counts, rows) = (self.counts(), self.rows());
        let before = self.state();
        (self.began, self.asked, self.left) = (self.w.now, Vec::new(), Vec::new());
        let mut verdict = None;
        if let Some(frame) = act.strip_prefix("> ") {
            verdict = Some(self.frame(frame)?);
        } else if let Some(time) = act.strip_prefix("wait ") {
            self.wait(words::duration_us(time)?);
        } else if let Some(command) = act.strip_prefix("do ") {
            words::command(command, &mut self.w, &mut self.names)?;
        }
        self.w.engine.check_invariants();
        let mut seen = Seen {
            transmitted: verdict.as_deref().is_some_and(|v| v.starts_with("transmit")),
            before,
            ..Seen::default()
        };
        seen.lines = self.left.iter().map(|f| format!("< {f}")).collect();
        seen.lines.extend(verdict.map(|v| format!("= {v}")));
        let asked = self.asked.iter().map(|(who, times)| times_text(who, *times));
        let asked: Vec<_> = asked.collect();
        if !asked.is_empty() {
            seen.lines.push(format!("~ {}", asked.join(", ")));
        }
        for (key, count) in self.counts() {
            let more = count - counts.get(&key).copied().unwrap_or_default();
            if more > 0 {
                seen.counters.push(format!("{}{} {more}", key.0, key.1));
            }
        }
        if !seen.counters.is_empty() {
            seen.lines.push(format!("+ {}", seen.counters.join(", ")));
        }
        let mut taken = Vec::new();
        for ((state, event), count) in self.rows() {
            let more = count - rows[&(state, event)];
            if more > 0 {
                seen.rows.push(format!("{state} + {event}"));
                taken.push(times_text(&format!("{state} + {event}"), more));
            }
        }
        if !taken.is_empty() {
            seen.lines.push(format!(": {}", taken.join(", ")));
        }
        seen.after = self.state();
        let flows = self.flows();
        seen.lines.push(format!("@ {flows}"));
        Ok(seen)
    }

    fn frame(&mut self, text: &str) -> Result<String, String> {
        let frame = frames::bytes(text, &mut self.names)?;
        let mut buffer = frame.clone();
        buffer.resize(BUFFER_BYTES, 0x5a);
        self.w.call_frame(&mut buffer, frame.len());
        let verdict = self.w.verdict;
        self.collect();
        Ok(match verdict {
            Verdict::Transmit(len) => {
                independently_right(&buffer[..len]);
                self.checked(&buffer[..len]);
                format!("transmit {}", frames::text(&buffer[..len], &mut self.names))
            }
            Verdict::Drop(reason) => format!("drop {}", reason.label()),
            Verdict::Absorbed => "absorbed".into(),
        })
    }

    /// Lets time pass, polling at every deadline.
    fn wait(&mut self, us: u64) {
        let end = Instant(self.w.now.0 + us);
        let poll = |scene: &mut Self| {
            scene.w.call_poll();
            scene.collect();
        };
        while let Some(at) = self.w.engine.next_deadline().filter(|at| *at <= end) {
            self.w.now = self.w.now.max(at);
            poll(self);
        }
        self.w.now = end;
        poll(self);
    }

    /// Takes what left: questions and probes are answered by the pods, the rest is noted.
    fn collect(&mut self) {
        for frame in self.w.out.take() {
            independently_right(&frame);
            let sent = self.checked(&frame).expect("own frames are segments");
            if self.ambient.questions && sent.is_question() {
                self.note_question(&sent);
            } else if self.ambient.probes && sent.is_probe() {
                self.note_probe(&sent);
            } else {
                let text = frames::text(&frame, &mut self.names);
                let at_us = self.w.now.0 - self.began.0;
                self.left.push(match at_us {
                    0 => text,
                    us => format!("[{}] {text}", words::duration_text(us)),
                });
            }
        }
    }

    /// A frame that left, with its checksums and addresses checked by the harness; ICMP is looked
    /// at elsewhere.
    fn checked(&self, frame: &[u8]) -> Option<Sent> {
        matches!(decode(frame), Ok(Decoded::Tcp(_))).then(|| self.w.check(frame))
    }

    fn note_asked(&mut self, what: String) {
        match self.asked.iter_mut().find(|(who, _)| *who == what) {
            Some((_, times)) => *times += 1,
            None => self.asked.push((what, 1)),
        }
    }

    fn note_question(&mut self, question: &Sent) {
        let Dest::Pod(index) = question.to else { panic!("a question to a client") };
        let said = match self.w.listeners[index] {
            Listener::Listens => "listens",
            Listener::Refuses => "refuses",
            Listener::Silent => "silent",
        };
        let pod = self.names.pod_name(index);
        self.note_asked(format!("question {pod} {said}"));
        self.w.kernel_answers(question);
    }

    fn note_probe(&mut self, probe: &Sent) {
        let Dest::Pod(index) = probe.to else { panic!("a probe to a client") };
        let reason = self.w.adopters[index];
        let pod = self.names.pod_name(index);
        let said = reason.map_or("silent", |r| r.label());
        self.note_asked(format!("probe {pod} {said}"));
        self.w.probed(probe);
    }

    fn counts(&self) -> Counts {
        let counters = self.w.engine.counters().map(|(name, label, value)| {
            let label = label.map(|(key, value)| format!("{{{key}={value}}}"));
            ((name.to_owned(), label.unwrap_or_default()), value)
        });
        let mut counts = Counts::new();
        for (key, value) in counters {
            *counts.entry(key).or_default() += value;
        }
        counts
    }

    fn rows(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let rows = self.w.engine.transitions();
        rows.map(|(s, e, n)| ((s, e), n)).collect()
    }

    fn state(&self) -> Option<String> {
        let flow = self.w.flow(self.names.client(1), |_| true);
        flow.map(|f| f.state)
    }

    /// The flows of named clients one by one, the others by state.
    fn flows(&mut self) -> String {
        let (flows, _) = self.w.engine.flows(self.w.now, 0, usize::MAX);
        let frontend = crate::common::frontend(self.names.v6);
        let (mut named, mut others) = (Vec::new(), BTreeMap::<String, u64>::new());
        for f in flows {
            let purpose = super::names::Purpose::Leg;
            let client = self.names.place_name(f.client, frontend, purpose);
            if !client.starts_with("client") {
                *others.entry(f.state).or_default() += 1;
                continue;
            }
            let index = f.backend.split('-').nth(1).and_then(|n| n.parse().ok());
            let owner = match index {
                Some(index) if f.port != 0 => {
                    let leg = self.names.port_name(index, f.port, purpose);
                    format!("at {} on {leg}", self.names.pod_name(index))
                }
                _ => "without a leg".into(),
            };
            let moves = match f.migrations {
                0 => String::new(),
                n => format!(", moved {n}"),
            };
            let pinned = f.pinned.map_or(String::new(), |p| format!(", pinned {p}"));
            named.push(format!("{client} {} {owner}{moves}{pinned}", f.state));
        }
        named.sort_unstable();
        named.extend(others.iter().map(|(state, n)| format!("others {state} x{n}")));
        if named.is_empty() {
            return "no flow".into();
        }
        named.join("; ")
    }
}

fn times_text(what: &str, times: u64) -> String {
    match times {
        1 => what.to_owned(),
        n => format!("{what} x{n}"),
    }
}

/// Asserts that etherparse, which shares no code with us, finds the same packet and right
/// checksums.
fn independently_right(frame: &[u8]) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let packet = SlicedPacket::from_ethernet(frame).expect("a packet");
    let transport = packet.transport.expect("a transport header");
    match (packet.net.expect("a network header"), transport) {
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            let sum = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload());
            assert_eq!(sum.ok(), Some(tcp.checksum()));
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header().to_header();
            let sum = tcp.to_header().calc_checksum_ipv6(&header, tcp.payload());
            assert_eq!(sum.ok(), Some(tcp.checksum()));
        }
        (NetSlice::Ipv4(ip), TransportSlice::Icmpv4(icmp)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            let sum = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(sum, icmp.checksum());
        }
        (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
            let header = ip.header().to_header();
            assert!(icmp.is_checksum_valid(header.source, header.destination));
        }
        other => panic!("an unexpected packet: {other:?}"),
    }
}
