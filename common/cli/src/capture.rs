//! `capture`: has dataplanes copy packets of chosen connections, and puts what they send into one
//! pcapng file.
//!
//! Owns which dataplanes are asked for what. Each of them makes a section of its own, and a pcapng
//! file may have several, one behind the other: the first one's goes out as it comes, the others'
//! wait for its end.

use crate::{
    args::Capture,
    fleet::{Bounded, Dataplane, Fleet, Refused, Request, Stop, heard, silent, states},
    names::PolicyName,
    show::Out,
};
use anyhow::{Context as _, bail};
use baton_api::{StateReply, is_backend};
use baton_config::create_private;
use futures_util::future::join_all;
use std::io::{self, IsTerminal as _, Write, stdout};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Captures under way at one time: each may be a stream through an API server.
const DATAPLANES_MAX: usize = 8;
/// What waits here of each dataplane but the first: with headers only this is a million packets.
const WAITING_MAX_BYTES: usize = 64 << 20;
const TOO_MUCH: &str =
    "more than 64 MiB wait for the other dataplanes: name one with `--dataplane`";
/// Names in one filter, as the dataplane has it.
const NAMES_MAX: usize = 32;
/// More than the block has with which a dataplane ends its section.
const TAIL_BYTES: usize = 4 << 10;
/// Most bytes of a block: of a frame there are 2 KiB at most.
const BLOCK_MAX_BYTES: usize = 1 << 20;
/// Least: type, length, and the length again.
const BLOCK_MIN_BYTES: usize = 12;
/// The type of that block, and the option in it that says how the capture went
/// (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html#section-4.6>).
const INTERFACE_STATISTICS: u32 = 5;
const COMMENT: u16 = 1;

/// What one dataplane is asked: the policies that it has for what the user means; none is all.
pub type Errand<D> = (D, Vec<String>);

/// What became of it: how the capture went in the dataplane's words, or why it did not.
pub type Outcome<D> = (D, Result<String, Refused>);

/// Which policies of a dataplane are meant; none: nothing of it is.
fn meant(wanted: &Capture, namespace: Option<&str>, reply: &StateReply) -> Option<Vec<String>> {
    let policies = reply.state.policies.iter().filter(|policy| {
        let name = PolicyName::parse(&policy.name);
        let is = |wanted: &String| name.is(Some(wanted), namespace);
        let has = |wanted: &String| policy.backends.iter().any(|b| is_backend(&b.name, wanted));
        (name.is_in(namespace) || !wanted.policy.is_empty())
            && (wanted.policy.is_empty() || wanted.policy.iter().any(is))
            && (wanted.backend.is_empty() || wanted.backend.iter().any(has))
    });
    let names: Vec<String> = policies.map(|policy| policy.name.clone()).collect();
    (!names.is_empty()).then_some(names)
}

/// What each dataplane is asked, none if no dataplane has what is meant; and what has to be noted.
///
/// # Errors
/// No dataplane answers, or too much is meant.
pub async fn errands<F: Fleet>(
    fleet: &F,
    wanted: &Capture,
    namespace: Option<&str>,
    mut dataplanes: Vec<F::Dataplane>,
) -> anyhow::Result<(Vec<Errand<F::Dataplane>>, Vec<String>)> {
    if let Some(name) = &wanted.dataplane {
        dataplanes.retain(|dataplane| dataplane.name() == name);
        if dataplanes.is_empty() {
            bail!("no dataplane is named {name}: `kubectl baton status -o wide` shows them");
        }
    }
    if dataplanes.len() > DATAPLANES_MAX {
        bail!(
            "{} dataplanes are too many for one file: name one of them with `--dataplane` (`kubectl baton flows` shows which has \
             the connection)",
            dataplanes.len()
        );
    }
    let answers = heard(states(fleet, &dataplanes).await)?;
    let notes = silent(&answers);
    // All that a backend says and hears may have no policy.
    let anything = namespace.is_none() && wanted.policy.is_empty();
    let errands: Vec<Errand<F::Dataplane>> = answers
        .into_iter()
        .filter_map(|answer| {
            let policies = meant(wanted, namespace, &answer.result.ok()?);
            let policies = match anything && (wanted.backend.is_empty() || policies.is_some()) {
                true => Vec::new(),
                false => policies?,
            };
            Some((answer.dataplane, policies))
        })
        .collect();
    if errands.iter().any(|(_, policies)| policies.len() > NAMES_MAX) {
        bail!("more than {NAMES_MAX} listeners are meant: name a policy with `--policy`");
    }
    Ok((errands, notes))
}

/// What a dataplane is asked for an errand.
fn request(wanted: &Capture, policies: &[String], stop: &Stop) -> Request {
    let one = [
        ("for", Some(format!("{}us", wanted.time.as_micros()))),
        ("payload", Some(wanted.payload.to_string())),
        ("client", wanted.client.map(|clients| clients.to_string())),
        ("snaplen", wanted.snaplen.map(|bytes| bytes.to_string())),
    ];
    let named = |name: &'static str| move |value: &String| (name, Some(value.clone()));
    let policies = policies.iter().map(named("policy"));
    let backends = wanted.backend.iter().map(named("backend"));
    let query = one.into_iter().chain(policies).chain(backends);
    Request { lasts: wanted.time, stop: Some(stop.clone()), ..Request::get("/v1/capture", query) }
}

/// Counts how often the user has interrupted: once has all captures end in order, twice at once.
///
/// # Errors
/// Signals cannot be taken.
pub fn interruptions() -> anyhow::Result<watch::Sender<u32>> {
    let (told, _) = watch::channel(0);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind).context("signals cannot be taken")?;
        let tell = told.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tell.send_modify(|wishes| *wishes += 1);
            }
        });
    }
    Ok(told)
}

/// Runs all captures at one time and writes their sections one after the other.
///
/// # Errors
/// The output cannot be written.
pub async fn run<F: Fleet>(
    fleet: &F,
    wanted: &Capture,
    errands: &[Errand<F::Dataplane>],
    stop: &Stop,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Outcome<F::Dataplane>>> {
    let Some((first, others)) = errands.split_first() else {
        return Ok(Vec::new());
    };
    let one = run_one(fleet, wanted, first, stop, &mut *out);
    let rest = join_all(others.iter().map(async |errand| {
        let mut waiting = Bounded::new(WAITING_MAX_BYTES, TOO_MUCH);
        let outcome = run_one(fleet, wanted, errand, stop, &mut waiting).await;
        (outcome, waiting.bytes)
    }));
    let (one, rest) = tokio::join!(one, rest);
    let mut outcomes = vec![one];
    for (outcome, section) in rest {
        out.write_all(&section).context("the file cannot be written")?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

async fn run_one<F: Fleet>(
    fleet: &F,
    wanted: &Capture,
    (dataplane, policies): &Errand<F::Dataplane>,
    stop: &Stop,
    out: &mut dyn Write,
) -> Outcome<F::Dataplane> {
    let mut section = Section { out, begun: Vec::new(), tail: Vec::new() };
    let request = request(wanted, policies, stop);
    let sent = fleet.send(dataplane, &request, &mut section).await;
    let said = sent.and_then(|()| {
        let words = last_words(&section.tail).map(str::to_owned);
        let broke = "the capture broke off; what there is can be read";
        words.ok_or_else(|| Refused::Unanswered(broke.to_owned()))
    });
    (dataplane.clone(), said)
}

/// What one dataplane sends, of which the end is kept. Whole blocks go out: behind a part of one
/// nothing could be read, nor what the next dataplane sent.
struct Section<'a> {
    out: &'a mut dyn Write,
    /// Of a block that is not whole yet.
    begun: Vec<u8>,
    tail: Vec<u8>,
}

/// Bytes of the whole blocks in front.
fn whole(bytes: &[u8]) -> io::Result<usize> {
    let mut at = 0;
    while let Some(length) = bytes.get(at + 4..).and_then(|rest| rest.first_chunk()) {
        let length = u32::from_le_bytes(*length) as usize;
        if !(BLOCK_MIN_BYTES..=BLOCK_MAX_BYTES).contains(&length) {
            return Err(io::Error::other("it is no capture"));
        }
        if bytes.len() - at < length {
            break;
        }
        at += length;
    }
    Ok(at)
}

impl Write for Section<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        let end = whole(&self.begun)?;
        self.out.write_all(&self.begun[..end])?;
        self.tail.extend(self.begun.drain(..end));
        self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The comment of the last block, if `tail` is the end of a whole file.
pub fn last_words(tail: &[u8]) -> Option<&str> {
    let word = |at: usize| Some(u32::from_le_bytes(*tail.get(at..)?.first_chunk()?));
    let length = word(tail.len().checked_sub(4)?)?;
    let start = tail.len().checked_sub(length as usize)?;
    if word(start)? != INTERFACE_STATISTICS {
        return None;
    }
    // Behind type, length, interface and time.
    let option = tail.get(start + 20..)?;
    let (code, length) = (option.get(..2)?, option.get(2..4)?.first_chunk()?);
    if code != COMMENT.to_le_bytes() {
        return None;
    }
    let length = usize::from(u16::from_le_bytes(*length));
    std::str::from_utf8(option.get(4..4 + length)?).ok()
}

/// The file, or the standard output where that is no terminal.
///
/// # Errors
/// It cannot be written, or there is none.
pub fn output(wanted: &Capture) -> anyhow::Result<Box<dyn Write>> {
    match wanted.write.as_deref() {
        Some(path) if path.as_os_str() != "-" => {
            // What clients and servers say is nobody else's.
            let file = create_private(path);
            let file = file.with_context(|| format!("`--write {}`", path.display()))?;
            Ok(Box::new(file))
        }
        _ if stdout().is_terminal() => {
            bail!("packets are nothing for a terminal: `-w FILE`, or `-w - | wireshark -k -i -`")
        }
        _ => Ok(Box::new(Out)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(length: u32) -> Vec<u8> {
        let mut block = [6_u32.to_le_bytes(), length.to_le_bytes()].concat();
        block.resize(length as usize, 7);
        block
    }

    /// Of a section that breaks off in the middle of a block what can be read goes out, and the
    /// next one can be read behind it.
    #[test]
    fn only_whole_blocks_go_out() {
        let all = [block(28), block(12), block(4_096)].concat();
        for step in [1, 5, 30, 5_000] {
            for (end, expected) in [(all.len(), all.len()), (all.len() - 1, 40), (39, 28), (7, 0)] {
                let mut out = Vec::new();
                let mut section = Section { out: &mut out, begun: Vec::new(), tail: Vec::new() };
                for piece in all[..end].chunks(step) {
                    section.write_all(piece).expect("blocks");
                }
                assert_eq!(out, &all[..expected], "{step}, {end}");
            }
        }
        for length in [0, 11, u32::MAX] {
            let mut out = Vec::new();
            let mut section = Section { out: &mut out, begun: Vec::new(), tail: Vec::new() };
            let head = [6_u32.to_le_bytes(), length.to_le_bytes()].concat();
            section.write_all(&head).expect_err("no block");
        }
    }

    #[test]
    fn a_section_that_waits_is_bounded() {
        let mut waiting = Bounded::new(WAITING_MAX_BYTES, TOO_MUCH);
        waiting.bytes.resize(WAITING_MAX_BYTES - 1, 0);
        assert!(waiting.write_all(&[1]).is_ok());
        let error = waiting.write_all(&[1]).expect_err("full").to_string();
        assert!(error.contains("--dataplane"), "{error}");
    }
}
