//! RESP: where commands begin and replies end, compared with a slow recursive parser of whole
//! messages.

use crate::support::Checked;
use baton_guard::Guard;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Value {
    Line(char, String),
    Bulk(Option<Vec<u8>>),
    Array(Option<Vec<Value>>),
}

fn render(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Line(kind, text) => out.extend(format!("{kind}{text}\r\n").bytes()),
        Value::Bulk(None) => out.extend(b"$-1\r\n"),
        Value::Bulk(Some(data)) => {
            out.extend(format!("${}\r\n", data.len()).bytes());
            out.extend(data);
            out.extend(b"\r\n");
        }
        Value::Array(None) => out.extend(b"*-1\r\n"),
        Value::Array(Some(values)) => {
            out.extend(format!("*{}\r\n", values.len()).bytes());
            values.iter().for_each(|v| render(v, out));
        }
    }
}

/// The slow parser: bytes of the first value, if it is whole and right.
fn value_bytes(data: &[u8]) -> Option<usize> {
    let line = data.windows(2).position(|w| w == b"\r\n")?;
    let text = std::str::from_utf8(data.get(1..line)?).ok();
    let mut at = line + 2;
    match data[0] {
        b'+' | b'-' | b':' => {}
        b'$' => match text?.parse::<i64>().ok()? {
            -1 => {}
            length => {
                let end = at + usize::try_from(length).ok()?;
                (data.get(end..end + 2)? == b"\r\n").then_some(())?;
                at = end + 2;
            }
        },
        b'*' => match text?.parse::<i64>().ok()? {
            -1 => {}
            count => {
                for _ in 0..usize::try_from(count).ok()? {
                    at += value_bytes(data.get(at..)?)?;
                }
            }
        },
        _ => return None,
    }
    Some(at)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (prop::sample::select(vec!['+', '-']), "[ -~]{0,20}").prop_map(|(k, t)| Value::Line(k, t)),
        any::<i64>().prop_map(|n| Value::Line(':', n.to_string())),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..40)).prop_map(Value::Bulk),
        Just(Value::Bulk(Some(b"\r\n*2\r\n+OK\r\n".to_vec()))),
        Just(Value::Array(None)),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop::collection::vec(inner, 0..6).prop_map(|v| Value::Array(Some(v)))
    })
}

/// Positions behind the bytes that changed `unanswered` in this direction.
fn steps(checked: &mut Checked, client: bool, data: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, byte) in data.iter().enumerate() {
        let before = checked.tracker.unanswered();
        checked.tell(client, 0, &[*byte]);
        if checked.tracker.unanswered() != before {
            found.push(at + 1);
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn replies_end_where_the_slow_parser_says(replies in prop::collection::vec(value(), 1..8)) {
        let mut bytes = Vec::new();
        replies.iter().for_each(|v| render(v, &mut bytes));
        let (mut at, mut ends) = (0, Vec::new());
        while at < bytes.len() {
            at += value_bytes(&bytes[at..]).expect("rendered right");
            ends.push(at);
        }
        prop_assert_eq!(ends.len(), replies.len());
        let mut checked = Checked::new(Guard::Resp);
        checked.tell(true, 0, b"*1\r\n$4\r\nPING\r\n".repeat(replies.len()).as_slice());
        prop_assert_eq!(steps(&mut checked, false, &bytes), ends);
        prop_assert!(checked.tracker.is_default());
    }

    #[test]
    fn damaged_replies_end_alike_or_pin(
        reply in value(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'$'), Just(b'*'), Just(b'-'), b'0'..=b'9', any::<u8>()],
    ) {
        let mut bytes = Vec::new();
        render(&reply, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let mut checked = Checked::new(Guard::Resp);
        checked.tell(true, 0, b"*1\r\n$4\r\nPING\r\n");
        let ends = steps(&mut checked, false, &bytes);
        match (value_bytes(&bytes), checked.tracker.pinned()) {
            (None, None) => prop_assert_eq!(ends, Vec::<usize>::new()),
            (Some(end), None) => prop_assert_eq!(ends, vec![end]),
            // Bytes behind the end are a reply to nothing; or the slow parser takes more numbers.
            (_, Some(_)) => {}
        }
    }

    #[test]
    fn commands_begin_where_they_begin(
        commands in prop::collection::vec(prop_oneof![
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4).prop_map(|arguments| {
                let mut array = vec![Value::Bulk(Some(b"SET".to_vec()))];
                array.extend(arguments.into_iter().map(|a| Value::Bulk(Some(a))));
                let mut out = Vec::new();
                render(&Value::Array(Some(array)), &mut out);
                out
            }),
            "(get|set|ping|lrange) [a-z0-9 '$*]{0,20}\r?\n".prop_map(String::into_bytes),
        ], 1..12),
    ) {
        let mut checked = Checked::new(Guard::Resp);
        let (mut at, mut begins, mut bytes) = (0, Vec::new(), Vec::new());
        for command in &commands {
            begins.push(at + 1);
            at += command.len();
            bytes.extend(command);
        }
        prop_assert_eq!(steps(&mut checked, true, &bytes), begins);
        checked.tell(false, 0, "+OK\r\n".repeat(commands.len() - 1).as_bytes());
        prop_assert!(!checked.tracker.at_rest());
        checked.tell(false, 0, b"+OK\r\n");
        prop_assert!(checked.tracker.is_default());
    }
}
