//! Figures of the packet path: `cargo bench -p baton-packet`.
#![allow(missing_docs)]

use baton_packet::{
    Adoption, AdoptionKey, Decoded, Flags, Mac, MessageKind, Rewrite, STRIPPED_FROM_CLIENTS,
    Segment, SegmentSpec, SeqNumber, build_adoption, build_segment, decode, parse_adoption,
    rewrite_tcp, settle_tcp_checksum, strip_options, sum_for_bench, timestamps,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::{hint::black_box, net::IpAddr};

fn address(v6: bool, n: u8) -> IpAddr {
    if v6 { [n; 16].into() } else { [10, 0, 0, n].into() }
}

fn spec(v6: bool, payload: &[u8]) -> SegmentSpec<'_> {
    SegmentSpec {
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
        src: address(v6, 1),
        dst: address(v6, 2),
        src_port: 40_000,
        dst_port: 80,
        seq: SeqNumber(1),
        ack: SeqNumber(2),
        flags: Flags::ACK,
        window: 500,
        timestamps: Some((1, 2)),
        payload,
    }
}

fn frame(v6: bool, payload_bytes: usize) -> (Vec<u8>, Segment) {
    let payload: Vec<u8> = (0..payload_bytes).map(|i| i as u8).collect();
    let mut buf = [0; 2048];
    let length = build_segment(&mut buf, &spec(v6, &payload)).expect("2048 bytes are enough");
    let frame = buf[..length].to_vec();
    match decode(&frame) {
        Ok(Decoded::Tcp(seg)) => (frame, seg),
        other => panic!("{other:?}"),
    }
}

fn rewrite(v6: bool) -> Rewrite {
    Rewrite {
        src: address(v6, 3),
        dst: address(v6, 4),
        src_port: 5,
        dst_port: 6,
        src_mac: Mac([1; 6]),
        dst_mac: Mac([2; 6]),
    }
}

fn bench(c: &mut Criterion) {
    for (name, bytes) in [("64", 64), ("1460", 1460)] {
        let data: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
        c.bench_function(&format!("sum/{name}"), |b| {
            b.iter(|| sum_for_bench(black_box(&data)));
        });
    }
    for (family, v6) in [("v4", false), ("v6", true)] {
        let (data, seg) = frame(v6, 100);
        c.bench_function(&format!("decode/{family}"), |b| {
            b.iter(|| match decode(black_box(&data)) {
                Ok(Decoded::Tcp(seg)) => seg.seq.0 ^ u32::from(seg.src_port),
                _ => 0,
            });
        });
        let to = rewrite(v6);
        // The hop limit must not run out, so it is put back each time.
        let ttl_at = usize::from(seg.l3) + if v6 { 7 } else { 8 };
        let mut out = data.clone();
        c.bench_function(&format!("rewrite/{family}"), |b| {
            b.iter(|| {
                out[ttl_at] = 64;
                rewrite_tcp(black_box(&mut out), &seg, black_box(&to))
            });
        });
        for payload in [0, 100, 1448] {
            let (fresh, _) = frame(v6, payload);
            let mut data = fresh.clone();
            let headers = if v6 { 86 } else { 66 };
            c.bench_function(&format!("path/{family}/{payload}"), |b| {
                b.iter(|| {
                    // A fresh frame each time, as from a ring; its headers are copied whole,
                    // because bytes that were just written singly are slow to read as words.
                    data[..headers].copy_from_slice(&fresh[..headers]);
                    let data = black_box(&mut data[..]);
                    let Ok(Decoded::Tcp(seg)) = decode(data) else { panic!("the frame broke") };
                    let stamps = timestamps(seg.options(data));
                    let state = settle_tcp_checksum(data, &seg);
                    let stripped = strip_options(data, &seg, STRIPPED_FROM_CLIENTS);
                    let result = rewrite_tcp(data, &seg, black_box(&to));
                    (result, state, stripped, stamps, seg)
                });
            });
        }
    }
    let key = AdoptionKey::from_bytes([7; 16]);
    let message = Adoption {
        kind: MessageKind::Adopt,
        mss: 1460,
        server_wscale: 7,
        client_wscale: 7,
        wscale_ok: true,
        sack_ok: true,
        timestamps_ok: true,
        ecn_ok: false,
        epoch: 1,
        server_ts: 9,
        namespace: 11,
    };
    let mut buf = [0; 2048];
    let spec = spec(false, &[]);
    c.bench_function("adoption/build", |b| {
        b.iter(|| build_adoption(black_box(&mut buf), black_box(&spec), &message, &key));
    });
    let Ok(Decoded::Tcp(seg)) = decode(&buf) else { panic!("no segment") };
    c.bench_function("adoption/verify", |b| {
        b.iter(|| parse_adoption(black_box(&buf), &seg).and_then(|raw| raw.verify(&key)));
    });
    c.bench_function("build/v4/0", |b| {
        b.iter_batched_ref(
            || [0u8; 128],
            |buf| build_segment(buf, black_box(&spec)),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
