//! The server that notes its steps answers right, and the notes of client, server and tap are in
//! order.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as the test itself does")]

use baton_lab::{
    HttpClient, Lab, Options, PhaseClient, PhaseServer, ServerStamps, echo_body, phase_target,
};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    time::{Duration, Instant},
};

fn lab() -> Lab {
    Lab::new("phases", &Options::with_pods(1)).unwrap()
}

/// The notes by request, once there are as many: the last is made after its answer was sent.
fn notes(server: &PhaseServer, count: usize) -> BTreeMap<u64, ServerStamps> {
    let mut all = BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(10);
    while all.len() < count {
        all.extend(server.take().into_iter().map(|s| (s.request, s)));
        assert!(Instant::now() < end, "{} of {count} notes", all.len());
        std::thread::yield_now();
    }
    all
}

#[test]
fn the_server_answers_right_and_closes_on_what_it_does_not_serve() {
    let lab = lab();
    let pod = &lab.pods()[0];
    let server = pod.phase_server(8080).unwrap();
    let client = lab.client().namespace();
    let mut http = HttpClient::connect(client, server.address()).unwrap();
    for target in [phase_target(5), "/other".to_owned()] {
        let answer = http.get(&target).unwrap();
        assert_eq!((answer.status, answer.pod()), (200, Some("pod-a")));
        assert_eq!(answer.body, echo_body(&target, "").as_bytes());
    }
    // A request in pieces, on a second connection, while the first stays open.
    let mut other = HttpClient::connect(client, server.address()).unwrap();
    other.stream().write_all(b"GET /phase").unwrap();
    http.get("/between").unwrap();
    other.stream().write_all(b"/6 HTTP/1.1\r\n\r\n").unwrap();
    // The answer to the request in pieces comes first, then that to this one.
    let first = other_answer(&mut other);
    assert!(first.ends_with(&echo_body("/phase/6", "")), "{first}");
    let served: Vec<u64> = notes(&server, 2).into_keys().collect();
    assert_eq!(served, [5, 6], "targets without a number are not noted");

    let refused = HttpClient::connect(client, server.address())
        .unwrap()
        .request("POST", "/", &[], b"x")
        .unwrap();
    assert_eq!(refused.status, 400);
    // A second server cannot take the port; it is free again once the first is gone.
    assert!(pod.phase_server(8080).is_err());
    drop(server);
    assert!(http.get("/").is_err(), "its connections end with it");
    lab.remove().unwrap();
}

/// One answer as it came; the server sends each in one segment.
fn other_answer(client: &mut HttpClient) -> String {
    let mut buffer = [0; 4096];
    let length = client.stream().read(&mut buffer).unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

#[test]
fn the_notes_of_one_request_are_in_order_on_one_clock() {
    let lab = lab();
    let server = lab.pods()[0].phase_server(8080).unwrap();
    let mut client = PhaseClient::connect(lab.client().namespace(), server.address()).unwrap();
    let sent = client.run(0..200).unwrap();
    let served = notes(&server, 200);
    let mut arrivals = 0;
    for (i, c) in sent.iter().enumerate() {
        let s = &served[&c.request];
        assert_eq!(c.request, i as u64);
        assert_eq!(s.accepted.is_some(), i == 0, "accepted once");
        if let Some(a) = s.accepted {
            assert!(a.woken_ns <= a.accepted_ns && a.accepted_ns <= a.registered_ns);
            assert!(a.registered_ns <= s.readable_ns);
        }
        assert!(c.sent_ns <= s.readable_ns && s.readable_ns <= s.read_ns);
        assert!(s.read_ns <= s.sent_ns && s.read_ns <= c.received_ns);
        if let Some(arrived) = s.arrived_ns {
            assert!(c.sent_ns <= arrived && arrived <= s.read_ns);
            arrivals += 1;
        }
    }
    assert!(arrivals >= 190, "{arrivals} of 200 with a receive time");
    drop(server);
    lab.remove().unwrap();
}
