//! The body of a request. Owns how a snapshot is cut into what is written at a time.

use super::{Rendered, content::Pieces};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Bytes written at a time: few enough to cost no memory, enough to cost few system calls.
const CHUNK_BYTES: usize = 64 << 10;
/// A request's body: nothing, a few bytes, or a snapshot that is put together as it is sent.
pub(super) struct Outgoing {
    /// Bytes that were not sent yet.
    left: u64,
    head: Option<Bytes>,
    pieces: Option<Pieces>,
}

impl Outgoing {
    pub(super) fn empty() -> Self {
        Self { left: 0, head: None, pieces: None }
    }

    pub(super) fn new(content: &Arc<Rendered>, generation: u64) -> Self {
        Self {
            left: content.len(generation),
            head: Some(Rendered::head(generation)),
            pieces: Some(content.pieces()),
        }
    }

    /// These bytes.
    pub(super) fn whole(bytes: Vec<u8>) -> Self {
        Self { left: bytes.len() as u64, head: Some(bytes.into()), pieces: None }
    }

    /// Bytes that were not sent yet.
    pub(super) fn left_bytes(&self) -> u64 {
        self.left
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let mut chunk = Vec::new();
        if let Some(head) = this.head.take() {
            chunk.extend_from_slice(&head);
        }
        for piece in this.pieces.iter_mut().flatten() {
            chunk.extend_from_slice(&piece);
            if chunk.len() >= CHUNK_BYTES {
                break;
            }
        }
        if chunk.is_empty() {
            return Poll::Ready(None);
        }
        this.left = this.left.saturating_sub(chunk.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
