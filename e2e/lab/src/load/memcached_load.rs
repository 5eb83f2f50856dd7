//! Memcached load whose every reply is checked byte by byte, and whose commands the servers count.
//!
//! The pods' servers share nothing, and a connection may meet any of them. So that each reply is
//! known in advance, every server is given the same keys before; what is stored later under a key
//! is always the same value; and what depends on the server (counters) is looked up in all of them
//! at the end. There, the servers' own statistics tell how many commands of each kind were
//! executed: one that was executed twice or not at all shows.

use crate::{
    MemcachedClient,
    load::load_client::Load,
    node::netns::Namespace,
    work::{
        exchange::{Exchange, LoadOptions, Verdict},
        stats::LoadReport,
    },
};
use anyhow::Result;
use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr};

/// Keys that every server has.
const FIXED_KEYS: u64 = 50;
/// Several segments each way, below the server's limit of 1 MiB.
const LARGE_BYTES: usize = 20_000;
/// A number of each server's own.
const COUNTER: &str = "baton:counter";
/// A value that is no number.
const WORD: &str = "baton:word";
/// Kinds of exchanges.
const KINDS: u64 = 12;

/// What the servers count, by the names of `stats`.
type Counts = BTreeMap<&'static str, u64>;

/// All kinds of commands in turn.
#[derive(Debug)]
pub struct MemcachedCheck {
    run: u64,
    namespace: Namespace,
    servers: Vec<SocketAddr>,
    /// The servers' statistics before the run, summed.
    before: BTreeMap<String, u64>,
    /// Commands of answered exchanges.
    done: Counts,
    large: Vec<u8>,
}

impl MemcachedCheck {
    /// Gives every server the fixed keys and starts the load against `options.address`.
    pub fn start(
        namespace: &Namespace,
        servers: &[SocketAddr],
        options: LoadOptions,
    ) -> Result<Load<Self>> {
        let mut check = Self {
            run: fastrand::u64(..),
            namespace: namespace.clone(),
            servers: servers.to_vec(),
            before: BTreeMap::new(),
            done: Counts::new(),
            large: crate::content(LARGE_BYTES, 7),
        };
        for server in servers {
            let mut client = MemcachedClient::connect(namespace, *server)?;
            for key in 0..FIXED_KEYS {
                client.set(&fixed_key(key), fixed_value(check.run, key).as_bytes())?;
            }
            client.set("baton:large", &check.large)?;
            client.set(COUNTER, b"0")?;
            client.set(WORD, b"word")?;
        }
        check.before = check.counted()?;
        Load::start(namespace, options, check)
    }

    /// Waits for the end of the load, then asks the servers. What is wrong there joins the report's
    /// errors.
    pub fn finish(load: Load<Self>) -> Result<LoadReport> {
        let (mut report, check) = load.join()?;
        // A lost exchange may have been executed in part; then nothing exact can be said.
        if report.errors.is_empty() {
            let after = check.counted()?;
            for (name, done) in &check.done {
                let count = |of: &BTreeMap<String, u64>| of.get(*name).copied().unwrap_or(0);
                let executed = count(&after) - count(&check.before);
                if executed != *done {
                    eprintln!("{name}: {executed} executed, {done} answered");
                    let wrong = executed.abs_diff(*done);
                    report.errors.insert(format!("executed-{name}"), wrong);
                }
            }
            let total = check.counters()?;
            let wanted = check.done.get("incr_hits").copied().unwrap_or(0);
            if total != wanted {
                report.errors.insert("incr-sum".into(), total.abs_diff(wanted));
            }
        }
        Ok(report)
    }

    /// All servers' statistics, summed.
    fn counted(&self) -> Result<BTreeMap<String, u64>> {
        let mut sums = BTreeMap::new();
        for server in &self.servers {
            let stats = MemcachedClient::connect(&self.namespace, *server)?.stats()?;
            for (name, value) in stats {
                *sums.entry(name).or_default() += value;
            }
        }
        Ok(sums)
    }

    /// The servers' counters, summed.
    fn counters(&self) -> Result<u64> {
        let mut sum = 0;
        for server in &self.servers {
            let mut client = MemcachedClient::connect(&self.namespace, *server)?;
            client.send(format!("get {COUNTER}\r\n").as_bytes())?;
            client.line()?;
            sum += client.line()?.trim_end().parse::<u64>()?;
        }
        Ok(sum)
    }

    /// One exchange: the command, the whole reply, and what the servers count for it. A `*` stands
    /// for a number that depends on the server. Several commands go in one write, and replies come
    /// together.
    fn exchange(&self, number: u64) -> (Vec<u8>, Vec<u8>, &'static [(&'static str, u64)]) {
        let (own, value) = (self.own_key(number), self.own_value(number));
        let length = value.len();
        let key = number % FIXED_KEYS;
        let (fixed, held) = (fixed_key(key), fixed_value(self.run, key));
        let held_length = held.len();
        let text = |command: String, reply: String| (command.into_bytes(), reply.into_bytes());
        let (pair, counted): (_, &[_]) = match number % KINDS {
            0 => (
                text(format!("set {own} 5 0 {length}\r\n{value}\r\n"), "STORED\r\n".into()),
                &[("cmd_set", 1)],
            ),
            1 => (
                text(
                    format!("get {fixed}\r\n"),
                    format!("VALUE {fixed} 0 {held_length}\r\n{held}\r\nEND\r\n"),
                ),
                &[("get_hits", 1)],
            ),
            2 => (
                text(
                    format!("add {own} 0 0 {length}\r\n{value}\r\nadd {fixed} 0 0 1\r\nx\r\n"),
                    "STORED\r\nNOT_STORED\r\n".into(),
                ),
                &[("cmd_set", 2)],
            ),
            // No server ever gave out 0 as a unique number.
            3 => (
                text(
                    format!("cas {fixed} 0 0 1 0\r\nx\r\ncas {own} 0 0 1 0\r\nx\r\n"),
                    "EXISTS\r\nNOT_FOUND\r\n".into(),
                ),
                &[("cmd_set", 2), ("cas_badval", 1), ("cas_misses", 1)],
            ),
            4 => (text(format!("incr {COUNTER} 1\r\n"), "*\r\n".into()), &[("incr_hits", 1)]),
            5 => (
                text(
                    format!(
                        "set {own} 0 0 {length}\r\n{value}\r\ndelete {own}\r\ndelete {own}\r\n"
                    ),
                    "STORED\r\nDELETED\r\nNOT_FOUND\r\n".into(),
                ),
                &[("cmd_set", 1), ("delete_hits", 1), ("delete_misses", 1)],
            ),
            6 => {
                let (mut command, mut reply) = ("get".to_owned(), String::new());
                for key in (0..FIXED_KEYS).step_by(5) {
                    let (name, value) = (fixed_key(key), fixed_value(self.run, key));
                    let _ = write!(command, " {name} baton:none:{number}");
                    let _ = write!(reply, "VALUE {name} 0 {}\r\n{value}\r\n", value.len());
                }
                (text(command + "\r\n", reply + "END\r\n"), &[("get_hits", 10), ("get_misses", 10)])
            }
            // The first two are never answered; what they did shows.
            7 => (
                text(
                    format!(
                        "set {own} 0 0 {length} noreply\r\n{value}\r\nincr {COUNTER} 1 noreply\r\nget {own}\r\n"
                    ),
                    format!("VALUE {own} 0 {length}\r\n{value}\r\nEND\r\n"),
                ),
                &[("cmd_set", 1), ("incr_hits", 1), ("get_hits", 1)],
            ),
            8 => {
                let mut reply = format!("VALUE baton:large 0 {LARGE_BYTES}\r\n").into_bytes();
                reply.extend_from_slice(&self.large);
                reply.extend_from_slice(b"\r\nEND\r\n");
                ((b"get baton:large\r\n".to_vec(), reply), &[("get_hits", 1)])
            }
            9 => {
                let mut command = format!("set baton:large 0 0 {LARGE_BYTES}\r\n").into_bytes();
                command.extend_from_slice(&self.large);
                command.extend_from_slice(b"\r\n");
                ((command, b"STORED\r\n".to_vec()), &[("cmd_set", 1)])
            }
            // Errors that leave no doubt where the next command begins. (Not in one write: for a
            // key that is too long, memcached 1.6 drops the replies in front of the error too.)
            10 if (number / KINDS).is_multiple_of(2) => (
                text(
                    format!("incr {WORD} 1\r\n"),
                    "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".into(),
                ),
                &[],
            ),
            10 => (
                text(
                    format!("get {}\r\n", "k".repeat(300)),
                    "CLIENT_ERROR bad command line format\r\n".into(),
                ),
                &[],
            ),
            _ => {
                let (mut command, mut reply) = (String::new(), String::new());
                for key in 0..20 {
                    let (name, value) = (fixed_key(key), fixed_value(self.run, key));
                    let length = value.len();
                    let _ = write!(command, "set {name} 0 0 {length}\r\n{value}\r\nget {name}\r\n");
                    let _ =
                        write!(reply, "STORED\r\nVALUE {name} 0 {length}\r\n{value}\r\nEND\r\n");
                }
                (text(command, reply), &[("cmd_set", 20), ("get_hits", 20)])
            }
        };
        (pair.0, pair.1, counted)
    }

    /// A key that only this exchange uses.
    fn own_key(&self, number: u64) -> String {
        format!("baton:{:x}:{number}", self.run)
    }

    fn own_value(&self, number: u64) -> String {
        let mixed = (number ^ self.run).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{mixed:016x}{}", "v".repeat((number % 31) as usize))
    }
}

impl Exchange for MemcachedCheck {
    fn request(&mut self, _connection: usize, number: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.exchange(number).0);
    }

    fn response(&mut self, _connection: usize, number: u64, bytes: &[u8]) -> Verdict {
        let (_, expected, counted) = self.exchange(number);
        let verdict = if expected == b"*\r\n" {
            let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") else {
                return Verdict::More;
            };
            let number = std::str::from_utf8(&bytes[..end]).ok();
            match number.and_then(|n| n.parse::<u64>().ok()) {
                Some(1..) => Verdict::Right(end + 2),
                _ => Verdict::Wrong("reply"),
            }
        } else {
            Verdict::of(bytes, &expected, "reply")
        };
        if !matches!(verdict, Verdict::Right(_)) {
            return verdict;
        }
        for (name, count) in counted {
            *self.done.entry(name).or_default() += count;
        }
        verdict
    }
}

fn fixed_key(key: u64) -> String {
    format!("baton:fixed:{key}")
}

fn fixed_value(run: u64, key: u64) -> String {
    format!("{run:x}:{key}:{}", "f".repeat((key * 13 % 97) as usize))
}
