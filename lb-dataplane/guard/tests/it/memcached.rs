//! The memcached text protocol: each rule as a small conversation, told in pieces of many sizes.

use crate::support::check;

fn memcached(lines: &[&str]) {
    check(&format!("guard memcached\n{}", lines.join("\n")));
}

const SET: &str = r"> set k 0 0 4\r\na\r\nb\r\n";
const STORED: &str = r"< STORED\r\n";

#[test]
fn commands_and_replies_are_counted() {
    memcached(&[
        "= default",
        r"> get k\r\n",
        "= held unanswered=1 idempotent not_begun",
        r"< VALUE k 0 5\r\nEND\r\n",
        "= held begun",
        r"< \r\nEND\r\n",
        "= at_rest default",
    ]);
    memcached(&[
        r"> get a b c\r\n",
        r"< VALUE a 0 0\r\n\r\nVALUE b 1 2 77\r\nxy\r\nEND\r\n",
        "= at_rest default",
    ]);
    memcached(&[SET, "= unanswered=1 not_idempotent", STORED, "= at_rest default"]);
    memcached(&[
        SET,
        r"> get k\r\n",
        STORED,
        "= unanswered=1 idempotent begun",
        r"< END\r\n",
        "= at_rest",
    ]);
    memcached(&[
        r"> set k 0 0 10\r\nabc",
        "= held unanswered=1",
        r"< SERVER_ERROR object too large for cache\r\n",
        "= held unanswered=0",
        r"> defghij\r\n",
        "= at_rest",
    ]);
    memcached(&[r"> cas k 0 0 1 123456789012345678\r\nx\r\n", r"< EXISTS\r\n", "= at_rest"]);
    memcached(&[r"> incr k 1\n", "= not_idempotent", r"< 18446744073709551615\r\n", "= at_rest"]);
    memcached(&[
        r"> stats\r\n",
        "= not_idempotent",
        r"< STAT pid 1\r\nSTAT a END\r\n",
        "= held",
        r"< END\r\n",
        "= at_rest",
    ]);
    memcached(&[r"> version\r\n", "= idempotent", r"< VERSION 1\r\n", "= at_rest"]);
    memcached(&["> ge", "= held unanswered=1 not_idempotent", r"> t k\r\n", "= idempotent"]);
    memcached(&[r"> quit\r\n", "= closing unanswered=0"]);
    memcached(&[
        r"> gat 10 noreply\r\n",
        "= unanswered=1 not_idempotent",
        r"< END\r\n",
        "= at_rest",
    ]);
}

/// A data block may be refused while it is on its way; what follows in the same piece begins at
/// rest.
#[test]
fn answers_before_the_data() {
    let early =
        [r"> set k 0 0 2\r\n", r"< SERVER_ERROR too large\r\n", "= held begun unanswered=0"];
    memcached(
        &[&early[..], &[r"> ab\r\nget k\r\n", "= not_begun unanswered=1 idempotent"]].concat(),
    );
}

#[test]
fn meta_commands() {
    memcached(&[r"> mg k v\r\n", "= idempotent", r"< VA 2 f1\r\nab\r\n", "= at_rest default"]);
    memcached(&[r"> mg k v N30\r\n", "= not_idempotent", r"< EN\r\n", "= at_rest default"]);
    memcached(&[r"> ms k 2 T9\r\nab\r\n", "= not_idempotent", r"< HD\r\n", "= at_rest"]);
    memcached(&[r"> ma k v\r\n", r"< VA 1\r\n7\r\n", "= at_rest"]);
    memcached(&[r"> md q\r\nmn\r\nme k\r\n", r"< HD\r\nMN\r\nME k a=b\r\n", "= at_rest"]);
    for quiet in [
        r"mg k v q\r\n",
        r"md k q\r\n",
        r"ms k 2 q\r\n",
        r"ma k q\r\n",
        r"mg k qAAAAAAAAAAAAAAAA\r\n",
    ] {
        memcached(&[&format!("> {quiet}"), "= pin=unparsable"]);
    }
    for flag in ["N30", "R30", "T30", "E30"] {
        for fill in ["", "AAAAAAAAAAAAAAAA"] {
            memcached(&[&format!(r"> mg k {flag}{fill}\r\n"), "= not_idempotent"]);
        }
    }
}

#[test]
fn without_a_reply_nothing_is_sure_until_the_next() {
    memcached(&[
        r"> set k 0 0 1 noreply\r\nx\r\n",
        "= held unanswered=1 not_idempotent",
        r"> get k\r\n",
        "= unanswered=2 not_idempotent",
        r"< END\r\n",
        "= at_rest default",
    ]);
    memcached(&[
        r"> get k\r\ndelete k noreply\r\n",
        r"< END\r\n",
        "= held unanswered=1",
        r"> mn\r\n",
        r"< MN\r\n",
        "= at_rest default",
    ]);
    memcached(&[r"> delete noreply\r\n", "= unanswered=1", r"< NOT_FOUND\r\n", "= at_rest"]);
    memcached(&[
        r"> incr k 1 noreply\r\ntouch k 0 noreply\r\nflush_all 5 noreply\r\nverbosity 1 noreply\r\n",
        "= unanswered=1",
        r"< ERROR\r\n",
        "= pin=server_first",
    ]);
    memcached(&[
        r"> set k 0 0 1 noreply\r\nx\r\nget k\r\n",
        r"< SERVER_ERROR x\r\n",
        "= pin=unparsable",
    ]);
}

/// Memcached refuses them silently, and reads the data block as commands.
#[test]
fn a_store_without_a_reply_that_may_be_refused_pins() {
    let keys = ["k".repeat(250), "k".repeat(251)];
    for (line, is_sure) in [
        ("set k 4294967295 -1 7 noreply", true),
        ("set  k 0 2147483647 7  noreply ", true),
        (&format!("set {} 0 0 7 noreply", keys[0]), true),
        ("cas k 0 0 7 123456789012 noreply", true),
        (&format!("set {} 0 0 7 noreply", keys[1]), false),
        ("set k 4294967296 0 7 noreply", false),
        ("set k -1 0 7 noreply", false),
        ("set k x 0 7 noreply", false),
        ("set k 0 2147483648 7 noreply", false),
        ("set k 0 x 7 noreply", false),
        ("set k 0 1- 7 noreply", false),
        ("set k 0 0 7 7 noreply", false),
        ("cas k 0 0 7 noreply", false),
        ("cas k 0 0 7 x noreply", false),
        ("cas k 0 0 7 1 1 noreply", false),
        ("cas k 0 0 7 12345678901234567890 noreply", false),
    ] {
        let store = format!(r"> {line}\r\nget a\r\n\r\n");
        match is_sure {
            true => memcached(&[&store, "= held unanswered=1 not_idempotent", r"> mn\r\n"]),
            false => memcached(&[&store, "= pin=unparsable"]),
        }
        // With a reply, it says that it refuses it.
        let loud = store.replace(" noreply", "");
        memcached(&[&loud, "= held unanswered=1", r"< CLIENT_ERROR x\r\n", "= pin=unparsable"]);
    }
    memcached(&[r"> set k 0 0 524288 noreply\r\n", "= held"]);
    memcached(&[r"> set k 0 0 524289 noreply\r\n", "= pin=unparsable"]);
}

#[test]
fn errors() {
    memcached(&[r"> get\r\n", r"< ERROR\r\n", "= at_rest"]);
    memcached(&[r"> incr k x\r\n", r"< CLIENT_ERROR invalid\r\n", "= at_rest"]);
    for refusal in ["ERROR", "CLIENT_ERROR bad data chunk"] {
        memcached(&[SET, &format!(r"< {refusal}\r\n"), "= pin=unparsable"]);
        memcached(&[SET, r"> get k\r\n", STORED, &format!(r"< {refusal}\r\n"), "= at_rest"]);
    }
}

#[test]
fn a_connection_that_watches_is_pinned_as_a_monitor() {
    memcached(&["> watch ", "= pin=monitor"]);
}

#[test]
fn what_cannot_be_followed_pins() {
    for wrong in [
        r"\r\n",
        r" \r\n",
        "GET k",
        r"lru_crawler metadump all\r\n",
        "flush_all_of_it ",
        r"set k 0 0\r\n",
        r"set k 0 0 -1\r\n",
        r"set k 0 0 1x\r\n",
        r"set k 0 0 12345678901234\r\n",
        r"ms k\r\n",
        r"set k 0 0 1\r\nxy",
        r"set k 0 0 1\r\nx\n",
        r"get a\rb",
        // Memcached sees `set k 0 0 1`, and answers.
        r"set k 0 0 1 \x00 noreply\r\n",
        r"get a\x00",
        r"mg k\x00 v\r\n",
    ] {
        memcached(&[
            &format!("> {wrong}{}", if wrong.ends_with('n') { "" } else { " " }),
            "= pin=unparsable",
        ]);
    }
    memcached(&[r"> \x80\x00\x00", "= pin=binary"]);
    for wrong in [
        r"HELLO\r\n",
        r"\r\n",
        r"VALUE k 0\r\n",
        r"VALUE k 0 x\r\n",
        r"VA\r\n",
        r"VALUE k 0 1\r\nab",
        r"E\rND",
        "RESETTLEMENT ",
    ] {
        memcached(&[r"> get k\r\n", &format!("< {wrong}"), "= pin=unparsable"]);
    }
    memcached(&[r"< END\r\n", "= pin=server_first"]);
    memcached(&[r"> get k", r"< ERROR\r\n", "= pin=server_first"]);
    memcached(&[&format!("> get {}", "k".repeat(66_000)), "= pin=head_too_long"]);
    memcached(&[&format!(r"> get {}\r\n", "k ".repeat(30_000)), r"< END\r\n", "= at_rest default"]);
}

#[test]
fn gaps() {
    memcached(&[r"> set k 0 0 100\r\n", ">40", r">60 \r\n", STORED, "= at_rest default"]);
    memcached(&[r"> set k 0 0 100\r\n", ">101", "= pin=gap"]);
    memcached(&[">1", "= pin=gap"]);
    memcached(&[r"> get k\r\n", r"< VALUE k 0 9\r\n", r"<9 \r\nEND\r\n", "= at_rest default"]);
    memcached(&[r"> get k\r\n", "<1", "= pin=gap"]);
}
