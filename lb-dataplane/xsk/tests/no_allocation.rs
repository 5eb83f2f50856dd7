//! After `open`, moving frames allocates nothing.
#![expect(unsafe_code, reason = "a global allocator that counts")]

mod common;

use baton_xsk::Disposition;
use common::{Lab, MODES, PATIENCE, PORT_V4, RAW_V4, Raw, config, swap, tcp};
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

// SAFETY: all calls go to the system's allocator unchanged; `realloc` and `alloc_zeroed` come here by default.
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
                seen += port.process(&mut |b, len, tx| {
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
            assert_eq!(
                ALLOCATIONS.with(Cell::get) - before,
                0,
                "{mode:?} round {round}"
            );
            for _ in 0..200 {
                client
                    .receive_tcp(&mut buffer, deadline)
                    .expect("all come back");
            }
        }
        assert!(port.frames().is_complete());
    }
}
