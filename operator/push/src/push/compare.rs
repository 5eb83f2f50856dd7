//! Whether a snapshot that comes in piece by piece is the one that we would push, but for its
//! generation.
//!
//! Owns no more of it than the beginning: the largest snapshots take 10 MB, and many dataplanes are
//! read at once.

use super::content::{HEAD, MIDDLE, Pieces, Rendered};
use hyper::body::Bytes;
use std::sync::Arc;

/// Digits of the largest generation.
const DIGITS_MAX: usize = 20;

/// A comparison under way.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Until the generation is known.
    head: Vec<u8>,
    generation: Option<u64>,
    pieces: Option<Pieces>,
    /// What is left of the piece that is compared.
    piece: Bytes,
    same: bool,
}

/// The answer cannot be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer to GET /v1/snapshot does not begin as a snapshot, `{HEAD}NUMBER{MIDDLE}`: is that a dataplane, and of this version?"
)]
pub(super) struct NoSnapshot;

impl Comparison {
    /// With `ours`; without it only the generation is read.
    pub(super) fn new(ours: Option<&Arc<Rendered>>) -> Self {
        Self {
            head: Vec::new(),
            generation: None,
            pieces: ours.map(Rendered::pieces),
            piece: Bytes::new(),
            same: ours.is_some(),
        }
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), NoSnapshot> {
        if self.generation.is_some() {
            self.compare(bytes);
            return Ok(());
        }
        let length_max = HEAD.len() + DIGITS_MAX + MIDDLE.len();
        let taken = bytes.len().min(length_max - self.head.len());
        self.head.extend_from_slice(&bytes[..taken]);
        let Some((generation, length)) = parse(&self.head) else {
            return if self.head.len() < length_max { Ok(()) } else { Err(NoSnapshot) };
        };
        self.generation = Some(generation);
        let rest = self.head.split_off(length);
        self.compare(&rest);
        self.compare(&bytes[taken..]);
        Ok(())
    }

    /// All bytes were fed: the generation, and whether the rest was equal.
    pub(super) fn finish(mut self) -> Result<(u64, bool), NoSnapshot> {
        let ended =
            self.piece.is_empty() && self.pieces.as_mut().is_none_or(|p| p.next().is_none());
        let generation = self.generation.ok_or(NoSnapshot)?;
        Ok((generation, self.same && ended))
    }

    fn compare(&mut self, mut bytes: &[u8]) {
        while self.same && !bytes.is_empty() {
            if self.piece.is_empty() {
                match self.pieces.as_mut().and_then(Iterator::next) {
                    Some(piece) => self.piece = piece,
                    None => self.same = false,
                }
                continue;
            }
            let n = bytes.len().min(self.piece.len());
            self.same = bytes[..n] == self.piece[..n];
            self.piece = self.piece.slice(n..);
            bytes = &bytes[n..];
        }
    }
}

/// The generation and the length of the beginning, if it is whole.
fn parse(head: &[u8]) -> Option<(u64, usize)> {
    let rest = head.strip_prefix(HEAD.as_bytes())?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    rest[digits..].strip_prefix(MIDDLE.as_bytes())?;
    let generation = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    Some((generation, HEAD.len() + digits + MIDDLE.len()))
}

#[cfg(test)]
mod tests {
    use super::{super::content::Contents, *};
    use baton_api::Policy;
    use std::{collections::BTreeMap, time::Instant};

    fn rendered(names: &[&str]) -> Arc<Rendered> {
        let policies: BTreeMap<String, Arc<Policy>> = names
            .iter()
            .map(|name| {
                let text =
                    format!(r#"{{"name":"{name}","frontends":["0.0.0.0:80"],"backends":[]}}"#);
                let policy = serde_json::from_str(&text).expect("a policy");
                ((*name).to_owned(), Arc::new(policy))
            })
            .collect();
        let set = Arc::new(policies);
        Contents::default().update(&set, Instant::now()).expect("written")
    }

    fn text(of: &Arc<Rendered>, generation: u64) -> Vec<u8> {
        let mut text = Rendered::head(generation).to_vec();
        of.pieces().for_each(|piece| text.extend_from_slice(&piece));
        text
    }

    fn compared(
        ours: &Arc<Rendered>,
        theirs: &[u8],
        step: usize,
    ) -> Result<(u64, bool), NoSnapshot> {
        let mut comparison = Comparison::new(Some(ours));
        for chunk in theirs.chunks(step) {
            comparison.feed(chunk)?;
        }
        comparison.finish()
    }

    #[test]
    fn equal_but_for_the_generation_however_it_is_cut() {
        for names in [&[][..], &["a"], &["a", "b", "c"]] {
            let ours = rendered(names);
            for generation in [0, 7, u64::MAX] {
                let theirs = text(&ours, generation);
                for step in 1..=theirs.len() {
                    assert_eq!(compared(&ours, &theirs, step), Ok((generation, true)), "{step}");
                }
            }
        }
    }

    #[test]
    fn any_other_byte_or_length_differs() {
        let ours = rendered(&["a", "b"]);
        let theirs = text(&ours, 5);
        let head = Rendered::head(5).len();
        for step in [1, 7, theirs.len()] {
            for at in head..theirs.len() {
                let mut other = theirs.clone();
                other[at] ^= 1;
                assert_eq!(compared(&ours, &other, step), Ok((5, false)), "byte {at}");
                assert_eq!(compared(&ours, &theirs[..at], step), Ok((5, false)), "cut {at}");
            }
            let longer = [&theirs[..], b"\n"].concat();
            assert_eq!(compared(&ours, &longer, step), Ok((5, false)));
        }
        let mut comparison = Comparison::new(None);
        comparison.feed(&theirs).expect("a snapshot");
        assert_eq!(comparison.finish(), Ok((5, false)));
    }

    #[test]
    fn what_is_no_snapshot_is_no_difference_either() {
        let ours = rendered(&["a"]);
        for theirs in [
            "",
            "not found, this is some other server that has a lot to say",
            r#"{"generation":"#,
            r#"{"generation":5"#,
            r#"{"generation":,"policies":[]}"#,
            r#"{"generation":-1,"policies":[]}"#,
            r#"{"generation":18446744073709551616,"policies":[]}"#,
            r#"{"policies":[],"generation":5}                       "#,
        ] {
            for step in [1, 1_000] {
                assert_eq!(compared(&ours, theirs.as_bytes(), step), Err(NoSnapshot), "{theirs}");
            }
        }
    }
}
