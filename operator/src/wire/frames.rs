//! A watch in the binary form: frames of a length in four bytes and an event, which come in pieces of any size.
//!
//! Owns where one event ends and the next begins. A failed connection stays the failure that it was: `kube` tells an ended
//! watch from a broken one by it.

use super::{BoxedBody, json};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use http_body_util::{BodyDataStream, BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::DynBody;
use prost::bytes::BytesMut;
use std::io;
use tokio_util::{
    codec::{FramedRead, LengthDelimitedCodec},
    io::StreamReader,
};
use tower::BoxError;

/// An event's bytes. etcd takes objects of 1.5 MB if nobody changes that.
const LIMIT_FRAME_BYTES: usize = 16 << 20;
/// Events that become one piece of the answer, if so many are there.
const EVENTS_EACH: usize = 64;

/// The events of a body, as lines of JSON.
pub fn lines(body: Box<DynBody>) -> BoxedBody {
    let pieces = BodyDataStream::new(body).map_err(io::Error::other);
    let events = LengthDelimitedCodec::builder()
        .big_endian()
        .length_field_length(4)
        .max_frame_length(LIMIT_FRAME_BYTES)
        .new_read(StreamReader::new(pieces));
    StreamBody::new(joined(events)).boxed_unsync()
}

/// Whoever reads it ends the watch at a failure, and begins another where the last event before it was.
fn joined<R: tokio::io::AsyncRead + Unpin>(
    events: FramedRead<R, LengthDelimitedCodec>,
) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> {
    events.ready_chunks(EVENTS_EACH).flat_map(|events| {
        let mut lines = Vec::new();
        let mut add = |event: io::Result<BytesMut>| -> Result<(), BoxError> {
            let event = event.map_err(as_it_was)?;
            Ok(json::line(event.freeze(), &mut lines)?)
        };
        let failed = events.into_iter().find_map(|event| add(event).err());
        let whole = (!lines.is_empty()).then(|| Ok(Frame::data(lines.into())));
        stream::iter([whole, failed.map(Err)].into_iter().flatten())
    })
}

/// The failure of the body, which came through as the cause of another.
fn as_it_was(error: io::Error) -> BoxError {
    let kind = error.kind();
    let inner = error.into_inner();
    inner.unwrap_or_else(|| io::Error::from(kind).into())
}
