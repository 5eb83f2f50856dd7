//! Who may ask a control API that listens in the clear on this machine: its programs, but no web
//! page.
//!
//! Owns how a page that a browser shows is told from a command. Pure: the words of a request's head
//! in, an answer out.
//!
//! A page reaches such a port by a name of its own site that DNS suddenly says is 127.0.0.1 (DNS
//! rebinding): for the browser it is the same site still. But the browser says that name in `Host`.
//! An address or `localhost` there cannot have come from DNS.
//!
//! # Decisions
//!
//! - **Ports without TLS answer no web page**: a request names an address or `localhost`, which no
//!   DNS can have made of a site's name, and says nothing of another site. The unix socket and
//!   mutual TLS need none of this.

use std::net::{IpAddr, Ipv6Addr};

/// What of a request's head tells who asks.
#[derive(Clone, Debug, Default)]
pub struct Asked<'a> {
    /// The authority of the request's target, where it has one.
    pub target: Option<&'a str>,
    /// All `Host`.
    pub hosts: Vec<&'a [u8]>,
    /// All `Origin`.
    pub origins: Vec<&'a [u8]>,
    /// All `Sec-Fetch-Site`.
    pub sites: Vec<&'a [u8]>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// It names another host, or none.
    #[error(
        "only requests to an address or to `localhost` are answered here: `Host` names something else, as that of a web page \
         that had DNS lead it here does"
    )]
    Host,
    /// A web page of another site had it sent.
    #[error("requests of web pages are refused")]
    Page,
}

impl Foreign {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Host, Self::Page];

    /// As a label of figures.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Page => "page",
        }
    }

    /// The status of the answer: misdirected, or forbidden.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Host => 421,
            Self::Page => 403,
        }
    }
}

impl<'a> Asked<'a> {
    /// Of a request with this authority in its target, and with the values of headers as `all`
    /// finds them by name.
    #[must_use]
    pub fn new(target: Option<&'a str>, all: impl Fn(&'static str) -> Vec<&'a [u8]>) -> Self {
        Self { target, hosts: all("host"), origins: all("origin"), sites: all("sec-fetch-site") }
    }

    /// Whether a program of this machine asks, or a person who typed the address into a browser.
    ///
    /// # Errors
    /// What tells that it is a page, or may be one.
    pub fn is_local(&self) -> Result<(), Foreign> {
        let local = |text: &&[u8]| std::str::from_utf8(text).is_ok_and(is_here);
        let target = self.target.is_none_or(is_here);
        if !target || self.hosts.len() != 1 || !self.hosts.iter().all(local) {
            return Err(Foreign::Host);
        }
        let origin = |text: &&[u8]| {
            let text = std::str::from_utf8(text).unwrap_or_default();
            let place = text.strip_prefix("http://");
            place.or(text.strip_prefix("https://")).is_some_and(is_here)
        };
        // What the browser says of images and scripts too, which have no `Origin`.
        let site = |text: &&[u8]| matches!(*text, b"none" | b"same-origin");
        if !self.origins.iter().all(origin) || !self.sites.iter().all(site) {
            return Err(Foreign::Page);
        }
        Ok(())
    }
}

/// Whether a host with or without a port is an address or `localhost`.
fn is_here(authority: &str) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon may be one of an address in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            host.eq_ignore_ascii_case("localhost")
                || host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(host: &str) -> Asked<'_> {
        Asked { hosts: vec![host.as_bytes()], ..Asked::default() }
    }

    #[test]
    fn addresses_and_localhost_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9900",
            "10.0.0.7:9900",
            "[::1]",
            "[::1]:9900",
            "localhost",
            "LocalHost:9900",
        ] {
            assert_eq!(to(host).is_local(), Ok(()), "{host}");
        }
    }

    #[test]
    fn names_are_not() {
        for host in [
            "",
            "evil.example",
            "evil.example:9900",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1.",
            "localhost.",
            "a.localhost",
            "user@localhost",
            "::1",
            "[::1",
            "[evil.example]",
            "[127.0.0.1]",
            "127.1",
            "0x7f000001",
            "127.0.0.1:http",
            "127.0.0.1:99999",
            "localhost:",
            "localhost, evil.example",
        ] {
            assert_eq!(to(host).is_local(), Err(Foreign::Host), "{host}");
        }
        assert_eq!(Asked::default().is_local(), Err(Foreign::Host));
        let mut two = to("localhost");
        two.hosts.push(b"evil.example");
        assert_eq!(two.is_local(), Err(Foreign::Host));
        let mut target = to("localhost");
        target.target = Some("evil.example");
        assert_eq!(target.is_local(), Err(Foreign::Host));
        assert_eq!(to("\u{e9}").is_local(), Err(Foreign::Host));
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_a_typed_address_is_not() {
        for (origin, good) in [
            ("http://127.0.0.1:9900", true),
            ("http://localhost:3000", true),
            ("https://[::1]:3000", true),
            ("https://evil.example", false),
            ("http://evil.example:9900", false),
            ("null", false),
            ("file://localhost", false),
            ("", false),
        ] {
            let mut asked = to("localhost");
            asked.origins.push(origin.as_bytes());
            let expected = if good { Ok(()) } else { Err(Foreign::Page) };
            assert_eq!(asked.is_local(), expected, "{origin}");
        }
        for (site, good) in [
            ("none", true),
            ("same-origin", true),
            ("same-site", false),
            ("cross-site", false),
            ("", false),
        ] {
            let mut asked = to("localhost");
            asked.sites.push(site.as_bytes());
            assert_eq!(asked.is_local().is_ok(), good, "{site}");
        }
    }

    #[test]
    fn each_reason_has_its_own_label() {
        let [host, page] = Foreign::ALL.map(|foreign| (foreign.label(), foreign.status()));
        assert_eq!((host, page), (("host", 421), ("page", 403)));
    }
}
