//! Fuzz targets. On stable Rust they are ordinary tests: each runs over the committed corpus
//! (`fuzz/__fuzz__/<target>/corpus`) and over random inputs.
//!
//! - Longer: `BOLERO_RANDOM_ITERATIONS=10000000 cargo test -p baton-guard --test fuzz`.
//! - Again: a failure prints `BOLERO_RANDOM_SEED=...`; set it and run the target.
//!
//! Inputs are programs, because random bytes do not get past the first line: see [`turns_of`].
#![allow(missing_docs)]

#[path = "../../packet/fuzz/corpus.rs"]
mod corpus;
#[path = "../tests/it/support/mod.rs"]
mod support;

use baton_guard::{Guard, PRELUDE_MAX, detect};
use bolero::check;
use support::{Checked, Followed, Turn, seen, turns};

/// Parts of conversations that get deep.
const PARTS: [&[&[u8]]; 3] = [
    &[
        b"GET / HTTP/1.1\r\n",
        b"POST /a HTTP/1.1\r\n",
        b"HEAD / HTTP/1.0\r\n",
        b"PUT / HTTP/1.1\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 S\r\n",
        b"HTTP/1.0 304 N\r\n",
        b"HTTP/1.1 204 N\r\n\r\n",
        b"Content-Length: ",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: ",
        b"Connection: close\r\n",
        b"Connection: keep-alive",
        b"Expect: 100-continue\r\n",
        b"WWW-Authenticate: ",
        b"Negotiate",
        b"Authorization: Basic x\r\n",
        b"5\r\n",
        b"5;a=b\r\nhello\r\n",
        b"0\r\n\r\n",
        b"hello",
        b" folded\r\n",
        b"A: b\r\n",
        b"\r\n",
        b"\r\n\r\n",
    ],
    &[
        b"*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$5\r\nMULTI\r\n",
        b"*1\r\n$4\r\nEXEC\r\n",
        b"*2\r\n$5\r\nWATCH\r\n$1\r\nk\r\n",
        b"*1\r\n$7\r\nUNWATCH\r\n",
        b"*1\r\n$7\r\nDISCARD\r\n",
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n",
        b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n",
        b"*3\r\n$4\r\nAUTH\r\n",
        b"$2\r\nme\r\n",
        b"*1\r\n$5\r\nRESET\r\n",
        b"*1\r\n$4\r\nQUIT\r\n",
        b"get k\r\n",
        b"select 1\r\n",
        b"auth a b\r\n",
        b"+OK\r\n",
        b"+QUEUED\r\n",
        b"+RESET\r\n",
        b"-ERR\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*2\r\n",
        b"$5\r\nhello\r\n",
        b"\r\n",
        b"*2\r\n$6\r\nSCRIPT\r\n",
    ],
    &[
        b"get k\r\n",
        b"set k 0 0 5\r\n",
        b"hello\r\n",
        b"set k 0 0 5 noreply\r\n",
        b"delete k\r\n",
        b"delete k noreply\r\n",
        b"mg k v\r\n",
        b"mg k v q\r\n",
        b"ms k 5\r\n",
        b"incr k 1\r\n",
        b"stats\r\n",
        b"quit\r\n",
        b"VALUE k 0 5\r\n",
        b"END\r\n",
        b"STORED\r\n",
        b"STAT a b\r\n",
        b"VA 5\r\n",
        b"HD\r\n",
        b"ERROR\r\n",
        b"SERVER_ERROR x\r\n",
        b"CLIENT_ERROR x\r\n",
        b"7\r\n",
        b"cas k 0 0 5 1\r\n",
        b"\r\n",
        b" ",
        b"noreply",
    ],
];

/// Turns the input into a conversation: the first byte chooses the guard. Then each byte below 0x40
/// appends a part to the turn, below 0x80 begins a turn of one side or the other, below 0x90 puts a
/// gap before it, and any other appends the byte behind it.
fn turns_of(input: &[u8]) -> (Guard, Vec<Turn>) {
    let [choice, program @ ..] = input else {
        return (Guard::Http1, Vec::new());
    };
    let which = usize::from(choice % 3);
    let mut turns = vec![support::said(true, b"")];
    let mut rest = program.iter();
    while let Some(byte) = rest.next() {
        let last = turns.len() - 1;
        match byte {
            0..0x40 => {
                turns[last].data.extend(PARTS[which][usize::from(*byte) % PARTS[which].len()]);
            }
            0x40..0x80 => turns.push(support::said(byte & 1 != 0, b"")),
            0x80..0x90 => turns
                .push(Turn { gap: u32::from(byte - 0x80), ..support::said(byte & 1 != 0, b"") }),
            _ => turns[last].data.extend(rest.next()),
        }
    }
    ([Guard::Http1, Guard::Resp, Guard::Memcached][which], turns)
}

/// Promises hold after each piece, and pieces tell what the whole tells.
fn check_conversation(input: &[u8]) {
    let _ = detect(input);
    let (guard, turns) = turns_of(input);
    let (mut whole, mut pieces) = (Checked::new(guard), Checked::new(guard));
    let sizes: Vec<usize> = input.iter().map(|b| usize::from(b % 8)).chain([1]).collect();
    for turn in &turns {
        whole.tell_in(turn, &[usize::MAX]);
        pieces.tell_in(turn, &sizes);
        assert_eq!(seen(&whole.tracker).settled(), seen(&pieces.tracker).settled(), "{turns:?}");
    }
    if whole.tracker.is_default() {
        like_new(&whole.tracker, guard, &turns);
    }
}

/// A default tracker goes on as a new one does: the engine may forget it.
fn like_new(tracker: &Followed, guard: Guard, turns: &[Turn]) {
    let (mut old, mut new) = (tracker.clone(), Followed::new(guard));
    for turn in turns {
        for tracker in [&mut old, &mut new] {
            if turn.client {
                tracker.client(turn.gap, &turn.data);
            } else {
                tracker.server(turn.gap, &turn.data);
            }
        }
        assert_eq!(seen(&old).settled(), seen(&new).settled(), "{turns:?}");
    }
}

/// A rendered session, told to another tracker and accepted there, is the same session.
fn check_prelude(input: &[u8]) {
    let input = [&[1], input].concat();
    let (guard, turns) = turns_of(&input);
    let mut first = Checked::new(guard);
    for turn in &turns {
        first.tell_in(turn, &[usize::MAX]);
        let mut out = [0; PRELUDE_MAX];
        let Some(prelude) = first.tracker.prelude(&mut out) else {
            continue;
        };
        let mut other = Checked::new(guard);
        other.tell(true, 0, &out[..usize::from(prelude.len)]);
        assert_eq!(other.tracker.unanswered(), u32::from(prelude.reply) / 5);
        other.tell(false, 0, b"+OK\r\n".repeat(usize::from(prelude.reply) / 5).as_slice());
        assert!(other.tracker.at_rest());
        assert_eq!(seen(&other.tracker).prelude, seen(&first.tracker).prelude);
    }
}

/// What is said in HTTP/1, RESP and memcached, and what only looks like it.
#[test]
fn conversations() {
    check!().with_iterations(100_000).with_max_len(80).for_each(check_conversation);
}

/// What restores a session.
#[test]
fn preludes() {
    check!().with_iterations(100_000).with_max_len(80).for_each(check_prelude);
}

/// Each target has its corpus, and every input of it holds.
#[test]
fn corpora() {
    corpus::replay("conversations", check_conversation);
    corpus::replay("preludes", check_prelude);
}

/// The parts are right: what each guard's fuzzing starts from gets deep.
#[test]
fn parts_get_deep() {
    for (program, at_rest) in [
        (&[0, 0, 24, 0x40, 4, 9, 0x90, b'5', 25, 21][..], true),
        (&[1, 7, 6, 0x40, 15, 15], true),
        (&[1, 1, 0x40, 15, 0x41, 0, 0x40, 16], false),
        (&[2, 1, 2, 0, 0x40, 14, 12, 2, 13], true),
    ] {
        let (guard, turns) = turns_of(program);
        let mut checked = Checked::new(guard);
        turns.iter().for_each(|t| checked.tell_in(t, &[usize::MAX]));
        assert_eq!(
            (checked.tracker.at_rest(), checked.tracker.pinned()),
            (at_rest, None),
            "{turns:?}"
        );
    }
    let (guard, turns) = turns("guard resp\n> PING\\r\\n");
    assert_eq!((guard, turns.len()), (Guard::Resp, 1));
}
