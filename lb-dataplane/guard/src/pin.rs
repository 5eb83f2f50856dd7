//! Why a connection can never move again, and what the first bytes of a client say whatever the
//! guard.
//!
//! Owns the reasons and their names in metrics; never judges more than a first segment.

/// Why a connection can never move again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::VariantArray, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum Pin {
    /// HTTP 101: the connection is something else from here on.
    Upgrade,
    /// HTTP `CONNECT`: a tunnel.
    Connect,
    /// NTLM or Negotiate: the connection itself is authenticated (RFC 4559 section 6).
    BoundAuth,
    /// A final response came before a client that waits for 100 sent its body: whether the body
    /// follows is open (RFC 9110 section 10.1.1).
    Expect,
    /// A TLS ClientHello.
    Tls,
    /// The HTTP/2 preface.
    Http2,
    /// An SSH banner.
    Ssh,
    /// The server spoke although nothing was asked.
    ServerFirst,
    /// RESP: the subscribe family.
    Subscribe,
    /// RESP `MONITOR`, memcached `watch`.
    Monitor,
    /// RESP `SYNC`, `PSYNC`, `REPLCONF`: a replica.
    Replication,
    /// RESP commands that set state of the connection which cannot be restored, or ask for it
    /// (`CLIENT`, `READONLY`, `WAIT`, ...).
    ClientState,
    /// RESP `HELLO`: another protocol version.
    Hello,
    /// RESP: `AUTH` or `SELECT` that cannot be remembered exactly, `SCRIPT` while a `RESET` is
    /// unanswered.
    Session,
    /// RESP: no room to remember `AUTH`, `SELECT` or a transaction.
    SessionsFull,
    /// The memcached binary protocol.
    Binary,
    /// Bytes that the guard cannot follow, or that servers read in different ways.
    Unparsable,
    /// Bytes outside a body were not seen.
    Gap,
    /// More requests outstanding than are remembered.
    PipelineTooDeep,
    /// A head, or a line, longer than the limit.
    HeadTooLong,
}

impl Pin {
    /// Every reason.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The reason as a metric label.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// RFC 9113 section 3.4, as far as a first segment must hold it.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the first bytes of a client say, whatever the guard: TLS ClientHello, HTTP/2 preface, SSH
/// banner.
pub fn detect(data: &[u8]) -> Option<Pin> {
    match data {
        // Record type handshake, version 3.x (RFC 8446 section 5.1); the handshake's type where it
        // is there.
        [0x16, 3, ..] if data.get(5).is_none_or(|kind| *kind == 1) => Some(Pin::Tls),
        // Banner: RFC 4253 section 4.2.
        [b'S', b'S', b'H', b'-', ..] => Some(Pin::Ssh),
        [b'P', b'R', b'I', b' ', b'*', ..] => {
            let seen = data.len().min(HTTP2_PREFACE.len());
            (data[..seen] == HTTP2_PREFACE[..seen]).then_some(Pin::Http2)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_differ_and_are_snake_case() {
        for (i, pin) in Pin::ALL.iter().enumerate() {
            let label = pin.label();
            assert!(label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_')));
            assert!(Pin::ALL[..i].iter().all(|other| other.label() != label));
        }
    }

    #[test]
    fn first_bytes_of_other_protocols() {
        for (data, expected) in [
            (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..], Some(Pin::Tls)),
            (b"\x16\x03\x03", Some(Pin::Tls)),
            (b"\x16\x03\x01\x02\x00\x02", None),
            (b"\x16\x04", None),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12", Some(Pin::Http2)),
            (b"PRI * HT", Some(Pin::Http2)),
            (b"PRI * HTTP/1.1\r\n", None),
            (b"PRI ", None),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", Some(Pin::Ssh)),
            (b"GET / HTTP/1.1\r\n", None),
            (b"*1\r\n$4\r\nPING\r\n", None),
            (b"", None),
        ] {
            assert_eq!(detect(data), expected, "{data:?}");
        }
    }
}
