//! TCP options. Owns the walk over them, what is read from a SYN, timestamps, and the removal of
//! options that may not pass; never changes the length of a header.
//!
//! The walk ends where Linux ends it (`tcp_parse_options`): at the end-of-list option and at the
//! first length that is below 2 or leaves the header. What is behind is no option for anybody.

use crate::{
    Segment,
    bytes::array_mut,
    checksum::{TCP_CHECK, finish, sum, sum_inverted, sum_words},
    decode::TCP_BYTES,
    rewrite::patch,
};

const END: u8 = 0;
pub(crate) const NOP: u8 = 1;
pub(crate) const MSS: u8 = 2;
pub(crate) const WINDOW_SCALE: u8 = 3;
pub(crate) const SACK_PERMITTED: u8 = 4;
/// Selective acknowledgements (RFC 2018).
pub(crate) const SACK: u8 = 5;
pub(crate) const TIMESTAMPS: u8 = 8;
const MPTCP: u8 = 30;
const FAST_OPEN: u8 = 34;
/// Accurate ECN, with its counters in one order and in the other (RFC 9768 section 3.2.3).
const ACCURATE_ECN_0: u8 = 172;
const ACCURATE_ECN_1: u8 = 174;
/// Kinds for experiments (RFC 4727), told apart by the 16 bits that follow the length (RFC 6994).
pub(crate) const EXPERIMENT_1: u8 = 253;
const EXPERIMENT_2: u8 = 254;
/// Experiment id of TCP Fast Open before it had a kind (RFC 7413 appendix).
const EXPERIMENT_FAST_OPEN: u16 = 0xf989;
/// The largest scale that a receiver may use; more is taken as this (RFC 7323 section 2.3).
const WINDOW_SCALE_MAX: u8 = 14;
/// How nearly every segment of an established connection starts its options.
const NOP_NOP_TIMESTAMPS: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];

/// Option kinds that clients may not send through: MPTCP, TCP Fast Open and accurate ECN, so that
/// legs stay plain TCP, and the experiments, so that no client can speak to an adopter.
pub const STRIPPED_FROM_CLIENTS: &[u8] =
    &[MPTCP, FAST_OPEN, ACCURATE_ECN_0, ACCURATE_ECN_1, EXPERIMENT_1, EXPERIMENT_2];

impl Segment {
    /// The bytes of its TCP options.
    #[inline]
    #[must_use]
    pub fn options<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(usize::from(self.l4) + TCP_BYTES..usize::from(self.payload)).unwrap_or_default()
    }
}

/// What a SYN or SYN-ACK offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynOptions {
    /// Largest segment that the sender takes.
    pub mss: Option<u16>,
    /// Shift of the sender's windows, at most 14.
    pub window_scale: Option<u8>,
    /// The sender can handle selective acknowledgements.
    pub sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// Asks for Multipath TCP.
    pub has_mptcp: bool,
    /// Asks for TCP Fast Open, or brings a cookie.
    pub has_tfo: bool,
    /// Carries an option that looks like an adoption message's.
    pub has_adoption: bool,
}

/// One option: its kind, where it starts, its value.
struct Item<'a> {
    kind: u8,
    at: usize,
    value: &'a [u8],
}

/// Walks options; see the module's head for where it ends. NOPs are left out.
struct Walk<'a> {
    options: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Walk<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        loop {
            let kind = *self.options.get(self.at)?;
            match kind {
                END => return None,
                NOP => self.at += 1,
                _ => {
                    let at = self.at;
                    let length = usize::from(*self.options.get(at + 1)?);
                    let value = self.options.get(at + 2..at + length)?;
                    self.at = at + length;
                    return Some(Item { kind, at, value });
                }
            }
        }
    }
}

#[inline]
fn walk(options: &[u8]) -> Walk<'_> {
    Walk { options, at: 0 }
}

#[inline]
fn stamps(value: &[u8; 8]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = *value;
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}

fn experiment(value: &[u8]) -> Option<u16> {
    value.first_chunk().copied().map(u16::from_be_bytes)
}

/// Reads the options of a SYN or SYN-ACK. Unknown ones and those with a wrong length are passed
/// over; of two of a kind the later counts, as in Linux.
#[must_use]
pub fn parse_syn_options(options: &[u8]) -> SynOptions {
    let mut found = SynOptions::default();
    for Item { kind, value, .. } in walk(options) {
        match (kind, value) {
            (MSS, &[a, b]) => found.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[scale]) => found.window_scale = Some(scale.min(WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, []) => found.sack_permitted = true,
            (TIMESTAMPS, value) => {
                if let Ok(value) = value.try_into() {
                    found.timestamps = Some(stamps(value));
                }
            }
            (MPTCP, _) => found.has_mptcp = true,
            (FAST_OPEN, _) => found.has_tfo = true,
            (EXPERIMENT_1 | EXPERIMENT_2, value) => match experiment(value) {
                Some(EXPERIMENT_FAST_OPEN) => found.has_tfo = true,
                Some(0xba70..=0xba73) if kind == EXPERIMENT_1 => found.has_adoption = true,
                _ => {}
            },
            _ => {}
        }
    }
    found
}

/// TSval and TSecr of any segment's options. Of two the later counts, as in Linux: whatever a pod's
/// kernel takes for its client's clock has to be known.
#[inline]
#[must_use]
pub fn timestamps(options: &[u8]) -> Option<(u32, u32)> {
    if let Some([a, b, c, d, value @ ..]) = options.as_array::<12>()
        && [*a, *b, *c, *d] == NOP_NOP_TIMESTAMPS
    {
        return Some(stamps(value));
    }
    walk(options)
        .filter(|item| item.kind == TIMESTAMPS)
        .filter_map(|item| item.value.try_into().ok().map(stamps))
        .last()
}

/// Overwrites options of the kinds `strip` with NOPs and patches the (full) TCP checksum. Kind 34
/// stands for TCP Fast Open in its experimental form too. Says whether it changed anything.
#[inline]
pub fn strip_options(frame: &mut [u8], seg: &Segment, strip: &[u8]) -> bool {
    let options = seg.options(frame);
    let plain =
        options.is_empty() || (options.len() == 12 && options.starts_with(&NOP_NOP_TIMESTAMPS));
    !plain && strip_walk(frame, seg, strip)
}

fn unwanted(kind: u8, value: &[u8], strip: &[u8]) -> bool {
    strip.contains(&kind)
        || (matches!(kind, EXPERIMENT_1 | EXPERIMENT_2)
            && experiment(value) == Some(EXPERIMENT_FAST_OPEN)
            && strip.contains(&FAST_OPEN))
}

fn strip_walk(frame: &mut [u8], seg: &Segment, strip: &[u8]) -> bool {
    let mut changed = false;
    let delta = change_options(frame, seg, |kind, option| {
        if unwanted(kind, option.get(2..).unwrap_or_default(), strip) {
            changed = true;
            option.fill(NOP);
        }
    });
    if changed && let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) {
        patch(tcp, TCP_CHECK, delta);
    }
    changed
}

/// Lets `change` write to each option, of which it gets the kind and all bytes, and says what that
/// adds to the sum of a checksum.
#[inline]
pub(crate) fn change_options(
    frame: &mut [u8],
    seg: &Segment,
    mut change: impl FnMut(u8, &mut [u8]),
) -> u64 {
    let start = usize::from(seg.l4) + TCP_BYTES;
    let Some(options) = frame.get_mut(start..usize::from(seg.payload)) else {
        return 0;
    };
    if options.len() == 12
        && let Some(all) = options.first_chunk_mut::<12>()
        && all.starts_with(&NOP_NOP_TIMESTAMPS)
    {
        let before = *all;
        change(TIMESTAMPS, &mut all[2..]);
        return sum_inverted(&before) + sum_words(all);
    }
    // The options start at an even offset of the checksummed bytes and fill whole words, so their
    // sum before and after is what the checksum needs.
    let before = sum(options);
    let mut at = 0;
    while let Some(item) = (Walk { options, at }).next() {
        let (kind, from, to) = (item.kind, item.at, item.at + 2 + item.value.len());
        if let Some(option) = options.get_mut(from..to) {
            change(kind, option);
        }
        at = to;
    }
    complement(before) + sum(options)
}

/// What takes a sum away again.
fn complement(sum: u64) -> u64 {
    u64::from(finish(sum))
}
