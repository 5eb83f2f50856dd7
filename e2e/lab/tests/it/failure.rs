//! Servers that are killed, frozen and started again, and the clients that judge what comes of it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test itself does")]

use baton_lab::{
    HttpClient, HttpEcho, IdleConnections, Lab, Listen, Load, LoadOptions, NginxOptions, Options,
    Pod, PostCount, RedisClient, RedisStateful, Reply, Server,
};
use std::{
    fs::OpenOptions,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

fn lab(name: &str, pods: usize) -> Lab {
    Lab::new(name, &Options::with_pods(pods)).unwrap()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "not {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn servers_come_back_at_once_however_they_ended() {
    let lab = lab("restart", 1);
    let pod = &lab.pods()[0];
    let namespace = lab.client().namespace();
    let mut nginx = pod.nginx(&NginxOptions::default()).unwrap();
    let mut redis = pod.redis().unwrap();
    let start = Instant::now();
    for i in 0..20 {
        // Connections that are open at the end leave sockets behind: they must not be in the way.
        let mut client = HttpClient::connect(namespace, nginx.address()).unwrap();
        assert_eq!(client.get("/").unwrap().body, b"ok");
        if i % 2 == 0 {
            nginx.process.crash().unwrap();
            redis.process.crash().unwrap();
        } else {
            nginx.process.terminate().unwrap();
            redis.process.terminate().unwrap();
        }
        assert_eq!(pod.processes().unwrap(), [0; 0]);
        assert!(client.get("/").is_err());
        nginx.restart().unwrap();
        redis.restart().unwrap();
    }
    eprintln!("{:?} for one end and start of both", start.elapsed() / 20);
    assert_eq!(
        RedisClient::connect(namespace, redis.address()).unwrap().call(&[b"PING"]).unwrap(),
        Reply::Simple("PONG".into())
    );
}

#[test]
fn a_frozen_server_answers_when_it_goes_on() {
    let lab = lab("freeze", 1);
    let mut nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
    let load = echo(&lab, nginx.address(), 4);
    answered(&load, 100);
    nginx.process.freeze().unwrap();
    // What was on the way arrives; then nothing.
    let requests = || load.progress().requests.load(Ordering::Relaxed);
    let mut seen = requests();
    wait_for("silent", || {
        thread::sleep(Duration::from_millis(20));
        std::mem::replace(&mut seen, requests()) == requests()
    });
    load.progress().next_phase();
    nginx.process.thaw().unwrap();
    answered(&load, seen + 100);
    let (report, _) = load.stop().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    // The requests that the freeze held up count in both phases.
    assert_eq!(report.phases.len(), 2);
    assert!(report.phases[0].max_us >= 20_000, "{:?}", report.phases);
    let counted: u64 = report.phases.iter().map(|p| p.count).sum();
    assert!(counted > report.requests, "{:?}", report.phases);
}

#[test]
fn counted_posts_are_answered_or_unknown() {
    let lab = lab("posts", 1);
    let port = 8080;
    let pause = Duration::from_millis(5);
    let mut counter = lab.pods()[0].counter(port, pause, pause).unwrap();
    let options = LoadOptions::of(counter.address(), 256, None);
    let load = PostCount::start(lab.client().namespace(), options).unwrap();
    for _ in 0..5 {
        answered(&load, load.progress().requests.load(Ordering::Relaxed) + 500);
        counter.process.crash().unwrap();
        counter.restart().unwrap();
    }
    let (report, posts) = load.stop().unwrap();
    let servers = [counter];
    let tally = posts.tally(&servers).unwrap();
    eprintln!("{tally:?}, {:?}", report.errors);
    assert_eq!((tally.twice, tally.missing), (0, 0), "{tally:?}");
    assert_eq!(tally.answered, report.requests);
    // Kills hit before the line was written and after it.
    assert!(tally.unknown_counted > 0, "{tally:?}");
    assert!(tally.unknown > tally.unknown_counted, "{tally:?}");

    // A request that is executed twice, and one that nobody executed, show.
    let [counter] = &servers;
    let counted = counter.counted().unwrap();
    let file = counter.pod().directory().unwrap().join("count-8080");
    let mut append = OpenOptions::new().append(true).open(&file).unwrap();
    append.write_all(format!("{}\n", counted[0]).as_bytes()).unwrap();
    assert_eq!(posts.tally(&servers).unwrap().twice, 1);
    std::fs::write(&file, counted[1..].join("\n")).unwrap();
    assert_eq!(posts.tally(&servers).unwrap().missing, 1);
}

#[test]
fn idle_connections_know_who_lives() {
    let lab = lab("idle", 1);
    let mut nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
    let mut idle = IdleConnections::open(lab.client().namespace(), nginx.address(), 1_000).unwrap();
    assert_eq!(idle.count(), 1_000);
    for _ in 0..2 {
        let round = idle.round();
        assert_eq!((round.right, round.errors.len()), (1_000, 0), "{round:?}");
        assert_eq!(round.per_pod["pod-a"], 1_000);
    }
    assert!(idle.ended().is_empty(), "{:?}", idle.ended());
    nginx.process.crash().unwrap();
    assert_eq!(idle.ended().values().sum::<u64>(), 1_000);
    let round = idle.round();
    assert_eq!(round.errors.values().sum::<u64>(), 1_000, "{round:?}");
}

#[test]
fn stateful_conversations_hold_with_one_server_and_show_a_mixed_up_one() {
    let lab = lab("stateful", 2);
    let redis: Vec<_> = lab.pods().iter().map(|p| p.redis().unwrap()).collect();
    let servers: Vec<_> = redis.iter().map(baton_lab::Server::address).collect();
    let namespace = lab.client().namespace();
    let good = RedisStateful::start(namespace, servers[0], &servers).unwrap();
    wait_for("ten rounds of each", || {
        assert!(good.failed().is_empty(), "{:?}", good.failed());
        good.rounds().values().all(|r| *r >= 10)
    });
    good.finish().unwrap();

    let mixed = mix_up(&lab, &servers);
    let bad = RedisStateful::start(namespace, mixed, &servers).unwrap();
    // One write goes to one server, so pipelines and single commands are right there; all else is
    // parted.
    let parted = ["transaction", "watch", "subscribe", "select", "auth", "name"];
    wait_for("noticed by each", || {
        let failed = bad.failed();
        parted.iter().all(|name| failed.contains(name))
    });
    let wrong = format!("{:#}", bad.finish().unwrap_err());
    for name in parted {
        assert!(wrong.contains(&format!("{name}, round")), "{name}: {wrong}");
    }
    for name in ["pipeline, round", "blpop, round"] {
        assert!(!wrong.contains(name), "{wrong}");
    }
}

/// A balancer as it must not be: each write of a client goes to the next server, whatever was said
/// before.
fn mix_up(lab: &Lab, servers: &[SocketAddr]) -> SocketAddr {
    let place = lab.dataplane_pod();
    let address = SocketAddr::new(place.ipv4(), 6379);
    let listener = place.namespace().run(|| TcpListener::bind(address)).unwrap().unwrap();
    let (namespace, servers) = (place.namespace().clone(), servers.to_vec());
    // The threads end with the test's process.
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let connect = || servers.iter().map(TcpStream::connect).collect();
            let legs: Vec<std::io::Result<TcpStream>> = namespace.run(connect).unwrap();
            let legs: Vec<_> = legs.into_iter().map(Result::unwrap).collect();
            for leg in &legs {
                let (from, to) = (leg.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || copy(&from, |_| &to));
            }
            thread::spawn(move || copy(&client, |i| &legs[i % legs.len()]));
        }
    });
    address
}

fn copy<'a>(mut from: &TcpStream, to: impl Fn(usize) -> &'a TcpStream) {
    let mut bytes = [0; 4_096];
    for i in 0.. {
        match from.read(&mut bytes) {
            Ok(n) if n > 0 && to(i).write_all(&bytes[..n]).is_ok() => {}
            _ => return,
        }
    }
}

#[test]
fn clients_behind_haproxy_see_a_killed_server_and_go_on() {
    let lab = lab("haproxy-kills", 2);
    let start = |pod: &Pod| pod.nginx(&NginxOptions::default());
    let mut nginx = lab.in_each_pod(start).unwrap();
    let listen =
        Listen { port: 80, servers: nginx.iter().map(Server::named).collect(), checked: true };
    let haproxy = lab.haproxy(&[listen]).unwrap();
    let load = echo(&lab, haproxy.address(80), 16);
    answered(&load, 1_000);
    nginx[0].process.crash().unwrap();
    answered(&load, load.progress().requests.load(Ordering::Relaxed) + 1_000);
    nginx[0].restart().unwrap();
    answered(&load, load.progress().requests.load(Ordering::Relaxed) + 1_000);
    let (report, echo) = load.stop().unwrap();
    eprintln!("{:?} beside {} right", report.errors, report.requests);
    assert!(report.error_count() > 0);
    assert_eq!(echo.per_pod.len(), 2);
}

fn echo(lab: &Lab, address: SocketAddr, connections: usize) -> Load<HttpEcho> {
    let options = LoadOptions::of(address, connections, None);
    HttpEcho::start(lab.client().namespace(), options).unwrap()
}

fn answered<E: baton_lab::Exchange>(load: &Load<E>, requests: u64) {
    wait_for("answered", || {
        assert!(!load.is_finished());
        load.progress().requests.load(Ordering::Relaxed) >= requests
    });
}
