//! Inputs as YAML: a right configuration that was changed, or bytes as they are. Judges nothing.

/// Right configurations to start from: block style, flow style, anchors and merges, JSON, several
/// documents, nothing.
pub const STARTS: [&str; 6] = [
    "interface: eth0\nkeys: [{epoch: 1, file: a.key}]\nlimits: {flows: 1024}\npolicies:\n  - name: web\n    frontends: ['0.0.0.0:80']\n    backends:\n      - {name: a, endpoint: '10.9.0.1:80'}\n      - name: b\n        endpoint: 10.9.0.2:80\n        weight: 2\n    protocol: HTTP1\n    migration: {mode: Always, cooldown: 0us}\n",
    "{interface: eth0, keys: [{epoch: 0, file: k}], policies: [{name: a, frontends: ['[::]:80'], backends: []}]}\n",
    "interface: &i eth0\nkeys:\n- &k {epoch: 3, file: *i}\n- <<: *k\n  epoch: 4\n# a comment\npolicies: []\n",
    "{\n  \"interface\": \"eth0\",\n  \"keys\": [{\"epoch\": 1, \"file\": \"\\u0061\"}]\n}\n",
    "%YAML 1.2\n---\ninterface: |-\n  eth0\nkeys: !!seq\n- {epoch: 0x1, file: >-\n    a\n    b}\n...\n---\ninterface: eth1\n",
    "",
];

/// What is put between other bytes, also many times over.
pub const TOKENS: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    ":",
    ": ",
    ",",
    "- ",
    "-",
    "\n",
    "\n  ",
    "\n    ",
    " ",
    "\t",
    "\r\n",
    "\r",
    "#",
    " # c\n",
    "\"",
    "'",
    "\\",
    "|\n",
    ">\n",
    "? ",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "!!binary ",
    "!x ",
    "%",
    "---\n",
    "...\n",
    "@",
    "`",
    "~",
    "null",
    "true",
    "yes",
    "0",
    "-1",
    "1e9",
    "0x10",
    "0o17",
    "1_000",
    ".inf",
    ".nan",
    "256",
    "65536",
    "18446744073709551616",
    "interface: ",
    "keys: ",
    "epoch: ",
    "file: ",
    "policies:\n",
    "name: ",
    "frontends: ",
    "backends: ",
    "endpoint: ",
    "weight: ",
    "limits: ",
    "flows: ",
    "timeouts: {idle: 1h}",
    "health: {active: {}}",
    "nonsense: ",
    "eth0",
    "'10.9.0.1:80'",
    "'10.9.0.1:0'",
    "5",
    "5s",
    "\u{feff}",
    "\u{0}",
    "\u{85}",
    "\u{2028}",
    "é",
    "\u{1f600}",
    "\u{1b}[31m",
    "a: &a [x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c]\n",
    "\"\\ud800\"",
    "\"\\x\"",
    "[[[[[[[[",
    "{a: {a: {a: ",
    "- - - - ",
];

/// The first byte takes the rest as it is (from 0x80 on) or chooses a right text. Then each group
/// of four bytes (what, where twice, which) puts a token somewhere, once or up to 4,096 times,
/// takes bytes away, copies some, or changes one.
pub fn text_of(input: &[u8]) -> Vec<u8> {
    /// Of the text that grows, so that no input takes long.
    const TEXT_BYTES_MAX: usize = 32_768;
    let [choice, program @ ..] = input else {
        return Vec::new();
    };
    if *choice >= 0x80 {
        return program.to_vec();
    }
    let mut text = STARTS[usize::from(*choice) % STARTS.len()].as_bytes().to_vec();
    for step in program.chunks_exact(4).take(24) {
        let at = usize::from(u16::from_be_bytes([step[1], step[2]])) % (text.len() + 1);
        let token = TOKENS[usize::from(step[3]) % TOKENS.len()];
        let end = (at + usize::from(step[3])).min(text.len());
        match step[0] % 8 {
            0..3 => drop(text.splice(at..at, token.bytes())),
            3 => {
                let times = 1 << (step[0] >> 3 & 15).min(12);
                let many = token.repeat(times);
                if text.len() + many.len() <= TEXT_BYTES_MAX {
                    text.splice(at..at, many.bytes());
                }
            }
            4 => drop(text.drain(at..end)),
            5 => {
                let copy = text[at..end].to_vec();
                text.splice(at..at, copy);
            }
            6 => drop(text.splice(at..(at + 1).min(text.len()), token.bytes())),
            _ => {
                if let Some(byte) = text.get_mut(at) {
                    *byte = step[3];
                }
            }
        }
    }
    text
}
