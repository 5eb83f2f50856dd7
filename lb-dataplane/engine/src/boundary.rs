//! Where a request begins: the bare rule's data half and the protocol guards' first step. Pure functions of bytes.
//!
//! The sequence-number half of the rule (first byte is the client's next, its ACK is the server's next,
//! everything acknowledged, the server spoke since the last request) is the state `Idle` of the table.

use baton_api::Protocol;
use memchr::memmem;

/// What the first bytes of a request say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// A new request may begin with these bytes.
    pub(crate) boundary: bool,
    /// Executing it twice does what executing it once does (RFC 9110 section 9.2.2).
    pub(crate) idempotent: bool,
    /// The flow must not move from here on.
    pub(crate) pin: Option<Pin>,
}

/// Why a flow must not move any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// A second request began before the first was answered.
    Pipelined,
    /// The connection becomes something else.
    Upgrade,
}

/// Longest method registered with IANA is `UPDATEREDIRECTREF` (17 bytes); anything longer is not one.
const METHOD_BYTES_MAX: usize = 24;

/// The method, if `data` starts with a token (RFC 9110 section 5.6.2, capitals as all methods are) and a space.
pub(crate) fn method(data: &[u8]) -> Option<&[u8]> {
    let window = &data[..data.len().min(METHOD_BYTES_MAX + 1)];
    let end = window
        .iter()
        .position(|b| !b.is_ascii_uppercase() && *b != b'-')?;
    (end > 0 && window[end] == b' ').then(|| &window[..end])
}

fn idempotent(method: &[u8]) -> bool {
    matches!(
        method,
        b"GET" | b"HEAD" | b"OPTIONS" | b"PUT" | b"DELETE" | b"TRACE"
    )
}

fn without_body(method: &[u8]) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"DELETE" | b"TRACE")
}

/// Judges the first new bytes that a client sends when nothing is outstanding.
pub(crate) fn start(protocol: Protocol, data: &[u8]) -> Start {
    match protocol {
        Protocol::None => Start {
            boundary: false,
            idempotent: false,
            pin: None,
        },
        Protocol::RequestResponse | Protocol::Resp | Protocol::Memcached => Start {
            boundary: true,
            idempotent: false,
            pin: None,
        },
        Protocol::Http1 => {
            let Some(method) = method(data) else {
                return Start {
                    boundary: false,
                    idempotent: false,
                    pin: None,
                };
            };
            let pin = if method == b"CONNECT" {
                Some(Pin::Upgrade)
            } else if without_body(method) && more_after_head(data) {
                // A second request in the same segment, or a body where none is usual: both are beyond this guard.
                Some(Pin::Pipelined)
            } else {
                None
            };
            Start {
                boundary: true,
                idempotent: idempotent(method),
                pin,
            }
        }
    }
}

/// Judges new client bytes that come while a request is outstanding.
///
/// They may be the middle of an upload, where a capital and a space come by chance every few thousand segments; so more of a
/// request line has to be there: a method as long as the shortest registered ones (GET, PUT, ACL) and the start of
/// a target (RFC 9112 section 3.2; `CONNECT`, whose target begins with anything, never comes behind another request).
pub(crate) fn overlap(protocol: Protocol, data: &[u8]) -> Option<Pin> {
    let request_line = method(data).is_some_and(|m| {
        m.len() >= 3 && matches!(data.get(m.len() + 1), Some(b'/' | b'*' | b'h' | b'H'))
    });
    (protocol == Protocol::Http1 && request_line).then_some(Pin::Pipelined)
}

fn more_after_head(data: &[u8]) -> bool {
    memmem::find(data, b"\r\n\r\n").is_some_and(|at| at + 4 < data.len())
}

/// What the first bytes of a response say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The request is being answered.
    Final,
    /// An interim response (RFC 9110 section 15.2): the answer is still to come.
    Interim,
    /// 101: the connection is something else from here on.
    Upgraded,
}

/// Judges the first bytes from the server since the request.
pub(crate) fn answer(protocol: Protocol, mut data: &[u8]) -> Answer {
    // What follows an interim response in the same segment is the answer, or one more of them.
    while protocol == Protocol::Http1 && data.len() >= 12 && data.starts_with(b"HTTP/1.") {
        match &data[8..12] {
            b" 101" => return Answer::Upgraded,
            [b' ', b'1', _, _] => match memmem::find(data, b"\r\n\r\n") {
                Some(at) if at + 4 < data.len() => data = &data[at + 4..],
                _ => return Answer::Interim,
            },
            _ => return Answer::Final,
        }
    }
    Answer::Final
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_line_overlaps_and_bytes_of_an_upload_do_not() {
        for data in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"OPTIONS * HTTP/1.1\r\n",
            b"PUT http://a/b",
            b"M-SEARCH *",
        ] {
            assert_eq!(
                overlap(Protocol::Http1, data),
                Some(Pin::Pipelined),
                "{data:?}"
            );
            assert_eq!(overlap(Protocol::RequestResponse, data), None);
        }
        for data in [
            &b"Q \xf3\x01"[..],
            b"X /",
            b"AB /",
            b"ABC \x00",
            b"ABC ",
            b"ABC",
            b"",
            b"plain text",
        ] {
            assert_eq!(overlap(Protocol::Http1, data), None, "{data:?}");
        }
    }

    #[test]
    fn http_requests_begin_with_a_method_and_a_space() {
        for (data, boundary, idempotent) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], true, true),
            (b"POST /x HTTP/1.1\r\n", true, false),
            (b"M-SEARCH * HTTP/1.1\r\n", true, false),
            (b"GET/", false, false),
            (b"get / HTTP/1.1", false, false),
            (b" GET /", false, false),
            (b"GET", false, false),
            (b"\x16\x03\x01\x02\x00\x01", false, false),
            (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1", false, false),
            (b"", false, false),
        ] {
            let start = start(Protocol::Http1, data);
            assert_eq!(
                (start.boundary, start.idempotent),
                (boundary, idempotent),
                "{data:?}"
            );
            assert_eq!(start.pin, None, "{data:?}");
        }
    }

    #[test]
    fn what_this_guard_cannot_follow_pins() {
        let two = b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
        assert_eq!(start(Protocol::Http1, two).pin, Some(Pin::Pipelined));
        assert_eq!(
            start(Protocol::Http1, b"CONNECT a:1 HTTP/1.1\r\n\r\n").pin,
            Some(Pin::Upgrade)
        );
        assert_eq!(
            start(Protocol::Http1, b"POST / HTTP/1.1\r\n\r\nbody").pin,
            None
        );
        assert_eq!(
            overlap(Protocol::Http1, b"GET /b HTTP/1.1\r\n"),
            Some(Pin::Pipelined)
        );
        assert_eq!(overlap(Protocol::Http1, b"rest of a body"), None);
        assert_eq!(overlap(Protocol::RequestResponse, b"GET /b"), None);
    }

    #[test]
    fn interim_responses_are_no_answers() {
        for (data, answer_is) in [
            (&b"HTTP/1.1 200 OK\r\n"[..], Answer::Final),
            (b"HTTP/1.1 100 Continue\r\n\r\n", Answer::Interim),
            (b"HTTP/1.1 103 Early Hints\r\n", Answer::Interim),
            (b"HTTP/1.1 101 Switching Protocols\r\n", Answer::Upgraded),
            (b"HTTP/1.1 ", Answer::Final),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
                Answer::Final,
            ),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n",
                Answer::Interim,
            ),
        ] {
            assert_eq!(answer(Protocol::Http1, data), answer_is, "{data:?}");
        }
        assert_eq!(
            answer(Protocol::RequestResponse, b"HTTP/1.1 100 Continue"),
            Answer::Final
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            for protocol in [Protocol::None, Protocol::RequestResponse, Protocol::Http1] {
                let _ = (start(protocol, &data), overlap(protocol, &data), answer(protocol, &data));
            }
        }
    }
}
