//! The state as Prometheus metrics. Names carry units and `_total`; labels come from fixed strings.

use crate::{tracking::ConnTracking, view::State};
use baton_api::Foreign;
use baton_tls::{Reason, Server};
use prometheus::{
    Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    process_collector::ProcessCollector,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// The text format of Prometheus. The figures live in the kernel and in the shim, so a registry is
/// filled per scrape.
pub fn text(
    state: &State,
    tls: Option<&Server>,
    foreign: &[AtomicU64; Foreign::ALL.len()],
) -> prometheus::Result<Vec<u8>> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let info = IntGaugeVec::new(
        Opts::new("baton_shim_build_info", "Always 1; the labels tell what runs."),
        &["version", "kernel"],
    )?;
    registry.register(Box::new(info.clone()))?;
    info.with_label_values(&[state.version, &state.kernel]).set(1);

    let segments = IntCounterVec::new(
        Opts::new(
            "baton_shim_adoption_segments_total",
            "Segments with the adoption option that came to this node's pods, by what became of them.",
        ),
        &["outcome"],
    )?;
    registry.register(Box::new(segments.clone()))?;
    for (outcome, count) in &state.adoption_segments {
        segments.with_label_values(&[*outcome]).inc_by(*count);
    }

    let pods = IntGaugeVec::new(
        Opts::new(
            "baton_shim_pods",
            "Pods of policies on this node, by whether they have the adopter; `unfit` are those that start, have no process, or are of a kind that never has one.",
        ),
        &["state"],
    )?;
    registry.register(Box::new(pods.clone()))?;
    let attached = state.pods.iter().filter(|p| p.attached).count();
    let failed = state.pods.iter().filter(|p| p.wrong).count();
    for (word, count) in [
        ("attached", attached),
        ("failed", failed),
        ("unfit", state.pods.len() - attached - failed),
    ] {
        pods.with_label_values(&[word]).set(count as i64);
    }

    let reloads = IntCounterVec::new(
        Opts::new(
            "baton_shim_config_reloads_total",
            "How often the configuration was read again, by result.",
        ),
        &["result"],
    )?;
    registry.register(Box::new(reloads.clone()))?;
    for (result, count) in [("good", state.config_reloads), ("refused", state.config_refusals)] {
        reloads.with_label_values(&[result]).inc_by(count);
    }

    let failures = IntCounter::new(
        "baton_shim_attach_failures_total",
        "Attempts to attach the adopter that failed.",
    )?;
    registry.register(Box::new(failures.clone()))?;
    failures.inc_by(state.attach_failures);

    let attached = IntCounterVec::new(
        Opts::new(
            "baton_shim_attached_pods_total",
            "Discovered pods that got the adopter from this process, by when: before the API server said that they run, within 100 ms of that, or later.",
        ),
        &["when"],
    )?;
    registry.register(Box::new(attached.clone()))?;
    for (when, count) in &state.attached {
        attached.with_label_values(&[*when]).inc_by(*count);
    }

    let refused = IntCounterVec::new(
        Opts::new(
            "baton_shim_control_foreign_requests_total",
            "Requests at ports without TLS that were refused because a web page may have had them sent, by what told it.",
        ),
        &["reason"],
    )?;
    registry.register(Box::new(refused.clone()))?;
    for (reason, count) in Foreign::ALL.iter().zip(foreign) {
        let counter = refused.with_label_values(&[reason.label()]);
        counter.inc_by(count.load(Ordering::Relaxed));
    }

    if let Some(server) = tls {
        let end = IntGauge::new(
            "baton_shim_control_certificate_end_timestamp_seconds",
            "Until when the certificate of the control API is good, in seconds since 1970.",
        )?;
        registry.register(Box::new(end.clone()))?;
        end.set(server.ends());
    }
    if let Some(counts) = tls.map(Server::counts) {
        let handshakes = IntCounterVec::new(
            Opts::new(
                "baton_shim_control_tls_handshakes_total",
                "TLS handshakes with the control API's clients, by result.",
            ),
            &["result"],
        )?;
        registry.register(Box::new(handshakes.clone()))?;
        let count = |result, value| handshakes.with_label_values(&[result]).inc_by(value);
        count("accepted", counts.accepted());
        for reason in Reason::ALL {
            count(reason.label(), counts.refused(*reason));
        }
    }

    if let Some(figures) = &state.releases.figures {
        let releases = IntCounterVec::new(
            Opts::new(
                "baton_shim_releases_total",
                "Requests that dataplanes asked to take from this node's pods because they do not answer, by what was decided: released, kept, or undecided for want of the pod's namespace or because the kernel refused.",
            ),
            &["decision"],
        )?;
        registry.register(Box::new(releases.clone()))?;
        for (decision, count) in &state.releases.decided {
            releases.with_label_values(&[*decision]).inc_by(*count);
        }
        registry.register(Box::new(figures.passes.clone()))?;
    }

    if let Some(figures) = &state.transfers.figures {
        for (name, help, label, counts) in [
            (
                "baton_shim_transfers_total",
                "Connections that dataplanes asked to move from an application of this node to another one, in the middle of a request or response, by result: moved, reset (lost behind the point of no return), or why it stayed.",
                "result",
                state.transfers.ended.clone(),
            ),
            (
                "baton_shim_transfers_received_total",
                "Connections that other nodes offered to applications of this node, by result: taken, declined, undone (the other node gave it up), lease_over, abandoned (ready, and the other node said nothing more: lost if it had parted with it), reset.",
                "result",
                state.transfers.received.clone(),
            ),
            (
                "baton_shim_transfer_channels_ended_total",
                "Connections between this host-shim and those of other nodes that ended, by why: idle and left are their ordinary ends.",
                "reason",
                figures.channels_ended(),
            ),
            (
                "baton_shim_application_links_refused_total",
                "Connections of applications to host-shim that were refused or closed: too many of one pod or of the node, no Hello in time, no message of this version, answers that nobody asked for, an application that reads nothing, or a pod whose descriptors do not close.",
                "reason",
                figures.refused(),
            ),
        ] {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            for (value, count) in counts {
                counters.with_label_values(&[value]).inc_by(count);
            }
        }
        let taken = IntCounter::new(
            "baton_shim_transfer_ports_taken_total",
            "Times that a pod could not be reached from other nodes because another process of it listens on transfers.port.",
        )?;
        registry.register(Box::new(taken.clone()))?;
        taken.inc_by(figures.shut_doors.load(Ordering::Relaxed));
        registry.register(Box::new(figures.frozen_between.clone()))?;
        registry.register(Box::new(figures.frozen.clone()))?;
    }

    if let Some(tracking) = &state.conn_tracking {
        conn_tracking(&registry, tracking)?;
    }

    for (name, help, value) in [
        (
            "baton_shim_can_release",
            "Whether this node's kernel can take unread requests from stalled pods: 1 or 0.",
            i64::from(state.releases.unable.is_none()),
        ),
        (
            "baton_shim_can_transfer",
            "Whether this node can move connections between applications that cooperate: 1 or 0.",
            i64::from(state.transfers.unable.is_none()),
        ),
        (
            "baton_shim_application_links",
            "Applications that are connected to host-shim, to hand connections out and take them.",
            i64::try_from(state.transfers.applications).unwrap_or(i64::MAX),
        ),
        ("baton_shim_key_epochs", "Key epochs that are live.", state.key_epochs.len() as i64),
        (
            "baton_shim_uptime_seconds",
            "Time since the shim started.",
            i64::try_from(state.uptime_seconds).unwrap_or(i64::MAX),
        ),
    ] {
        let gauge = IntGauge::new(name, help)?;
        registry.register(Box::new(gauge.clone()))?;
        gauge.set(value);
    }

    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

/// The node's table of connections. A node without connection tracking exports none of these.
fn conn_tracking(registry: &Registry, tracking: &ConnTracking) -> prometheus::Result<()> {
    for (name, help, value) in [
        (
            "baton_shim_conntrack_used_entries",
            "Entries of the node's connection tracking.",
            tracking.entries,
        ),
        (
            "baton_shim_conntrack_limit_entries",
            "How many the kernel allows (nf_conntrack_max); with so many it drops packets of new connections.",
            tracking.entries_max,
        ),
    ] {
        let gauge = IntGauge::new(name, help)?;
        registry.register(Box::new(gauge.clone()))?;
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    }
    if let Some(count) = tracking.invalid_packets {
        let invalid = IntCounter::new(
            "baton_shim_conntrack_invalid_packets_total",
            "Packets that the node's connection tracking called INVALID, whosoever they were; kube-proxy drops these in iptables mode.",
        )?;
        registry.register(Box::new(invalid.clone()))?;
        invalid.inc_by(count);
    }
    Ok(())
}
