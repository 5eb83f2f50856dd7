//! Figures of the operator, for Prometheus.
//!
//! Owns their names: `baton_operator_<what>_<unit>[_total]`. Labels are fixed words and dataplanes,
//! never policies, backends or clients: 5,000 policies must not make 5,000 series; a policy's
//! figures are in its status.

#[cfg(test)]
use baton_index::Coverage;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder, core::Collector, process_collector::ProcessCollector,
};

/// Of every metric's name.
pub const PREFIX: &str = "baton_operator_";
/// Who has a certificate, as labels.
pub const HOLDERS: [&str; 4] = ["authority", "dataplane", "shim", "operator"];
/// From 50 us to 3.3 s: a change of one endpoint among 50,000, and the first fold of all.
const FOLD_BUCKETS: (f64, f64, usize) = (50e-6, 3.0, 11);

/// All figures. Cheap to clone, as its parts are.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    /// Changes of objects that reached the index, by kind.
    pub changes: IntCounterVec,
    /// Folds of the index, each of a batch of changes.
    pub folds: IntCounter,
    /// What a fold takes.
    pub fold_seconds: Histogram,
    /// Changes that wait for the fold.
    pub queue_depth: IntGauge,
    /// Policies by condition and its status.
    pub policies: IntGaugeVec,
    /// Watches that ended with an error and began anew, by kind.
    pub watch_errors: IntCounterVec,
    /// Lists of a kind from the beginning, by kind.
    pub watch_lists: IntCounterVec,
    /// 1 while this process leads.
    pub leader: IntGauge,
    /// Of the generations that this process pushes; 0 while it does not lead.
    pub epoch: IntGauge,
    /// Writes to the API server or the state directory, by what and result.
    pub writes: IntCounterVec,
    /// Requests that were refused as a web page's, by what told it.
    pub foreign: IntCounterVec,
    /// Writes that wait, by what.
    pub writes_waiting: IntGaugeVec,
    /// Objects that could not be used, by kind.
    pub refused: IntGaugeVec,
    /// Panics that were caught while one object was translated.
    pub panics: IntCounter,
    /// Nodes with Pods of policies, by the state of their host-shim.
    pub backend_nodes: IntGaugeVec,
    /// Pods of policies without the adopter, by what is in its way.
    pub unadoptable_pods: IntGaugeVec,
    /// Until when certificates are good, by holder.
    pub certificate_ends: IntGaugeVec,
    /// Since when the adoption key that signs does so.
    pub key_since: IntGauge,
    /// Adoption keys that are stored.
    pub key_epochs: IntGauge,
}

impl Metrics {
    /// Registers all.
    ///
    /// # Errors
    /// Two have one name, which a test finds.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let build =
            gauges(&registry, "build_info", "Always 1; the version is its label.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self {
            changes: counters(
                &registry,
                "changes_total",
                "Changes of objects that reached the index.",
                &["kind"],
            )?,
            folds: counter(
                &registry,
                "reconciles_total",
                "Folds of the index, each of a batch of changes.",
            )?,
            fold_seconds: histogram(
                &registry,
                "fold_duration_seconds",
                "From a batch of changes to the new policy sets and verdicts.",
                FOLD_BUCKETS,
            )?,
            queue_depth: gauge(
                &registry,
                "queue_depth_changes",
                "Changes that wait for the fold.",
            )?,
            policies: gauges(
                &registry,
                "policies",
                "Policies by condition and its status.",
                &["condition", "status"],
            )?,
            watch_errors: counters(
                &registry,
                "watch_errors_total",
                "Watches that failed and began anew.",
                &["kind"],
            )?,
            watch_lists: counters(
                &registry,
                "watch_lists_total",
                "Complete lists of a kind: at the start, and after a watch expired.",
                &["kind"],
            )?,
            leader: gauge(&registry, "leader", "1 while this process leads.")?,
            epoch: gauge(
                &registry,
                "epoch",
                "Epoch of the generations that this process pushes; 0 while it does not lead.",
            )?,
            writes: counters(
                &registry,
                "writes_total",
                "Writes to the API server or the state directory, by what and result.",
                &["what", "result"],
            )?,
            foreign: counters(
                &registry,
                "foreign_requests_total",
                "Requests over loopback that were refused because a web page may have had them sent, by what told it.",
                &["reason"],
            )?,
            writes_waiting: gauges(
                &registry,
                "writes_waiting",
                "Writes that wait for their turn.",
                &["what"],
            )?,
            refused: gauges(
                &registry,
                "objects_refused",
                "Objects that could not be used as they are.",
                &["kind"],
            )?,
            panics: counter(
                &registry,
                "caught_panics_total",
                "Panics that were caught while one object was translated: each is a bug to report.",
            )?,
            backend_nodes: gauges(
                &registry,
                "backend_nodes",
                "Nodes with Pods of policies, by the state of their host-shim.",
                &["shim"],
            )?,
            unadoptable_pods: gauges(
                &registry,
                "unadoptable_pods",
                "Pods of policies that cannot have the adopter, by what is in the way.",
                &["reason"],
            )?,
            certificate_ends: gauges(
                &registry,
                "certificate_end_timestamp_seconds",
                "Until when certificates are good, in seconds since 1970, by holder; told by the leader.",
                &["holder"],
            )?,
            key_since: gauge(
                &registry,
                "adoption_key_since_timestamp_seconds",
                "Since when the adoption key that signs does so, in seconds since 1970; 0 where this process does not lead.",
            )?,
            key_epochs: gauge(
                &registry,
                "adoption_key_epochs",
                "Adoption keys that are stored: one, or two while they are exchanged; 0 where this process does not lead.",
            )?,
            registry,
        })
    }

    /// Adds figures that somebody else counts.
    ///
    /// # Errors
    /// One of them has a name that is taken.
    pub fn add(&self, collector: impl Collector + 'static) -> prometheus::Result<()> {
        self.registry.register(Box::new(collector))
    }

    /// One sample of each family that has labels, for the reference: a family without samples is
    /// not shown.
    #[cfg(test)]
    pub fn sample_all(&self, kinds: &[&str], conditions: &[&str], statuses: &[&str]) {
        // Without `..`, so that a new figure cannot be forgotten here.
        let Self {
            registry: _,
            changes,
            folds: _,
            fold_seconds: _,
            queue_depth: _,
            policies,
            watch_errors,
            watch_lists,
            leader: _,
            epoch: _,
            writes,
            foreign,
            writes_waiting,
            refused,
            panics: _,
            backend_nodes,
            unadoptable_pods,
            certificate_ends,
            key_since: _,
            key_epochs: _,
        } = self;
        let coverage = Coverage::default();
        for (label, _) in coverage.nodes() {
            backend_nodes.with_label_values(&[label]);
        }
        for (label, _) in coverage.pods() {
            unadoptable_pods.with_label_values(&[label]);
        }
        for reason in baton_api::Foreign::ALL {
            foreign.with_label_values(&[reason.label()]);
        }
        for holder in HOLDERS {
            certificate_ends.with_label_values(&[holder]);
        }
        for kind in kinds {
            for counters in [changes, watch_errors, watch_lists] {
                counters.with_label_values(&[*kind]);
            }
        }
        refused.with_label_values(&["file"]);
        for condition in conditions {
            for status in statuses {
                policies.with_label_values(&[*condition, *status]);
            }
        }
        writes.with_label_values(&["status", "written"]);
        writes_waiting.with_label_values(&["status"]);
    }

    /// All of them in the text format.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory fails only for a family without samples or name, which are left out.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("{PREFIX}{name}"), help)
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    registered(registry, IntCounter::with_opts(opts(name, help))?)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(opts(name, help), labels)?)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    registered(registry, IntGauge::with_opts(opts(name, help))?)
}

fn gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntGaugeVec> {
    registered(registry, IntGaugeVec::new(opts(name, help), labels)?)
}

fn buckets(
    name: &str,
    help: &str,
    (start, factor, count): (f64, f64, usize),
) -> prometheus::Result<HistogramOpts> {
    let buckets = prometheus::exponential_buckets(start, factor, count)?;
    Ok(HistogramOpts::from(opts(name, help)).buckets(buckets))
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    shape: (f64, f64, usize),
) -> prometheus::Result<Histogram> {
    let opts = buckets(name, help, shape)?;
    registered(registry, Histogram::with_opts(opts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_different_names_with_a_prefix_and_the_process_has_memory() {
        let metrics = Metrics::new().expect("no name twice");
        metrics.changes.with_label_values(&["Pod"]).inc();
        let text = metrics.text();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let prefixed = [PREFIX, "process_"].iter().any(|p| line.starts_with(p));
            assert!(prefixed, "{line}");
        }
        assert!(text.contains("baton_operator_changes_total{kind=\"Pod\"} 1"));
        let resident = text
            .lines()
            .find_map(|line| line.strip_prefix("process_resident_memory_bytes "))
            .expect("a figure");
        assert!(resident.parse::<f64>().expect("a number") > 1e6, "{resident}");
    }
}
