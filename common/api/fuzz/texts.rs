//! Inputs as the text of a snapshot: right ones that were changed, because random bytes do not get
//! past the first bracket.
//!
//! Used by the fuzzing of the snapshot types and of what the engine makes of them. Judges nothing.

/// Right snapshots to start from: every field, few fields, none, and what came later. The corpus
/// names them by number.
pub const STARTS: [&str; 4] = [
    r#"{"generation":7,"policies":[
{"name":"web","frontends":["10.0.0.9:80","[fd00::9]:80"],
"backends":[{"name":"a","endpoint":"10.0.1.20:8080"},{"name":"b","endpoint":"10.0.1.21:8080","weight":2,"draining":true},
{"name":"c","endpoint":"[fd00::14]:8080","weight":0}],
"algorithm":"LeastOutstanding","load":"LatencyAndPressure","protocol":"HTTP1",
"migration":{"mode":"Always","method":"Translation","ratioPercent":150,"gain":"300us","cooldown":"5ms","perSecond":100},
"onBackendFailure":"ReplayIdempotent","onStall":"Wait","responseTimeout":"2s",
"drain":{"quiet":"100ms","deadline":"25s","onDeadline":"Wait"},
"health":{"active":{"path":"/healthz","host":"a.example","expect":["200-299","404"],"port":8081,"interval":"5s",
"jitterPercent":10,"timeout":"1s","successThreshold":2,"failureThreshold":3},
"failureThreshold":5,"baseEjectionTime":"10s","maxEjectedPercent":34,"panicPercent":25},
"slowStart":"30s","timeouts":{"idle":"2h","handshake":"63s","halfClosed":"5m"}}]}"#,
    r#"{"generation":8,"policies":[
{"name":"web","frontends":["0.0.0.0:80"],"backends":[{"name":"a","endpoint":"10.0.1.20:8080"}],"protocol":"RESP"},
{"name":"db","frontends":["[::]:81"],"backends":[],"algorithm":"WeightedRoundRobin","onBackendFailure":"Reset"},
{"name":"mc","frontends":["10.0.0.9:82"],"backends":[{"name":"a","endpoint":"10.0.1.20:8080"}],"protocol":"Memcached"}]}"#,
    r#"{"generation":0,"policies":[]}"#,
    r#"{"generation":9,"policies":[
{"name":"ns/web/http","frontends":["10.0.0.9:80"],"backends":[{"name":"a","endpoint":"10.0.1.20:8080"}],
"algorithm":"Random","affinity":{"clientIP":{"timeout":"3h"}},
"migration":{"mode":"DrainOnly","perSecond":100,"perFlow":9,"perBackendPerSecond":50}}]}"#,
];

/// What is put in the place of a value, of a name or between them.
pub const TOKENS: &[&str] = &[
    "0",
    "1",
    "-1",
    "99",
    "100",
    "101",
    "255",
    "256",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "1e3",
    "0.5",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "\"\"",
    "\"0us\"",
    "\"1us\"",
    "\"999us\"",
    "\"1ms\"",
    "\"99ms\"",
    "\"100ms\"",
    "\"1s\"",
    "\"1h\"",
    "\"2h\"",
    "\"24h\"",
    "\"168h\"",
    "\"169h\"",
    "\"5124095576h\"",
    "\"18446744073709551615us\"",
    "\"18446744073709551616us\"",
    "\"5\"",
    "\"5d\"",
    "\" 5s\"",
    "\"10.0.0.9:80\"",
    "\"10.0.0.9:81\"",
    "\"10.0.0.9:40000\"",
    "\"0.0.0.0:80\"",
    "\"0.0.0.0:40063\"",
    "\"[::]:80\"",
    "\"[fd00::9]:80\"",
    "\"10.0.1.20:8080\"",
    "\"10.0.1.22:8080\"",
    "\"10.0.1.20:0\"",
    "\"10.0.1.20:65536\"",
    "\"10.0.1.20\"",
    "\"[::ffff:10.0.1.20]:8080\"",
    "\"[fe80::1%2]:80\"",
    "\"127.0.0.1:1\"",
    "\"224.0.0.1:80\"",
    "\"255.255.255.255:65535\"",
    "\"[ff02::1]:80\"",
    "\"0.0.0.0:1\"",
    "\"a\"",
    "\"web\"",
    "\"a b\"",
    "\"a\\nb\"",
    "\"\\u001b[31m\"",
    "\"\\ud83d\\ude00\"",
    "\"\\u0000\"",
    "\"../x\"",
    "\"01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012\"",
    "\"012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123\"",
    "\"LeastOutstanding\"",
    "\"WeightedRoundRobin\"",
    "\"Maglev\"",
    "\"None\"",
    "\"RequestResponse\"",
    "\"HTTP1\"",
    "\"RESP\"",
    "\"Memcached\"",
    "\"Never\"",
    "\"WhenBetter\"",
    "\"Always\"",
    "\"Replay\"",
    "\"AdoptIdleOnly\"",
    "\"Reset\"",
    "\"Close\"",
    "\"Wait\"",
    "\"100\"",
    "\"599\"",
    "\"600\"",
    "\"099\"",
    "\"+20\"",
    "\"300-200\"",
    "\"200-\"",
    "\"/\"",
    "\"/a b\"",
    "\"//x\"",
    "\"x\"",
    "\"a:80\"",
    "\"a/b\"",
    "\"generation\"",
    "\"policies\"",
    "\"name\"",
    "\"active\"",
    "\"slowStart\"",
    "\"nonsense\"",
    "{\"path\":\"/\"}",
    "{\"host\":\"a\"}",
    "{\"expect\":[]}",
    "{\"timeout\":\"1h\"}",
    "{\"name\":\"n\",\"endpoint\":\"10.0.1.23:8080\"}",
    ",",
    ":",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "\\",
    " ",
    "\"Random\"",
    "\"DrainOnly\"",
    "\"affinity\"",
    "\"25h\"",
    "{\"clientIP\":{}}",
    "{\"clientIP\":{\"timeout\":\"999ms\"}}",
];

/// Where values, names and signs of a text begin and end.
fn pieces(text: &[u8]) -> Vec<(usize, usize)> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while let Some(first) = text.get(at) {
        let rest = &text[at + 1..];
        let length = match first {
            b'"' => rest.iter().position(|b| *b == b'"').map_or(rest.len(), |n| n + 1) + 1,
            b'{' | b'}' | b'[' | b']' | b':' | b',' | b' ' | b'\n' => 1,
            _ => rest.iter().position(|b| b"{}[]:,\" \n".contains(b)).unwrap_or(rest.len()) + 1,
        };
        if !b" \n".contains(first) {
            pieces.push((at, at + length));
        }
        at += length;
    }
    pieces
}

/// The first byte takes the rest as it is (from 0x80 on) or chooses a right text. Then each group
/// of four bytes (what, where twice, which) replaces a piece by a token, puts one in front of it,
/// takes pieces away, copies some behind it, or changes a byte.
pub fn text_of(input: &[u8]) -> Vec<u8> {
    /// Of the text that grows, so that no input takes long.
    const TEXT_BYTES_MAX: usize = 16_384;
    let [choice, program @ ..] = input else {
        return Vec::new();
    };
    if *choice >= 0x80 {
        return program.to_vec();
    }
    let mut text = STARTS[usize::from(*choice) % STARTS.len()].as_bytes().to_vec();
    for step in program.chunks_exact(4).take(24) {
        let pieces = pieces(&text);
        let where_ = usize::from(u16::from_be_bytes([step[1], step[2]]));
        let Some((from, to)) = pieces.get(where_ % pieces.len().max(1)).copied() else {
            break;
        };
        let token = TOKENS[usize::from(step[3]) % TOKENS.len()].bytes();
        match step[0] % 8 {
            0..3 => drop(text.splice(from..to, token)),
            3 => drop(text.splice(from..from, token)),
            4 => {
                let last =
                    (where_ % pieces.len() + usize::from(step[3] % 32)).min(pieces.len() - 1);
                text.drain(from..pieces[last].1);
            }
            5 => {
                let last = (where_ % pieces.len() + usize::from(step[3])).min(pieces.len() - 1);
                let copy = text[from..pieces[last].1].to_vec();
                if text.len() + copy.len() < TEXT_BYTES_MAX {
                    text.splice(from..from, copy);
                }
            }
            6 => text[from] = step[3],
            _ => text[to - 1] ^= 1 << (step[3] % 8),
        }
    }
    text
}
