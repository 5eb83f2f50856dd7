//! Sees numbered requests and their answers go to the dataplane and come back, with the kernel's
//! times.
//!
//! A packet socket on the node's end of the dataplane's veth. It costs a copy of each frame, so
//! measure nothing else with it. Frames wait in the socket until the end: nobody is woken for them
//! while requests are under way.

use crate::{
    node::lab::Lab,
    timing::{packet_socket::PacketSocket, phases::number},
};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;

/// Room for the frames of about [`REQUESTS_MAX`] requests: each at most a dozen frames that the
/// kernel counts with 1 to 2 KiB; it doubles the figure.
const BUFFER_BYTES: usize = 48 << 20;
/// More requests than this at once may overflow the socket.
const REQUESTS_MAX: u64 = 4000;
/// How the TCP option of an adoption begins: kind, length, experiment id (docs/adoption-wire.md).
const ADOPTION: [u8; 4] = [253, 28, 0xba, 0x70];
/// Ethernet, IPv6 and TCP headers with all options end here; random payload behind it is not looked
/// at.
const HEADERS_BYTES_MAX: usize = 14 + 40 + 60;

/// When a request and its answer passed the node's end of the dataplane's veth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapStamps {
    /// The request left for the dataplane.
    pub request_to_ns: Option<i64>,
    /// An adoption came from the dataplane, after the request left for it: the connection moves for
    /// this request.
    pub adoption_from_ns: Option<i64>,
    /// The request came from the dataplane.
    pub request_from_ns: Option<i64>,
    /// The answer left for the dataplane.
    pub answer_to_ns: Option<i64>,
    /// The answer came from the dataplane.
    pub answer_from_ns: Option<i64>,
}

/// The open tap.
#[derive(Debug)]
pub struct Tap(PacketSocket);

impl Lab {
    /// Starts to note the frames between node and dataplane.
    ///
    /// # Errors
    /// Without CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn tap_dataplane(&self) -> Result<Tap> {
        let name = self.dataplane_pod().name();
        PacketSocket::open(self.router(), name, BUFFER_BYTES).map(Tap)
    }
}

impl Tap {
    /// How many requests may be under its eyes before [`Tap::finish`].
    pub const REQUESTS_MAX: u64 = REQUESTS_MAX;

    /// Closes it and gives what passed, by the request's number. Of a frame that passed twice the
    /// first counts.
    pub fn finish(self) -> Result<BTreeMap<u64, TapStamps>> {
        let mut all: BTreeMap<u64, TapStamps> = BTreeMap::new();
        let mut current = None;
        self.0.read(|received, frame| {
            let Some(at) = received.at_ns else { return };
            if let Some(request) = number(frame) {
                current = Some(request);
                all.entry(request).or_default().note(is_answer(frame), received.outgoing, at);
            } else if let Some(request) = current
                && !received.outgoing
                && is_adoption(frame)
            {
                let stamps = all.entry(request).or_default();
                stamps.adoption_from_ns.get_or_insert(at);
            }
        })?;
        ensure!(!all.is_empty(), "no request passed the dataplane's interface");
        Ok(all)
    }
}

impl TapStamps {
    fn note(&mut self, answer: bool, to_dataplane: bool, at_ns: i64) {
        let place = match (answer, to_dataplane) {
            (false, true) => &mut self.request_to_ns,
            (false, false) => &mut self.request_from_ns,
            (true, true) => &mut self.answer_to_ns,
            (true, false) => &mut self.answer_from_ns,
        };
        place.get_or_insert(at_ns);
    }
}

fn is_adoption(frame: &[u8]) -> bool {
    let headers = &frame[..frame.len().min(HEADERS_BYTES_MAX)];
    headers.windows(ADOPTION.len()).any(|w| w == ADOPTION)
}

fn is_answer(frame: &[u8]) -> bool {
    let status = b"HTTP/1.1 200 ";
    frame.windows(status.len()).any(|w| w == status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_passage_has_its_place_and_the_first_counts() {
        let mut stamps = TapStamps::default();
        stamps.note(false, true, 1);
        stamps.note(false, false, 2);
        stamps.note(true, true, 3);
        stamps.note(true, false, 4);
        stamps.note(false, true, 9);
        let all = [
            stamps.request_to_ns,
            stamps.request_from_ns,
            stamps.answer_to_ns,
            stamps.answer_from_ns,
        ];
        assert_eq!(all, [Some(1), Some(2), Some(3), Some(4)]);
        assert!(is_adoption(&[&[0; 54][..], &[1, 1, 253, 28, 0xba, 0x70]].concat()));
        assert!(!is_adoption(&[&[0; 54][..], &[1, 1, 253, 28, 0xba, 0x71]].concat()));
        assert!(!is_adoption(&[&[0; 114][..], &[253, 28, 0xba, 0x70]].concat()));
        assert!(is_answer(b"....HTTP/1.1 200 OK\r\n"));
        assert!(!is_answer(b"....GET /phase/1 HTTP/1.1\r\nHost: 200 \r\n"));
    }
}
