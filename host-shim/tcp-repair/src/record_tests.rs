//! Records: as they were written once, damaged, forged and foreign.

use super::*;
use proptest::prelude::*;

/// One of version 1, as it was written once.
const GOLDEN: &str = include_str!("golden-1.hex");

fn sample() -> Connection {
    Connection {
        local: "10.0.0.1:80".parse().expect("an address"),
        remote: "192.0.2.7:40112".parse().expect("an address"),
        read_to: 0xffff_fff0,
        unread: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        reads_end: false,
        acknowledged_to: 77,
        unacknowledged: b"HTTP/1.1 200 OK\r\n".to_vec(),
        unsent: 4,
        negotiated: Negotiated {
            mss: 1_460,
            scales: Some((7, 10)),
            sack: true,
            timestamp: Some(123_456),
        },
        window: Window { snd_wl1: 1, snd_wnd: 2, max_window: 3, rcv_wnd: 4, rcv_wup: 5 },
        traffic_class: 0,
        buffers: (87_040, 131_072, 0),
        settings: (0..Setting::ALL.len() as i32).collect(),
        congestion: "cubic".into(),
        congestion_window: (123, 456),
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<String> = digits.chunks(32).map(<[String]>::concat).collect();
    lines.join("\n") + "\n"
}

#[test]
fn a_record_is_written_as_ever() {
    assert_eq!(hex(&encode(&sample())), GOLDEN, "another format needs another version");
}

#[test]
fn a_record_of_version_1_is_read() {
    let digits: Vec<u8> = GOLDEN.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| str::from_utf8(pair).expect("text"));
    let bytes: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("a digit")).collect();
    assert_eq!(decode(&bytes), Ok(sample()));
}

#[test]
fn every_cut_and_every_changed_bit_is_refused() {
    let record = encode(&sample());
    for len in 0..record.len() {
        assert!(decode(&record[..len]).is_err(), "{len} bytes");
    }
    for at in 0..8 * record.len() {
        let mut changed = record.clone();
        changed[at / 8] ^= 1 << (at % 8);
        assert!(decode(&changed).is_err(), "bit {at}");
    }
    let mut longer = record.clone();
    longer.push(0);
    assert!(matches!(decode(&longer), Err(RecordError::Length { .. })));
    let mut next = record;
    next[4] = 2;
    assert_eq!(decode(&next), Err(RecordError::Version(2)));
    assert!(
        RecordError::Version(2).to_string().contains("this program reads version 1"),
        "says what to do"
    );
}

/// With a right checksum, as somebody would send it who knows the format.
fn signed(mut record: Vec<u8>) -> Vec<u8> {
    let length = (record.len() - HEAD_BYTES) as u32;
    let sum = checksum(&record[HEAD_BYTES..]);
    record[8..12].copy_from_slice(&length.to_le_bytes());
    record[12..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    record
}

#[test]
fn fields_out_of_range_are_named() {
    let mut too_much = sample();
    too_much.unsent = 18;
    let refused = decode(&encode(&too_much));
    assert_eq!(refused, Err(RecordError::Field("unsent")));
    let mut mixed = sample();
    mixed.remote = "[2001:db8::1]:1".parse().expect("an address");
    assert_eq!(decode(&encode(&mixed)), Err(RecordError::Field("remote")));
    let mut scaled = sample();
    scaled.negotiated.scales = Some((15, 0));
    assert_eq!(decode(&encode(&scaled)), Err(RecordError::Field("scales")));
    let mut named = sample();
    named.congestion = "a name of 16 byt".into();
    assert_eq!(decode(&encode(&named)), Err(RecordError::Field("congestion")));
    let mut longer = encode(&sample());
    longer.push(0);
    assert_eq!(decode(&signed(longer)), Err(RecordError::Field("end")));
    // A length of 4 GB in 200 bytes: refused before anything is reserved.
    let mut long = encode(&sample());
    let at = long.len() - sample().unacknowledged.len() - 4;
    long[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&signed(long)), Err(RecordError::Field("unacknowledged")));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        (v6, reads_end) in any::<(bool, bool)>(),
        numbers in prop::array::uniform4(any::<u32>()),
        scales in prop::option::of((0..=14_u8, 0..=14_u8)),
        timestamp in prop::option::of(any::<u32>()),
        window in prop::array::uniform5(any::<u32>()),
        settings in prop::collection::vec(any::<i32>(), Setting::ALL.len()),
        unread in prop::collection::vec(any::<u8>(), 0..3_000),
        unacknowledged in prop::collection::vec(any::<u8>(), 0..3_000),
    ) {
        let [read_to, acknowledged_to, part, port] = numbers;
        let mut connection = sample();
        if v6 {
            connection.local = SocketAddr::new([9; 16].into(), port as u16);
            connection.remote = SocketAddr::new([7; 16].into(), read_to as u16);
        }
        connection.unsent = part % (unacknowledged.len() as u32 + 1);
        (connection.read_to, connection.acknowledged_to) = (read_to, acknowledged_to);
        (connection.unread, connection.unacknowledged) = (unread, unacknowledged);
        (connection.negotiated.scales, connection.negotiated.timestamp) = (scales, timestamp);
        let [snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup] = window;
        connection.window = Window { snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup };
        (connection.settings, connection.reads_end) = (settings, reads_end);
        prop_assert_eq!(decode(&encode(&connection)), Ok(connection));
    }

    /// Whatever comes, with a right head: no panic, and what is taken is written the same again.
    #[test]
    fn foreign_bytes_are_refused_or_right(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut record = encode(&sample());
        record.truncate(HEAD_BYTES);
        record.extend(body);
        let record = signed(record);
        if let Ok(connection) = decode(&record) {
            prop_assert_eq!(encode(&connection), record);
        }
    }

    /// The same, close to a right one: one byte other, the checksum right.
    #[test]
    fn a_changed_field_is_refused_or_right(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut record = encode(&sample());
        let at = HEAD_BYTES + at.index(record.len() - HEAD_BYTES);
        record[at] = byte;
        let record = signed(record);
        if let Ok(connection) = decode(&record) {
            prop_assert_eq!(decode(&encode(&connection)), Ok(connection));
        }
    }
}
