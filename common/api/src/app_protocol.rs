//! `appProtocol` of a Service's port: what its spellings stand for.
//!
//! Owns the table, for whoever reads a Service. What a port speaks that does not say so, no one
//! knows here.

use crate::Protocol;

/// What an `appProtocol` says that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppProtocol {
    /// A protocol with requests that are recognised, so that connections move between them.
    Moves(Protocol),
    /// Encrypted: requests cannot be told.
    Tls,
    /// HTTP/2, also as gRPC: many requests at one time.
    Http2,
    /// Whoever begins is the server, of which an adopting pod would know nothing.
    ServerFirst,
    /// Something else.
    Other,
}

impl AppProtocol {
    /// Of a Service's `appProtocol`, in whatever case it is written: a service name of IANA's, as
    /// Kubernetes has it (KEP-1507), one of `kubernetes.io/`, or what meshes and clouds write.
    /// Names with the prefix of somebody else are theirs, so they are [`AppProtocol::Other`].
    #[must_use]
    pub fn of(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        match text.strip_prefix("kubernetes.io/").unwrap_or(&text) {
            "http" | "http1" | "http/1.0" | "http/1.1" => Self::Moves(Protocol::Http1),
            "redis" => Self::Moves(Protocol::Resp),
            "memcached" | "memcache" => Self::Moves(Protocol::Memcached),
            "https" | "tls" | "ssl" | "wss" => Self::Tls,
            "http2" | "http/2" | "h2c" | "grpc" | "grpc-web" => Self::Http2,
            "mysql" | "smtp" | "ssh" => Self::ServerFirst,
            _ => Self::Other,
        }
    }

    /// How the begin of a request is recognised.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Moves(protocol) => protocol,
            Self::Tls | Self::Http2 | Self::ServerFirst | Self::Other => Protocol::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_has_one_meaning() {
        for (text, expected) in [
            ("http", AppProtocol::Moves(Protocol::Http1)),
            ("HTTP", AppProtocol::Moves(Protocol::Http1)),
            ("http/1.1", AppProtocol::Moves(Protocol::Http1)),
            ("redis", AppProtocol::Moves(Protocol::Resp)),
            ("memcache", AppProtocol::Moves(Protocol::Memcached)),
            ("Memcached", AppProtocol::Moves(Protocol::Memcached)),
            ("https", AppProtocol::Tls),
            ("kubernetes.io/wss", AppProtocol::Tls),
            ("kubernetes.io/h2c", AppProtocol::Http2),
            ("HTTP2", AppProtocol::Http2),
            ("grpc", AppProtocol::Http2),
            ("mysql", AppProtocol::ServerFirst),
            // An upgrade ends all requests.
            ("kubernetes.io/ws", AppProtocol::Other),
            ("example.com/http", AppProtocol::Other),
            ("http-alt", AppProtocol::Other),
            ("", AppProtocol::Other),
        ] {
            assert_eq!(AppProtocol::of(text), expected, "{text}");
        }
    }

    #[test]
    fn only_what_moves_has_a_protocol() {
        let moves = AppProtocol::Moves(Protocol::Resp);
        assert_eq!(moves.protocol(), Protocol::Resp);
        for other in ["https", "grpc", "ssh", "dns"] {
            assert_eq!(AppProtocol::of(other).protocol(), Protocol::None);
        }
    }
}
