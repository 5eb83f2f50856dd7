//! The checking clients accept what is right and notice what is wrong.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test itself does")]

use baton_lab::{
    Counts, HttpEcho, Lab, LoadOptions, NginxOptions, Options, Pod, RedisBenchOptions, RedisCheck,
    RedisClient, WrkOptions, echo_body,
};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

fn lab() -> Lab {
    Lab::new("clients", &Options::with_pods(1)).unwrap()
}

fn load(address: SocketAddr, requests: u64) -> LoadOptions {
    LoadOptions {
        connections: 4,
        requests: Some(requests),
        timeout: Duration::from_secs(1),
        ..LoadOptions::new(address)
    }
}

/// What the deliberately wrong server does to every tenth response.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    OtherRequestsBody,
    OneBitFlipped,
    Status,
    Cut,
    Twice,
    Silence,
    NotHttp,
}

/// A server that answers `/echo/…` as nginx does, but for the fault.
fn faulty_server(pod: &Pod, fault: Fault) -> SocketAddr {
    let listener = pod.namespace().run(|| TcpListener::bind("0.0.0.0:0")).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test's process; a listener without clients does no harm.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for count in 1.. {
                    let (mut target, mut nonce) = (String::new(), String::new());
                    loop {
                        let Some(Ok(line)) = lines.next() else { return };
                        if let Some(rest) = line.strip_prefix("GET ") {
                            target = rest.split(' ').next().unwrap().to_owned();
                        } else if let Some(rest) = line.strip_prefix("X-Nonce: ") {
                            nonce = rest.to_owned();
                        } else if line.is_empty() {
                            break;
                        }
                    }
                    let mut body = echo_body(&target, &nonce).into_bytes();
                    let (mut status, mut cut, mut times) = ("200 OK", usize::MAX, 1);
                    if count % 10 == 0 {
                        match fault {
                            Fault::None => {}
                            Fault::OtherRequestsBody => body = echo_body("/echo/x", &nonce).into(),
                            Fault::OneBitFlipped => *body.last_mut().unwrap() ^= 1,
                            Fault::Status => status = "503 Service Unavailable",
                            Fault::Cut => cut = 60,
                            Fault::Twice => times = 2,
                            Fault::Silence => continue,
                            Fault::NotHttp => status = "what",
                        }
                    }
                    let mut response = format!(
                        "HTTP/1.1 {status}\r\nX-Pod: faulty\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    )
                    .into_bytes();
                    response.extend_from_slice(&body);
                    response = response.repeat(times);
                    let end = cut.min(response.len());
                    if stream.write_all(&response[..end]).is_err() || end == cut {
                        return;
                    }
                }
            });
        }
    });
    SocketAddr::new(pod.ipv4(), port)
}

#[test]
fn http_faults_are_noticed_each_by_its_kind() {
    let lab = lab();
    for (fault, kind) in [
        (Fault::None, None),
        (Fault::OtherRequestsBody, Some("body")),
        (Fault::OneBitFlipped, Some("body")),
        (Fault::Status, Some("status")),
        (Fault::Cut, Some("closed")),
        (Fault::Twice, Some("unasked")),
        (Fault::Silence, Some("timeout")),
        (Fault::NotHttp, Some("malformed")),
    ] {
        let address = faulty_server(&lab.pods()[0], fault);
        let (report, echo) =
            HttpEcho::start(lab.client().namespace(), load(address, 100)).unwrap().join().unwrap();
        let kinds: Vec<_> = report.errors.keys().map(String::as_str).collect();
        assert_eq!(kinds, kind.into_iter().collect::<Vec<_>>(), "{fault:?}");
        // Every tenth response of a connection is wrong, so each connection brings nine right ones.
        if kind.is_some() {
            assert!((7..=10).contains(&report.error_count()), "{fault:?}: {report:?}");
        }
        let lost = match fault {
            // The response itself was right, the second copy is too many.
            Fault::Twice => 0,
            _ => report.error_count(),
        };
        assert_eq!(report.requests + lost, 100, "{fault:?}");
        assert_eq!(echo.per_pod["faulty"], report.requests, "{fault:?}");
    }
}

#[test]
fn a_killed_server_is_noticed() {
    let lab = lab();
    let mut nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
    let options = LoadOptions {
        requests: None,
        duration: Some(Duration::from_secs(60)),
        ..load(nginx.address(), 0)
    };
    let running = HttpEcho::start(lab.client().namespace(), options).unwrap();
    wait("requests", || running.progress().requests.load(Ordering::Relaxed) > 100);
    nginx.process.kill().unwrap();
    wait("errors", || running.progress().errors.load(Ordering::Relaxed) > 4);
    let (report, _) = running.stop().unwrap();
    assert!(report.errors.contains_key("connect"), "{:?}", report.errors);
    let broken = |e: &Counts| e.keys().any(|k| k == "closed" || k == "reset");
    assert!(broken(&report.errors), "{:?}", report.errors);
}

#[test]
fn http_load_against_nginx_has_no_error_and_keeps_its_pace() {
    let lab = lab();
    let nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
    let (report, echo) = HttpEcho::start(lab.client().namespace(), load(nginx.address(), 5_000))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!((report.requests, report.error_count()), (5_000, 0), "{report:?}");
    assert_eq!((echo.per_pod["pod-a"], echo.pod_changes), (5_000, 0));

    let paced = LoadOptions { pace: Some(Duration::from_millis(10)), ..load(nginx.address(), 200) };
    let (report, _) = HttpEcho::start(lab.client().namespace(), paced).unwrap().join().unwrap();
    // 200 requests over 4 connections at 10 ms each: 49 paces.
    assert!(report.elapsed >= Duration::from_millis(480), "{report:?}");
    assert_eq!(report.windows.iter().map(|w| w.latency.count).sum::<u64>(), 200);
}

#[test]
fn redis_effects_are_counted_in_the_server() {
    let lab = lab();
    let redis = lab.pods()[0].redis().unwrap();
    let (client, address) = (lab.client().namespace(), redis.address());
    let start = |n| RedisCheck::start(client, &[address], load(address, n)).unwrap();
    let report = RedisCheck::finish(start(4_000)).unwrap();
    assert_eq!((report.requests, report.error_count()), (4_000, 0), "{report:?}");

    // One INCR too many, as a request that is executed twice would be.
    let running = start(20_000);
    let mut other = RedisClient::connect(client, address).unwrap();
    other.call(&[b"INCR", b"baton:counter"]).unwrap();
    let report = RedisCheck::finish(running).unwrap();
    assert_eq!(report.errors, Counts::from([("incr-count".to_owned(), 1)]));

    // A server that forgets: values that were there are missing.
    let running = start(6_000);
    wait("half the commands", || running.progress().requests.load(Ordering::Relaxed) > 2_000);
    other.call(&[b"FLUSHALL"]).unwrap();
    let report = RedisCheck::finish(running).unwrap();
    for kind in ["reply", "set-missing", "incr-count"] {
        assert!(report.errors.contains_key(kind), "{kind}: {:?}", report.errors);
    }
}

#[test]
fn wrk_and_redis_benchmark_give_figures() {
    let lab = lab();
    let nginx = lab.pods()[0].nginx(&NginxOptions::default()).unwrap();
    let redis = lab.pods()[0].redis().unwrap();
    let options = WrkOptions::new(nginx.address(), Duration::from_secs(1));
    let report = lab.client().wrk(&options).unwrap().join().unwrap();
    assert!(report.requests > 1_000 && report.errors.is_empty(), "{report:?}");
    assert!(0 < report.latency.p50_us && report.latency.p50_us <= report.latency.max_us);
    let missing = WrkOptions { target: "/missing".into(), ..options };
    let report = lab.client().wrk(&missing).unwrap().join().unwrap();
    assert_eq!(report.errors["status"], report.requests, "each is a 404");
    assert_eq!(report.error_count(), report.requests);

    let options = RedisBenchOptions {
        address: redis.address(),
        tests: vec!["set".into(), "get".into()],
        commands: 10_000,
        connections: 8,
        deadline: Duration::from_secs(60),
    };
    let report = lab.client().redis_benchmark(&options).unwrap().join().unwrap();
    assert_eq!((report.commands, report.errors), (20_000, 0), "{report:?}");
    // redis-benchmark ends at an error reply: here SET has no room.
    let mut admin = RedisClient::connect(lab.client().namespace(), redis.address()).unwrap();
    admin.call(&[b"CONFIG", b"SET", b"maxmemory", b"1"]).unwrap();
    let error = lab.client().redis_benchmark(&options).unwrap().join().unwrap_err();
    assert!(format!("{error:#}").contains("OOM"), "{error:#}");
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "no {what} within 20 s");
        thread::sleep(Duration::from_millis(1));
    }
}
