//! Packets at full rate into the dataplane, of connections that real kernels opened.
//!
//! Owns the frames that are sent, and the numbers of a run. The program (`bpf/blast.bpf.c`) writes
//! numbers and checksums; what it sends never reaches a pod or a client, and once it ran these
//! connections are of no more use.

use crate::{node::lab::Lab, timing::packet_socket::PacketSocket};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, ProgramInput, libbpf_sys};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

/// Connections at most, `FLOWS` of the program.
const FLOWS_MAX: usize = 256;
/// Ethernet, IPv4, TCP with timestamps.
const HEAD: usize = 66;
/// Frames of one call into the kernel: some tenths of a second.
const AT_ONCE: u32 = 200_000;
const BUFFER_BYTES: usize = 16 << 20;
/// How long acknowledgements may take: a kernel delays them by up to 200 ms (`TCP_DELACK_MAX`).
const ACKED_DEADLINE: Duration = Duration::from_secs(5);

/// Forces cargo's include to be aligned as the ELF reader of libbpf needs it.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/blast.bpf.o")));

type Head = [u8; HEAD];

/// Notes the frames of the connections that open meanwhile.
#[derive(Debug)]
pub struct Overheard(PacketSocket);

/// What a run sent and what came back of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blasted {
    /// Frames to the dataplane.
    pub sent: u64,
    /// Frames from there.
    pub back: u64,
    /// How long it took.
    pub took: Duration,
}

impl Lab {
    /// Begins to note what goes to the dataplane.
    ///
    /// # Errors
    /// Without CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn overhear(&self) -> Result<Overheard> {
        let name = self.dataplane_pod().name();
        PacketSocket::open(self.router(), name, BUFFER_BYTES).map(Overheard)
    }
}

impl Overheard {
    /// Sends for so long for the `count` connections that were opened since, of which each got part
    /// of a response from `port`: their next segments carry `length` bytes.
    ///
    /// # Errors
    /// Fewer were seen, or the kernel refuses the programs (Linux 5.18 is needed).
    pub fn blast(
        self,
        lab: &Lab,
        (port, count): (u16, usize),
        length: u16,
        time: Duration,
    ) -> Result<Blasted> {
        ensure!(count <= FLOWS_MAX, "{count} connections are too many");
        let deadline = Instant::now() + ACKED_DEADLINE;
        let mut heads = BTreeMap::new();
        let pairs = loop {
            self.0.read(|received, frame| {
                if received.outgoing {
                    note(&mut heads, frame);
                }
            })?;
            let pairs = pairs(&heads, port);
            if pairs.len() == count {
                break pairs;
            }
            let late = Instant::now() > deadline;
            ensure!(!late, "{} of {count} responses are acknowledged", pairs.len());
            thread::sleep(Duration::from_millis(1));
        };
        let name = lab.dataplane_pod().name().to_owned();
        let work = || run(&pairs, &name, length, time);
        lab.router().namespace().run(work)?
    }
}

/// The newest heads by their ends, each with how much data was behind it.
type Heads = BTreeMap<[u8; 12], (Head, u32)>;

fn note(heads: &mut Heads, frame: &[u8]) {
    let Some(head) = frame.first_chunk::<HEAD>() else {
        return;
    };
    // IPv4 and TCP with nothing but timestamps, and neither SYN, FIN nor RST.
    let plain = head[12..15] == [8, 0, 0x45] && head[23] == 6 && head[46] == 0x80;
    if plain
        && head[47] & 7 == 0
        && let Some(ends) = head[26..].first_chunk()
    {
        let total = u32::from(u16::from_be_bytes([head[16], head[17]]));
        heads.insert(*ends, (*head, total.saturating_sub(52)));
    }
}

fn be32(head: &Head, at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// Heads of a server's segment and of its client's acknowledgement, with the number of the server's
/// next byte: numbers are not translated.
fn pairs(heads: &Heads, port: u16) -> Vec<(Head, Head, u32)> {
    let of_client = |head: &Head| head[36..38] == port.to_be_bytes();
    let servers = heads.values().filter(|(head, _)| !of_client(head));
    let ends = servers.map(|(head, data)| (be32(head, 38).wrapping_add(*data), *head));
    let ends: BTreeMap<u32, Head> = ends.collect();
    let clients = heads.values().filter(|(head, _)| of_client(head));
    clients
        .filter_map(|(head, _)| {
            let next = be32(head, 42);
            Some((*ends.get(&next)?, *head, next))
        })
        .collect()
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]]))).sum()
}

/// A head for frames with so much data, all zeros, and what its checksum needs but the number at
/// `number_at`.
fn template(head: &Head, length: u16, number_at: usize) -> (Head, u32) {
    let mut head = *head;
    head[16..18].copy_from_slice(&(52 + length).to_be_bytes());
    head[24..26].fill(0);
    let mut folded = sum(&head[14..34]);
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    head[24..26].copy_from_slice(&(!(folded as u16)).to_ne_bytes());
    // ACK alone.
    head[47] = 0x10;
    head[number_at..number_at + 4].fill(0);
    head[50..52].fill(0);
    let pseudo = [sum(&head[26..34]), u32::from(6u16.to_be())];
    let segment = [u32::from((32 + length).to_be()), sum(&head[34..])];
    (head, pseudo.iter().chain(&segment).sum())
}

/// A `struct flow`.
fn flow(segment: &Head, ack: &Head, next: u32, length: u16) -> Vec<u8> {
    let (segment, segment_sum) = template(segment, length, 38);
    let (ack, ack_sum) = template(ack, 0, 42);
    let mut value = [segment, ack].concat();
    for number in [next, segment_sum, ack_sum] {
        value.extend(number.to_ne_bytes());
    }
    value
}

/// Loads the programs, sends on this thread, and counts at the interface meanwhile.
fn run(pairs: &[(Head, Head, u32)], name: &str, length: u16, time: Duration) -> Result<Blasted> {
    let object = ObjectBuilder::default()
        .name("blast")?
        .open_memory(&OBJECT.0)?
        .load()
        .context("loading the packet generator")?;
    let map = |name: &str| {
        let map = object.maps().find(|m| m.name() == name);
        map.with_context(|| format!("no map `{name}`"))
    };
    let program = |name: &str| {
        let program = object.progs_mut().find(|p| p.name() == name);
        program.with_context(|| format!("no program `{name}`"))
    };
    for (slot, (segment, ack, next)) in (0u32..).zip(pairs) {
        let value = flow(segment, ack, *next, length);
        map("flows")?.update(&slot.to_ne_bytes(), &value, MapFlags::ANY)?;
    }
    // `struct run`.
    let mut value = [pairs.len() as u32, u32::from(length)].map(u32::to_ne_bytes).concat();
    value.extend([0; 16]);
    map("run")?.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
    let flags = SocketFlags::CLOEXEC;
    let any = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    let interface = name_to_index(&any, name)?;
    let _attached = program("sink")?.attach_xdp(interface.cast_signed())?;
    let blast = program("blast")?;
    let frame = vec![0; HEAD + usize::from(length)];
    let begun = Instant::now();
    while begun.elapsed() < time {
        // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index,
        // egress_ifindex.
        let context = [0, frame.len() as u32, 0, interface, 0, 0];
        let mut context: Vec<u8> = context.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&frame),
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            repeat: AT_ONCE,
            ..ProgramInput::default()
        };
        blast.test_run(input).context("sending live frames")?;
    }
    let took = begun.elapsed();
    let value = map("run")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    let value = value.unwrap_or_default();
    let number = |at: usize| {
        let bytes = value.get(at..at + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    Ok(Blasted { sent: number(8), back: number(16), took })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_found_by_the_number_that_it_acknowledges() {
        let head = |port: u16, seq: u32, ack: u32| {
            let mut head = [0; HEAD];
            head[36..38].copy_from_slice(&port.to_be_bytes());
            head[38..42].copy_from_slice(&seq.to_be_bytes());
            head[42..46].copy_from_slice(&ack.to_be_bytes());
            head
        };
        let server = head(20_001, 1_000, 7);
        let client = head(80, 7, 1_050);
        let heads = [(server, 50), (client, 0), (head(80, 9, 1_051), 0)];
        let heads = (0..).zip(heads).map(|(n, head)| ([n; 12], head)).collect();
        assert_eq!(pairs(&heads, 80), [(server, client, 1_050)]);
    }

    #[test]
    fn a_templates_checksums_are_right_once_the_number_is_there() {
        let mut head = [0; HEAD];
        for (at, byte) in head.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let (mut head, sum_of) = template(&head, 2, 38);
        let fold = |mut sum: u32| {
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            sum as u16
        };
        assert_eq!(fold(sum(&head[14..34])), 0xffff);
        head[38..42].copy_from_slice(&[1, 2, 3, 4]);
        let total = fold(sum_of + sum(&head[38..42]));
        head[50..52].copy_from_slice(&(!total).to_ne_bytes());
        let pseudo = sum(&head[26..34]) + u32::from(6u16.to_be()) + u32::from(34u16.to_be());
        assert_eq!(fold(pseudo + sum(&head[34..])), 0xffff);
    }
}
