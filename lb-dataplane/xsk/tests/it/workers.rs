//! Several workers on one interface: whose each frame is, and that no buffer is lost between them.

use crate::common::{
    Lab, PATIENCE, PORT_V4, PORT_V6, RAW_V4, RAW_V6, Raw, VIRTUAL_V4, Worker, config, steering,
    swap, tcp,
};
use baton_xsk::{
    Config, Disposition, Mode, ModeChoice, OpenError, Port, Steering, Workers, ports_of,
};
use std::{collections::HashMap, net::IpAddr, ops::RangeInclusive, time::Instant};

const LEGS: RangeInclusive<u16> = 20_000..=29_999;

fn of_workers(workers: u32) -> Config {
    Config { workers: Workers::Exactly(workers), ..config(ModeChoice::Native) }
}

/// Workers that send back what they get, with their number behind it.
fn answering(ports: Vec<Port>) -> Vec<Worker<()>> {
    let numbered = ports.into_iter().zip(0..);
    let all = numbered.map(|(port, number)| {
        Worker::start(port, (), move |(), buffer, len, _| {
            swap(&mut buffer[..len]);
            buffer[len - 1] = number;
            Disposition::Transmit(len)
        })
    });
    all.collect()
}

/// Which worker answers.
fn worker_of(client: &Raw, frame: &[u8]) -> u8 {
    client.send(frame);
    let mut buffer = vec![0; 4096];
    let until = Instant::now() + PATIENCE;
    let len = client.receive_tcp(&mut buffer, until).expect("an answer");
    assert_eq!(len, frame.len());
    buffer[len - 1]
}

fn stop(workers: Vec<Worker<()>>) -> Vec<Port> {
    workers.into_iter().map(|worker| worker.stop().0).collect()
}

fn nothing_is_lost(ports: &[Port]) {
    for port in ports {
        let (stats, frames) = (port.stats(), port.frames());
        assert!(frames.is_complete(), "{frames:?}");
        assert_eq!((frames.transmit, frames.hand), (0, 0), "{frames:?}");
        let kernel = stats.kernel;
        assert_eq!(kernel.rx_dropped + kernel.rx_ring_full, 0, "{kernel:?}");
        assert_eq!(kernel.tx_invalid_descs + kernel.rx_invalid_descs, 0);
    }
}

#[test]
fn each_client_and_each_leg_has_one_worker_on_every_queue() {
    for (workers, queues) in [(1, 1), (2, 1), (4, 1), (3, 4)] {
        let lab = Lab::with_queues(queues);
        let ports = lab.open_all(&of_workers(workers), &steering());
        assert_eq!(ports.len(), workers as usize);
        let all = answering(ports);
        let client = Raw::open(&lab);
        let mut of_client = HashMap::new();
        let ends: [(IpAddr, IpAddr, u16); 3] = [
            (RAW_V4.into(), PORT_V4.into(), 80),
            (RAW_V4.into(), VIRTUAL_V4.into(), 443),
            (RAW_V6.into(), PORT_V6.into(), 80),
        ];
        for round in 0..3 {
            for (from, to, number) in ends {
                for source in 40_000..40_064 {
                    let frame = tcp((from, source), (to, number), round, "A", &[9, 9]);
                    let worker = worker_of(&client, &frame);
                    let known = *of_client.entry((from, source)).or_insert(worker);
                    assert_eq!(worker, known, "{from}:{source} in round {round}");
                }
            }
        }
        for number in 0..workers {
            let its = of_client.values().filter(|w| u32::from(**w) == number);
            // 128 clients by chance: 32 of 4 workers' each, 12 or fewer once in 100,000 runs.
            assert!(its.count() > 12, "of {workers} workers: {of_client:?}");
            let legs = ports_of(&LEGS, number, workers);
            for port in [*legs.start(), *legs.end()] {
                let from = (RAW_V4.into(), 80);
                let frame = tcp(from, (PORT_V4.into(), port), 1, "A", &[9, 9]);
                assert_eq!(u32::from(worker_of(&client, &frame)), number, "{port}");
            }
        }
        nothing_is_lost(&stop(all));
    }
}

#[test]
fn blocks_of_ports_are_alike_and_apart() {
    for workers in 1..=16 {
        let blocks: Vec<_> = (0..workers).map(|w| ports_of(&LEGS, w, workers)).collect();
        assert_eq!(blocks[0].start(), LEGS.start());
        for two in blocks.windows(2) {
            assert_eq!(two[0].len(), two[1].len());
            assert_eq!(two[0].end() + 1, *two[1].start());
        }
        assert!(blocks[workers as usize - 1].end() <= LEGS.end());
    }
}

#[test]
fn connections_of_one_address_are_one_workers_where_that_is_asked_for() {
    let lab = Lab::new();
    let by_address = Steering {
        frontends: vec![(PORT_V4.into(), 80)],
        by_address: vec![(VIRTUAL_V4.into(), 443)],
        ..steering()
    };
    let all = answering(lab.open_all(&of_workers(4), &by_address));
    let client = Raw::open(&lab);
    let mut seen = [0; 4];
    for host in 1..=100 {
        let from = IpAddr::from([10, 77, 1, host]);
        let workers = (40_000..40_008).map(|source| {
            let frame = tcp((from, source), (VIRTUAL_V4.into(), 443), 1, "A", &[9, 9]);
            worker_of(&client, &frame)
        });
        let workers: Vec<u8> = workers.collect();
        assert!(workers.iter().all(|w| *w == workers[0]), "{workers:?}");
        seen[usize::from(workers[0])] += 1;
    }
    assert!(seen.iter().all(|count| *count > 5), "{seen:?}");
    nothing_is_lost(&stop(all));
}

/// Frames of many clients at a time, with a window that keeps all workers busy.
#[test]
fn half_a_million_frames_of_two_workers_are_all_accounted_for() {
    const FRAMES: u32 = 500_000;
    const WINDOW: u32 = 256;
    let lab = Lab::new();
    let all = answering(lab.open_all(&of_workers(2), &steering()));
    let client = Raw::open(&lab);
    let mut frame = tcp((RAW_V4.into(), 40_000), (PORT_V4.into(), 80), 0, "A", &[9]);
    let mut buffer = vec![0; 2048];
    let (mut sent, mut received) = (0, 0_u32);
    // Each client's frames come back in order, whichever worker has it.
    let mut last = [None; 64];
    while received < FRAMES {
        while sent < FRAMES && sent - received < WINDOW {
            let source = 40_000 + (sent % 64) as u16;
            frame[34..36].copy_from_slice(&source.to_be_bytes());
            frame[38..42].copy_from_slice(&sent.to_be_bytes());
            client.send(&frame);
            sent += 1;
        }
        let len = client.receive_tcp(&mut buffer, Instant::now() + PATIENCE);
        assert_eq!(len, Some(frame.len()), "after {received} of {sent}");
        let number = u32::from_be_bytes(buffer[38..42].try_into().expect("four"));
        let client = (number % 64) as usize;
        assert!(last[client] < Some(number), "{number} after {last:?}");
        last[client] = Some(number);
        received += 1;
    }
    let ports = stop(all);
    let received = ports.iter().map(|port| port.stats().rx_frames);
    assert_eq!(received.sum::<u64>(), u64::from(FRAMES));
    assert!(ports.iter().all(|port| port.stats().rx_frames > 50_000));
    assert_eq!(ports[0].stats().fill_ring_empty, 0);
    nothing_is_lost(&ports);
}

/// A worker that is held up loses what does not fit its own ring, and takes nothing from others.
#[test]
fn a_worker_that_stands_still_holds_up_no_other() {
    let lab = Lab::new();
    let mut config = of_workers(2);
    (config.rx_ring, config.tx_ring, config.batch) = (64, 64, 16);
    let mut ports = lab.open_all(&config, &steering());
    let idle = ports.pop().expect("the second");
    let all = answering(ports);
    let client = Raw::open(&lab);
    let to_leg = |worker: u32| {
        let port = *ports_of(&LEGS, worker, 2).start();
        tcp((RAW_V4.into(), 80), (PORT_V4.into(), port), 1, "A", &[9, 9])
    };
    for _ in 0..1_000 {
        client.send(&to_leg(1));
    }
    for _ in 0..1_000 {
        assert_eq!(worker_of(&client, &to_leg(0)), 0);
    }
    let kernel = idle.stats().kernel;
    assert_eq!(kernel.rx_ring_full, 1_000 - 64, "{kernel:?}");
    let first = stop(all).remove(0);
    assert_eq!(first.stats().rx_frames, 1_000);
    assert_eq!(first.stats().kernel.rx_ring_full, 0);
    let frames = first.frames();
    assert!(frames.is_complete(), "{frames:?}");
}

/// The first that goes takes the program along: what is for it would get resets of the kernel.
#[test]
fn one_that_ends_ends_the_steering_of_all() {
    let lab = Lab::new();
    let mut ports = lab.open_all(&of_workers(2), &steering());
    let attached = || {
        let link = lab.output_in_port("ip", &["link", "show", "eth0"]);
        link.contains("xdp ")
    };
    assert!(attached());
    drop(ports.pop());
    assert!(!attached());
}

#[test]
fn where_frames_cannot_be_shared_one_worker_serves_or_it_is_said_why() {
    let lab = Lab::new();
    for mode in [ModeChoice::Generic, ModeChoice::Packet] {
        let some = |workers| Config { workers, ..config(mode) };
        assert_eq!(lab.open_all(&some(Workers::UpTo(4)), &steering()).len(), 1, "{mode:?}");
        let refused = lab.in_port(|| Port::open(&some(Workers::Exactly(2)), &steering()).err());
        let Some(error @ OpenError::Workers { workers: 2, .. }) = refused else {
            panic!("{mode:?}: {refused:?}");
        };
        let text = error.to_string();
        assert!(text.contains("set `workers` to auto or 1"), "{text}");
    }
    let host = Config { host: true, ..of_workers(2) };
    let refused = lab.in_port(|| Port::open(&host, &steering()).err());
    let text = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("on a node's own network"), "{text}");
    let ports = lab.open_all(&of_workers(2), &steering());
    assert!(ports.iter().all(|port| port.mode() == Mode::Native));
}
