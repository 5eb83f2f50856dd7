//! What is still to come of a request, told in every possible pair of pieces.

use crate::support::Followed;
use baton_guard::{Guard, ToCome};

/// Shows the client's bytes in two pieces, cut anywhere; what is missing behind the second must not
/// depend on the cut.
fn to_come(guard: Guard, shown: &str) -> ToCome {
    let bytes = shown.as_bytes();
    let mut found = None;
    for cut in 0..=bytes.len() {
        let mut tracker = Followed::new(guard);
        tracker.client(0, &bytes[..cut]);
        tracker.client(0, &bytes[cut..]);
        assert_eq!(tracker.pinned(), None, "{shown:?}");
        let here = tracker.to_come();
        assert_eq!(*found.get_or_insert(here), here, "{shown:?} cut at {cut}");
    }
    found.expect("at least one cut")
}

fn check(guard: Guard, cases: &[(&str, ToCome)]) {
    for (shown, expected) in cases {
        assert_eq!(to_come(guard, shown), *expected, "{shown:?}");
    }
}

#[test]
fn of_http() {
    use ToCome::{AtLeast, Exactly};
    let post = "POST / HTTP/1.1\r\nContent-Length: 1000000\r\n";
    let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    check(
        Guard::Http1,
        &[
            ("", Exactly(0)),
            ("GET / HTTP/1.1\r\n\r\n", Exactly(0)),
            ("GET / HT", AtLeast(0)),
            ("GET / HTTP/1.1\r\nCookie: a", AtLeast(0)),
            // The head goes on, and the body behind it has a length already.
            (post, AtLeast(1_000_000)),
            (&format!("{post}\r\n"), Exactly(1_000_000)),
            (&format!("{post}\r\nabc"), Exactly(999_997)),
            (&format!("GET / HTTP/1.1\r\n\r\n{post}\r\nabc"), Exactly(999_997)),
            (chunked, AtLeast(0)),
            (&format!("{chunked}1000\r\nabc"), AtLeast(0x1000 - 3)),
            (&format!("{chunked}3\r\nabc\r\n"), AtLeast(0)),
            (&format!("{chunked}3\r\nabc\r\n0\r\n\r\n"), Exactly(0)),
        ],
    );
}

#[test]
fn of_resp() {
    use ToCome::{AtLeast, Exactly};
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n";
    check(
        Guard::Resp,
        &[
            ("*1\r\n$4\r\nPING\r\n", Exactly(0)),
            ("PING\r\n", Exactly(0)),
            ("GET k", AtLeast(0)),
            ("*3\r\n$3\r\nS", AtLeast(2 + 2 + 2 * 6)),
            (set, AtLeast(0)),
            (&format!("{set}$1000000\r\n"), Exactly(1_000_002)),
            (&format!("{set}$1000000\r\nabc"), Exactly(999_999)),
            (&format!("{set}$3\r\nabc"), Exactly(2)),
            (&format!("{set}$3\r\nabc\r"), Exactly(1)),
            // Of an MSET that sets two keys more than the first value is to come.
            ("*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1000\r\n", AtLeast(1_002 + 2 * 6)),
        ],
    );
}

#[test]
fn of_memcached() {
    use ToCome::{AtLeast, Exactly};
    check(
        Guard::Memcached,
        &[
            ("get k\r\n", Exactly(0)),
            ("get k", AtLeast(0)),
            ("set k 0 0 1000000", AtLeast(0)),
            ("set k 0 0 1000000 ", AtLeast(1_000_002)),
            ("set k 0 0 1000000\r\n", Exactly(1_000_002)),
            ("set k 0 0 1000000\r\nabc", Exactly(999_999)),
            ("ms k 1000\r\n", Exactly(1_002)),
            ("set k 0 0 3\r\nabc", Exactly(2)),
            ("set k 0 0 3\r\nabc\r", Exactly(1)),
            ("set k 0 0 3\r\nabc\r\n", Exactly(0)),
        ],
    );
}

#[test]
fn a_pinned_conversation_tells_nothing() {
    let mut tracker = Followed::new(Guard::Http1);
    tracker.client(0, b"CONNECT x HTTP/1.1\r\n\r\n");
    assert!(tracker.pinned().is_some());
    assert_eq!(tracker.to_come(), ToCome::AtLeast(0));
}
