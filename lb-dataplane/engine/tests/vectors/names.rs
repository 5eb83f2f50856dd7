//! Names and numbers of the cases: who is `client`, `a`, `leg1`, and what `seq 19` is on the wire.
//!
//! Owns the binding of names to what the engine picks: the first pod that a case meets is `a`, the
//! first leg `leg1`, the first random number `$1`. Numbers are relative to where the two ends
//! begin. It knows nothing of frames.

use crate::common::{POD_PORT, frontend, ours, pod};
use std::net::{IpAddr, SocketAddr};

/// The client's SYN: its numbers wrap in the middle of a first request.
const CLIENT_ISN: u32 = 0xffff_fff5;
/// The pod's SYN-ACK: its numbers change their sign in the middle of a first response.
const SERVER_ISN: u32 = 0x7fff_fff0;
/// Timestamp clocks at the start of a case; the client's wraps after 256 ms.
const CLIENT_TS: u32 = 0xffff_ff00;
const SERVER_TS: u32 = 0x7fff_ff00;
/// Numbers this far from their start are written relative to it.
const NEAR: u32 = 1 << 26;
const CLIENT_PORT: u16 = 30_000;
const CLIENTS: u16 = 9;
const PODS: usize = 16;

/// Whose numbers a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    ClientSeq,
    ServerSeq,
    ClientTs,
    ServerTs,
}

impl Base {
    fn start(self) -> u32 {
        match self {
            Base::ClientSeq => CLIENT_ISN,
            Base::ServerSeq => SERVER_ISN,
            Base::ClientTs => CLIENT_TS,
            Base::ServerTs => SERVER_TS,
        }
    }
}

/// What a port of ours towards a pod is for, as a frame shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Leg,
    Probe,
    Question,
}

#[derive(Clone, Debug)]
pub struct Names {
    pub v6: bool,
    pods: Vec<usize>,
    ports: Vec<(String, usize, u16)>,
    legs: usize,
    numbers: Vec<u32>,
}

impl Names {
    pub fn new(v6: bool) -> Self {
        Self { v6, pods: Vec::new(), ports: Vec::new(), legs: 0, numbers: Vec::new() }
    }

    /// The letter of a pod; the next free one if it is new.
    pub fn pod_name(&mut self, index: usize) -> String {
        let at = self.pods.iter().position(|p| *p == index);
        let at = at.unwrap_or_else(|| {
            self.pods.push(index);
            self.pods.len() - 1
        });
        char::from(b'a' + at as u8).to_string()
    }

    /// The pod of a letter. A letter that is not bound yet is the first pod without one.
    pub fn pod(&mut self, name: &str) -> Option<usize> {
        let &[letter] = name.as_bytes() else {
            return None;
        };
        let at = usize::from(letter.checked_sub(b'a')?);
        while at < PODS && at >= self.pods.len() {
            let free = (0..PODS).find(|p| !self.pods.contains(p))?;
            self.pods.push(free);
        }
        self.pods.get(at).copied()
    }

    pub fn client_ip(&self) -> IpAddr {
        let ip = if self.v6 { "2001:db8::5" } else { "192.0.2.5" };
        ip.parse().expect("an address")
    }

    /// The client of a number from 1 on.
    pub fn client(&self, n: u16) -> SocketAddr {
        SocketAddr::new(self.client_ip(), CLIENT_PORT + n)
    }

    pub fn pod_at(&self, ip: IpAddr) -> Option<usize> {
        (0..PODS).find(|i| pod(self.v6, *i).ip() == ip)
    }

    /// Whether segments to this place are in the client's direction.
    pub fn is_server(&self, to: SocketAddr) -> bool {
        to == frontend(self.v6) || self.pod_at(to.ip()).is_some()
    }

    /// The name of a place that talks to `peer`.
    pub fn place_name(&mut self, at: SocketAddr, peer: SocketAddr, purpose: Purpose) -> String {
        if at == frontend(self.v6) {
            return "frontend".into();
        }
        if let Some(index) = self.pod_at(at.ip()) {
            let name = self.pod_name(index);
            return if at.port() == POD_PORT { name } else { format!("{name}:{}", at.port()) };
        }
        if at.ip() == ours(self.v6) {
            return match self.pod_at(peer.ip()) {
                Some(index) => self.port_name(index, at.port(), purpose),
                None => format!("ours:{}", at.port()),
            };
        }
        let number = at.port().wrapping_sub(CLIENT_PORT);
        if at.ip() == self.client_ip() && (1..=CLIENTS).contains(&number) {
            return client_name(number);
        }
        at.to_string()
    }

    pub fn port_name(&mut self, index: usize, port: u16, purpose: Purpose) -> String {
        let known = self.ports.iter().find(|p| (p.1, p.2) == (index, port));
        if let Some((name, ..)) = known {
            return name.clone();
        }
        let pod = self.pod_name(index);
        let name = match purpose {
            Purpose::Leg => {
                self.legs += 1;
                format!("leg{}", self.legs)
            }
            Purpose::Probe => format!("probe-{pod}"),
            Purpose::Question => format!("ask-{pod}"),
        };
        self.ports.push((name.clone(), index, port));
        name
    }

    /// A port of ours that a case names by its number keeps that name.
    pub fn note_port(&mut self, name: &str, at: SocketAddr, peer: SocketAddr) {
        if let Some(index) = self.pod_at(peer.ip())
            && name.starts_with("ours:")
        {
            self.ports.push((name.to_owned(), index, at.port()));
        }
    }

    /// The place of a name.
    pub fn place(&mut self, name: &str) -> Result<SocketAddr, String> {
        if name == "frontend" {
            return Ok(frontend(self.v6));
        }
        if let Some(number) = client_number(name) {
            return Ok(self.client(number));
        }
        if let Some((_, _, port)) = self.ports.iter().find(|p| p.0 == name) {
            return Ok(SocketAddr::new(ours(self.v6), *port));
        }
        if let Some(index) = self.pod(name) {
            return Ok(pod(self.v6, index));
        }
        if let Some((host, port)) = name.rsplit_once(':')
            && let (Ok(ip), Ok(port)) = (self.host(host), port.parse())
        {
            return Ok(SocketAddr::new(ip, port));
        }
        name.parse().map_err(|_| format!("`{name}` is no place that this case knows by now"))
    }

    /// The address of a name, for packets without ports.
    pub fn host(&mut self, name: &str) -> Result<IpAddr, String> {
        match name {
            "ours" => return Ok(ours(self.v6)),
            "client" => return Ok(self.client_ip()),
            _ => {}
        }
        if let Some(index) = self.pod(name) {
            return Ok(pod(self.v6, index).ip());
        }
        name.parse().map_err(|_| format!("`{name}` is no address that this case knows by now"))
    }

    pub fn host_name(&mut self, ip: IpAddr) -> String {
        if ip == ours(self.v6) {
            return "ours".into();
        }
        if ip == self.client_ip() {
            return "client".into();
        }
        match self.pod_at(ip) {
            Some(index) => self.pod_name(index),
            None => ip.to_string(),
        }
    }

    /// A number as text. One that the engine drew gets a name if `fresh`.
    pub fn number_text(&mut self, value: u32, base: Base, fresh: bool) -> String {
        let ahead = value.wrapping_sub(base.start()) as i32;
        if value == 0 {
            return "=0".into();
        }
        let known = self.numbers.iter().position(|n| value.wrapping_sub(*n) <= 1);
        if let Some(at) = known {
            let more = if value == self.numbers[at] { "" } else { "+1" };
            return format!("${}{more}", at + 1);
        }
        if fresh {
            self.numbers.push(value);
            return format!("${}", self.numbers.len());
        }
        if ahead.unsigned_abs() < NEAR {
            return ahead.to_string();
        }
        format!("={value}")
    }

    pub fn number(&self, text: &str, base: Base) -> Result<u32, String> {
        let wrong = || format!("`{text}` is no number");
        if let Some(absolute) = text.strip_prefix('=') {
            return absolute.parse().map_err(|_| wrong());
        }
        if let Some(name) = text.strip_prefix('$') {
            let (name, more) = match name.split_once('+') {
                Some((name, more)) => (name, more.parse::<u32>().map_err(|_| wrong())?),
                None => (name, 0),
            };
            let at: usize = name.parse().map_err(|_| wrong())?;
            let known = at.checked_sub(1).and_then(|at| self.numbers.get(at));
            return known.map(|n| n.wrapping_add(more)).ok_or_else(wrong);
        }
        let ahead: i64 = text.parse().map_err(|_| wrong())?;
        Ok(base.start().wrapping_add(ahead as u32))
    }
}

fn client_name(number: u16) -> String {
    match number {
        1 => "client".into(),
        n => format!("client{n}"),
    }
}

fn client_number(name: &str) -> Option<u16> {
    match name.strip_prefix("client")? {
        "" => Some(1),
        digits => digits.parse().ok().filter(|n| (2..=CLIENTS).contains(n)),
    }
}
