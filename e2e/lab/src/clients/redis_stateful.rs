//! Redis conversations that live in their connection: transactions, subscriptions, databases,
//! users, blocked commands.
//!
//! Each kind is a thread with a connection of its own through the load balancer, and direct ones to
//! all servers, which share nothing. Every reply is checked such that one from another server than
//! the conversation's would be wrong: what a conversation must find, the direct connections put
//! into every server, or look for in each.

use crate::{RedisClient, Reply, node::netns::Namespace};
use anyhow::{Context, Result, ensure};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Rounds on one connection before the next: state begins on connections that have moved before,
/// and on fresh ones.
const ROUNDS_PER_CONNECTION: u64 = 20;
/// How long a blocked command stays in flight: many thousands of commands of other connections.
const BLOCKED: Duration = Duration::from_millis(20);
const USER: &[u8] = b"alice";
const PASSWORD: &[u8] = b"lab-secret";
/// Databases 1 to 8 of redis's 16.
const DATABASES: u64 = 8;

type Conversation = fn(&mut Side, u64) -> Result<()>;

/// What is tried, by name.
const CONVERSATIONS: [(&str, Conversation); 8] = [
    ("transaction", transaction),
    ("watch", watch),
    ("subscribe", subscribe),
    ("select", select),
    ("auth", auth),
    ("blpop", blpop),
    ("pipeline", pipeline),
    ("name", name),
];

/// Running conversations.
#[derive(Debug)]
pub struct RedisStateful {
    jobs: Vec<(&'static str, JoinHandle<Result<()>>)>,
    /// By job.
    rounds: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

/// One thread's connections.
struct Side {
    namespace: Namespace,
    address: SocketAddr,
    front: RedisClient,
    servers: Vec<RedisClient>,
    /// Tells keys of one thread and run from those of others.
    tag: String,
}

impl RedisStateful {
    /// Prepares the servers and starts every kind of conversation against `address`.
    pub fn start(
        namespace: &Namespace,
        address: SocketAddr,
        servers: &[SocketAddr],
    ) -> Result<Self> {
        for server in servers {
            prepare(&mut RedisClient::connect(namespace, *server)?)?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (mut jobs, mut rounds) = (Vec::new(), Vec::new());
        for (name, conversation) in CONVERSATIONS {
            let mut side = Side {
                namespace: namespace.clone(),
                address,
                front: RedisClient::connect(namespace, address)?,
                servers: servers
                    .iter()
                    .map(|s| RedisClient::connect(namespace, *s))
                    .collect::<Result<_>>()?,
                tag: format!("{name}:{:x}", fastrand::u32(..)),
            };
            let (stop, done) = (Arc::clone(&stop), Arc::new(AtomicU64::new(0)));
            rounds.push(Arc::clone(&done));
            let job = thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let round = done.load(Ordering::Relaxed);
                    if round % ROUNDS_PER_CONNECTION == ROUNDS_PER_CONNECTION - 1 {
                        side.front = RedisClient::connect(&side.namespace, side.address)?;
                    }
                    conversation(&mut side, round)
                        .with_context(|| format!("{name}, round {round}"))?;
                    done.store(round + 1, Ordering::Relaxed);
                }
                Ok(())
            });
            jobs.push((name, job));
        }
        Ok(Self { jobs, rounds, stop })
    }

    /// Those that have ended by themselves, which only a wrong reply or a broken connection makes
    /// one do.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        let ended = self.jobs.iter().filter(|(_, job)| job.is_finished());
        ended.map(|(name, _)| *name).collect()
    }

    /// The rounds of each kind so far.
    #[must_use]
    pub fn rounds(&self) -> BTreeMap<&'static str, u64> {
        let done = self.rounds.iter().map(|r| r.load(Ordering::Relaxed));
        let names = self.jobs.iter().map(|(name, _)| *name);
        names.zip(done).collect()
    }

    /// Ends them and gives the rounds of each kind.
    pub fn finish(self) -> Result<BTreeMap<&'static str, u64>> {
        self.stop.store(true, Ordering::Relaxed);
        let (mut rounds, mut wrong) = (BTreeMap::new(), Vec::new());
        for ((name, job), done) in self.jobs.into_iter().zip(self.rounds) {
            let ended = job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            wrong.extend(ended.err().map(|e| format!("{e:#}")));
            rounds.insert(name, done.load(Ordering::Relaxed));
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(rounds)
    }
}

/// What every server must hold: a user, and one key of another value in each database.
fn prepare(server: &mut RedisClient) -> Result<()> {
    let password = [b">", PASSWORD].concat();
    let user: &[&[u8]] = &[b"ACL", b"SETUSER", USER, b"on", &password, b"~*", b"&*", b"+@all"];
    expect(server, user, &ok())?;
    for database in 0..=DATABASES {
        expect(server, &[b"SELECT", text(database).as_bytes()], &ok())?;
        let value = format!("database-{database}");
        expect(server, &[b"SET", b"where", value.as_bytes()], &ok())?;
    }
    expect(server, &[b"SELECT", b"0"], &ok())
}

impl Side {
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}:{name}", self.tag).into_bytes()
    }

    fn expect(&mut self, command: &[&[u8]], reply: &Reply) -> Result<()> {
        expect(&mut self.front, command, reply)
    }

    /// The same in every server; gives the sum of the integers among the replies.
    fn everywhere(&mut self, command: &[&[u8]]) -> Result<i64> {
        let mut sum = 0;
        for server in &mut self.servers {
            if let Reply::Integer(n) = server.call(command)? {
                sum += n;
            }
        }
        Ok(sum)
    }

    /// Commands without state, after which the connection may have moved.
    fn wander(&mut self, round: u64) -> Result<()> {
        for i in 0..3 {
            let word = format!("{}-{round}-{i}", self.tag);
            self.expect(&[b"ECHO", word.as_bytes()], &bulk(word.as_bytes()))?;
        }
        Ok(())
    }
}

/// Two counters that only ever grow together, in whichever server: their values differ if a
/// transaction was parted.
fn transaction(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    let (a, b) = (side.key("a"), side.key("b"));
    side.expect(&[b"MULTI"], &ok())?;
    side.expect(&[b"INCR", &a], &queued())?;
    side.expect(&[b"INCR", &b], &queued())?;
    let reply = side.front.call(&[b"EXEC"])?;
    let Reply::Array(values) = &reply else {
        anyhow::bail!("EXEC: {reply:?}");
    };
    ensure!(
        matches!(&values[..], [Reply::Integer(a), Reply::Integer(b)] if a == b),
        "EXEC: {reply:?}"
    );
    // Executed once, in one of the servers: INCRBY 0 reads a counter, also one that is not there.
    for key in [a, b] {
        let sum = side.everywhere(&[b"INCRBY", &key, b"0"])?;
        ensure!(
            u64::try_from(sum) == Ok(round + 1),
            "{sum} increments after {} transactions",
            round + 1
        );
    }
    Ok(())
}

/// Another connection changes the key in every server, in every second round: only then the
/// transaction must fail.
fn watch(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    let key = side.key("watched");
    side.everywhere(&[b"SET", &key, b"before"])?;
    side.expect(&[b"WATCH", &key], &ok())?;
    side.expect(&[b"GET", &key], &bulk(b"before"))?;
    let disturbed = round % 2 == 1;
    if disturbed {
        side.everywhere(&[b"SET", &key, b"by another"])?;
    }
    side.expect(&[b"MULTI"], &ok())?;
    side.expect(&[b"SET", &key, b"after"], &queued())?;
    let reply = if disturbed { Reply::Bulk(None) } else { Reply::Array(vec![ok()]) };
    side.expect(&[b"EXEC"], &reply)
}

/// Published in every server, a message has one subscriber in all, who gets it once.
fn subscribe(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    let channel = side.key("channel");
    side.expect(&[b"SUBSCRIBE", &channel], &counted(b"subscribe", &channel, 1))?;
    for i in 0..5 {
        let word = format!("message {round} {i}");
        let receivers = side.everywhere(&[b"PUBLISH", &channel, word.as_bytes()])?;
        ensure!(receivers == 1, "{receivers} subscribers");
        let message = Reply::Array(vec![bulk(b"message"), bulk(&channel), bulk(word.as_bytes())]);
        let found = side.front.receive()?;
        ensure!(found == message, "{found:?} instead of {message:?}");
    }
    let reply = counted(b"unsubscribe", &channel, 0);
    side.expect(&[b"UNSUBSCRIBE", &channel], &reply)
}

/// The same key has another value in each database.
fn select(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    let database = round % DATABASES + 1;
    side.expect(&[b"SELECT", text(database).as_bytes()], &ok())?;
    let value = format!("database-{database}");
    for _ in 0..5 {
        side.expect(&[b"GET", b"where"], &bulk(value.as_bytes()))?;
    }
    Ok(())
}

fn auth(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    side.expect(&[b"AUTH", USER, PASSWORD], &ok())?;
    for _ in 0..5 {
        side.expect(&[b"ACL", b"WHOAMI"], &bulk(USER))?;
    }
    Ok(())
}

/// The list is filled in every server: what is left afterwards shows that one element was taken
/// once.
fn blpop(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    let key = side.key("list");
    let word = format!("element {round}");
    side.front.send(&[&[b"BLPOP", &key, b"0"]])?;
    thread::sleep(BLOCKED);
    side.everywhere(&[b"RPUSH", &key, word.as_bytes()])?;
    let found = side.front.receive()?;
    let expected = Reply::Array(vec![bulk(&key), bulk(word.as_bytes())]);
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    let left = side.everywhere(&[b"LLEN", &key])?;
    side.everywhere(&[b"DEL", &key])?;
    ensure!(left + 1 == side.servers.len() as i64, "{left} elements left");
    Ok(())
}

/// Commands of one write belong together: what one stores, the next finds.
fn pipeline(side: &mut Side, round: u64) -> Result<()> {
    let (key, word) = (side.key("pipe"), format!("value {round}"));
    let word = word.as_bytes();
    side.front.send(&[
        &[b"SET", &key, word],
        &[b"GET", &key],
        &[b"APPEND", &key, b"+"],
        &[b"GET", &key],
        &[b"DEL", &key],
        &[b"GET", &key],
        &[b"ECHO", word],
    ])?;
    let longer = [word, b"+"].concat();
    for expected in [
        ok(),
        bulk(word),
        Reply::Integer(longer.len() as i64),
        bulk(&longer),
        Reply::Integer(1),
        Reply::Bulk(None),
        bulk(word),
    ] {
        let found = side.front.receive()?;
        ensure!(found == expected, "{found:?} instead of {expected:?}");
    }
    Ok(())
}

fn name(side: &mut Side, round: u64) -> Result<()> {
    side.wander(round)?;
    let word = format!("name-{round}");
    side.expect(&[b"CLIENT", b"SETNAME", word.as_bytes()], &ok())?;
    for _ in 0..5 {
        side.expect(&[b"CLIENT", b"GETNAME"], &bulk(word.as_bytes()))?;
    }
    Ok(())
}

fn expect(client: &mut RedisClient, command: &[&[u8]], reply: &Reply) -> Result<()> {
    let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let found = client.call(command).with_context(|| words.join(" "))?;
    ensure!(found == *reply, "{}: {found:?} instead of {reply:?}", words.join(" "));
    Ok(())
}

fn counted(kind: &[u8], channel: &[u8], count: i64) -> Reply {
    Reply::Array(vec![bulk(kind), bulk(channel), Reply::Integer(count)])
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn queued() -> Reply {
    Reply::Simple("QUEUED".into())
}

fn bulk(bytes: &[u8]) -> Reply {
    Reply::Bulk(Some(bytes.to_vec()))
}

fn text(number: u64) -> String {
    number.to_string()
}
