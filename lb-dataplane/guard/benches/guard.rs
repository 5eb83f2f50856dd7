//! Figures of the guards: `cargo bench -p baton-guard`.
#![allow(missing_docs)]

use baton_guard::{Guard, Session, Sessions, Tracker};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const REQUEST: &[u8] = b"GET /index.html?q=1 HTTP/1.1\r\nHost: shop.example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\
    Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nCookie: a=b\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 01 Mar 2024 00:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 100\r\nConnection: keep-alive\r\nETag: \"65e0-2a\"\r\n\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$8\r\nkey:0001\r\n$5\r\nvalue\r\n";
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$8\r\nkey:0001\r\n";

/// One exchange from rest to rest.
fn exchange(c: &mut Criterion, name: &str, guard: Guard, request: &[u8], response: &[u8]) {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(request.len() as u64));
    let fresh = Tracker::new(guard);
    let mut sessions = Sessions::new([Session::new()]);
    group.bench_function("request", |b| {
        let mut tracker = fresh.clone();
        b.iter(|| {
            tracker.clone_from(&fresh);
            tracker.client(0, black_box(request), &mut sessions);
            tracker.unanswered()
        });
    });
    group.throughput(Throughput::Bytes((request.len() + response.len()) as u64));
    group.bench_function("exchange", |b| {
        let mut tracker = fresh.clone();
        b.iter(|| {
            tracker.client(0, black_box(request), &mut sessions);
            tracker.server(0, black_box(response), &mut sessions);
            assert!(tracker.at_rest());
        });
    });
    group.finish();
}

fn bench(c: &mut Criterion) {
    let response = [RESPONSE, &[b'x'; 100]].concat();
    exchange(c, "http1", Guard::Http1, REQUEST, &response);
    exchange(c, "resp_get", Guard::Resp, GET, b"$5\r\nvalue\r\n");
    exchange(c, "resp_set", Guard::Resp, SET, b"+OK\r\n");
    let value = b"VALUE key 0 5\r\nvalue\r\nEND\r\n";
    exchange(c, "memcached_get", Guard::Memcached, b"get key\r\n", value);

    let mut tracker = Tracker::new(Guard::Http1);
    let mut sessions = Sessions::new([]);
    tracker.client(0, b"PUT / HTTP/1.1\r\nContent-Length: 999999999999999\r\n\r\n", &mut sessions);
    c.bench_function("body_segment/1448", |b| {
        let data = [b'x'; 1448];
        b.iter(|| tracker.client(0, black_box(&data), &mut sessions));
    });
    assert_eq!((tracker.unanswered(), tracker.pinned()), (1, None));
}

criterion_group!(benches, bench);
criterion_main!(benches);
