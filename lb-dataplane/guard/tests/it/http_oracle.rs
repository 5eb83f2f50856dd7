//! HTTP/1 framing agrees with `httparse` and a plain reading of RFC 9112 section 6.3, over
//! generated messages and over damaged ones.

use crate::support::Checked;
use baton_guard::Guard;
use proptest::prelude::*;

/// Where the messages of one direction begin and end; `None` where the oracle refuses, or a message
/// does not end.
type Ends = Option<Vec<(usize, usize)>>;

struct Fields {
    length: Option<usize>,
    chunked: bool,
}

fn fields(headers: &[httparse::Header<'_>]) -> Option<Fields> {
    let mut found = Fields { length: None, chunked: false };
    for header in headers {
        let value = std::str::from_utf8(header.value).ok()?.trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = value.parse().ok()?;
            if value.starts_with('+') || found.length.is_some_and(|l| l != length) {
                return None;
            }
            found.length = Some(length);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if found.chunked || !value.eq_ignore_ascii_case("chunked") {
                return None;
            }
            found.chunked = true;
        }
    }
    (!found.chunked || found.length.is_none()).then_some(found)
}

/// The length of a chunked body.
fn chunked(data: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let httparse::Status::Complete((line, size)) =
            httparse::parse_chunk_size(&data[at..]).ok()?
        else {
            return None;
        };
        at += line;
        if size == 0 {
            break;
        }
        at = at.checked_add(usize::try_from(size).ok()?)?;
        if data.get(at..at.checked_add(2)?)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    let mut headers = [httparse::EMPTY_HEADER; 16];
    match httparse::parse_headers(&data[at..], &mut headers).ok()? {
        httparse::Status::Complete((used, _)) => Some(at + used),
        httparse::Status::Partial => None,
    }
}

fn body(fields: &Fields, data: &[u8]) -> Option<usize> {
    if fields.chunked {
        return chunked(data);
    }
    let length = fields.length.unwrap_or(0);
    (length <= data.len()).then_some(length)
}

fn requests(data: &[u8]) -> (Ends, Vec<String>) {
    let (mut at, mut ends, mut methods) = (0, Vec::new(), Vec::new());
    while at < data.len() {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(head)) = request.parse(&data[at..]) else {
            return (None, methods);
        };
        let begin = at + data[at..].iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
        let Some(fields) = fields(request.headers) else {
            return (None, methods);
        };
        let Some(body) = body(&fields, &data[at + head..]) else {
            return (None, methods);
        };
        methods.push(request.method.unwrap_or_default().to_owned());
        at += head + body;
        ends.push((begin, at));
    }
    (Some(ends), methods)
}

/// Final responses only.
fn responses(data: &[u8], methods: &[String]) -> Ends {
    let (mut at, mut ends) = (0, Vec::new());
    while at < data.len() {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut headers);
        let Ok(httparse::Status::Complete(head)) = response.parse(&data[at..]) else {
            return None;
        };
        let status = response.code?;
        let fields = fields(response.headers)?;
        let begin = at;
        at += head;
        if (100..200).contains(&status) {
            continue;
        }
        if methods.get(ends.len())? != "HEAD" && !matches!(status, 204 | 304) {
            if !fields.chunked && fields.length.is_none() {
                return None;
            }
            at += body(&fields, &data[at..])?;
        }
        ends.push((begin, at));
    }
    Some(ends)
}

/// Where the tracker sees requests begin, and responses end; `None` once it pinned.
fn tracked(client: &[u8], server: &[u8]) -> Option<(Vec<usize>, Vec<usize>, bool)> {
    let mut checked = Checked::new(Guard::Http1);
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for (at, byte) in client.iter().enumerate() {
        let before = checked.tracker.unanswered();
        checked.tell(true, 0, &[*byte]);
        if checked.tracker.unanswered() > before {
            begins.push(at);
        }
    }
    for (at, byte) in server.iter().enumerate() {
        let before = checked.tracker.unanswered();
        checked.tell(false, 0, &[*byte]);
        if checked.tracker.unanswered() < before {
            ends.push(at + 1);
        }
    }
    let tracker = checked.tracker;
    tracker.pinned().is_none().then(|| (begins, ends, tracker.at_rest()))
}

fn field_line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("Host: x".to_owned()),
        Just("Accept: */*".to_owned()),
        Just("X-Content-Length: 7".to_owned()),
        Just("content-type:text/plain".to_owned()),
        Just("Connection: keep-alive".to_owned()),
        Just("Trailer: Expires".to_owned()),
        Just("Expect-Not: 100-continue".to_owned()),
        "[A-Za-z][A-Za-z0-9-]{0,24}: [ -~]{0,40}".prop_filter("framing is added apart", |l| {
            let name = l.split(':').next().unwrap_or_default().to_ascii_lowercase();
            !["connection", "content-length", "expect", "transfer-encoding"]
                .contains(&name.as_str())
        }),
    ]
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        Just(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        Just(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        Just(b"0\r\n\r\n".to_vec()),
    ]
}

/// Framing fields and the body that goes with them.
fn framed() -> impl Strategy<Value = (String, Vec<u8>)> {
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..40),
        prop::sample::select(vec!["", ";a", "; a=\"b\"", ";x=1;y"]),
    );
    prop_oneof![
        Just(("Content-Length: 0\r\n".to_owned(), Vec::new())),
        content().prop_map(|body| (format!("content-length:{}\r\n", body.len()), body)),
        (
            prop::collection::vec(chunk, 0..4),
            prop::sample::select(vec!["", "X: y\r\n", "Content-Length: 5\r\nA: b\r\n"])
        )
            .prop_map(|(chunks, trailers)| {
                let mut body = Vec::new();
                for (data, extension) in chunks {
                    body.extend(format!("{:X}{extension}\r\n", data.len()).bytes());
                    body.extend(data);
                    body.extend(b"\r\n");
                }
                body.extend(format!("0\r\n{trailers}\r\n").bytes());
                ("Transfer-Encoding: chunked\r\n".to_owned(), body)
            }),
    ]
}

fn message(start: String, lines: &[String], framing: &str, body: &[u8]) -> Vec<u8> {
    let mut message = start + "\r\n";
    for line in lines {
        message += &format!("{line}\r\n");
    }
    let mut bytes = (message + framing + "\r\n").into_bytes();
    bytes.extend(body);
    bytes
}

/// A request with the responses to it: interim ones, then the final one.
fn exchange() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let lines = || prop::collection::vec(field_line(), 0..5);
    let methods = vec!["GET", "HEAD", "POST", "PUT", "OPTIONS", "PATCH"];
    let statuses = vec![200, 201, 204, 304, 404, 500];
    (
        (prop::sample::select(methods), "/[a-z?=&%]{0,30}", lines(), prop::option::of(framed())),
        (prop::sample::select(statuses), lines(), framed(), 0..2_usize),
    )
        .prop_map(
            |(
                (method, target, lines, body),
                (status, answer_lines, (framing, content), interim),
            )| {
                let (request_framing, request_body) = body.unwrap_or_default();
                let request = message(
                    format!("{method} {target} HTTP/1.1"),
                    &lines,
                    &request_framing,
                    &request_body,
                );
                let bodiless = method == "HEAD" || matches!(status, 204 | 304);
                let content = if bodiless { Vec::new() } else { content };
                let mut answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".repeat(interim);
                answer.extend(message(
                    format!("HTTP/1.1 {status} Some Reason"),
                    &answer_lines,
                    &framing,
                    &content,
                ));
                (request, answer)
            },
        )
}

fn conversation() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    prop::collection::vec(exchange(), 1..6).prop_map(|all| {
        let (requests, answers): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        (requests.concat(), answers.concat())
    })
}

fn begins(ends: &[(usize, usize)]) -> Vec<usize> {
    ends.iter().map(|e| e.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn generated_messages_end_where_the_oracle_says((client, server) in conversation()) {
        let (asked, methods) = requests(&client);
        let asked = asked.expect("generated requests are right");
        let answered = responses(&server, &methods).expect("generated responses are right");
        let (begun, ended, at_rest) = tracked(&client, &server).expect("followed");
        prop_assert_eq!(begun, begins(&asked));
        prop_assert_eq!(ended, answered.iter().map(|a| a.1).collect::<Vec<_>>());
        prop_assert!(at_rest);
        // Without its last byte, the last message of either side has not ended.
        let short = &client[..client.len() - 1];
        prop_assert!(tracked(short, &server).is_none_or(|(_, _, at_rest)| !at_rest));
        let short = &server[..server.len() - 1];
        prop_assert!(tracked(&client, short).is_none_or(|(_, _, at_rest)| !at_rest));
    }

    /// What the oracle and the tracker both follow, they read alike.
    #[test]
    fn damaged_messages_are_read_alike_or_pin(
        (mut client, mut server) in conversation(),
        damage in prop::collection::vec((any::<bool>(), 0..3_u8, any::<prop::sample::Index>(), prop_oneof![
            Just(b'\r'), Just(b'\n'), Just(b' '), Just(b':'), Just(b'\t'), b'0'..=b'9', any::<u8>()]), 1..4),
    ) {
        for (at_client, verb, at, byte) in damage {
            let data = if at_client { &mut client } else { &mut server };
            if data.is_empty() {
                continue;
            }
            let at = at.index(data.len());
            match verb {
                0 => data[at] = byte,
                1 => data.insert(at, byte),
                _ => drop(data.remove(at)),
            }
        }
        let (asked, methods) = requests(&client);
        if let (Some(asked), Some((begun, _, _))) = (&asked, tracked(&client, b"")) {
            prop_assert_eq!(begun, begins(asked));
        }
        if asked.is_some()
            && let (Some(answered), Some((_, ended, at_rest))) = (responses(&server, &methods), tracked(&client, &server))
        {
            prop_assert_eq!(at_rest, answered.len() == methods.len());
            prop_assert_eq!(ended, answered.iter().map(|a| a.1).collect::<Vec<_>>());
        }
    }
}
