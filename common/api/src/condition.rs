//! How a backend is: whether it works, whether it can take connections over, and what flows that
//! leave it wait for.
//!
//! Owns the names on the wire and the words that people read for them. What is true of a backend,
//! the engine decides.

use crate::Micros;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether a backend works, as far as checks and traffic tell. As JSON: `"up"`, `{"ejected":
/// "20s"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackendHealth {
    /// It does.
    Up,
    /// It does, and gets less than its share for now.
    SlowStart,
    /// Its route leads through another interface than the dataplane's.
    OffRoute,
    /// Nothing listens on its port.
    NotListening,
    /// It answers nothing.
    Silent,
    /// Its active check fails, and says this, if it is known.
    Unhealthy(Option<String>),
    /// It failed so often that it gets nothing for so long.
    Ejected(Micros),
}

impl BackendHealth {
    /// Whether it may have flows.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up | Self::SlowStart)
    }

    /// One word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::SlowStart => "slow start",
            Self::OffRoute => "unreachable",
            Self::NotListening | Self::Silent => "down",
            Self::Unhealthy(_) => "unhealthy",
            Self::Ejected(_) => "ejected",
        }
    }
}

/// The word, and why. The alternate form (`{:#}`) leaves out for how long.
impl fmt::Display for BackendHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        match self {
            Self::Up => f.write_str(word),
            Self::SlowStart => write!(f, "up: {word}"),
            Self::OffRoute => write!(f, "{word}: its route leads through another interface"),
            Self::NotListening => write!(f, "{word}: nothing listens on the port"),
            Self::Silent => write!(f, "{word}: no answer"),
            Self::Unhealthy(why) => {
                let why = why.as_deref().unwrap_or("its active check fails");
                write!(f, "{word}: {why}")
            }
            Self::Ejected(_) if f.alternate() => write!(f, "{word}: it failed"),
            Self::Ejected(left) => {
                let seconds = left.0.div_ceil(1_000_000);
                write!(f, "{word}: it failed, {seconds} s left")
            }
        }
    }
}

macro_rules! worded {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $words:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// In words.
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self { $(Self::$variant => $words),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.words())
            }
        }
    };
}

worded! {
    /// Whether a backend can take connections over, by its adopter's answer to the last probe.
    Adoptability {
        /// It can.
        Ready = "ready",
        /// It can, and a server's close ends the leg alone.
        ReadyUnmarked = "ready, but ends are not marked: connections at rest outlive their server's close",
        /// Nothing is known yet.
        NotProbed = "not probed yet",
        /// Nobody is asked: there is no key to make adoptions with.
        NoKey = "adoptions are off, as the dataplane has no adoption key (`keys` of its configuration; of the chart, the Secret baton-adoption-keys)",
        /// No probe was ever answered.
        Unanswered = "no answer to probes (a firewall, or addresses translated on the way?)",
        /// Probes were answered, and are no more.
        Lapsed = "no answer to probes any more",
        /// The adopter says so.
        NotListening = "nothing listens on the port",
        /// The listener's queue of connections to accept is full.
        AcceptQueueFull = "accept queue full",
        /// The kernel does not create the socket.
        KernelRefused = "the pod's kernel refuses (an MPTCP listener?)",
        /// What adoptions are made with is switched off.
        SyncookiesOff = "net.ipv4.tcp_syncookies is 0 in the pod",
        /// A SYN might go elsewhere than to the listener.
        PacketRules = "the pod's packet rules redirect, translate or tell SYNs from other segments, or have just changed: an adoption could go around a proxy",
        /// For another reason.
        Refused = "refused",
        /// The pod itself answered, no adopter.
        NoAdopter = "no adopter (is host-shim running there?)",
        /// Probes are answered and adoptions are not.
        AdoptionsLost = "adoptions meet silence",
    }
}

impl Adoptability {
    /// Whether it can.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::ReadyUnmarked)
    }

    /// Whether an ordinary connection to it may succeed: not where nobody listens or accepts.
    #[must_use]
    pub const fn may_connect(self) -> bool {
        !matches!(self, Self::NotListening | Self::AcceptQueueFull)
    }
}

worded! {
    /// What a flow that leaves a backend waits for, unless it is pinned.
    DrainWait {
        /// Its new owner's answer.
        Adoption = "adoption",
        /// Its own end.
        Closing = "closing",
        /// Its handshake.
        Handshake = "handshake",
        /// The policy moves no flow.
        NeverMoves = "its end: migration.mode is Never",
        /// The policy does not move it once more.
        MovedEnough = "its end: migration.perFlow moves made",
        /// A backend that can have it.
        NoTarget = "no other backend can adopt now",
        /// A time without segments, as no guard says that it is at rest.
        QuietTime = "quiet time",
        /// Its response.
        Request = "request in progress",
        /// A transaction or the like.
        OwnState = "state of its own there",
        /// The client has closed.
        ServerClose = "the server's close, as the client has closed",
        /// The server has closed.
        ClientClose = "the client's close, as the server has closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn health_has_names_on_the_wire_and_words_for_people() {
        let unhealthy = BackendHealth::Unhealthy(Some("GET /: 503, expected 200".into()));
        let ejected = BackendHealth::Ejected(Micros(19_200_000));
        for (health, wire, words, up) in [
            (BackendHealth::Up, json!("up"), "up", true),
            (BackendHealth::SlowStart, json!("slowStart"), "up: slow start", true),
            (BackendHealth::Silent, json!("silent"), "down: no answer", false),
            (
                unhealthy,
                json!({"unhealthy": "GET /: 503, expected 200"}),
                "unhealthy: GET /: 503, expected 200",
                false,
            ),
            (
                BackendHealth::Unhealthy(None),
                json!({"unhealthy": null}),
                "unhealthy: its active check fails",
                false,
            ),
            (ejected, json!({"ejected": "19200ms"}), "ejected: it failed, 20 s left", false),
        ] {
            assert_eq!(json!(health), wire);
            let lasting = words.split(", ").next().filter(|_| wire.get("ejected").is_some());
            assert_eq!(format!("{health:#}"), lasting.unwrap_or(words));
            assert_eq!((health.to_string().as_str(), health.is_up()), (words, up));
            assert_eq!(serde_json::from_value::<BackendHealth>(wire).expect("as written"), health);
        }
    }

    #[test]
    fn who_is_ready_is_so_with_and_without_marks() {
        assert!(Adoptability::Ready.is_ready() && Adoptability::ReadyUnmarked.is_ready());
        assert!(!Adoptability::Lapsed.is_ready() && !Adoptability::NotProbed.is_ready());
        assert!(Adoptability::NoKey.may_connect() && !Adoptability::NotListening.may_connect());
        assert_eq!(json!(Adoptability::AcceptQueueFull), json!("acceptQueueFull"));
    }
}
