//! RESP: each rule as a small conversation, told in pieces of many sizes.

use crate::support::{Followed, check};
use baton_guard::{Guard, PRELUDE_MAX, Pin, Session, Sessions, Tracker, prelude_reply_matches};

/// Commands are written as words here: `> GET k` becomes an array of bulk strings.
fn resp(lines: &[&str]) {
    let lines = lines.iter().map(|line| match line.strip_prefix("* ") {
        Some(words) => format!("> {}", command(words)),
        None => (*line).to_owned(),
    });
    check(&format!("guard resp\n{}", lines.collect::<Vec<_>>().join("\n")));
}

fn command(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let bulks = words.iter().map(|w| format!(r"${}\r\n{w}\r\n", w.len()));
    format!(r"*{}\r\n{}", words.len(), bulks.collect::<String>())
}

const OK: &str = r"< +OK\r\n";
const QUEUED: &str = r"< +QUEUED\r\n";
const ERROR: &str = r"< -ERR no\r\n";

#[test]
fn commands_and_replies_are_counted() {
    resp(&[
        "= at_rest default",
        "* GET k",
        "= held unanswered=1 idempotent not_begun",
        r"< $5\r\nab\r\n",
        "= held begun",
        r"< c\r\n",
        "= at_rest default",
    ]);
    resp(&[
        "* SET k v",
        "= not_idempotent",
        "* GET k",
        "= unanswered=2 not_idempotent",
        OK,
        "= unanswered=1 idempotent begun",
        r"< $-1\r\n",
        "= at_rest default",
    ]);
    resp(&["* BLPOP k 0", "= held not_idempotent", r"< *-1\r\n", "= at_rest"]);
    resp(&["* BLPOP k 0", r"< *2\r\n$1\r\nk\r\n:12\r\n", "= at_rest"]);
    resp(&[
        "* KEYS x",
        r"< *3\r\n*2\r\n$0\r\n\r\n*0\r\n*1\r\n*-1\r\n",
        "= held",
        r"< +OK\r\n",
        "= at_rest",
    ]);
    resp(&[
        r"> *2\r\n$4\r\nECHO\r\n$3\r\n",
        "= held unanswered=1",
        "> ab",
        r"> c\r\n",
        r"< $3\r\nabc\r\n",
        "= at_rest",
    ]);
    resp(&[r"> *2\r\n$4\r\nEC", "= held unanswered=1 not_idempotent"]);
    resp(&[r"> *0\r\n*-1\r\n\r\n  \r\n\n", "= at_rest default unanswered=0"]);
    // Each is an error to redis, which nobody asked for.
    for odd in [r"*-0\r\n", r"*00\r\n", r"*01\r\n$4\r\nPING\r\n", r"*1\r\n$04\r\nPING\r\n"] {
        resp(&[&format!("> {odd}"), "= pin=unparsable"]);
    }
    resp(&[r"> *1\r\n$30\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", ERROR, "= at_rest"]);
}

#[test]
fn inline_commands() {
    resp(&[r"> get k\r\n", "= unanswered=1 idempotent", r"< $-1\r\n", "= at_rest"]);
    resp(&[r"> \x09 set k 'a b'\n", "= unanswered=1 not_idempotent", OK, "= at_rest"]);
    resp(&[r"> select 2\r\n", OK, r"= at_rest prelude=*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n"]);
    resp(&[
        r"> AUTH  me secret \r\n",
        OK,
        r"= prelude=*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n reply=5",
    ]);
    resp(&[r"> AUTH 'secret'\r\n", "= pin=session"]);
    resp(&["> 'GET'", "= pin=unparsable"]);
    resp(&[r"> \x16\x03\x01\x00", "= pin=unparsable"]);
    resp(&[r"> GET a\rb", "= pin=unparsable"]);
    resp(&["> MONI", "= held unanswered=1", r"> TOR\r\n", "= pin=monitor"]);
    resp(&[&format!("> SET k {}", "x".repeat(66_000)), "= pin=head_too_long"]);
}

#[test]
fn what_ties_a_connection_pins() {
    for (words, pin) in [
        ("SUBSCRIBE c", Pin::Subscribe),
        ("psubscribe c", Pin::Subscribe),
        ("SSUBSCRIBE c", Pin::Subscribe),
        ("UNSUBSCRIBE", Pin::Subscribe),
        ("MONITOR", Pin::Monitor),
        ("PSYNC ? -1", Pin::Replication),
        ("SYNC", Pin::Replication),
        ("REPLCONF a b", Pin::Replication),
        ("CLIENT REPLY OFF", Pin::ClientState),
        ("client setinfo a b", Pin::ClientState),
        ("READONLY", Pin::ClientState),
        ("READWRITE", Pin::ClientState),
        ("ASKING", Pin::ClientState),
        ("WAIT 1 0", Pin::ClientState),
        ("SCRIPT debug yes", Pin::ClientState),
        ("HELLO 3", Pin::Hello),
    ] {
        resp(&[&format!("* {words}"), &format!("= pin={}", pin.label())]);
        resp(&[
            "* GET k",
            &format!(r"> {}\r\n", words.to_lowercase()),
            &format!("= pin={}", pin.label()),
        ]);
    }
    resp(&["* SCRIPT LOAD x", "= held", r"< $1\r\nx\r\n", "= at_rest"]);
    resp(&["* SCRIPT DEBUGGER x", ERROR, "= at_rest"]);
}

#[test]
fn transactions_hold_while_they_last() {
    resp(&[
        "* MULTI",
        OK,
        "= held unanswered=0 begun",
        "* GET k",
        "= not_idempotent",
        QUEUED,
        "= held",
        "* EXEC",
        r"< *1\r\n$-1\r\n",
        "= at_rest default",
    ]);
    resp(&[
        "* MULTI",
        "* GET k",
        "* EXEC",
        OK,
        QUEUED,
        "= held",
        r"< *1\r\n",
        "= held",
        r"< $-1\r\n",
        "= at_rest default",
    ]);
    resp(&["* MULTI", r"< -NOAUTH x\r\n", "= at_rest"]);
    resp(&[
        "* MULTI",
        OK,
        "* MULTI",
        ERROR,
        "= held",
        "* DISCARD x",
        ERROR,
        "= held",
        "* DISCARD",
        OK,
        "= at_rest",
    ]);
    resp(&["* MULTI", OK, "* EXEC", r"< -EXECABORT x\r\n", "= at_rest"]);
    resp(&["* MULTI", OK, "* EXEC", r"< *-1\r\n", "= at_rest"]);
    // Older redis stays in the transaction, and its keys stay watched.
    for error in ["ERR wrong number of arguments", "LOADING x", "EXEC", "E"] {
        resp(&[
            "* WATCH k",
            OK,
            "* MULTI",
            OK,
            "* EXEC x",
            &format!(r"< -{error}\r\n"),
            "= held unanswered=0",
            "* DISCARD",
            OK,
            "= at_rest default",
        ]);
    }
    resp(&[
        "* WATCH k",
        OK,
        "= held",
        "* GET k",
        "= not_idempotent",
        r"< $-1\r\n",
        "= held",
        "* UNWATCH",
        OK,
        "= at_rest",
    ]);
    resp(&[
        "* WATCH k",
        OK,
        "* EXEC",
        ERROR,
        "= held",
        "* MULTI",
        OK,
        "* UNWATCH",
        QUEUED,
        "= held",
        "* EXEC",
        r"< *1\r\n+OK\r\n",
        "= at_rest",
    ]);
    resp(&["* WATCH k", OK, "* MULTI", OK, "* DISCARD", OK, "= at_rest"]);
    resp(&["* WATCH", ERROR, "= at_rest"]);
    resp(&["* WATCH k", r"< *1\r\n+OK\r\n", "= at_rest"]);
    resp(&["* MULTI", OK, "* RESET", r"< +RESET\r\n", "= at_rest default"]);
    for words in ["SELECT 1", "AUTH x"] {
        resp(&["* MULTI", OK, &format!("* {words}"), QUEUED, "= pin=session"]);
    }
    let many = ["* MULTI"; 8].join("\n");
    let many: Vec<&str> = many.lines().collect();
    resp(&[&many[..], &["= unanswered=8", "* EXEC", "= pin=pipeline_too_deep"]].concat());
}

#[test]
fn sessions_are_remembered_when_accepted() {
    resp(&[
        "* SELECT 7",
        "= no_prelude idempotent",
        OK,
        r"= at_rest not_default prelude=*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n reply=5",
        "* SELECT 0",
        "= reply=5",
        OK,
        "= default no_prelude",
    ]);
    resp(&["* SELECT 7", ERROR, "= default"]);
    resp(&["* SELECT 9999", OK, r"= prelude=*2\r\n$6\r\nSELECT\r\n$4\r\n9999\r\n"]);
    resp(&[
        "* AUTH pw",
        ERROR,
        "= default",
        "* AUTH other",
        OK,
        r"= prelude=*2\r\n$4\r\nAUTH\r\n$5\r\nother\r\n reply=5",
    ]);
    resp(&[
        "* AUTH me pw",
        "* SELECT 1",
        "* GET k",
        "= no_prelude unanswered=3 idempotent",
        OK,
        OK,
        r"< $-1\r\n",
        r"= at_rest prelude=*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$2\r\npw\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n reply=10",
    ]);
    // The same again changes nothing; anything else has no room beside what holds until it is
    // answered.
    resp(&[
        "* AUTH me pw",
        OK,
        "* AUTH me pw",
        "= reply=5",
        ERROR,
        "= at_rest reply=5",
        "* AUTH m epw",
        "= pin=session",
    ]);
    resp(&["* AUTH pw", OK, "* AUTH pwd", "= pin=session"]);
    resp(&["* AUTH pw", OK, "* AUTH p", "= pin=session"]);
    resp(&["* AUTH pw", "* AUTH pw", "= pin=session"]);
    resp(&["* SELECT 1", "* SELECT 2", "= pin=session"]);
    resp(&["* AUTH a b c", ERROR, "= default", r"> *1\r\n$4\r\nAUTH\r\n", ERROR, "= default"]);
    resp(&["* AUTH pw", OK, "* AUTH a b c", ERROR, "= at_rest reply=5"]);
    for odd in ["x", "01", "-1", "12345", "1x", "123456789"] {
        resp(&[&format!("* SELECT {odd}"), "= pin=session"]);
    }
    resp(&["* SELECT 1 2", ERROR, "= default"]);
    resp(&[
        "* AUTH pw",
        OK,
        "* SELECT 1",
        OK,
        "* RESET",
        "= reply=10",
        r"< +RESET\r\n",
        "= at_rest default",
    ]);
    resp(&["* RESET", "* SELECT 1", "= pin=session"]);
    // The answer in the midst of it must not hide `DEBUG`.
    resp(&[r"> RESET\r\nSCRIPT ", "= pin=session"]);
    let secret = "s".repeat(96);
    resp(&[
        &format!("* AUTH {secret}"),
        OK,
        &format!(r"= prelude=*2\r\n$4\r\nAUTH\r\n$96\r\n{secret}\r\n"),
    ]);
    resp(&[&format!("* AUTH u {secret}"), "= pin=session"]);
    resp(&["* QUIT", "= not_closing", OK, "= closing not_default"]);
}

#[test]
fn the_longest_prelude_fits_and_its_replies_are_matched() {
    let mut tracker = Followed::new(Guard::Resp);
    let (user, password) = ("u".repeat(48), "p".repeat(48));
    tracker.client(0, format!("AUTH {user} {password}\r\nSELECT 9999\r\n").as_bytes());
    tracker.server(0, b"+OK\r\n+OK\r\n");
    let mut out = [0; PRELUDE_MAX];
    let prelude = tracker.prelude(&mut out).expect("a session");
    let text = format!(
        "*3\r\n$4\r\nAUTH\r\n$48\r\n{user}\r\n$48\r\n{password}\r\n*2\r\n$6\r\nSELECT\r\n$4\r\n9999\r\n"
    );
    assert_eq!(&out[..usize::from(prelude.len)], text.as_bytes());
    crate::support::prelude_replies_match(b"+OK\r\n+OK\r\n");
    for (at, data) in [(0, &b"-"[..]), (0, b"+OK\r\n-"), (1, b"+"), (5, b"OK"), (9, b"\r")] {
        assert!(!prelude_reply_matches(at, data), "{at} {data:?}");
    }
    // Nothing of a secret is shown. What pins takes no session away that a hand-over may be
    // restoring; who needs it no more drops the tracker.
    assert!(!format!("{tracker:?}").contains("pppp"));
    tracker.client(0, b"MONITOR\r\n");
    assert!(tracker.pinned().is_some());
    assert_eq!(tracker.prelude(&mut out).map(|p| p.len), Some(prelude.len));
}

#[test]
fn what_is_no_resp_pins() {
    for wrong in [
        r"*x",
        r"*1\n",
        r"*1\r\n:1\r\n",
        r"*1\r\n$-1\r\n",
        r"*1\r\n$3\r\nGETxx",
        r"*1\r\n$3\r\nGET\rx",
        r"*1234567890",
        r"*\r\n",
        r"*2000000\r\n",
        r"*1\r\n$x",
    ] {
        resp(&[&format!("> {wrong}"), "= pin=unparsable"]);
    }
    for wrong in [
        "%1",
        "_",
        "HTTP/1.1 400",
        r"$-2\r\n",
        r"*-2\r\n",
        r"$1\r\nab",
        r"+a\rb",
        r"+a\n",
        r":1\r\r",
        r"$2\r\nab\r\r",
        r"*1\r\nx",
    ] {
        resp(&["* GET k", &format!("< {wrong}"), "= pin=unparsable"]);
    }
    resp(&[OK, "= pin=server_first"]);
    resp(&["* GET k", OK, OK, "= pin=server_first"]);
    resp(&[r"> *2\r\n$3\r\nGET\r\n", ERROR, "= pin=server_first"]);
}

#[test]
fn gaps() {
    let set = r"> *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\n";
    resp(&[set, ">60", r">40 \r\n", "= unanswered=1", OK, "= at_rest"]);
    resp(&[set, ">101", "= pin=gap"]);
    resp(&[r"> *1\r\n$10\r\n", ">10", "= pin=gap"]);
    resp(&[r"> *2\r\n$4\r\nAUTH\r\n$10\r\n", ">10", "= pin=gap"]);
    resp(&[">1", "= pin=gap"]);
    resp(&["* GET k", r"< $1000\r\n", "<1000", r"< \r\n", "= at_rest"]);
    resp(&["* GET k", "<5", "= pin=gap"]);
}

#[test]
fn deep_pipelines() {
    let mut tracker = Followed::new(Guard::Resp);
    let many = "PING\r\n".repeat(1 << 10);
    for _ in 0..1 << 10 {
        tracker.client(0, many.as_bytes());
    }
    assert_eq!((tracker.unanswered(), tracker.pinned()), (1 << 20, None));
    let replies = "+PONG\r\n".repeat(1 << 10);
    for _ in 0..1 << 10 {
        tracker.server(0, replies.as_bytes());
    }
    assert!(tracker.is_default());
    for _ in 0..=1 << 10 {
        tracker.client(0, many.as_bytes());
    }
    assert_eq!(tracker.pinned(), Some(Pin::PipelineTooDeep));
}

/// Both directions of one connection, told to a tracker that shares the room for sessions.
fn tell(tracker: &mut Tracker, room: &mut Sessions<[Session; 1]>, turns: &[(&[u8], &[u8])]) {
    for (client, server) in turns {
        tracker.client(0, client, room);
        tracker.server(0, server, room);
    }
}

#[test]
fn room_for_a_session_is_taken_with_the_first_command_that_needs_it_and_given_back() {
    let mut room = Sessions::new([Session::new()]);
    let mut tracker = Tracker::new(Guard::Resp);
    let mut used_after = |turns: &[(&[u8], &[u8])]| {
        tell(&mut tracker, &mut room, turns);
        room.used()
    };
    assert_eq!(used_after(&[(b"GET a\r\n", b"$1\r\nx\r\n")]), 0);
    assert_eq!(used_after(&[(b"MULTI\r\n", b"")]), 1);
    // The hold itself needs none.
    assert_eq!(used_after(&[(b"", b"+OK\r\n")]), 0);
    assert_eq!(used_after(&[(b"EXEC\r\n", b"*0\r\n")]), 0);
    assert_eq!(used_after(&[(b"SCRIPT ", b"")]), 1);
    assert_eq!(used_after(&[(b"LONGER THAN DEBUG\r\n", b"+OK\r\n")]), 0);
    assert_eq!(used_after(&[(b"AUTH secret\r\n", b"-WRONGPASS\r\n")]), 0);
    assert_eq!(used_after(&[(b"SELECT 3\r\n", b"+OK\r\n")]), 1);
    assert_eq!(used_after(&[(b"SELECT 0\r\n", b"+OK\r\n")]), 0);
    assert!(tracker.is_default());
}

#[test]
fn without_room_for_a_session_a_connection_is_pinned_and_others_go_on() {
    let mut room = Sessions::new([Session::new()]);
    let mut trackers = [(); 3].map(|()| Tracker::new(Guard::Resp));
    tell(&mut trackers[0], &mut room, &[(b"AUTH secret\r\n", b"+OK\r\n")]);
    tell(&mut trackers[1], &mut room, &[(b"GET a\r\n", b"$-1\r\n")]);
    assert_eq!(trackers[1].pinned(), None);
    tell(&mut trackers[1], &mut room, &[(b"SELECT 1\r\n", b"+OK\r\n")]);
    assert_eq!(trackers[1].pinned(), Some(Pin::SessionsFull));
    assert_eq!(room.used(), 1);
    trackers[1].forget(&mut room);
    assert_eq!(room.used(), 1);
    // What is given back is nobody's any more.
    trackers[0].forget(&mut room);
    assert_eq!(room.used(), 0);
    let mut out = [0; PRELUDE_MAX];
    assert_eq!(trackers[0].prelude(&room, &mut out), None);
    tell(&mut trackers[2], &mut room, &[(b"SELECT 2\r\n", b"+OK\r\n")]);
    let prelude = trackers[2].prelude(&room, &mut out).expect("a session");
    assert_eq!(&out[..usize::from(prelude.len)], b"*2\r\n$6\r\nSELECT\r\n$1\r\n2\r\n");
}
