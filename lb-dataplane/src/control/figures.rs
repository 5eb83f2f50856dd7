//! The worker's report as metrics: counters, tables, policies and their backends.
//!
//! Owns their names: `<what>_<unit>[_total]` behind the prefix. Labels are fixed words, policies
//! (in a cluster their namespaces, names and listeners) and backends.

use super::{families::Families, meanings};
use crate::{commands::Report, diagnosis::is_usable};
use baton_api::{BackendLoad, BackendState, DrainState, Micros, PolicyPlacement, PolicyState};
use baton_cli::PolicyName;
use baton_engine::{BackendFigures, Cause, Lost, MoveEnd, PolicyFigures};
use std::collections::BTreeMap;

/// Adds all figures of a report.
pub fn worker(out: &mut Families, report: &Report) {
    for (name, label, value) in &report.counters {
        let label = label.map(|(name, value)| [(name, value)]);
        out.counter(name, meanings::of(name), label.as_ref().map_or(&[], |l| l.as_slice()), *value);
    }
    let state = &report.state;
    out.gauge(
        "snapshot_generation",
        "Generation of the snapshot in force.",
        &[],
        float(state.generation),
    );
    out.gauge(
        "snapshot_refused_policies",
        "Policies of the snapshot in force that this dataplane does not serve as it has them; `lb-dataplane status` says why.",
        &[],
        float(state.refused.len() as u64),
    );
    out.gauge("uptime_seconds", "Seconds since start.", &[], float(state.uptime_seconds));
    out.gauge(
        "key_epochs",
        "Adoption keys in use: one, or two while they are exchanged.",
        &[],
        float(state.worker.key_epochs.len() as u64),
    );
    for (table, (used, limit)) in &state.tables {
        let label = [("table", table.as_str())];
        let used_help =
            "Entries in use in a table of fixed size; of several workers' in the fullest.";
        out.gauge("table_used_entries", used_help, &label, float(*used));
        let limit_help = "Size of a table of fixed size, of several workers' of that one.";
        out.gauge("table_limit_entries", limit_help, &label, float(*limit));
    }
    for policy in &state.policies {
        out.within(&of_policy(&PolicyName::parse(&policy.name)), |out| {
            self::policy(out, policy);
            unadoptable(out, policy);
        });
    }
    for figures in &report.figures {
        out.within(&of_policy(&PolicyName::parse(&figures.name)), |out| {
            policy_figures(out, figures);
        });
    }
}

/// In a cluster a policy's namespace, name and listener, of a file's only the name.
fn of_policy(name: &PolicyName) -> Vec<(&'static str, &str)> {
    let all = [
        ("policy_namespace", name.namespace.as_str()),
        ("policy", &name.policy),
        ("listener", &name.listener),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// What is of no use but in metrics.
fn policy_figures(out: &mut Families, figures: &PolicyFigures) {
    out.histogram(
        "policy_migration_duration_seconds",
        "From an adoption that leaves to its confirmation, of those confirmed.",
        &[],
        &figures.moves,
    );
    for (reason, flows) in &figures.pinned {
        out.gauge(
            "policy_pinned_flows",
            "Client connections at this moment that can never move any more, by reason.",
            &[("reason", reason)],
            float(*flows),
        );
    }
    for (reason, resets) in &figures.resets {
        out.counter(
            "policy_client_resets_total",
            "Resets that clients got, by reason.",
            &[("reason", reason)],
            *resets,
        );
    }
    out.counter(
        "policy_not_allowed_total",
        "SYNs of clients that the policy's allowFrom does not name; each repetition counts.",
        &[],
        figures.not_allowed,
    );
    for backend in &figures.backends {
        out.within(&[("backend_pod", &backend.name)], |out| {
            backend_figures(out, backend);
        });
    }
}

fn backend_figures(out: &mut Families, backend: &BackendFigures) {
    out.histogram(
        "backend_first_byte_duration_seconds",
        "From a request to the first byte of its response.",
        &[],
        &backend.first_byte,
    );
    out.counter(
        "backend_flows_total",
        "New client connections that the backend accepted, before any of them moved.",
        &[],
        backend.flows_begun,
    );
    out.gauge(
        "backend_leg_ports",
        "Ports of legs to the backend, times the addresses that legs come from; of several workers those of the one with the fewest ready.",
        &[],
        float(backend.leg_ports),
    );
    out.gauge(
        "backend_ready_leg_ports",
        "Those among them that no tracker on the way can remember, so that moves may use them; an eighth is kept for rescues and drains.",
        &[],
        float(backend.ready_leg_ports),
    );
}

#[expect(
    clippy::cast_precision_loss,
    reason = "gauges are floats; their figures are far below 2^53"
)]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(span: Micros) -> f64 {
    float(span.0) / 1e6
}

fn truth(truth: bool) -> f64 {
    f64::from(u8::from(truth))
}

fn policy(out: &mut Families, policy: &PolicyState) {
    for (name, help, value) in [
        ("policy_active_flows", "Client connections at this moment.", float(policy.flows)),
        (
            "policy_panic",
            "1 if too few backends are usable, so that all are used.",
            truth(policy.panic),
        ),
    ] {
        out.gauge(name, help, &[], value);
    }
    for (name, help, value) in [
        ("policy_flows_total", "Client connections since start.", policy.flows_total),
        ("policy_migrations_total", "Adoptions that were confirmed.", policy.migrations_total),
        ("policy_rollbacks_total", "Adoptions that were taken back.", policy.rollbacks_total),
        (
            "policy_rescues_total",
            "Flows that died backends left and other ones went on with.",
            policy.rescues_total,
        ),
        (
            "policy_replays_total",
            "Requests that may have been executed and were sent again.",
            policy.replays_total,
        ),
    ] {
        out.counter(name, help, &[], value);
    }
    if let Some(placement) = &policy.placement {
        self::placement(out, placement);
    }
    // One that has left the snapshot needs none: only its last flows are still there.
    if !policy.frontends.is_empty() {
        let usable = policy.backends.iter().filter(|b| is_usable(b)).count();
        out.gauge(
            "policy_usable_backends",
            "Backends that take new connections: they work, do not drain and have a weight.",
            &[],
            float(usable as u64),
        );
    }
    // At 0 before the first: Prometheus sees no increase in a series that begins with its events.
    for lost in Lost::ALL {
        out.counter(
            "policy_lost_total",
            "Flows that ended because of a backend's death, by reason.",
            &[("reason", lost.label())],
            policy.lost_total.get(lost.label()).copied().unwrap_or(0),
        );
    }
    for (reason, count) in &policy.pins_total {
        out.counter(
            "policy_pins_total",
            "Flows that can never move any more, by reason.",
            &[("reason", reason)],
            *count,
        );
    }
    moves(out, policy);
    for backend in &policy.backends {
        out.within(&[("backend_pod", &backend.name)], |out| {
            self::backend(out, backend);
        });
    }
}

/// Of the 52 that there can be, those that moved are there at 0: a drain is one burst. Of the
/// others only what happened.
fn moves(out: &mut Families, policy: &PolicyState) {
    for cause in Cause::ALL.iter().map(|cause| cause.label()) {
        let ended = policy.moves_total.get(cause);
        for end in MoveEnd::ALL {
            let count = ended.and_then(|ends| ends.get(end.label())).copied();
            let Some(count) = count.or((*end == MoveEnd::Moved).then_some(0)) else {
                continue;
            };
            out.counter(
                "policy_moves_total",
                "Moves that ended, by why they began and how they ended.",
                &[("cause", cause), ("outcome", end.label())],
                count,
            );
        }
    }
}

/// By what backends are compared, and what moves for a lower wait brought.
fn placement(out: &mut Families, placement: &PolicyPlacement) {
    out.gauge(
        "policy_usual_wait_seconds",
        "Lower median of the backends' mean waits over half a second.",
        &[],
        seconds(placement.usual_wait),
    );
    out.gauge(
        "policy_uneven",
        "1 if the backends are unevenly busy, so that each request may go to a shorter queue.",
        &[],
        truth(placement.uneven),
    );
    out.counter(
        "policy_distressed_total",
        "Times that a backend waited far longer than the others for so long that its flows left it.",
        &[],
        placement.distressed_total,
    );
    for (name, help, value) in [
        (
            "policy_move_gain_expected_seconds_total",
            "What requests that moved for a lower wait were expected to wait less.",
            placement.expected,
        ),
        (
            "policy_move_gain_seen_seconds_total",
            "What they waited less than was expected where they were.",
            placement.won,
        ),
        (
            "policy_move_loss_seen_seconds_total",
            "What those waited more that came off worse.",
            placement.lost,
        ),
    ] {
        out.counter_of(name, help, &[], seconds(value));
    }
}

/// The words of probes, counted.
fn unadoptable(out: &mut Families, policy: &PolicyState) {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for backend in policy.backends.iter().filter(|b| !b.adoptability.is_ready()) {
        *reasons.entry(backend.adoptability.words()).or_default() += 1;
    }
    for (reason, backends) in reasons {
        out.gauge(
            "policy_unadoptable_backends",
            "Backends that do not adopt connections, by what their probe says.",
            &[("reason", reason)],
            float(backends),
        );
    }
}

fn backend(out: &mut Families, backend: &BackendState) {
    for (name, help, value) in [
        (
            "backend_up",
            "1 if the backend works, as far as checks and traffic tell.",
            truth(backend.health.is_up()),
        ),
        (
            "backend_adoptable",
            "1 if the backend's adopter answered the last probe.",
            truth(backend.adoptability.is_ready()),
        ),
        (
            "backend_draining",
            "1 if the backend takes no new flow.",
            truth(backend.draining || backend.drain.is_some()),
        ),
        ("backend_active_flows", "Flows that the backend owns.", float(backend.flows)),
        (
            "backend_stranded_flows",
            "Flows that wait for another owner because this one is gone.",
            float(backend.stranded),
        ),
        (
            "backend_outstanding_requests",
            "Requests without a response byte yet.",
            float(backend.outstanding),
        ),
        (
            "backend_first_byte_seconds",
            "Moving peak average of the time to the first response byte.",
            seconds(backend.first_byte),
        ),
    ] {
        out.gauge(name, help, &[], value);
    }
    for (name, help, value) in [
        ("backend_requests_total", "Requests since start.", backend.requests_total),
        (
            "backend_migrations_in_total",
            "Flows that came by migration.",
            backend.migrations_in_total,
        ),
        (
            "backend_migrations_out_total",
            "Flows that left by migration.",
            backend.migrations_out_total,
        ),
        (
            "backend_rescued_total",
            "Flows that died here and went on elsewhere.",
            backend.rescued_total,
        ),
    ] {
        out.counter(name, help, &[], value);
    }
    if let Some(load) = &backend.load {
        self::load(out, load);
    }
    if let Some(placement) = &backend.placement {
        out.gauge(
            "backend_distressed",
            "1 while the backend's flows leave it because it waits far longer than the policy's others, or is on trial after that.",
            &[],
            truth(matches!(placement.standing.as_str(), "distressed" | "trial")),
        );
        out.gauge(
            "backend_mean_wait_seconds",
            "Mean wait of requests over half a second.",
            &[],
            seconds(placement.mean_wait),
        );
        out.gauge(
            "backend_move_cost_seconds",
            "What requests that come with a move wait longer than those that stay.",
            &[],
            seconds(placement.move_cost),
        );
    }
    if let Some(drain) = &backend.drain {
        self::drain(out, drain);
    }
}

/// What the pod's kernel says, as far as it does.
fn load(out: &mut Families, load: &BackendLoad) {
    out.gauge(
        "backend_accept_queue_connections",
        "Connections that wait to be accepted, whoever made them; 2047 for that many or more.",
        &[],
        float(load.accept_queue.into()),
    );
    out.gauge(
        "backend_accept_queue_limit",
        "How many of them there can be; 2047 for that many or more.",
        &[],
        float(load.accept_queue_room.into()),
    );
    out.counter(
        "backend_listener_drops_total",
        "What the backend's listeners dropped, mostly because that queue was full.",
        &[],
        load.drops_total,
    );
    for (name, help, percent) in [
        (
            "backend_throttled_ratio",
            "Part of the last seconds in whose periods the backend was throttled by its CPU quota.",
            load.throttled_percent,
        ),
        (
            "backend_cpu_pressure_ratio",
            "Part of the last seconds in which the backend wanted a CPU and had none.",
            load.cpu_percent,
        ),
        (
            "backend_memory_pressure_ratio",
            "Part of the last seconds in which something in the backend waited for memory.",
            load.memory_percent,
        ),
    ] {
        if let Some(percent) = percent {
            out.gauge(name, help, &[], float(percent.into()) / 100.0);
        }
    }
}

/// Gauges, there only while the backend drains: all of them start at 0 with each drain.
fn drain(out: &mut Families, drain: &DrainState) {
    for (name, help, value) in [
        ("drain_moved_flows", "Flows that moved since the drain began.", drain.moved),
        ("drain_ended_flows", "Flows that ended by themselves since the drain began.", drain.ended),
        ("drain_closed_flows", "Flows that the drain's deadline closed.", drain.closed),
    ] {
        out.gauge(name, help, &[], float(value));
    }
    out.gauge(
        "drain_deadline_seconds",
        "Until the drain's deadline; 0 when it has passed.",
        &[],
        float(drain.left.0) / 1e6,
    );
    for (reason, flows) in &drain.waiting {
        out.gauge(
            "drain_waiting_flows",
            "Flows that have not left a draining backend, by what they wait for.",
            &[("reason", reason)],
            float(*flows),
        );
    }
}
