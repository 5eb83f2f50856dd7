//! What a server must know of a connection to go on with it at the next byte. Owns its bytes, which
//! the SDK carries to the next server.

use crate::http::is_below;

/// What is being done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    /// The next request is waited for.
    #[default]
    Idle,
    /// The client gets this file's bytes from here on.
    Get(Range),
    /// What the client sends goes into this file, from here on.
    Put(Range),
    /// The connection is closed behind what is pending.
    Closing,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Below the directory.
    pub file: String,
    /// Of the next byte.
    pub offset: u64,
    /// Bytes that are still to come.
    pub left: u64,
    /// Whether another request may follow.
    pub keep_alive: bool,
}

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// What is being done.
    pub doing: Doing,
    /// Bytes for the client that its socket has not taken yet, in front of all others.
    pub pending: Vec<u8>,
    /// Bytes of the client that were read and are not used yet.
    pub ahead: Vec<u8>,
}

const VERSION: u8 = 1;
/// No file is longer: `off_t` has a sign.
const OFFSET_MAX: u64 = i64::MAX as u64;

impl Session {
    /// As bytes: version, kind, the range, then pending and ahead behind their lengths.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, range) = match &self.doing {
            Doing::Idle => (0, None),
            Doing::Get(range) => (1, Some(range)),
            Doing::Put(range) => (2, Some(range)),
            Doing::Closing => (3, None),
        };
        let mut out = vec![VERSION, kind];
        if let Some(range) = range {
            out.push(range.keep_alive.into());
            out.extend(range.offset.to_be_bytes());
            out.extend(range.left.to_be_bytes());
            put(&mut out, range.file.as_bytes());
        }
        put(&mut out, &self.pending);
        put(&mut out, &self.ahead);
        out
    }

    /// From bytes; `None` if they are of another server, or of no file below the directory.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        let [VERSION, kind] = array(rest)? else {
            return None;
        };
        let range = |rest: &mut &[u8]| {
            let [keep_alive] = array(rest)?;
            let range = Range {
                keep_alive: keep_alive == 1,
                offset: u64::from_be_bytes(array(rest)?),
                left: u64::from_be_bytes(array(rest)?),
                file: String::from_utf8(take(rest)?).ok()?,
            };
            // As a client's request is checked: it is input as that is.
            let ends = range.offset.checked_add(range.left)?;
            (ends <= OFFSET_MAX && is_below(&range.file)).then_some(range)
        };
        let doing = match kind {
            0 => Doing::Idle,
            1 => Doing::Get(range(rest)?),
            2 => Doing::Put(range(rest)?),
            3 => Doing::Closing,
            _ => return None,
        };
        let session = Self { doing, pending: take(rest)?, ahead: take(rest)? };
        rest.is_empty().then_some(session)
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    // Everything here is far shorter (`http::HEAD_BYTES_MAX`).
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend(length.to_be_bytes());
    out.extend(bytes);
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (found, more) = rest.split_first_chunk()?;
    *rest = more;
    Some(*found)
}

fn take(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(array(rest)?);
    let (found, more) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = more;
    Some(found.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in 0_u8..4, file in "[a-z]{1,9}(/[a-z.]{0,9}[a-z])?",
            offset in 0..1_u64 << 62, left in 0..1_u64 << 62, keep_alive: bool,
            pending in vec(any::<u8>(), 0..50), ahead in vec(any::<u8>(), 0..50),
        ) {
            let range = Range { file, offset, left, keep_alive };
            let doing = match kind {
                0 => Doing::Idle,
                1 => Doing::Get(range),
                2 => Doing::Put(range),
                _ => Doing::Closing,
            };
            let session = Session { doing, pending, ahead };
            let bytes = session.encode();
            prop_assert_eq!(Session::decode(&bytes), Some(session));
            for end in 0..bytes.len() {
                prop_assert_eq!(Session::decode(&bytes[..end]), None);
            }
        }

        #[test]
        fn what_leads_out_is_refused(
            file in "(/|\\.\\./|[a-z]/\\.\\./\\.\\./)[a-z]{1,5}|", put: bool,
        ) {
            let range = Range { file, offset: 0, left: 1, keep_alive: true };
            let doing = if put { Doing::Put(range) } else { Doing::Get(range) };
            let session = Session { doing, ..Session::default() };
            prop_assert_eq!(Session::decode(&session.encode()), None);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..100)) {
            let _ = Session::decode(&bytes);
        }
    }

    #[test]
    fn no_file_is_longer_than_there_are_numbers() {
        for (offset, left) in [(u64::MAX, 1), (1, u64::MAX), (OFFSET_MAX, 1)] {
            let file = "a".to_owned();
            let range = Range { file, offset, left, keep_alive: true };
            let session = Session { doing: Doing::Put(range), ..Session::default() };
            assert_eq!(Session::decode(&session.encode()), None, "{offset} {left}");
        }
    }
}
