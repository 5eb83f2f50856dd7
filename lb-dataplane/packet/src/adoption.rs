//! The adoption option (`docs/adoption-wire.md`). Owns its layout; never decides who adopts what.

use crate::{
    AdoptionKey, Flags, Segment, SegmentSpec,
    adoption_key::{TAG_INPUT_BYTES, TagInput},
    builder::{build_with_options, timestamp_option},
    bytes::{array, be16, be32},
    client_block::CLIENT_BLOCK_BYTES,
    options::EXPERIMENT_1,
};

/// Bytes of the TCP header of every adoption message: 20 fixed, 28 of the option, 2 NOPs, 10 of
/// timestamps. More a TCP header cannot have.
pub const ADOPTION_HEADER_BYTES: usize = 60;

/// Bytes of the option.
pub const ADOPTION_OPTION_BYTES: usize = 28;
const STAMPS_AT: usize = ADOPTION_OPTION_BYTES;
const EXPERIMENT_ADOPT: u16 = 0xba70;
const EXPERIMENT_PROBE: u16 = 0xba71;
const EXPERIMENT_ANSWER: u16 = 0xba72;
const EXPERIMENT_FORGET: u16 = 0xba73;
const EXPERIMENT_RELEASE: u16 = 0xba74;
const EXPERIMENT_TRANSFER: u16 = 0xba75;
const FLAG_WINDOW_SCALE: u8 = 1;
const FLAG_SACK: u8 = 2;
const FLAG_TIMESTAMPS: u8 = 4;
const FLAG_ECN: u8 = 8;
const ATTRIBUTE_FLAGS: u8 = 0x0f;

/// What a message asks or says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Adopt this connection.
    Adopt,
    /// Would you?
    Probe,
    /// Nothing uses this pair of ports any more: let connection trackers on the way forget it. A
    /// SYN, which begins anew there, and its answer a RST, with which they drop the entry.
    Forget,
    /// Let go of this connection if the application has read nothing from the message's number on
    /// and sent nothing beyond its acknowledgement: its request goes elsewhere.
    Release,
    /// Hand this connection, with what its application knows of it, to the application of another
    /// pod ([`Destination`](crate::Destination)).
    Transfer,
    /// From the pod: why not, or [`Reason::Ready`].
    Answer(Reason),
}

impl MessageKind {
    /// How far the number on the wire is in front of the one that the message is about. A kernel
    /// whose adopter is gone has had that byte, says so again and takes nothing else, neither the
    /// acknowledgement nor the timestamps (Linux `tcp_sequence`).
    #[must_use]
    pub const fn in_front(self) -> u32 {
        matches!(self, Self::Release | Self::Transfer) as u32
    }
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::VariantArray, strum::IntoStaticStr)]
#[repr(u16)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// Nothing listens on that address and port.
    NoListener = 1,
    /// The listener's accept queue is full.
    AcceptQueueFull = 2,
    /// The kernel function returned an error.
    KernelRefused = 3,
    /// A socket that is not this flow's is on that 4-tuple.
    TupleInUse = 4,
    /// This very message was adopted before and that socket is gone.
    AlreadyAdopted = 5,
    /// Key, listener and kernel are fine; nothing was created.
    Ready = 6,
    /// `net.ipv4.tcp_syncookies` is 0 in the pod's namespace.
    SyncookiesOff = 7,
    /// The answer to a Forget: no socket of the pod is on that 4-tuple, and nothing was created.
    Forgotten = 8,
    /// The adoption is for another network namespace: the pod was replaced, or its number made
    /// anew. Nothing was created, and no copy of this adoption will be taken here; whether the pod
    /// of former times took one is not known to it.
    Renew = 9,
    /// The pod's packet rules redirect connections, so that an adoption would go around a proxy.
    PacketRules = 10,
    /// The answer to a Release: the connection was let go of, and nobody will ever read what it
    /// asked about. Its last segment, which has the mark of that ([`EndMark::Released`]), may come
    /// before or be lost.
    ///
    /// [`EndMark::Released`]: crate::EndMark::Released
    Released = 11,
    /// The answer to a Release or Transfer: the connection is not as it says, mostly because the
    /// application has begun to read, or cannot go where it should. Nothing was done, and no copy
    /// of this message will do anything.
    Kept = 12,
    /// The answer to a Transfer: the other pod has the connection, and this one sends nothing more.
    Moved = 13,
}

impl Reason {
    /// Every reason, in the order of their codes. (9 is for the renewal of a pod's number.)
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The reason of a code on the wire.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.code() == code)
    }

    /// The value of the `reason` label in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// Whether the pod certainly never had the connection, so that the flow may go back or
    /// elsewhere. (A pod that was replaced cannot speak for the one before it: what [`Self::Renew`]
    /// means depends on when that was.)
    #[must_use]
    pub const fn pod_never_had_it(self) -> bool {
        !matches!(self, Self::AlreadyAdopted | Self::Renew | Self::Kept | Self::Moved)
    }
}

/// The content of an adoption message. In an answer all but `kind`, `epoch`, `server_ts` and
/// `namespace` are 0 or false on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// What it asks or says.
    pub kind: MessageKind,
    /// The client's MSS.
    pub mss: u16,
    /// Scale of the adopting socket's own window, at most 14.
    pub server_wscale: u8,
    /// Scale of the client's window, at most 14.
    pub client_wscale: u8,
    /// Window scaling was negotiated; in a [`MessageKind::Forget`], it is answered also where a
    /// connection is on the pair.
    pub wscale_ok: bool,
    /// Selective acknowledgements were negotiated.
    pub sack_ok: bool,
    /// Timestamps were negotiated.
    pub timestamps_ok: bool,
    /// ECN was negotiated.
    pub ecn_ok: bool,
    /// Key epoch modulo 16.
    pub epoch: u8,
    /// The TSval from which the adopting socket continues; in an answer with [`Reason::TupleInUse`]
    /// the `rcv_nxt` of the socket in the way (0 if unknown), with [`Reason::Renew`] for how many
    /// milliseconds the pod has had its number, in one to a probe that found a listener a
    /// [`ListenerReport`].
    pub server_ts: u32,
    /// The random number of the pod's network namespace: which one the message is for (0 in a
    /// probe, which asks for it), or from which one the answer comes.
    pub namespace: u64,
}

impl Adoption {
    /// A message that says nothing of a connection.
    #[must_use]
    pub const fn bare(kind: MessageKind, epoch: u8) -> Self {
        Self {
            kind,
            mss: 0,
            server_wscale: 0,
            client_wscale: 0,
            wscale_ok: false,
            sack_ok: false,
            timestamps_ok: false,
            ecn_ok: false,
            epoch,
            server_ts: 0,
            namespace: 0,
        }
    }

    /// Experiment id, and the option's bytes 4 to 7.
    fn fields(&self) -> (u16, u16, u8, u8) {
        let epoch = self.epoch << 4;
        let attributes = || {
            let scales = self.server_wscale.min(14) << 4 | self.client_wscale.min(14);
            let flag = |on: bool, bit: u8| if on { bit } else { 0 };
            let flags = flag(self.wscale_ok, FLAG_WINDOW_SCALE)
                | flag(self.sack_ok, FLAG_SACK)
                | flag(self.timestamps_ok, FLAG_TIMESTAMPS)
                | flag(self.ecn_ok, FLAG_ECN);
            (scales, flags | epoch)
        };
        match self.kind {
            MessageKind::Adopt => {
                let (scales, flags) = attributes();
                (EXPERIMENT_ADOPT, self.mss, scales, flags)
            }
            MessageKind::Probe => {
                let (scales, flags) = attributes();
                (EXPERIMENT_PROBE, self.mss, scales, flags)
            }
            MessageKind::Forget => {
                let (scales, flags) = attributes();
                (EXPERIMENT_FORGET, self.mss, scales, flags)
            }
            MessageKind::Release => {
                let (scales, flags) = attributes();
                (EXPERIMENT_RELEASE, self.mss, scales, flags)
            }
            MessageKind::Transfer => {
                let (scales, flags) = attributes();
                (EXPERIMENT_TRANSFER, self.mss, scales, flags)
            }
            MessageKind::Answer(reason) => (EXPERIMENT_ANSWER, reason.code(), 0, epoch),
        }
    }
}

/// Whether a message may have so many bytes of payload: an Adopt a client block, a Transfer that
/// of the peer's end there, others none.
const fn may_carry(kind: MessageKind, bytes: usize) -> bool {
    let has_block = matches!(kind, MessageKind::Adopt | MessageKind::Transfer);
    bytes == 0 || bytes == CLIENT_BLOCK_BYTES && has_block
}

/// Writes an adoption message at the start of `buf` and says how many bytes it takes.
///
/// Addresses, ports, numbers and window come from `spec`, the sequence number of some kinds, and of
/// one with a block, from in front of it ([`MessageKind::in_front`]); flags follow from
/// the kind and the window of an answer is 0, whatever `spec` says. Without timestamps in `spec`
/// the message carries two zeros: the layout has them always. `None` if `spec` has payload, other
/// than an Adopt's or Transfer's block ([`ClientBlock`](crate::ClientBlock)), and as
/// [`build_segment`](crate::build_segment).
#[must_use]
pub fn build_adoption(
    buf: &mut [u8],
    spec: &SegmentSpec<'_>,
    message: &Adoption,
    key: &AdoptionKey,
) -> Option<usize> {
    if !may_carry(message.kind, spec.payload.len()) {
        return None;
    }
    let (flags, window) = match message.kind {
        MessageKind::Answer(_) => (Flags::RST | Flags::ACK, 0),
        MessageKind::Adopt | MessageKind::Probe | MessageKind::Release | MessageKind::Transfer => {
            (Flags::ACK, spec.window)
        }
        MessageKind::Forget => (Flags::SYN, spec.window),
    };
    let seq = spec.seq.sub(message.kind.in_front() + spec.payload.len() as u32);
    let timestamps = spec.timestamps.unwrap_or_default();
    let (experiment, mss_or_reason, scales, option_flags) = message.fields();
    let ([e0, e1], [m0, m1]) = (experiment.to_be_bytes(), mss_or_reason.to_be_bytes());
    let attributes = [e0, e1, m0, m1, scales, option_flags];
    let input = TagInput {
        src: spec.src,
        dst: spec.dst,
        src_port: spec.src_port,
        dst_port: spec.dst_port,
        seq,
        ack: spec.ack,
        attributes,
        window,
        server_ts: message.server_ts,
        timestamps,
        namespace: message.namespace,
    };
    let mut options = [0; ADOPTION_HEADER_BYTES - 20];
    options[0] = EXPERIMENT_1;
    options[1] = ADOPTION_OPTION_BYTES as u8;
    options[2..8].copy_from_slice(&attributes);
    options[8..12].copy_from_slice(&message.server_ts.to_be_bytes());
    options[12..20].copy_from_slice(&key.tag(&input.bytes()).to_be_bytes());
    options[20..28].copy_from_slice(&message.namespace.to_be_bytes());
    options[STAMPS_AT..].copy_from_slice(&timestamp_option(timestamps));
    let spec = SegmentSpec { seq, flags, window, ..*spec };
    build_with_options(buf, &spec, &options)
}

/// A segment with the layout of an adoption message. Nothing in it is to be believed before
/// [`RawAdoption::verify`].
#[derive(Clone, Copy, Debug)]
pub struct RawAdoption {
    input: [u8; TAG_INPUT_BYTES],
    tag: u64,
}

/// The adoption message in `seg`, if it has the exact layout of one. The tag is not looked at.
#[inline]
#[must_use]
pub fn parse_adoption(frame: &[u8], seg: &Segment) -> Option<RawAdoption> {
    if usize::from(seg.payload) != usize::from(seg.l4) + ADOPTION_HEADER_BYTES {
        return None;
    }
    parse_layout(frame, seg)
}

fn parse_layout(frame: &[u8], seg: &Segment) -> Option<RawAdoption> {
    let option = array::<40>(frame, usize::from(seg.l4) + 20)?;
    let expected = match be16::<40, 2>(option) {
        EXPERIMENT_ADOPT | EXPERIMENT_PROBE | EXPERIMENT_RELEASE | EXPERIMENT_TRANSFER => {
            Flags::ACK
        }
        EXPERIMENT_ANSWER => Flags::RST | Flags::ACK,
        EXPERIMENT_FORGET => Flags::SYN,
        _ => return None,
    };
    let layout = option[0] == EXPERIMENT_1
        && usize::from(option[1]) == ADOPTION_OPTION_BYTES
        && option[STAMPS_AT..STAMPS_AT + 4] == timestamp_option((0, 0))[..4];
    let experiment = be16::<40, 2>(option);
    let has_block = matches!(experiment, EXPERIMENT_ADOPT | EXPERIMENT_TRANSFER);
    let carries = match seg.payload_len() {
        0 => true,
        some => has_block && some == CLIENT_BLOCK_BYTES as u32,
    };
    if !layout || seg.flags != expected || !carries {
        return None;
    }
    let input = TagInput {
        src: seg.src,
        dst: seg.dst,
        src_port: seg.src_port,
        dst_port: seg.dst_port,
        seq: seg.seq,
        ack: seg.ack,
        attributes: *array(option, 2)?,
        window: seg.window,
        server_ts: be32::<40, 8>(option),
        timestamps: (be32::<40, 32>(option), be32::<40, 36>(option)),
        namespace: u64::from_be_bytes(*array(option, 20)?),
    };
    Some(RawAdoption { input: input.bytes(), tag: u64::from_be_bytes(*array(option, 12)?) })
}

impl RawAdoption {
    /// The epoch of the key that the message names, modulo 16.
    #[must_use]
    pub const fn epoch(&self) -> u8 {
        self.input[49] >> 4
    }

    /// What it says that it is, for people who look at packets. Anybody may have said it.
    #[must_use]
    pub fn claimed_kind(&self) -> Option<MessageKind> {
        let (scales, flags) = (self.input[48], self.input[49]);
        match be16::<TAG_INPUT_BYTES, 44>(&self.input) {
            EXPERIMENT_ADOPT => Some(MessageKind::Adopt),
            EXPERIMENT_PROBE => Some(MessageKind::Probe),
            EXPERIMENT_FORGET => Some(MessageKind::Forget),
            EXPERIMENT_RELEASE => Some(MessageKind::Release),
            EXPERIMENT_TRANSFER => Some(MessageKind::Transfer),
            EXPERIMENT_ANSWER if scales == 0 && flags & ATTRIBUTE_FLAGS == 0 => {
                let value = be16::<TAG_INPUT_BYTES, 46>(&self.input);
                Reason::from_code(value).map(MessageKind::Answer)
            }
            _ => None,
        }
    }

    /// The content, if the tag is that of `key` and the content makes sense. The tags are compared
    /// as two numbers, so the time this takes does not tell how much of a guess was right.
    #[must_use]
    pub fn verify(&self, key: &AdoptionKey) -> Option<Adoption> {
        if key.tag(&self.input) != self.tag {
            return None;
        }
        let kind = self.claimed_kind()?;
        let value = be16::<TAG_INPUT_BYTES, 46>(&self.input);
        let (scales, flags) = (self.input[48], self.input[49]);
        let answer = be16::<TAG_INPUT_BYTES, 44>(&self.input) == EXPERIMENT_ANSWER;
        Some(Adoption {
            kind,
            mss: if answer { 0 } else { value },
            server_wscale: scales >> 4,
            client_wscale: scales & 0x0f,
            wscale_ok: flags & FLAG_WINDOW_SCALE != 0,
            sack_ok: flags & FLAG_SACK != 0,
            timestamps_ok: flags & FLAG_TIMESTAMPS != 0,
            ecn_ok: flags & FLAG_ECN != 0,
            epoch: self.epoch(),
            server_ts: be32::<TAG_INPUT_BYTES, 52>(&self.input),
            namespace: u64::from(be32::<TAG_INPUT_BYTES, 64>(&self.input)) << 32
                | u64::from(be32::<TAG_INPUT_BYTES, 68>(&self.input)),
        })
    }
}
