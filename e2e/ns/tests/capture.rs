//! `lb-dataplane capture` beside real servers: what it writes is what passed, read by another
//! program's reader.

use anyhow::{Context, Result, ensure};
use baton_lab::HttpClient;
use baton_ns::{HTTP_PORT, Scene, until};
use pcap_file::pcapng::{
    Block, PcapNgReader,
    blocks::{enhanced_packet::EnhancedPacketOption, opt_common::CommonOption},
};
use std::{fs, io::Cursor, net::SocketAddr, path::Path, thread};

/// Each moves its connection.
const REQUESTS: usize = 6;
/// The option of adoptions, RFC 4727.
const EXPERIMENT_1: u8 = 253;

/// A captured TCP segment over IPv4.
struct Frame {
    ends: [SocketAddr; 2],
    incoming: bool,
    /// Bytes behind the TCP header that are in the file, and those that were on the wire.
    payload: Vec<u8>,
    payload_bytes: usize,
    adoption: bool,
    comment: String,
}

fn frame(data: &[u8], bytes: usize) -> Result<Frame> {
    let short = || format!("{} bytes of {bytes}", data.len());
    let ip = data.get(14..34).with_context(short)?;
    let l4 = 14 + usize::from(ip[0] & 15) * 4;
    let tcp = data.get(l4..l4 + 20).with_context(short)?;
    let payload = l4 + usize::from(tcp[12] >> 4) * 4;
    let options = data.get(l4 + 20..payload).with_context(short)?;
    let end = 14 + usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let address = |at: usize, port: usize| {
        let octets: [u8; 4] = [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
        let port = u16::from_be_bytes([tcp[port], tcp[port + 1]]);
        SocketAddr::from((octets, port))
    };
    Ok(Frame {
        ends: [address(12, 0), address(16, 2)],
        incoming: false,
        payload: data[payload..].to_vec(),
        payload_bytes: end - payload,
        adoption: options.first() == Some(&EXPERIMENT_1),
        comment: String::new(),
    })
}

/// All frames of a file, and how often the last block says that something is missing.
fn read(path: &Path) -> Result<(Vec<Frame>, usize)> {
    let mut reader = PcapNgReader::new(Cursor::new(fs::read(path)?))?;
    let (mut frames, mut ends) = (Vec::new(), 0);
    while let Some(block) = reader.next_block() {
        match block?.0 {
            Block::EnhancedPacket(packet) => {
                let mut one = frame(&packet.data, packet.original_len as usize)?;
                for option in &packet.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => one.incoming = flags & 3 == 1,
                        EnhancedPacketOption::Common(CommonOption::Comment(text)) => {
                            one.comment = text.to_string();
                        }
                        _ => {}
                    }
                }
                frames.push(one);
            }
            Block::InterfaceStatistics(_) => ends += 1,
            _ => {}
        }
    }
    Ok((frames, ends))
}

/// Requests over two connections, of which one is captured.
fn captured(
    scene: &Scene,
    clients: &mut [HttpClient; 2],
    more: &[&str],
    number: u64,
) -> Result<(Vec<Frame>, SocketAddr)> {
    let own = clients[0].stream().local_addr()?;
    let file = scene.lab.directory().join(format!("capture-{number}"));
    let name = file.display().to_string();
    let own_text = own.to_string();
    let order = ["capture", "--client", &own_text, "--for", "2s", "-w", &name];
    let order = [&order[..], more].concat();
    let dataplane = scene.dataplane()?;
    thread::scope(|scope| -> Result<()> {
        let capture = scope.spawn(|| dataplane.tool(&order));
        until("the capture", || {
            ensure!(scene.counter("captures_total")? == number, "not yet");
            Ok(())
        })?;
        for _ in 0..REQUESTS {
            for client in &mut *clients {
                ensure!(client.get("/")?.body == b"ok", "wrong body");
            }
        }
        capture.join().expect("no panic").map(drop)
    })?;
    let (frames, ends) = read(&file)?;
    ensure!(ends == 1, "{ends} ends");
    Ok((frames, own))
}

#[test]
fn a_capture_shows_both_sides_of_the_chosen_connection_and_its_moves() -> Result<()> {
    let mut scene = Scene::with_pods("capture", 2)?;
    scene.start()?;
    let connect = || -> Result<HttpClient> {
        let namespace = scene.lab.client().namespace();
        let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
        ensure!(client.get("/")?.body == b"ok", "wrong body");
        Ok(client)
    };
    let mut clients = [connect()?, connect()?];
    let frontend = scene.address(HTTP_PORT)?;
    let before = scene.counter("migrations_total")?;

    let (frames, own) = captured(&scene, &mut clients, &[], 1)?;
    let moves = scene.counter("migrations_total")? - before;
    ensure!(moves == 2 * REQUESTS as u64, "{moves} moves");
    let of_client: Vec<&Frame> = frames.iter().filter(|f| f.ends.contains(&own)).collect();
    for frame in &of_client {
        ensure!(frame.ends.contains(&frontend), "{:?}", frame.ends);
        ensure!(frame.incoming == (frame.ends[0] == own), "{:?}", frame.ends);
    }
    let asked = of_client.iter().filter(|f| f.incoming && f.payload_bytes > 0).count();
    ensure!(asked == REQUESTS, "{asked} requests");
    // Nobody else's: what is not the client's is on its legs.
    let other = clients[1].stream().local_addr()?;
    ensure!(!frames.iter().any(|f| f.ends.contains(&other)));
    let legs: Vec<&Frame> = frames.iter().filter(|f| !f.ends.contains(&own)).collect();
    let to_pods = legs.iter().filter(|f| !f.incoming && f.payload_bytes > 0).count();
    ensure!(to_pods == REQUESTS, "{to_pods} requests to pods");
    // Probes, Forgets of the old legs, and the answers to them, have the option too.
    let adopts = |f: &&&Frame| f.adoption && f.comment.contains("adopt this connection");
    let adoptions: Vec<&&Frame> = legs.iter().filter(adopts).collect();
    ensure!(adoptions.len() == REQUESTS, "{} adoptions", adoptions.len());
    for frame in &adoptions {
        let said = &frame.comment;
        ensure!(said.starts_with("asks pod-") && said.contains(&format!("client {own}")), "{said}");
    }
    for name in ["pod-a", "pod-b"] {
        let some = adoptions.iter().any(|frame| frame.comment.contains(name));
        ensure!(some, "no adoption by {name}");
    }
    // The old legs' closes belong to it too, although they are no flow's.
    ensure!(legs.len() >= 6 * REQUESTS, "{} frames on legs", legs.len());
    ensure!(frames.iter().all(|f| f.payload.is_empty()), "payload that nobody asked for");

    let (frames, own) = captured(&scene, &mut clients, &["--payload"], 2)?;
    let requests =
        frames.iter().filter(|f| f.ends[0] == own && f.payload.starts_with(b"GET / ")).count();
    ensure!(requests == REQUESTS, "{requests} whole requests");
    ensure!(frames.iter().all(|f| f.payload.len() >= f.payload_bytes));
    for reason in ["ring_full", "rate", "unseen"] {
        let lost = scene.counter(&format!("capture_drops_total{{reason=\"{reason}\"}}"))?;
        ensure!(lost == 0, "{lost} lost: {reason}");
    }
    Ok(())
}
