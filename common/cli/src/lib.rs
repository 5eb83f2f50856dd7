//! What `lb-dataplane` and `kubectl baton` have in common as command lines: the commands that ask
//! dataplanes, their options, and how answers are shown, as tables, sentences and progress for
//! people, or as JSON and YAML.
//!
//! Owns what is asked of control APIs. How a request comes to a dataplane is a [`Fleet`]'s: to its
//! control address, or through an API server. Never judges a cluster.

pub mod args;
mod backends;
mod capture;
mod commands;
mod drain;
mod fleet;
mod flows;
mod migrate;
mod names;
mod progress;
mod sentences;
mod show;
mod text;
mod trace;

pub use backends::{Backend, backends, render as render_backends};
pub use capture::{interruptions, last_words};
pub use commands::{Asking, code, repeated};
pub use fleet::{
    Bounded, Dataplane, Fleet, FlowsQuery, Nodes, Refused, Request, Response, Stop, events, flows,
    heard, silent, states, told,
};
pub use flows::Flow;
pub use names::{FlowId, PolicyName, flow};
pub use sentences::{full_tables, judged, reasons, verdict};
pub use show::{Out, Show};
pub use text::{
    Cell, Shown, Style, Table, Tone, WIDTH_MAX, count, line, micros, span, toned, wrapped,
};
