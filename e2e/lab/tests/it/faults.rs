//! The faults do what they say, exactly, and real TCP gets over them with every byte right.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test itself does")]

use baton_lab::{
    DOWNLOAD_BYTES, FaultCounts, FaultRates, Faults, HttpClient, HttpEcho, Lab, LoadOptions,
    Namespace, NginxOptions, Options, Server, Side, Way, content,
};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

const SEED: u64 = 7;
const CONNECTIONS: usize = 32;
const REQUESTS: u64 = 2_000;
const UPLOAD_BYTES: usize = 4 << 20;

/// One pod with nginx, one client, no Baton between them.
struct Direct {
    faults: Faults,
    nginx: Server,
    lab: Lab,
}

impl Direct {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name, &Options::with_pods(1))
            .expect("these tests need root: run `make test` as root");
        let nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
        let faults = lab.faults(SEED).unwrap();
        Self { faults, nginx, lab }
    }

    fn client(&self) -> &Namespace {
        self.lab.client().namespace()
    }

    /// Small requests on many connections and a large upload and download, every byte checked.
    fn traffic(&self) {
        let options = LoadOptions::of(self.nginx.address(), CONNECTIONS, Some(REQUESTS));
        let (report, _) = HttpEcho::start(self.client(), options).unwrap().join().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        assert_eq!(report.requests, REQUESTS);
        let upload = content(UPLOAD_BYTES, 9);
        let mut http = HttpClient::connect(self.client(), self.nginx.address()).unwrap();
        let put = http.request("PUT", "/upload/f", &[], &upload).unwrap();
        assert!(matches!(put.status, 201 | 204), "{}", put.status);
        assert!(self.nginx.uploaded("f").unwrap() == upload);
        let download = http.get("/files/10m.bin").unwrap();
        assert!(download.body == content(DOWNLOAD_BYTES, 0));
    }

    /// Of a kernel's TCP counter, both ends together.
    fn kernel(&self, name: &str) -> u64 {
        let both = [self.client(), self.lab.pods()[0].namespace()];
        both.iter().map(|n| kernel_counter(n, name)).sum()
    }

    /// What the pod's side did, which here is all.
    fn counts(&self) -> FaultCounts {
        let all = self.faults.total().unwrap();
        assert_eq!(self.faults.unasked().unwrap(), 0);
        all
    }
}

#[test]
fn losses_are_those_that_the_seed_says() {
    let direct = Direct::new("f-loss");
    let rates = FaultRates::loss(20);
    direct.faults.set_both(Side::Pods, rates).unwrap();
    direct.traffic();
    direct.faults.calm().unwrap();
    let all = direct.counts();
    let (other, seen) = (FaultCounts { seen: 0, lost: 0, ..all }, all.seen);
    assert_eq!(other, FaultCounts::default());
    let expected: u64 = [Way::From, Way::To]
        .into_iter()
        .zip(0u64..)
        .map(|(way, path)| {
            let seen = direct.faults.counts(Side::Pods, way).unwrap().seen;
            (0..seen).filter(|n| drawn(SEED ^ path, *n) < 20).count() as u64
        })
        .sum();
    assert_eq!(all.lost, expected, "of {seen}");
    assert!(all.lost > 50, "{all:?}");
    assert!(direct.kernel("Tcp.RetransSegs") > 50);
    // Calm is calm.
    direct.traffic();
    assert_eq!(direct.counts(), all);
}

#[test]
fn every_flipped_bit_is_a_wrong_checksum_to_the_kernel() {
    let direct = Direct::new("f-corrupt");
    let rates = FaultRates::corruption(20);
    direct.faults.set_both(Side::Clients, rates).unwrap();
    direct.traffic();
    direct.faults.calm().unwrap();
    let all = direct.counts();
    assert!(all.corrupted > 50, "{all:?}");
    // Whatever bit it was: a port too, for TCP looks at the checksum before it looks for a socket.
    // Only at the data offset it looks before.
    let surely = all.corrupted - all.corrupted_offset;
    let end = Instant::now() + Duration::from_secs(10);
    // The last one may be on its way.
    while direct.kernel("Tcp.InCsumErrors") < surely && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    let found = direct.kernel("Tcp.InCsumErrors");
    assert!((surely..=all.corrupted).contains(&found), "{found} {all:?}");
    assert_eq!((all.lost, all.held, all.doubled), (0, 0, 0));
}

#[test]
fn order_changes_and_nothing_is_lost() {
    let direct = Direct::new("f-order");
    let rates = FaultRates::reordering(50);
    direct.faults.set_both(Side::Pods, rates).unwrap();
    direct.traffic();
    let all = direct.counts();
    assert!(all.held > 100 && all.overtaken > 50, "{all:?}");
    assert!(direct.kernel("TcpExt.TCPOFOQueue") > 0);
    assert_eq!((all.lost, all.corrupted, all.doubled), (0, 0, 0));
    assert_eq!(direct.kernel("Tcp.InCsumErrors"), 0);
}

#[test]
fn packets_come_twice_at_once_and_late() {
    let direct = Direct::new("f-twice");
    let rates = FaultRates::duplication(50);
    direct.faults.set_both(Side::Clients, rates).unwrap();
    direct.traffic();
    let all = direct.counts();
    let now = all.doubled - all.doubled_late;
    assert!(now > 50 && all.doubled_late > 50, "{all:?}");
    assert_eq!((all.lost, all.corrupted, all.held), (0, 0, 0));
    // Data that came twice is answered by a DSACK.
    assert!(direct.kernel("TcpExt.TCPDSACKOldSent") > 0);
}

#[test]
fn all_at_once_over_ipv6() {
    let direct = Direct::new("f-six");
    let rates = FaultRates { lost: 10, corrupted: 10, held: 20, doubled: 20 };
    direct.faults.set_both(Side::Pods, rates).unwrap();
    direct.faults.set_both(Side::Clients, rates).unwrap();
    let options = LoadOptions::of(direct.nginx.address_v6(), CONNECTIONS, Some(REQUESTS));
    let load = HttpEcho::start(direct.client(), options).unwrap();
    let (report, _) = load.join().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    for side in [Side::Pods, Side::Clients] {
        for way in [Way::From, Way::To] {
            let counts = direct.faults.counts(side, way).unwrap();
            let each = [counts.lost, counts.corrupted, counts.held, counts.doubled];
            assert!(each.iter().all(|n| *n > 0), "{side:?} {way:?} {counts:?}");
        }
    }
}

#[test]
fn nothing_is_left_when_faults_are_dropped() {
    let direct = Direct::new("f-end");
    direct.faults.set_both(Side::Pods, FaultRates::loss(1_000)).unwrap();
    let router = direct.lab.router().namespace();
    assert!(router.ip(&["link"]).unwrap().contains("faults"));
    let too_many = FaultRates { lost: 600, held: 600, ..FaultRates::default() };
    assert!(direct.faults.set_both(Side::Pods, too_many).is_err());
    let Direct { faults, nginx, lab } = direct;
    drop(faults);
    let links = lab.router().namespace().ip(&["link"]).unwrap();
    assert!(!links.contains("faults"), "{links}");
    // With everything lost this could not be.
    let client = lab.client().namespace();
    let mut http = HttpClient::connect(client, nginx.address()).unwrap();
    assert_eq!(http.get("/echo/x").unwrap().status, 200);
}

/// What the program draws for the packet of this number.
fn drawn(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 32) % 1_000
}

/// A counter as `Tcp.RetransSegs`, of one namespace.
fn kernel_counter(namespace: &Namespace, name: &str) -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = namespace.run(|| read("snmp") + &read("netstat")).unwrap();
    let (group, name) = name.split_once('.').unwrap();
    let mut lines = text.lines().filter_map(|l| l.strip_prefix(group)?.strip_prefix(": "));
    let names = lines.next().unwrap().split(' ');
    let mut both = names.zip(lines.next().unwrap().split(' '));
    both.find(|(n, _)| *n == name).unwrap().1.parse().unwrap()
}
