//! HTTP/1: each rule as a small conversation, told in pieces of many sizes.

use crate::support::{Followed, check};
use baton_guard::{Guard, Pin};

const GET: &str = r"> GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const OK: &str = r"< HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn http(lines: &[&str]) {
    check(&format!("guard http1\n{}", lines.join("\n")));
}

/// A request with these field lines pins at once; in a response likewise.
fn fields_pin(fields: &str, pin: &str) {
    let pin = format!("= pin={pin}");
    http(&[&format!(r"> POST / HTTP/1.1\r\n{fields}\r\n\r\n"), &pin]);
    http(&[GET, &format!(r"< HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"), &pin]);
}

#[test]
fn one_request_at_a_time() {
    http(&[
        "= at_rest default not_idempotent",
        GET,
        "= held unanswered=1 idempotent not_begun",
        OK,
        "= at_rest default",
    ]);
    http(&[
        r"> P",
        "= held unanswered=1 not_idempotent",
        r"> OST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab",
        "= held not_idempotent",
        "> c",
        "= held unanswered=1",
        OK,
        "= at_rest default",
    ]);
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"] {
        http(&[&format!(r"> {method} / HTTP/1.1\r\n\r\n"), "= idempotent"]);
    }
    for method in ["POST", "PATCH", "PROPFIND", "M-SEARCH"] {
        http(&[&format!(r"> {method} / HTTP/1.1\r\n\r\n"), "= not_idempotent unanswered=1"]);
    }
}

#[test]
fn bodies_end_where_the_head_says() {
    http(&[
        GET,
        r"< HTTP/1.1 200 OK\r\ncontent-LENGTH:  2 \r\n\r\no",
        "= held begun",
        "< k",
        "= at_rest",
    ]);
    http(&[GET, r"< HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "= at_rest"]);
    http(&[
        GET,
        r"< HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA; x=\x22y\x22\r\n0123456789\r\n0\r\n",
        "= held",
        r"< T: railer\r\n",
        "= held",
        r"< \r\n",
        "= at_rest",
    ]);
    http(&[
        r"> HEAD / HTTP/1.1\r\n\r\n",
        r"< HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n",
        "= at_rest",
    ]);
    http(&[
        r"> HEAD / HTTP/1.1\r\n\r\n",
        r"< HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "= at_rest",
    ]);
    for status in [204, 304] {
        http(&[GET, &format!(r"< HTTP/1.1 {status} X\r\nContent-Length: 20\r\n\r\n"), "= at_rest"]);
    }
    http(&[
        GET,
        r"< HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "= at_rest",
    ]);
    http(&[
        GET,
        r"< HTTP/1.1 200 OK\r\n\r\n",
        "= held closing",
        "< anything",
        "= held unanswered=1 closing",
    ]);
}

#[test]
fn what_servers_read_in_different_ways_pins() {
    for fields in [
        r"Content-Length: 1\r\nContent-Length: 2",
        r"Content-Length: 1\r\nTransfer-Encoding: chunked",
        r"Transfer-Encoding: chunked\r\nContent-Length: 0",
        r"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        r"Transfer-Encoding: chunked\r\nTransfer-Encoding: ",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity",
        r"Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding:",
        "Transfer-Encoding: chunked-and-a-word-that-is-too-long",
        r"Transfer-Encoding:\r\n chunked",
        "Content-Length: 1, 1",
        "Content-Length: +1",
        "Content-Length: 0x1",
        "Content-Length: 1 1",
        "Content-Length:",
        "Content-Length: 1234567890123456789",
        "Content-Length : 1",
        "Content-Length",
        r"Content-Length: 1\r\n 2",
        r"X: y\rContent-Length: 1",
        r"X: y\nContent-Length: 1",
        r"Content-Length: 1\nX: y",
        r"X: y\r\n\n",
        r"\x00: y",
        " Content-Length: 1",
        ": x",
    ] {
        fields_pin(fields, "unparsable");
    }
    http(&[r"> POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "= pin=unparsable"]);
    for chunk in [
        "x",
        r"\r\n",
        "-1",
        "5 5",
        r"5\rx",
        "1234567890abcdef",
        r"2\r\nabc",
        r"1\r\na\rb",
        r"0\r\nX: y\rz",
        // An LF alone ends no line for some servers, which read on in the extension.
        r"5;\nhello\r\n",
        r"1\nx",
        r"1\r\nx\n",
        r"0\r\nX: y\n",
        r"0\r\n\n",
    ] {
        let chunked = r"Transfer-Encoding: chunked\r\n\r\n";
        http(&[&format!(r"> POST / HTTP/1.1\r\n{chunked}{chunk}"), "= pin=unparsable"]);
        http(&[GET, &format!(r"< HTTP/1.1 200 OK\r\n{chunked}{chunk}"), "= pin=unparsable"]);
    }
}

#[test]
fn fields_of_no_interest_are_no_matter() {
    let long = "a".repeat(9000);
    for fields in [
        "Content-Lengths: 5",
        "X-Content-Length: 5",
        "C: 5",
        "Trailer: Content-Length",
        "Expect-CT: 100-continue",
        "Connection: close-not, x-close, Upgrades",
        r"Cookie: a\r\n folded: Transfer-Encoding: chunked",
        "proxy-authorization-of-some-kind: NTLM",
        "Authorization: Basic negotiate",
        "Authorization: Bearer a,NTLM",
        r"Authorization: Bearer\r\n NTLM",
        r"Authorization:\r\n Bearer\r\n NTLM",
        "WWW-Authenticate: Basic realm=ntlms",
        &format!("A: {long}"),
        &format!("Authorization: Bearer {long}"),
        &format!("WWW-Authenticate: Bearer realm={long}, error=x"),
        &format!("Connection: {long}"),
    ] {
        http(&[
            &format!(r"> GET / HTTP/1.1\r\n{fields}\r\n\r\n"),
            "= idempotent unanswered=1",
            OK,
            "= at_rest default",
        ]);
    }
}

#[test]
fn request_lines() {
    for line in [
        r"\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        r"GET http://a/b?c=d HTTP/1.1\r\n\r\n",
        r"OPTIONS * HTTP/1.1\r\n\r\n",
    ] {
        http(&[&format!("> {line}"), "= unanswered=1", OK, "= at_rest default"]);
    }
    for line in [
        r"GET /\r\n",
        r"GET / HTTP/2.0\r\n",
        r"GET / HTTP/1.1 \r\n",
        r"GET HTTP/1.1\r\n",
        r" GET / HTTP/1.1\r\n",
        r"GET\r\n",
        r"GET\x09/",
        r"\x16\x03\x01",
        r"(x",
        r"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        r"GET / HTTP/1.1\rX",
        r"\rGET / HTTP/1.1\r\n\r\n",
        r"*1\r\n",
        r"GET / http/1.1\r\n",
        r"GET / HTTP/1.1\n",
        r"\nGET / HTTP/1.1\r\n\r\n",
        "get ",
        "HEAd ",
    ] {
        http(&[&format!("> {line}"), "= pin=unparsable"]);
    }
    http(&["> CONNECT ", "= pin=connect"]);
    http(&[r"> PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "= pin=http2"]);
}

/// A server may keep an empty line and refuse the request behind it: it must be the same client's.
#[test]
fn an_empty_line_holds_until_the_next_request() {
    http(&[
        r"> \r",
        "= held unanswered=0",
        r"> \n",
        "= held unanswered=0",
        GET,
        "= unanswered=1 idempotent",
        OK,
        "= at_rest default",
    ]);
    http(&[
        r"> POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx\r\n",
        "= unanswered=1",
        OK,
        "= held unanswered=0",
        GET,
        r"< HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "= at_rest closing",
    ]);
}

#[test]
fn interim_responses_are_no_answers() {
    http(&[
        GET,
        r"< HTTP/1.1 103 Early Hints\r\nLink: x\r\n",
        "= begun idempotent",
        r"< \r\n",
        "= held not_begun unanswered=1",
        OK,
        "= at_rest",
    ]);
    http(&[
        GET,
        r"< HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 204 N\r\n\r\n",
        "= at_rest",
    ]);
    http(&[GET, r"< HTTP/1.1 101 Switching Protocols\r\n", "= pin=upgrade"]);
    http(&[GET, r"< HTTP/1.1 0200 x\r\n", "= pin=unparsable"]);
    http(&[GET, r"< ICY 200 OK\r\n", "= pin=unparsable"]);
    http(&[GET, r"< HTTP/1.1 200 OK\n", "= pin=unparsable"]);
    http(&[GET, r"< \r\n", "= pin=unparsable"]);
}

#[test]
fn waiting_for_100() {
    let put = r"> PUT / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n";
    http(&[
        put,
        "= held",
        r"< HTTP/1.1 100 \r\n\r\n",
        "= held not_begun",
        OK,
        "= held begun unanswered=0",
        "> ab",
        "= at_rest default",
    ]);
    http(&[put, "> a", OK, "= held", "> b", "= at_rest default"]);
    http(&[put, OK, "= pin=expect"]);
    http(&[GET, put, OK, "= held unanswered=1", OK, "= pin=expect"]);
    // 100 for the first of two says nothing about the second.
    http(&[GET, put, r"< HTTP/1.1 100 C\r\n\r\n", OK, OK, "= pin=expect"]);
    http(&[r"> GET / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", OK, "= at_rest default"]);
}

/// Behind these some servers read on in another way: what comes next must be the same client's, and
/// shows how they do.
#[test]
fn what_a_request_may_leave_behind() {
    let chunked = r"> POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let odd = [
        r"> GET / HTTP/1.1\r\nConnection: a, Upgrade\r\nUpgrade: h2c\r\n\r\n".to_owned(),
        format!(r"{chunked}0\r\nConnection: close\r\n\r\n"),
        format!(r"{chunked}1;b\r\na\r\n0\r\n\r\n"),
        format!(r"{chunked}1 \r\na\r\n0\r\n\r\n"),
        format!(r"{chunked}0;b=\x22c\x22\r\n\r\n"),
    ];
    for request in &odd {
        http(&[
            request,
            "= unanswered=1 not_odd",
            OK,
            "= at_rest odd not_closing not_default",
            GET,
            "= odd",
            OK,
            "= at_rest default",
        ]);
        http(&[request, GET, OK, OK, "= at_rest default"]);
        http(&[GET, request, OK, OK, "= at_rest odd"]);
        let (head, rest) = request.split_at(request.len() - 8);
        http(&[head, OK, "= held", &format!("> {rest}"), "= at_rest odd"]);
    }
    for plain in [
        format!(r"{chunked}1\r\na\r\n0\r\n\r\n"),
        r"> GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: upgrades\r\n\r\n".to_owned(),
        r"> \r\nGET / HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        http(&[&plain, OK, "= at_rest default"]);
    }
}

#[test]
fn pipelines() {
    let head = r"> HEAD / HTTP/1.1\r\n\r\n";
    http(&[
        GET,
        head,
        GET,
        "= unanswered=3 idempotent",
        OK,
        "= held unanswered=2 begun",
        r"< HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        "= unanswered=1",
        OK,
        "= at_rest default",
    ]);
    http(&[
        GET,
        r"> POST / HTTP/1.1\r\n\r\n",
        "= not_idempotent",
        OK,
        "= unanswered=1 not_idempotent",
        OK,
        "= at_rest",
    ]);
    http(&[r"> POST / HTTP/1.1\r\n\r\n", GET, OK, "= idempotent begun", OK, "= at_rest"]);
    let many = vec![GET; 32].join("\n");
    http(&[&many, "= held unanswered=32", GET, "= pin=pipeline_too_deep"]);
    http(&[&many, OK, GET, "= held unanswered=32"]);
    http(&[OK, "= pin=server_first"]);
    http(&[GET, OK, OK, "= pin=server_first"]);
    http(&["> GE", OK, "= pin=server_first"]);
}

#[test]
fn ends_of_connections() {
    let close = r"> GET / HTTP/1.1\r\nConnection: foo, Close\r\n\r\n";
    http(&[close, "= not_closing", r"< HTTP/1.1 200 OK\r\n", "= closing"]);
    http(&[close, OK, "= at_rest closing not_default"]);
    http(&[GET, close, OK, "= not_closing unanswered=1", OK, "= closing"]);
    http(&[
        GET,
        r"< HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "= at_rest closing",
    ]);
    http(&[r"> GET / HTTP/1.0\r\n\r\n", OK, "= closing"]);
    http(&[r"> GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", OK, "= at_rest default"]);
    http(&[GET, r"< HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "= closing"]);
    http(&[
        r"> POST / HTTP/1.1\r\n",
        r"< HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n",
        "= held unanswered=0",
        r"> Connection: close\r\n\r\n",
        "= at_rest closing",
    ]);
}

/// What was asked behind a response that announced the end has no answer, and is cut off by none.
#[test]
fn what_an_end_cuts_off() {
    http(&[
        GET,
        GET,
        r"< HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\no",
        "= closing unanswered=2 not_until_close",
        "< k",
        "= held unanswered=1 until_close",
    ]);
    http(&[GET, GET, OK, "= unanswered=1 not_until_close"]);
    http(&[GET, r"< HTTP/1.1 200 OK\r\n\r\no", "= until_close"]);
}

#[test]
fn authentication_bound_to_the_connection() {
    for fields in [
        "WWW-Authenticate: Negotiate",
        "www-authenticate: Basic realm=x, nTLM",
        r"WWW-Authenticate: Basic realm=x,\r\n Negotiate",
        "Proxy-Authenticate: NTLM",
        "Authorization: NEGOTIATE YII=",
        r"Authorization:\r\n Negotiate YII=",
        r"Authorization: \r\n \r\n\x09NTLM TlRM",
        "Proxy-Authorization: NTLM TlRM",
    ] {
        fields_pin(fields, "bound_auth");
    }
}

#[test]
fn gaps() {
    let put = r"> PUT / HTTP/1.1\r\nContent-Length: 100\r\n\r\n";
    http(&[put, ">60 aaaaaaaaaa", "= held", ">30", OK, "= at_rest default"]);
    http(&[put, ">100", OK, "= at_rest"]);
    http(&[put, ">101", "= pin=gap"]);
    http(&[put, r">100 GET / HTTP/1.1\r\n\r\n", "= unanswered=2"]);
    http(&[">1", "= pin=gap"]);
    http(&["> GET ", ">1 /", "= pin=gap"]);
    http(&[GET, "<1", "= pin=gap"]);
    http(&[
        GET,
        r"< HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n",
        "<200",
        r"<55 \r\n0\r\n\r\n",
        "= at_rest",
    ]);
    http(&[
        GET,
        r"< HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n",
        "<9",
        "= pin=gap",
    ]);
    http(&[GET, r"< HTTP/1.1 200 OK\r\n\r\n", "<4000000000 x", "= held closing"]);
    http(&[
        r"> PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        ">4",
        OK,
        "= at_rest",
    ]);
}

#[test]
fn limits() {
    let (fill, more) = ("a: b\r\n".repeat(10_919), "a".repeat(100));
    let mut tracker = Followed::new(Guard::Http1);
    tracker.client(0, b"GET / HTTP/1.1\r\n");
    tracker.client(0, fill.as_bytes());
    assert_eq!(tracker.pinned(), None);
    tracker.client(0, more.as_bytes());
    assert_eq!(tracker.pinned(), Some(Pin::HeadTooLong));

    let request = r"> POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;";
    http(&[&format!("{request}{}", "x".repeat(4000)), "= held"]);
    http(&[&format!("{request}{}", "x".repeat(4100)), "= pin=head_too_long"]);
    http(&[&format!(r"> GET /{} HTTP/1.1\r\n\r\n", "x".repeat(60_000)), OK, "= at_rest default"]);
    http(&[&format!("> GET /{}", "x".repeat(66_000)), "= pin=head_too_long"]);
}
