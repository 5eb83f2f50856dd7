//! An open loop against a server that stalls: what was due meanwhile counts, not only what was
//! sent.

use super::Driver;
use crate::{Arrivals, FixedLoad, LoadOptions, Progress};
use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::Arc,
    thread,
    time::Duration,
};

const STALL: Duration = Duration::from_millis(300);
const LENGTH: Duration = Duration::from_millis(600);

/// Answers each request of one connection; the first only after the stall.
fn serve(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = [0; 1];
    let mut stall = STALL;
    while stream.read_exact(&mut request).is_ok() {
        thread::sleep(std::mem::take(&mut stall));
        stream.write_all(b"!").unwrap();
    }
}

#[test]
fn a_stall_is_seen_by_every_request_that_was_due_in_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = LoadOptions {
        connections: 1,
        duration: Some(LENGTH),
        arrivals: Some(Arrivals { per_second: 1_000.0, zipf: 0.0, seed: 7 }),
        ..LoadOptions::new(listener.local_addr().unwrap())
    };
    let server = thread::spawn(move || serve(&listener));
    let load = FixedLoad::bytes(b"?", b"!");
    let driver = Driver::new(options, load, Arc::new(Progress::default())).unwrap();
    let (report, _) = driver.run().unwrap();
    server.join().unwrap();
    assert_eq!(report.error_count(), 0);
    // Some 600 requests were due, of which some 200 in the first 200 ms of the stall: these waited
    // 100 ms or more. A client that counts from when it sent would have one slow request.
    assert_eq!(report.latency.count, report.requests + report.unsent);
    assert!((450..750).contains(&report.latency.count));
    assert!(report.latency.p90_us >= 100_000, "{:?}", report.latency);
}
