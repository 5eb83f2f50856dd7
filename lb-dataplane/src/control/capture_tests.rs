//! A capture over HTTP, read back with another program's reader.

use super::{
    capture::parse,
    routes::Access,
    serve::{AGE_LIMIT, Way, http},
    tests::{Lab, lab},
};
use crate::capture::{
    Filter, SNAPLEN_HEADERS, SNAPLEN_MAX, TIME_DEFAULT, Tap,
    tap_tests::{Lab as Engine, segment},
};
use crate::status::client::Here;
use baton_api::{CAPTURE, ControlAddress, ErrorReply};
use baton_cli::{Fleet as _, last_words};
use baton_packet::Flags;
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Method, Request, Response, StatusCode, body::Bytes, body::Incoming, client::conn::http1,
};
use hyper_util::rt::TokioIo;
use pcap_file::{
    DataLink,
    pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::EnhancedPacketOption, interface_description::InterfaceTsResolution,
            interface_statistics::InterfaceStatisticsOption, opt_common::CommonOption,
            section_header::SectionHeaderOption,
        },
    },
};
use std::{
    io::{self, Cursor, Write},
    sync::Arc,
    time::Duration,
};
use tokio::{io::duplex, sync::watch, time};

/// What the fake worker has pass each capture: a connection's first two frames, which make four.
pub fn feed(tap: &mut Tap) {
    let mut engine = Engine::new();
    let leg = engine.syn(Some(tap), "10.0.5.1:4711", "10.0.0.1:80");
    let both = Flags(Flags::SYN.0 | Flags::ACK.0);
    let _ = engine.frame(Some(tap), &segment("10.0.9.80:8080", &leg, both, 0, &[]));
}

/// Asks at a door of its own.
async fn ask(lab: &Lab, access: Access, path: &str, origin: bool) -> Response<Incoming> {
    let (ours, theirs) = duplex(1 << 20);
    let control = Arc::clone(&lab.control);
    let way = Way { access, near_pages: false, age_limit: AGE_LIMIT };
    tokio::spawn(async move { http(theirs, "a test", &control, way).await });
    let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.expect("HTTP");
    tokio::spawn(connection);
    let mut request = Request::get(path).header("host", "localhost");
    if origin {
        request = request.header("origin", "http://a.example");
    }
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    sender.send_request(request).await.expect("an answer")
}

async fn all(answer: Response<Incoming>) -> Bytes {
    let body = time::timeout(Duration::from_secs(20), answer.into_body().collect());
    body.await.expect("in time").expect("whole").to_bytes()
}

#[tokio::test]
async fn the_stream_is_pcapng_with_directions_owners_and_an_end() {
    let lab = lab().await;
    let answer = ask(&lab, Access::All, "/v1/capture?client=10.0.5.1&for=200ms", false).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "application/x-pcapng");
    let file = all(answer).await;
    let words = last_words(&file).expect("the end");
    assert!(words.starts_with("4 frames; ended because its time is over; lost: 0"), "{words}");
    let mut reader = PcapNgReader::new(Cursor::new(&file)).expect("pcapng");
    let section = reader.section();
    let about = section.options.iter().find_map(|option| match option {
        SectionHeaderOption::Common(CommonOption::Comment(text)) => Some(text.clone()),
        _ => None,
    });
    assert_eq!(
        about.as_deref(),
        Some("Baton dataplane, frames of client 10.0.5.1; headers only, payload is cut off")
    );
    let (mut packets, mut statistics) = (Vec::new(), None);
    while let Some(block) = reader.next_block() {
        match block.expect("a good block").0.into_owned() {
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.linktype, DataLink::ETHERNET);
                assert_eq!(interface.ts_resolution(), InterfaceTsResolution::NANO);
            }
            Block::EnhancedPacket(packet) => packets.push(packet),
            Block::InterfaceStatistics(block) => statistics = Some(block),
            other => panic!("{other:?}"),
        }
    }
    let statistics = statistics.expect("the end says how it went");
    for wanted in [
        InterfaceStatisticsOption::IsbIfRecv(4),
        InterfaceStatisticsOption::IsbIfDrop(0),
        InterfaceStatisticsOption::IsbUsrDeliv(4),
    ] {
        assert!(statistics.options.contains(&wanted), "{:?}", statistics.options);
    }
    let flags: Vec<u32> = packets
        .iter()
        .flat_map(|packet| &packet.options)
        .filter_map(|option| match option {
            EnhancedPacketOption::Flags(flags) => Some(*flags),
            _ => None,
        })
        .collect();
    assert_eq!(flags, [1, 2, 1, 2], "in and out, as they passed");
    let comments: Vec<Option<String>> = packets
        .iter()
        .map(|packet| {
            packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Common(CommonOption::Comment(text)) => Some(text.to_string()),
                _ => None,
            })
        })
        .collect();
    let leg = Some("leg of client 10.0.5.1:4711".to_owned());
    assert_eq!(comments, [None, leg, None, None], "said once");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("after 1970");
    for packet in &packets {
        let age = now.checked_sub(packet.timestamp).expect("in the past");
        assert!(age < Duration::from_secs(60), "nanoseconds: {age:?}");
        assert_eq!(packet.original_len as usize, packet.data.len());
    }
}

#[tokio::test]
async fn one_capture_at_a_time_and_an_asker_that_goes_ends_it() {
    let lab = lab().await;
    let first = ask(&lab, Access::All, "/v1/capture?for=60s", false).await;
    assert_eq!(first.status(), StatusCode::OK);
    let second = ask(&lab, Access::All, "/v1/capture", false).await;
    assert_eq!(second.status(), StatusCode::CONFLICT);
    let error: ErrorReply = serde_json::from_slice(&all(second).await).expect("an error");
    assert!(error.error.contains("another capture is under way"), "{error:?}");
    drop(first);
    let limit = time::Instant::now() + Duration::from_secs(20);
    loop {
        let again = ask(&lab, Access::All, "/v1/capture?for=1ms", false).await;
        if again.status() == StatusCode::OK {
            break;
        }
        assert!(time::Instant::now() < limit, "the first one goes on");
        time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_capture_that_is_asked_to_end_is_whole_and_only_by_its_number() {
    let lab = lab().await;
    let first = ask(&lab, Access::All, "/v1/capture?for=60s", false).await;
    let number = first.headers()[CAPTURE].to_str().expect("text").to_owned();
    let delete = async |query: &str| {
        let path = format!("/v1/capture{query}");
        let (head, _) = lab.ask_with(Method::DELETE, &path, &[], "").await;
        head.status
    };
    assert_eq!(delete("").await, StatusCode::BAD_REQUEST);
    assert_eq!(delete("?number=77").await, StatusCode::NOT_FOUND);
    assert_eq!(lab.control.gates.capture.available_permits(), 0, "it goes on");
    let query = format!("?number={number}");
    assert_eq!(delete(&query).await, StatusCode::ACCEPTED);
    let file = all(first).await;
    let words = last_words(&file).expect("the end");
    assert!(words.starts_with("4 frames; ended because it was asked to end; lost: 0"), "{words}");
    // The place is free once the task is over.
    let limit = time::Instant::now() + Duration::from_secs(20);
    while lab.control.gates.capture.available_permits() == 0 {
        assert!(time::Instant::now() < limit, "it goes on");
        time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(delete(&query).await, StatusCode::NOT_FOUND);
    // The next one has another number.
    let next = ask(&lab, Access::All, "/v1/capture?for=60s", false).await;
    assert_ne!(next.headers()[CAPTURE].to_str().expect("text"), number);
    assert_eq!(delete(&query).await, StatusCode::NOT_FOUND);
}

/// A file whose user wishes its end so many times as soon as something comes.
struct Wishing {
    file: Vec<u8>,
    wishes: u32,
    tell: watch::Sender<u32>,
}

impl Write for Wishing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tell.send_replace(self.wishes);
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_first_wish_to_end_makes_the_file_whole_and_the_second_ends_at_once() {
    let lab = lab().await;
    let here = Here(ControlAddress::Tcp(lab.address()));
    for (wishes, whole) in [(1, true), (2, false)] {
        let (tell, stop) = watch::channel(0);
        let request = baton_cli::Request {
            lasts: Duration::from_secs(60),
            stop: Some(stop),
            ..baton_cli::Request::get("/v1/capture?for=60s", [])
        };
        let mut out = Wishing { file: Vec::new(), wishes, tell };
        let taken = here.send(&here, &request, &mut out);
        let taken = time::timeout(Duration::from_secs(20), taken).await.expect("in time");
        assert_eq!(taken.is_ok(), whole, "{taken:?}");
        assert_eq!(last_words(&out.file).is_some(), whole);
    }
}

#[tokio::test]
async fn who_may_not_ask_and_what_is_not_there() {
    let lab = lab().await;
    for (access, path, origin, status) in [
        (Access::Probes, "/v1/capture", false, StatusCode::NOT_FOUND),
        (Access::All, "/v1/capture", true, StatusCode::FORBIDDEN),
        (Access::All, "/v1/capture?policy=none", false, StatusCode::NOT_FOUND),
        (Access::All, "/v1/capture?backend=none", false, StatusCode::NOT_FOUND),
        (Access::All, "/v1/capture?for=5m", false, StatusCode::BAD_REQUEST),
    ] {
        let answer = ask(&lab, access, path, origin).await;
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(lab.control.gates.capture.available_permits(), 1, "{path}");
    }
}

#[test]
fn a_query_is_read_and_each_field_says_what_it_expects() {
    let order = parse("").expect("all that passes");
    assert_eq!(order.filter, Filter::default());
    assert_eq!((order.time, order.snaplen), (TIME_DEFAULT, SNAPLEN_HEADERS));
    let order =
        parse("client=%5Bfd00::7%5D:80&policy=a%2Fb&policy=c&backend=d&for=2m&payload=true");
    let order = order.expect("good");
    assert_eq!(
        order.filter.words(),
        "frames of client [fd00::7]:80, policy a/b, policy c, backend d"
    );
    assert!(order.payload && order.snaplen == SNAPLEN_MAX);
    let many = "policy=p&".repeat(33);
    for (query, field, expected) in [
        ("client=pod", "client", "an address (10.0.0.7)"),
        ("for=0s", "for", "a time of at most 240s"),
        ("for=241s", "for", "a time of at most 240s"),
        ("for=soon", "for", "a time of at most 240s"),
        ("payload=yes", "payload", "true or false"),
        ("snaplen=33", "snaplen", "34 to 2048 bytes"),
        ("snaplen=2049", "snaplen", "34 to 2048 bytes"),
        (many.as_str(), "policy", "at most 32"),
        ("limit=1", "limit", "client, policy, backend"),
    ] {
        let error = parse(query).expect_err(query);
        assert_eq!(error.field.as_deref(), Some(field), "{query}");
        let text = error.expected.expect("what was expected");
        assert!(text.contains(expected), "{query}: {text}");
    }
}
