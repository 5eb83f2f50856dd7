//! `POST`s that are counted at both ends: the lab's counting server in a pod, and a load that knows
//! of each request whether it was answered, or that its fate is unknown.
//!
//! The server itself is the program `baton-counter`. A [`Tally`] puts both ends together; it never
//! guesses: a request is answered, unknown, or was never sent.

use crate::{
    balancers::baton::program,
    clients::http::Head,
    load::load_client::Load,
    node::{lab::Pod, netns::Namespace, process::Spec},
    servers::server::Server,
    work::exchange::{Exchange, LoadOptions, Verdict},
};
use anyhow::{Context, Result};
use std::{collections::HashMap, fs, io::Write, net::SocketAddr, path::PathBuf, time::Duration};

impl Pod {
    /// Starts a counting server which waits `before` between reading a request and writing it down,
    /// and `after` between that and its answer. Started again, it goes on with what it wrote.
    ///
    /// # Errors
    /// If it was not built, or ends or stays silent, with what it said.
    pub fn counter(&self, port: u16, before: Duration, after: Duration) -> Result<Server> {
        let address = SocketAddr::new(self.ipv4(), port);
        let arguments = [
            address.to_string(),
            self.count_file(address)?.display().to_string(),
            self.name().to_owned(),
            before.as_millis().to_string(),
            after.as_millis().to_string(),
        ];
        let spec = Spec::new(program("baton-counter")?, arguments).named("counter");
        self.serve(spec, port)
    }

    fn count_file(&self, server: SocketAddr) -> Result<PathBuf> {
        Ok(self.directory()?.join(format!("count-{}", server.port())))
    }
}

/// Of a counting server.
impl Server {
    /// What it counted so far.
    pub fn counted(&self) -> Result<Vec<String>> {
        let file = self.pod().count_file(self.address())?;
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.lines().map(|line| line.trim_end().to_owned()).collect())
    }
}

/// `POST /count` with an id that no other request has.
#[derive(Debug)]
pub struct PostCount {
    host: String,
    run: u64,
    /// Numbers of the requests that were answered 200 with their own id.
    pub answered: Vec<u64>,
    /// Numbers of those that got no right answer: executed or not, nobody told the client.
    pub unknown: Vec<u64>,
}

impl PostCount {
    /// Requests of a run of their own.
    #[must_use]
    pub fn to(address: SocketAddr) -> Self {
        Self {
            host: address.to_string(),
            run: fastrand::u64(..),
            answered: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Starts the load.
    pub fn start(namespace: &Namespace, options: LoadOptions) -> Result<Load<Self>> {
        let exchange = Self::to(options.address);
        Load::start(namespace, options, exchange)
    }

    fn id(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.run)
    }

    /// Compares with what the servers counted.
    pub fn tally(&self, servers: &[Server]) -> Result<Tally> {
        let mut times: HashMap<String, u64> = HashMap::new();
        for server in servers {
            for id in server.counted()? {
                *times.entry(id).or_default() += 1;
            }
        }
        let mut tally = Tally {
            answered: self.answered.len() as u64,
            unknown: self.unknown.len() as u64,
            ..Tally::default()
        };
        for number in &self.answered {
            match times.remove(&self.id(*number)) {
                None => tally.missing += 1,
                Some(1) => {}
                Some(_) => tally.twice += 1,
            }
        }
        for number in &self.unknown {
            match times.remove(&self.id(*number)) {
                None => {}
                Some(1) => tally.unknown_counted += 1,
                Some(_) => tally.twice += 1,
            }
        }
        tally.strange = times.len() as u64;
        Ok(tally)
    }
}

/// What both ends say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests whose fate the client does not know.
    pub unknown: u64,
    /// Of these, those that a server counted.
    pub unknown_counted: u64,
    /// Requests that were counted more than once. Nothing may be here.
    pub twice: u64,
    /// Answered requests that nobody counted. Nothing may be here.
    pub missing: u64,
    /// What servers counted and this load neither saw answered nor broken: requests on the way when
    /// it was stopped.
    pub strange: u64,
}

impl Exchange for PostCount {
    fn request(&mut self, _connection: usize, number: u64, out: &mut Vec<u8>) {
        let id = self.id(number);
        write!(
            out,
            "POST /count HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{id}",
            self.host,
            id.len()
        )
        .expect("writing to memory does not fail");
    }

    fn response(&mut self, _connection: usize, number: u64, bytes: &[u8]) -> Verdict {
        let id = self.id(number);
        let head = match Head::checked(bytes, 200, id.as_bytes()) {
            Ok(head) => head,
            Err(verdict) => return verdict,
        };
        self.answered.push(number);
        head.verdict()
    }

    fn lost(&mut self, _connection: usize, number: u64) {
        self.unknown.push(number);
    }
}
