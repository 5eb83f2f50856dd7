//! What the bytes and numbers on both sides of the engine must be.
//!
//! Owns the checkers of contents, of the single owner and of acknowledgements. Records nothing but
//! how far streams are.

use super::{Checked, Conn, Truth, is_near};
use crate::talk::Progress;
use baton_packet::SeqNumber;

/// Bytes of one connection's response stream that are remembered: far above what a client asks for.
const STREAM_MAX: usize = 4 << 20;

impl Truth {
    /// Payload that leaves towards a pod: the client's own bytes at the client's own numbers, and
    /// none of a request whose response has begun, but towards the pod that makes it. (A pod that
    /// was given the request before may execute it later.)
    ///
    /// # Errors
    /// It is not so.
    pub fn to_pod(&self, id: u32, leg: (usize, u16), seq: SeqNumber, data: &[u8]) -> Checked {
        let Some(conn) = self.conns.get(&id) else {
            return Ok(());
        };
        let (from, to) = (seq.since(conn.isn.0.add(1)), data.len() as i32);
        // What is in front of the leg's next byte its kernel throws away.
        let from = from.max(self.starts.get(&leg).map_or(0, |s| s.since(conn.isn.0.add(1))));
        let to = seq.since(conn.isn.0.add(1)) + to;
        let ends = conn.requests.iter().skip(1).map(|(_, _, start)| *start).chain([usize::MAX]);
        for (number, ((request, _, start), end)) in conn.requests.iter().zip(ends).enumerate() {
            let overlaps =
                i64::from(from) < end as i64 && i64::from(to) > *start as i64 && from < to;
            if overlaps && conn.response_begun(number) && !conn.is_spoken_by(leg) {
                return Err(format!(
                    "execution: {} goes to pod {} (port {}) although pod {:?} has begun to answer it",
                    request.tag, leg.0, leg.1, conn.speaker
                ));
            }
        }
        let at = seq.since(conn.isn.0.add(1));
        let right = usize::try_from(at).is_ok_and(|at| {
            conn.written.get(at..at + data.len()).is_some_and(|written| written == data)
        });
        if right {
            return Ok(());
        }
        Err(format!(
            "stream: {} bytes at {at} towards a pod are not what the client wrote there",
            data.len()
        ))
    }

    /// Payload that leaves towards a client, from this leg: no byte twice with different values,
    /// nothing spliced, every response what its execution gives.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn to_client(
        &mut self,
        id: u32,
        from: (usize, u16),
        seq: SeqNumber,
        data: &[u8],
    ) -> Checked {
        let Some(conn) = self.conns.get_mut(&id) else {
            return Ok(());
        };
        let Some(isn) = conn.isn.1 else {
            return Err(format!("stream: data towards connection {id} before a SYN-ACK"));
        };
        let at = seq.since(isn.add(1));
        let Some(at) = usize::try_from(at).ok().filter(|at| *at < STREAM_MAX) else {
            return Err(format!("stream: data towards connection {id} at {at}"));
        };
        let end = at + data.len();
        if end > conn.sent.len() {
            if conn.speaker.is_some()
                && !conn.is_spoken_by(from)
                && (conn.reader.is_within() || conn.whole != conn.sent.len())
            {
                return Err(format!(
                    "single owner: connection {id} hears pod {} (port {}) in the middle of what pod {:?} says",
                    from.0, from.1, conn.speaker
                ));
            }
            conn.speaker = Some(from);
            conn.sent.resize(end, 0);
            conn.known.resize(end, false);
        }
        for (offset, byte) in data.iter().enumerate() {
            let at = at + offset;
            // Of what its kernel has and throws away, too: it may be another client's.
            if conn.known[at] && conn.sent[at] != *byte {
                return Err(format!(
                    "sequence space: connection {id}, byte {at} was {:#x} and is {byte:#x} now, from pod {} (port {})",
                    conn.sent[at], from.0, from.1
                ));
            }
            conn.sent[at] = *byte;
            conn.known[at] = true;
        }
        Self::judge_stream(id, conn)
    }

    /// Reads on in what is complete of the stream towards a client.
    fn judge_stream(id: u32, conn: &mut Conn) -> Checked {
        let end = conn.known[conn.whole..].iter().position(|known| !known);
        let end = end.map_or(conn.sent.len(), |n| conn.whole + n);
        while conn.whole < end {
            let Some((request, _, _)) = conn.requests.get(conn.answered) else {
                return Err(format!("stream: connection {id} hears what it did not ask for"));
            };
            let (used, progress) = conn.reader.read(request, &conn.sent[conn.whole..end])?;
            conn.whole += used;
            if matches!(progress, Progress::Whole { .. }) {
                conn.answered += 1;
            }
        }
        Ok(())
    }

    /// An acknowledgement of a pod's reaches the engine, from a socket or without one.
    pub fn pod_acks(&mut self, leg: (usize, u16), ack: SeqNumber, socket: bool) {
        let id = self.of_leg(leg.0, leg.1);
        let ack = self.as_client_has(leg, ack);
        if let Some(conn) = id.and_then(|id| self.conns.get_mut(&id))
            && is_near(ack, conn.isn.0)
        {
            conn.taken = conn.taken.max(ack);
            if socket {
                let has = self.starts.entry(leg).or_insert(ack);
                *has = (*has).max(ack);
            }
        }
    }

    /// The engine acknowledges something to a client in a backend's name.
    ///
    /// # Errors
    /// No pod has it: the client would never send it again.
    pub fn acknowledges(&self, id: u32, ack: SeqNumber) -> Checked {
        let Some(conn) = self.conns.get(&id) else {
            return Ok(());
        };
        // The client's FIN is nothing that a pod has to have.
        let most = conn.taken.add(u32::from(conn.client_closed));
        if ack.after(most) && is_near(ack, conn.isn.0) {
            let bytes = ack.since(most);
            return Err(format!(
                "stream: connection {id} is told of {bytes} bytes that no pod has"
            ));
        }
        Ok(())
    }
}
