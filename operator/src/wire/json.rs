//! Messages of the binary form become JSON.
//!
//! Owns which kinds there are. What it is given is whole: a list, a refusal, or an event of a watch.

use super::{
    WireError,
    messages::{
        Bookmark, EndpointSlice, List, ListMeta, Node, Pod, Service, Status, Types, Unknown,
        WatchEvent,
    },
};
use hyper::body::Bytes;
use prost::Message;
use serde::Serialize;

/// What says of itself what it is begins with it.
const MAGIC: &[u8] = b"k8s\0";

/// A list, or a refusal.
pub fn whole(bytes: Bytes) -> Result<Vec<u8>, WireError> {
    let Unknown { types, raw } = opened(bytes)?;
    match (types.api_version.as_str(), types.kind.as_str()) {
        ("v1", "PodList") => list::<Pod>(&types, raw),
        ("v1", "NodeList") => list::<Node>(&types, raw),
        ("v1", "ServiceList") => list::<Service>(&types, raw),
        ("discovery.k8s.io/v1", "EndpointSliceList") => list::<EndpointSlice>(&types, raw),
        ("v1", "Status") => Ok(serde_json::to_vec(&typed::<Status>(&types, raw)?)?),
        _ => Err(WireError::Kind(types.kind)),
    }
}

/// Adds an event of a watch as a line.
pub fn line(event: Bytes, out: &mut Vec<u8>) -> Result<(), WireError> {
    let WatchEvent { kind, object } = WatchEvent::decode(event)?;
    let Unknown { types, raw } = opened(object.raw)?;
    let of = (types.api_version.as_str(), types.kind.as_str());
    match (kind.as_str(), of) {
        // Of any kind: only where the watch is matters.
        ("BOOKMARK", _) => add::<Bookmark>(&kind, &types, raw, out),
        ("ERROR", ("v1", "Status")) => add::<Status>(&kind, &types, raw, out),
        (_, ("v1", "Pod")) => add::<Pod>(&kind, &types, raw, out),
        (_, ("v1", "Node")) => add::<Node>(&kind, &types, raw, out),
        (_, ("v1", "Service")) => add::<Service>(&kind, &types, raw, out),
        (_, ("discovery.k8s.io/v1", "EndpointSlice")) => {
            add::<EndpointSlice>(&kind, &types, raw, out)
        }
        _ => Err(WireError::Kind(types.kind)),
    }
}

fn opened(mut bytes: Bytes) -> Result<Unknown, WireError> {
    if !bytes.starts_with(MAGIC) {
        return Err(WireError::Magic);
    }
    Ok(Unknown::decode(bytes.split_off(MAGIC.len()))?)
}

/// An object that says what it is.
#[derive(Serialize)]
struct Typed<'a, T> {
    #[serde(flatten)]
    types: &'a Types,
    #[serde(flatten)]
    object: T,
}

fn typed<T: Message + Default>(types: &Types, raw: Bytes) -> Result<Typed<'_, T>, WireError> {
    let object = T::decode(raw)?;
    Ok(Typed { types, object })
}

/// Its items do not say what they are: the list does.
#[derive(Serialize)]
struct ListOf<'a, T> {
    #[serde(flatten)]
    types: &'a Types,
    metadata: ListMeta,
    items: Vec<T>,
}

fn list<T: Message + Default + Serialize>(types: &Types, raw: Bytes) -> Result<Vec<u8>, WireError> {
    let List { metadata, items } = List::decode(raw)?;
    let items: Result<Vec<T>, _> = items.into_iter().map(T::decode).collect();
    let items = items?;
    let list = ListOf {
        types,
        metadata,
        items,
    };
    Ok(serde_json::to_vec(&list)?)
}

#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(rename = "type")]
    kind: &'a str,
    object: Typed<'a, T>,
}

fn add<T: Message + Default + Serialize>(
    kind: &str,
    types: &Types,
    raw: Bytes,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let object = typed::<T>(types, raw)?;
    serde_json::to_writer(&mut *out, &Line { kind, object })?;
    out.push(b'\n');
    Ok(())
}
