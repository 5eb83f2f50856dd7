//! What a Release costs: one pass over a namespace's sockets, with one stalled flow in it and with
//! a thousand, alone and among a hundred thousand other sockets.
//!
//! `cargo bench -p baton-adopter --bench release` (root). The time of a pass is that in which the
//! kernel goes through the sockets; "decided" is with the entering of the namespace and the writing
//! of what was decided. The size of the kernel's table is in its log: `TCP established hash table`.

#[path = "../tests/it/common/mod.rs"]
mod common;

use baton_adopter::{Adopter, Asks, Releases};
use common::{
    INTERFACE, Lab, ends,
    segment::{Message, PSH_ACK, Segment, timestamps},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const KEY: [u8; 16] = [5; 16];
/// The other sockets are held by so many processes, with so many connections each: both ends.
const HOLDERS: u8 = 10;
const PAIRS: usize = 5_000;
/// What such a process is called by.
const HOLD: &str = "hold";

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(HOLD) {
        hold(arguments.next().expect("a number").parse().expect("a number"));
        return;
    }
    let lab = Lab::new();
    let adopter = Adopter::load(None).expect("the kernel takes the adopter");
    adopter.set_key(1, &KEY).expect("set a key");
    let _attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    let (pod, _) = ends(false, 8080, 0);
    let bench = Bench {
        listener: lab.listen(pod),
        releases: adopter.releases().expect("the kernel takes the iterator"),
        lab,
        pod,
    };
    let mut seq = 1;
    bench.figures("alone", &mut seq);
    for (what, near) in [("elsewhere", false), ("in the pod", true)] {
        let _others = bench.others(near);
        let count = usize::from(HOLDERS) * PAIRS * 2;
        bench.figures(&format!("{count} other sockets {what}"), &mut seq);
    }
}

struct Bench {
    lab: Lab,
    listener: TcpListener,
    releases: Releases,
    pod: SocketAddr,
}

impl Bench {
    fn figures(&self, what: &str, seq: &mut u32) {
        println!("{what}:");
        for (flows, passes) in [(0, 200), (1, 200), (1_000, 20)] {
            let (mut kernel, mut decided) = (Vec::new(), Vec::new());
            for _ in 0..passes {
                *seq += 100;
                let (one, all) = self.pass(flows, *seq);
                kernel.push(one);
                decided.push(all);
            }
            let (p50, p99) = percentiles(&mut kernel);
            let (decided, _) = percentiles(&mut decided);
            print!(
                "  {flows:>5} flows: pass p50 {p50:>9.1?} p99 {p99:>9.1?}, decided p50 {decided:>9.1?}"
            );
            match flows {
                0 => println!(),
                _ => println!(", {:>8.2?} each", decided / u32::from(flows)),
            }
        }
    }

    /// Makes stalled flows, asks for them and decides: the time of the pass and of the whole.
    fn pass(&self, flows: u16, seq: u32) -> (Duration, Duration) {
        let mut asks = self.releases.asks().expect("the ring");
        let ours = |n| ends(false, 8080, 1_024 + n).1;
        let connections: Vec<_> = (0..flows).map(|n| self.stalled(ours(n), seq)).collect();
        let release = Message::release().here();
        for n in 0..flows {
            let segment = release.segment(ours(n), self.pod, seq, 1, &KEY);
            self.lab.send(&segment);
        }
        let asked = gather(&mut asks, usize::from(flows));
        let begun = Instant::now();
        let pass = self
            .releases
            .pass(&self.lab.netns(), self.lab.pod.cookie(), &asked)
            .expect("a pass")
            .expect("the same namespace");
        let all = begun.elapsed();
        assert_eq!(pass.released, connections.len());
        // Nobody reads what the pod sent.
        while self.lab.receive_within(ours(u16::MAX - 1_024), Duration::ZERO).is_some() {}
        (pass.took, all)
    }

    fn stalled(&self, ours: SocketAddr, seq: u32) -> TcpStream {
        let message = Message::adopt();
        self.lab.send(&message.segment(ours, self.pod, seq, 1, &KEY));
        self.lab.send(&Segment {
            from: ours,
            to: self.pod,
            seq,
            ack: 1,
            flags: PSH_ACK,
            window: 500,
            options: timestamps(message.tsval + 1, message.tsecr),
            payload: vec![b'x'; 80],
        });
        let (connection, _) = self.listener.accept().expect("a connection");
        connection.peek(&mut [0]).expect("a request");
        connection
    }

    /// In the pod's namespace, or in another one.
    fn others(&self, near: bool) -> Vec<Holder> {
        let netns = match near {
            true => self.lab.netns_name(),
            false => self.lab.netns_name().replace("-pod", "-peer"),
        };
        let own = std::env::current_exe().expect("this program");
        let start = |n: u8| {
            let mut process = Command::new("ip")
                .args(["netns", "exec", &netns])
                .arg(&own)
                .args([HOLD, &n.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let mut ready = [0];
            let said = process.stdout.as_mut().expect("piped");
            said.read_exact(&mut ready).expect("it is ready");
            Holder(process)
        };
        (1..=HOLDERS).map(start).collect()
    }
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Both ends of connections over loopback, until the standard input ends.
fn hold(n: u8) {
    let had = getrlimit(Resource::Nofile);
    let more = Rlimit { current: had.maximum, ..had };
    setrlimit(Resource::Nofile, more).expect("everybody may");
    let at = SocketAddr::from(([127, 0, 0, n], 9_000));
    let listener = TcpListener::bind(at).expect("listen");
    let connect = |_| {
        let client = TcpStream::connect(at).expect("connect");
        (client, listener.accept().expect("accept"))
    };
    let _pairs: Vec<_> = (0..PAIRS).map(connect).collect();
    print!(".");
    std::io::stdout().flush().expect("a pipe");
    let _ = std::io::stdin().read(&mut [0]);
}

fn gather(asks: &mut Asks<'_>, count: usize) -> BTreeSet<baton_adopter::Ask> {
    let mut asked = BTreeSet::new();
    common::wait_for("all are asked", || {
        for more in asks.gather().expect("the ring").into_values() {
            asked.extend(more);
        }
        asked.len() >= count
    });
    asked
}

fn percentiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    (at(50), at(99))
}
