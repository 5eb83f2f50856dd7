//! The hand-over of a flow between pods, as a small model that is explored exhaustively
//! (`stateright`).
//!
//! The dataplane, up to three pods with their adopters and kernels, a client and a network take all
//! steps that they may, in every order, and in each state that is reached the [`properties`] must
//! hold. What the simulator finds by chance in long runs, this finds for certain in short ones.
//!
//! # What is modelled
//! - **The dataplane's hand-over** by the engine's own code: each decision is
//!   `baton_engine::handover::decide`, and a flow's state changes only in [`step`], by the engine's
//!   declared table (`baton_engine::states::meaning`) with its actions in their order. An event
//!   that its state cannot have breaks a property. What the model has of its own is the flow's data
//!   and what each action and effect does to it.
//! - **The pods** ([`pod`]): the adopter with its memory of decided adoptions, sockets with their
//!   numbers, kernels that answer what belongs to no socket with a bare RST, stale sockets with
//!   challenge ACKs, applications that answer late, in one or two parts, close, reset or are killed
//!   and started again, full accept queues, lost keys.
//! - **Legs that are opened by a handshake** ([`openings`]): our SYN, the pod's SYN-ACK, its end;
//!   request sockets that repeat their answer, drop what follows while the accept queue is full,
//!   answer keepalives and are given up; kernels that refuse; stale sockets; pods that agree to
//!   less; all of it late and doubled. Frames have the client's numbers. That a pod's own are
//!   others each time is [`wire::Packet::isn`]: what belongs to one handshake does not fit another.
//! - **Two networks** ([`wire`]). *Forever*: whatever was sent arrives late, never, or any number
//!   of times, in any order, and timers end at any moment; for safety. *Counted*: each packet
//!   arrives once, in any order, but for a few losses and duplicates, and timers are longer than a
//!   packet's way; for eventual service.
//!
//! # What must hold
//! [`properties`] lists them: one owner whose bytes reach the client; the right bytes; nothing
//! spliced behind a begun response; each request executed at most once, or `1 + REPLAYS_MAX` times
//! where policy allows; confirmed adoptions were made; a refused or withdrawn one leaves the old
//! pod as owner and was not executed; a pod that has not answered our SYN is sent nothing of a
//! request; the client sees an end only for a counted reason, and that reason is true. [`served`]
//! adds eventual service: from each reachable state, fair packets and timers lead to an answer or
//! to a counted end.
//!
//! # What is left out
//! - Handshakes with clients, a drain's deadline, sessions (`AUTH`, `SELECT`), pipelining, requests
//!   of several segments, buffers that run full. The rows of the table that this leaves untaken are
//!   listed with their reasons in `tests/it/explore.rs`; a new row fails there.
//! - Of legs that are opened: the choice of the method, which is fixed for each pod
//!   ([`config::Config::opened`]); a full table of shifts; a third handshake on one port;
//!   `TCP_DEFER_ACCEPT` and `tcp_abort_on_overflow`; SYN cookies (such a kernel keeps nothing of a
//!   handshake, and may make a second connection of a late copy of its end).
//! - The way between client and dataplane: segments arrive at once and in order. Timestamps,
//!   windows, checksums, keys' bits.
//! - Ports are never used twice (quarantine outlives packets), and the adopter's memory outlives
//!   them too.
//! - Closing legs are one exchange of FINs. What a leg of nobody sends in the *forever* network is
//!   dropped ([`tidy`]).
//! - Two or three adoption tries stand for six, two or three legs for as many as it takes; each
//!   configuration ([`plans`]) allows few faults at once. A response is followed exactly, as by the
//!   HTTP/1 guard; a gap in it pins.
//! - A SYN question is answered with what is true at that moment. Several processes of one pod
//!   dying one after another are not modelled; a process started again is known to be another one,
//!   as its adopter tells. (Without an adopter it is not.) Two idle legs that end unused
//!   are no close yet; the engine lets twelve pass.
//! - Legs that flows have one after the other (`migration.legs: Shared`): the simulation's.
//!
//! # Running it
//! `cargo test --profile ci -p baton-model -- --nocapture` prints the unique states of each
//! configuration (103 of them, about 5 million states in all) and the time that it took. A
//! counterexample is printed as a list of steps, without those that it does not need.
//! `tests/it/safeguards.rs` takes away one safeguard at a time and expects the counterexample that
//! it prevents.
//!
//! `stateright` is an explicit-state model checker that is a library: a model is plain Rust that
//! can use the engine's own code. Its `eventually` ignores paths that end in a cycle, which is why
//! [`served`] searches for itself.
#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod config;
pub mod coverage;
pub mod decide;
pub mod explore;
pub mod happens;
pub mod openings;
pub mod plans;
pub mod pod;
pub mod properties;
pub mod rescue;
pub mod served;
pub mod server;
pub mod step;
pub mod tidy;
pub mod wire;
pub mod world;
