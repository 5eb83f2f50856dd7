//! What the packet worker's counters mean, for `# HELP` and for the reference in
//! `docs/generated/metrics.md`.
//!
//! Owns the words for counters that have labels and for those of the port; the engine's others
//! bring their own. Counts nothing.

use baton_engine::Counter;

/// By name, without prefix. A test compares the list with what the worker counts.
const MEANINGS: &[(&str, &str)] = &[
    // Of the engine, with labels.
    ("segments_total", "TCP segments that were for Baton, by who sent them."),
    (
        "adoptions_refused_total",
        "Adoptions that a pod's kernel refused, by reason: the flow stays or tries another pod.",
    ),
    (
        "openings_total",
        "Handshakes of Baton's own with pods that shall take a connection over and do not adopt it, by what came of them.",
    ),
    (
        "fates_unknown_total",
        "Requests of which nobody can tell whether they were executed, by what became of them.",
    ),
    ("legs_closed_total", "Connections to backends that flows no longer need, by how they ended."),
    ("resets_sent_total", "Resets that Baton sent, by to whom."),
    (
        "resets_limited_total",
        "Resets and challenges that the rate limits held back, by whom they were for.",
    ),
    (
        "stays_total",
        "Flows that stayed although another backend was better, by what was exhausted; `large`: with requests too large for a new pod's first window.",
    ),
    (
        "backlog_full_total",
        "Client segments that could not wait for a new owner's receive window, by the limit that was hit; their clients send them again.",
    ),
    (
        "early_full_total",
        "Segments that came ahead of missing ones and were not passed on, by the limit that was hit; their senders repeat them.",
    ),
    (
        "forgets_total",
        "Forgets, which let connection trackers forget the ports of a closed leg, by what the pod answered.",
    ),
    ("owners_lost_total", "Flows whose backend died, by how this was noticed."),
    (
        "transfers_total",
        "Connections that a pod's application was asked to hand to another pod's, by what came of it.",
    ),
    (
        "releases_total",
        "Pods that answer nothing, asked to let go of requests that their applications have not read, by what came of it.",
    ),
    (
        "liveness_probes_total",
        "Probes and SYNs that asked whether a backend still listens, by result.",
    ),
    ("backends_down_total", "Backends that traffic found to be down, by reason."),
    ("ejections_total", "Backends with failures in a row, by whether they were ejected."),
    ("probes_total", "Probes whether a pod can adopt, by result."),
    ("timeouts_total", "Flows that a timer ended, by the state they were in."),
    ("drops_total", "Frames dropped, by reason."),
    ("malformed_total", "Frames dropped as malformed, by what is wrong with them."),
    ("lost_total", "Flows of all policies that ended because of a backend's death, by reason."),
    ("pins_total", "Flows of all policies that can never move any more, by reason."),
    (
        "flow_events_overwritten_total",
        "Events of flows that were overwritten before a `trace` had read them; harmless where nobody watches.",
    ),
    // Of the port.
    ("rx_frames_total", "Frames received."),
    ("rx_bytes_total", "Bytes of frames received."),
    ("tx_frames_total", "Frames sent."),
    ("tx_bytes_total", "Bytes of frames sent."),
    (
        "rx_segmented_total",
        "Segments cut out of frames that hold several, in packet mode and of what came through the host.",
    ),
    (
        "host_rx_frames_total",
        "With hostNetwork: frames that came through the node's own stack, each segment of a large one.",
    ),
    (
        "host_tx_frames_total",
        "With hostNetwork: packets that the node's own stack took to deliver.",
    ),
    ("fill_ring_empty_total", "Times that a fill ring was dry with no free buffer at hand."),
    ("io_wakeups_total", "System calls that send frames."),
    (
        "io_spins_total",
        "Times that frames were waited for awake, for some 40 us: where that pays, and CPU time is not rationed.",
    ),
    ("io_waits_total", "System calls that wait for frames."),
    ("kernel_tx_ring_empty_total", "Looks of the kernel at an empty TX ring; harmless."),
    ("steered_frames_total", "Frames steered to Baton."),
    ("passed_frames_total", "Frames left to the kernel."),
    (
        "passed_fragments_total",
        "IP fragments for Baton's addresses: left to the kernel, but for the first ones of its own segments, which are dropped.",
    ),
    ("io_drops_total", "Frames lost between interface and engine, by reason."),
    // Of the loop.
    ("worker_turns_total", "Turns of the packet worker's loop."),
    ("worker_commands_total", "Commands that the packet worker served."),
    (
        "neighbour_asks_lost_total",
        "Next hops that could not be asked for because too many questions waited.",
    ),
    (
        "steering_failures_total",
        "Changes of what is steered that the kernel refused; each is tried again.",
    ),
    ("captures_total", "Captures of frames that began."),
    ("capture_frames_total", "Frames that a capture's filter meant."),
    (
        "capture_drops_total",
        "Frames that are missing in captures, by reason; those that were not looked at (`unseen`) may have been meant or not.",
    ),
];

/// What a counter of this name means.
pub fn of(name: &str) -> &'static str {
    let own = |counter: &&Counter| counter.metric() == (name, None);
    let listed = MEANINGS.iter().find(|(listed, _)| *listed == name);
    listed
        .map(|(_, meaning)| *meaning)
        .or_else(|| Counter::ALL.iter().find(own).map(|counter| counter.help()))
        .unwrap_or("A counter of the packet worker.")
}

#[cfg(test)]
mod tests {
    use super::{super::reference_tests::worker_counters, *};
    use std::collections::BTreeSet;

    #[test]
    fn every_counter_has_a_meaning_and_every_meaning_a_counter() {
        let counters = worker_counters();
        let names: BTreeSet<&str> = counters.iter().map(|(name, ..)| *name).collect();
        for name in &names {
            assert_ne!(of(name), of("nothing has this name"), "{name}");
        }
        for (name, _) in MEANINGS {
            assert!(names.contains(name), "nothing counts {name}");
        }
    }
}
