//! Bytes of one direction: what waits to be acknowledged, and what arrived out of order.
//!
//! Owns the bytes and their sequence numbers. It never decides when to send or acknowledge.

use baton_packet::SeqNumber;

/// Segments that wait for what is in front of them. Linux bounds their bytes; here their number is
/// enough.
const OUT_OF_ORDER_MAX: usize = 64;

/// Bytes from the first unacknowledged one on.
#[derive(Default)]
pub struct SendBuffer {
    bytes: Vec<u8>,
    /// Bytes at the front that are acknowledged and not yet removed.
    done: usize,
}

impl SendBuffer {
    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that are not acknowledged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.done
    }

    /// The first `n` bytes are acknowledged.
    pub fn acked(&mut self, n: usize) {
        self.done += n.min(self.len());
        if self.done == self.bytes.len() {
            self.bytes.clear();
            self.done = 0;
        }
    }

    /// At most `n` bytes, `from` behind the first unacknowledged one.
    #[must_use]
    pub fn slice(&self, from: usize, n: usize) -> &[u8] {
        let start = (self.done + from).min(self.bytes.len());
        &self.bytes[start..(start + n).min(self.bytes.len())]
    }
}

/// Bytes in order that the application has not read, and segments that wait for what is in front of
/// them.
#[derive(Default)]
pub struct ReceiveBuffer {
    ready: Vec<u8>,
    read: usize,
    waiting: Vec<(SeqNumber, Vec<u8>)>,
}

impl ReceiveBuffer {
    /// Bytes that the application has not read.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.ready.len() - self.read
    }

    /// Moves at most `max` bytes to `to`.
    pub fn read(&mut self, to: &mut Vec<u8>, max: usize) -> usize {
        let n = self.unread().min(max);
        to.extend_from_slice(&self.ready[self.read..self.read + n]);
        self.read += n;
        if self.read == self.ready.len() {
            self.ready.clear();
            self.read = 0;
        }
        n
    }

    /// Takes bytes that are next, and whatever waited for them; what is next then.
    pub fn in_order(&mut self, mut next: SeqNumber, data: &[u8]) -> SeqNumber {
        self.ready.extend_from_slice(data);
        next = next.add(data.len() as u32);
        while let Some(at) = self.waiting.iter().position(|(seq, _)| seq.at_or_before(next)) {
            let (seq, bytes) = self.waiting.swap_remove(at);
            let old = next.since(seq) as usize;
            if let Some(new) = bytes.get(old..) {
                self.ready.extend_from_slice(new);
                next = next.add(new.len() as u32);
            }
        }
        next
    }

    /// Keeps bytes that came too early, while there is room.
    pub fn early(&mut self, seq: SeqNumber, data: &[u8]) {
        let same = |(s, d): &(SeqNumber, Vec<u8>)| *s == seq && d.len() >= data.len();
        if self.waiting.len() < OUT_OF_ORDER_MAX && !self.waiting.iter().any(same) {
            self.waiting.push((seq, data.to_vec()));
        }
    }

    /// Whether segments wait for what is in front of them.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_of_overlapping_pieces_gives_the_stream() {
        let stream: Vec<u8> = (0..=255).collect();
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let mut buffer = ReceiveBuffer::default();
            let start = SeqNumber(rng.u32(..));
            let (mut next, mut got) = (start, Vec::new());
            while got.len() < stream.len() {
                let from = rng.usize(..stream.len());
                let to = (from + rng.usize(1..40)).min(stream.len());
                let seq = start.add(from as u32);
                if seq.after(next) {
                    buffer.early(seq, &stream[from..to]);
                } else if start.add(to as u32).after(next) {
                    let old = next.since(seq) as usize;
                    next = buffer.in_order(next, &stream[from + old..to]);
                }
                buffer.read(&mut got, 7);
                while next == start.add(256) && buffer.read(&mut got, 99) > 0 {}
            }
            assert_eq!(got, stream);
        }
    }
}
