//! Views, builders and checksums for the frames that Baton touches, and the adoption option.
//!
//! The crate is pure: no I/O, no clock, no allocation (it is `no_std` without `alloc`, so the
//! compiler sees to it), no `unsafe`, and no panic on any input.
//!
//! # Contract
//!
//! [`decode`] is the only way bytes become a [`Segment`], a [`UdpDatagram`] or an [`IcmpError`]. It
//! checks every length once, against the frame and against each other, so that for its results `14
//! <= l3 < l4 < payload <= end <= frame.len()` holds. The functions that take a frame and such a
//! view look at nothing outside those offsets. Handing them another frame is a mistake of the
//! caller that costs a wrong answer (an empty slice, `Bad`, an error), never a panic.
//!
//! Addresses and ports that checksums need are read from the frame, not from the view, so a view
//! stays usable for checksum functions after [`rewrite_tcp`] changed the frame.
//!
//! # Order of calls on the packet path
//!
//! 1. [`decode`];
//! 2. [`settle_tcp_checksum`] (or [`tcp_checksum_state`] and [`complete_tcp_checksum`]): drop the
//!    frame if it says [`ChecksumState::Bad`];
//! 3. [`strip_options`] and [`rewrite_tcp`], in any order: both patch a full checksum
//!    incrementally, so a corrupt frame stays corrupt. [`carry_tcp`] in place of the latter where
//!    the new addresses are of the other IP family: it comes last, as views mean nothing after it.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

// Only to ask at run time which vector instructions the CPU has (`checksum`).
#[cfg(not(test))]
extern crate std;

mod across;
mod adoption;
mod adoption_key;
mod builder;
mod bytes;
mod checksum;
mod client_block;
mod decode;
mod destination;
mod ecn;
mod end_mark;
mod icmp;
mod listener_report;
mod load_report;
mod malformed;
mod options;
mod piece;
mod plain;
mod proxy;
mod rewrite;
mod seq;
mod shift;
mod types;
mod view;

pub use across::{carry_icmp, carry_tcp};
pub use adoption::{
    ADOPTION_HEADER_BYTES, ADOPTION_OPTION_BYTES, Adoption, MessageKind, RawAdoption, Reason,
    build_adoption, parse_adoption,
};
pub use adoption_key::{AdoptionKey, KeyError};
pub use builder::{SegmentSpec, build_segment, build_syn, extend_segment};
pub use checksum::{ChecksumState, complete_tcp_checksum, settle_tcp_checksum, tcp_checksum_state};
pub use client_block::{CLIENT_BLOCK_BYTES, ClientBlock, RawClientBlock, parse_client_block};
pub use decode::{LIMIT_EXTENSION_HEADERS, decode};
pub use destination::{Destination, Which};
pub use ecn::clear_accurate_ecn;
pub use end_mark::{EndMark, end_mark, put_end_mark, take_end_mark};
pub use icmp::{FamilyMismatch, NewTuple, rewrite_icmp};
pub use listener_report::{Listener, ListenerReport};
pub use load_report::{LoadReport, Pressure, StallTotal};
pub use malformed::Malformed;
pub use options::{
    STRIPPED_FROM_CLIENTS, SynOptions, parse_syn_options, strip_options, timestamps,
};
pub use piece::part_of_segment;
pub use plain::{Ends, Family, Plain, V4, V6, plain, plain_ends, readdress};
pub use proxy::{
    PROXY_HEADER_MAX, PROXY_LISTENER_MAX, PROXY_LISTENER_TLV, PROXY_LOCAL, proxy_header,
    proxy_header_len,
};
pub use rewrite::{
    Rewrite, RewriteError, allow_fragments, clear_fin, clear_urgent, replace_ack, rewrite_tcp,
};
pub use seq::SeqNumber;
pub use shift::Shift;
pub use types::{Flags, Mac, ether_dst, ether_src};
pub use view::{Decoded, IcmpError, IcmpKind, Segment, UdpDatagram};

#[doc(hidden)]
pub use checksum::sum_for_bench;
