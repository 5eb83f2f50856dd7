//! What a client said while nobody followed, as far as it ties the connection to its server for
//! good.
//!
//! A conversation that was not followed for a while can be followed again from a place between two
//! messages, but for what a server remembers of a connection: that it is authenticated, a tunnel,
//! or another protocol by now. The words with which a client asks for any of that are looked for,
//! in any segmentation. Owns these words. Where a connection has a session, as in RESP, any command
//! may count, and nothing is harmless.

use crate::Guard;

/// Parts of `NTLM`, `Negotiate` (RFC 4559), `CONNECT` and `Upgrade:`, so short that all fit. Small
/// letters stand for large ones, too.
const HTTP1: Words = Words::new(&[b"ntlm", b"gotiate", b"ONNECT", b"grade:"]);
/// The connection is a log from then on.
const MEMCACHED: Words = Words::new(&[b"watch"]);

/// Shift-And over several words: bit `i` of a byte's mask says that the byte may stand at place `i`
/// of all words in a row.
struct Words {
    masks: [u32; 256],
    first: u32,
    last: u32,
    all: u32,
}

impl Words {
    const fn new(words: &[&[u8]]) -> Self {
        let mut it = Self {
            masks: [0; 256],
            first: 0,
            last: 0,
            all: 0,
        };
        let (mut bit, mut word) = (0, 0);
        while word < words.len() {
            it.first |= 1 << bit;
            let mut at = 0;
            while at < words[word].len() {
                let byte = words[word][at];
                it.masks[byte as usize] |= 1 << bit;
                it.masks[byte.to_ascii_uppercase() as usize] |= 1 << bit;
                it.all |= 1 << bit;
                bit += 1;
                at += 1;
            }
            it.last |= 1 << (bit - 1);
            word += 1;
        }
        assert!(
            bit < 24,
            "with the bit that says that one was found, three bytes"
        );
        it
    }
}

/// 24 bits: which beginnings of words the bytes so far end with, and whether a word was among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfollowed(u32);

const FOUND: u32 = 1 << 23;

impl Unfollowed {
    /// A word was found, or cannot be ruled out: for ever.
    pub const BOUND: Self = Self(FOUND);

    /// From here on. What came before may have ended in the middle of any word.
    #[must_use]
    pub const fn new(guard: Guard) -> Self {
        match guard {
            Guard::Http1 => Self(HTTP1.all),
            Guard::Memcached => Self(MEMCACHED.all),
            Guard::Resp => Self::BOUND,
        }
    }

    /// From its 24 bits.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Its 24 bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Bytes of the client. `gap` bytes in front of them are not shown, and may have held anything.
    #[must_use]
    pub fn client(self, guard: Guard, gap: u32, data: &[u8]) -> Self {
        let words = match guard {
            Guard::Http1 => &HTTP1,
            Guard::Memcached => &MEMCACHED,
            Guard::Resp => return Self::BOUND,
        };
        if gap > 0 || !self.is_harmless() {
            return Self::BOUND;
        }
        let mut at = self.0;
        for byte in data {
            at = (at << 1 | words.first) & words.masks[usize::from(*byte)];
            if at & words.last != 0 {
                return Self::BOUND;
            }
        }
        Self(at)
    }

    /// Whether a segment is one whole request and nothing else, for certain: the head of one
    /// without a body. Servers take a line feed alone for the end of a line (RFC 9112, section
    /// 2.2). Other protocols' requests are not looked at.
    #[must_use]
    pub fn is_one_request(guard: Guard, data: &[u8]) -> bool {
        let Some(head) = data.strip_suffix(b"\r\n\r\n") else {
            return false;
        };
        let ends = |line: &[u8]| line.is_empty() || line == b"\r";
        guard == Guard::Http1 && !head.split(|byte| *byte == b'\n').any(ends)
    }

    /// Whether nothing was said that ties the connection to its server.
    #[must_use]
    pub const fn is_harmless(self) -> bool {
        self.0 & FOUND == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harmless(guard: Guard, parts: &[&[u8]]) -> bool {
        let all = parts
            .iter()
            .fold(Unfollowed::new(guard), |u, part| u.client(guard, 0, part));
        assert_eq!(Unfollowed::from_bits(all.bits()), all);
        assert!(all.bits() < 1 << 24);
        all.is_harmless()
    }

    #[test]
    fn words_are_found_in_any_case_and_segmentation() {
        for text in [
            &b"GET / HTTP/1.1\r\nAuthorization: NTLM TlRM"[..],
            b"GET / HTTP/1.1\r\nauthorization: negotiate YII",
            b"GET / HTTP/1.1\r\nProxy-Authorization: Negotiate YII",
            b"CONNECT a:80 HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nconnection: upgrade\r\nUPGRADE: websocket\r\n\r\n",
        ] {
            assert!(!harmless(Guard::Http1, &[b"x", text]));
            for cut in 0..text.len() {
                assert!(!harmless(Guard::Http1, &[b"x", &text[..cut], &text[cut..]]));
                // What stands in front of the first byte shown is unknown; the word may have begun
                // there.
                let word = text.len().saturating_sub(1).min(cut);
                let _ = harmless(Guard::Http1, &[&text[word..]]);
            }
        }
        assert!(
            !harmless(Guard::Http1, &[b"LM TlRM"]),
            "its half was not seen"
        );
        assert!(!harmless(
            Guard::Memcached,
            &[b"x", b"wat", b"ch fetchers\r\n"]
        ));
    }

    #[test]
    fn ordinary_requests_are_harmless() {
        let get = b"GET /a HTTP/1.1\r\nhost: a\r\nConnection: keep-alive\r\nUpgrade-Insecure-Requests: 1\r\n\r\n";
        let bearer =
            b"POST / HTTP/1.1\r\nAuthorization: Bearer abc\r\ncontent-length: 3\r\n\r\nabc";
        assert!(harmless(Guard::Http1, &[get, bearer, get]));
        assert!(harmless(
            Guard::Memcached,
            &[b"set a 0 0 1\r\nx\r\nget a\r\n"]
        ));
    }

    #[test]
    fn one_request_is_a_head_that_ends_with_the_segment() {
        let one = |text: &str| Unfollowed::is_one_request(Guard::Http1, text.as_bytes());
        assert!(one("GET / HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert!(one("GET / HTTP/1.1\nhost: a\r\n\r\n"));
        for text in [
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\n\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\na",
            "\r\n\r\n",
            "",
        ] {
            assert!(!one(text), "{text:?}");
        }
        assert!(!Unfollowed::is_one_request(
            Guard::Memcached,
            b"get a\r\n\r\n"
        ));
    }

    #[test]
    fn what_was_not_shown_or_belongs_to_a_session_is_not() {
        let fresh = Unfollowed::new(Guard::Http1);
        assert!(fresh.is_harmless());
        assert!(!fresh.client(Guard::Http1, 1, b"").is_harmless());
        assert!(!harmless(Guard::Resp, &[]));
        let bound = Unfollowed::BOUND.client(Guard::Http1, 0, b"GET");
        assert_eq!(bound, Unfollowed::BOUND);
    }
}
