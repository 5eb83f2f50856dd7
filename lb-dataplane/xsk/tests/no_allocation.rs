//! After `open`, moving frames allocates nothing.
#![expect(unsafe_code, reason = "a global allocator that counts")]

#[path = "it/common/mod.rs"]
mod common;

use baton_xsk::{Config, Disposition, HOST_MAC, ModeChoice};
use common::{Lab, MODES, PATIENCE, PORT_V4, PORT_V6, RAW_V4, Raw, RawIp, config, swap, tcp};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    os::fd::AsFd,
    time::{Duration, Instant},
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator unchanged; `realloc` and `alloc_zeroed` come here
// by default.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn moving_frames_allocates_nothing() {
    for mode in MODES {
        let lab = Lab::new();
        let mut port = lab.open(&config(mode));
        let client = Raw::open(&lab);
        let from = (RAW_V4.into(), 40_000);
        let frame = tcp(from, (PORT_V4.into(), 80), 1, "A", &[7; 100]);
        let wake = common::eventfd();
        let mut buffer = vec![0; 2048];
        for round in 0..100 {
            for _ in 0..100 {
                client.send(&frame);
            }
            let deadline = Instant::now() + PATIENCE;
            let before = ALLOCATIONS.with(Cell::get);
            let mut seen = 0;
            while seen < 100 && Instant::now() < deadline {
                seen +=
                    port.process(&mut |b: &mut [u8], len: usize, tx: &mut baton_xsk::Tx<'_>| {
                        swap(&mut b[..len]);
                        if let Some(extra) = tx.frame() {
                            extra[..len].copy_from_slice(&b[..len]);
                            tx.send(len);
                        }
                        Disposition::Transmit(len)
                    });
                let mut tx = port.tx();
                if let Some(own) = tx.frame() {
                    own[..frame.len()].copy_from_slice(&frame);
                    swap(&mut own[..frame.len()]);
                    tx.send(frame.len());
                }
                port.flush();
                port.wait(Some(Duration::from_millis(1)), wake.as_fd())
                    .expect("the interface stays");
            }
            assert_eq!(seen, 100, "{mode:?}");
            assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "{mode:?} round {round}");
            for _ in 0..200 {
                client.receive_tcp(&mut buffer, deadline).expect("all come back");
            }
        }
        assert!(port.frames().is_complete());
    }
}

/// Through the host's stack, both ways; packets that are looked up for the size of their segments
/// among them.
#[test]
fn neither_does_moving_them_through_the_host() {
    let lab = Lab::new();
    let mut port = lab.open(&Config { host: true, ..config(ModeChoice::Native) });
    let raw = RawIp::open(&lab);
    for own in [PORT_V4.into(), PORT_V6.into()] {
        let frame = tcp((own, 40_000), (own, 80), 1, "A", &[7; 1_000]);
        for round in 0..10 {
            for _ in 0..100 {
                raw.send(&frame);
            }
            let before = ALLOCATIONS.with(Cell::get);
            let mut seen = 0;
            while seen < 100 {
                let more =
                    port.process(&mut |b: &mut [u8], len: usize, tx: &mut baton_xsk::Tx<'_>| {
                        assert_eq!(b[6..12], HOST_MAC);
                        // As a reset, which nobody answers.
                        swap(&mut b[..len]);
                        b[14 + if b[12] == 8 { 20 } else { 40 } + 13] = 0x04;
                        if let Some(extra) = tx.frame() {
                            extra[..len].copy_from_slice(&b[..len]);
                            tx.send(len);
                        }
                        Disposition::Transmit(len)
                    });
                assert!(more > 0, "{seen} of 100");
                seen += more;
            }
            assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "round {round}");
        }
    }
    assert_eq!(port.stats().host.tx_frames, 4_000);
}
