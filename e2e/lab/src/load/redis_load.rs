//! Redis load whose every reply is checked, and whose effects are counted in the servers
//! afterwards.
//!
//! The pods' redis servers share nothing, and a connection may meet any of them, so the checks hold
//! whoever answers: `ECHO` gives the argument back, `SET` stores a value that is looked for in all
//! pods at the end, `GET` reads a key that every pod was given before, and `INCR`s are summed over
//! the pods: one that is executed twice or not at all shows.

use crate::{
    RedisClient, Reply,
    clients::redis_client::{command, parse},
    load::load_client::Load,
    node::netns::Namespace,
    work::{
        exchange::{Exchange, LoadOptions, Verdict},
        stats::{Counts, LoadReport},
    },
};
use anyhow::{Result, bail, ensure};
use std::{collections::HashSet, net::SocketAddr};

/// Keys that every pod is given before the run.
const FIXED_KEYS: u64 = 64;
const COUNTER: &str = "baton:counter";
/// Keys per MGET when the servers are looked into: one reply of some tens of kilobytes.
const KEYS_PER_LOOK: usize = 512;

#[derive(Clone, Copy, Debug)]
enum Command {
    Set,
    Get,
    Incr,
    Echo,
}

const ALL: &[Command] = &[Command::Set, Command::Get, Command::Incr, Command::Echo];
/// They may be executed twice.
const READING: &[Command] = &[Command::Get, Command::Echo];

/// SET, GET, INCR and ECHO in turn, or of these only the ones that read, checked.
#[derive(Debug)]
pub struct RedisCheck {
    run: u64,
    commands: &'static [Command],
    namespace: Namespace,
    servers: Vec<SocketAddr>,
    /// Numbers of the SETs that were answered.
    sets: Vec<u64>,
    increments: u64,
    lost_increments: u64,
}

impl RedisCheck {
    /// Gives every server the fixed keys and starts the load against `options.address`.
    pub fn start(
        namespace: &Namespace,
        servers: &[SocketAddr],
        options: LoadOptions,
    ) -> Result<Load<Self>> {
        Self::start_with(namespace, servers, options, ALL)
    }

    /// The same with commands that only read. Servers save the fixed keys, so that these survive a
    /// restart.
    pub fn start_reading(
        namespace: &Namespace,
        servers: &[SocketAddr],
        options: LoadOptions,
    ) -> Result<Load<Self>> {
        let load = Self::start_with(namespace, servers, options, READING)?;
        for server in servers {
            let reply = RedisClient::connect(namespace, *server)?.call(&[b"SAVE"])?;
            ensure!(reply == Reply::Simple("OK".into()), "SAVE: {reply:?}");
        }
        Ok(load)
    }

    fn start_with(
        namespace: &Namespace,
        servers: &[SocketAddr],
        options: LoadOptions,
        commands: &'static [Command],
    ) -> Result<Load<Self>> {
        let run = fastrand::u64(..);
        for server in servers {
            let mut client = RedisClient::connect(namespace, *server)?;
            client.call(&[b"DEL", COUNTER.as_bytes()])?;
            for key in 0..FIXED_KEYS {
                let value = fixed_value(run, key);
                let reply = client.call(&[b"SET", fixed_key(key).as_bytes(), value.as_bytes()])?;
                ensure!(reply == Reply::Simple("OK".into()), "{reply:?}");
            }
        }
        let exchange = Self {
            run,
            commands,
            namespace: namespace.clone(),
            servers: servers.to_vec(),
            sets: Vec::new(),
            increments: 0,
            lost_increments: 0,
        };
        Load::start(namespace, options, exchange)
    }

    fn command(&self, number: u64) -> Command {
        self.commands[(number % self.commands.len() as u64) as usize]
    }

    /// Waits for the end of the load, then looks into the servers. What is wrong there joins the
    /// report's errors.
    pub fn finish(load: Load<Self>) -> Result<LoadReport> {
        let (mut report, check) = load.join()?;
        check.verify(&mut report.errors)?;
        Ok(report)
    }

    fn verify(&self, errors: &mut Counts) -> Result<()> {
        let (mut total, mut found) = (0i64, HashSet::new());
        for server in &self.servers {
            let mut client = RedisClient::connect(&self.namespace, *server)?;
            match client.call(&[b"GET", COUNTER.as_bytes()])? {
                Reply::Bulk(None) => {}
                Reply::Bulk(Some(text)) => total += std::str::from_utf8(&text)?.parse::<i64>()?,
                other => bail!("GET {COUNTER}: {other:?}"),
            }
            for batch in self.sets.chunks(KEYS_PER_LOOK) {
                let keys: Vec<_> = batch.iter().map(|n| set_key(self.run, *n)).collect();
                let mut look: Vec<&[u8]> = vec![b"MGET"];
                look.extend(keys.iter().map(String::as_bytes));
                let Reply::Array(values) = client.call(&look)? else {
                    bail!("MGET: not an array");
                };
                for (number, value) in batch.iter().zip(values) {
                    match value {
                        Reply::Bulk(None) => {}
                        Reply::Bulk(Some(value))
                            if value == set_value(self.run, *number).as_bytes()
                                && found.insert(*number) => {}
                        _ => *errors.entry("set-wrong".into()).or_default() += 1,
                    }
                }
            }
        }
        let missing = (self.sets.len() - found.len()) as u64;
        if missing > 0 {
            *errors.entry("set-missing".into()).or_default() += missing;
        }
        // A request that got no reply may or may not have been executed; every other exactly once.
        let (low, high) = (self.increments, self.increments + self.lost_increments);
        let total = u64::try_from(total).unwrap_or(0);
        if !(low..=high).contains(&total) {
            let wrong = total.abs_diff(if total < low { low } else { high });
            *errors.entry("incr-count".into()).or_default() += wrong;
        }
        Ok(())
    }
}

impl Exchange for RedisCheck {
    fn request(&mut self, _connection: usize, number: u64, out: &mut Vec<u8>) {
        let own = set_value(self.run, number);
        let (key, fixed) = (set_key(self.run, number), fixed_key(number % FIXED_KEYS));
        match self.command(number) {
            Command::Set => command(out, &[b"SET", key.as_bytes(), own.as_bytes()]),
            Command::Get => command(out, &[b"GET", fixed.as_bytes()]),
            Command::Incr => command(out, &[b"INCR", COUNTER.as_bytes()]),
            Command::Echo => command(out, &[b"ECHO", own.as_bytes()]),
        }
    }

    fn response(&mut self, _connection: usize, number: u64, bytes: &[u8]) -> Verdict {
        let (reply, length) = match parse(bytes) {
            Ok(Some(complete)) => complete,
            Ok(None) => return Verdict::More,
            Err(_) => return Verdict::Wrong("malformed"),
        };
        match (self.command(number), &reply) {
            (_, Reply::Error(_)) => return Verdict::Wrong("error-reply"),
            (Command::Set, Reply::Simple(text)) if text == "OK" => self.sets.push(number),
            (Command::Get, Reply::Bulk(Some(value)))
                if value == fixed_value(self.run, number % FIXED_KEYS).as_bytes() => {}
            // How far the counter is depends on the pod; the sum over all pods is checked at the
            // end.
            (Command::Incr, Reply::Integer(1..)) => self.increments += 1,
            (Command::Echo, Reply::Bulk(Some(value)))
                if value == set_value(self.run, number).as_bytes() => {}
            _ => return Verdict::Wrong("reply"),
        }
        Verdict::Right(length)
    }

    fn lost(&mut self, _connection: usize, number: u64) {
        self.lost_increments += u64::from(matches!(self.command(number), Command::Incr));
    }
}

fn fixed_key(key: u64) -> String {
    format!("baton:fixed:{key}")
}

fn fixed_value(run: u64, key: u64) -> String {
    format!("{run:x}:{key}:{}", "f".repeat((key % 7) as usize))
}

fn set_key(run: u64, number: u64) -> String {
    format!("baton:{run:x}:{number}")
}

fn set_value(run: u64, number: u64) -> String {
    let mixed = (number ^ run).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{mixed:016x}{}", "v".repeat((number % 31) as usize))
}
