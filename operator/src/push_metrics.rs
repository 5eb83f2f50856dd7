//! Figures of pushes: what the pushers count, under the operator's names.
//!
//! Owns the names and nothing else.

use crate::metrics::PREFIX;
use baton_push::push::{Figures, Metrics, PUSH_BUCKETS_SECONDS};
use prometheus::{
    core::{Collector, Desc},
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};
use std::{collections::HashMap, sync::Arc};

/// Shows them when asked.
pub struct PushFigures {
    metrics: Arc<Metrics>,
    desc: Vec<Desc>,
}

impl PushFigures {
    /// Of these pushers.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        // One stands for all: the registry only wants to know that nobody else has the names.
        let desc = Desc::new(
            format!("{PREFIX}pushes_total"),
            "Snapshots sent to dataplanes, by result.".to_owned(),
            vec!["result".to_owned()],
            HashMap::new(),
        );
        Self { metrics, desc: desc.into_iter().collect() }
    }
}

impl Collector for PushFigures {
    fn desc(&self) -> Vec<&Desc> {
        self.desc.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        families(&self.metrics.figures())
    }
}

fn families(figures: &Figures) -> Vec<MetricFamily> {
    let results = [
        ("accepted", figures.pushes_accepted),
        ("refused", figures.pushes_refused),
        ("conflict", figures.pushes_conflicting),
        ("failed", figures.pushes_failed),
    ];
    let results = results.map(|(result, value)| counter(value, Some(("result", result))));
    let mut all = vec![family(
        "pushes_total",
        "Snapshots sent to dataplanes, by result.",
        MetricType::COUNTER,
        results.to_vec(),
    )];
    for (name, help, value) in [
        ("push_bytes_total", "Bytes of all accepted snapshots.", figures.pushed_bytes),
        ("snapshot_reads_total", "Snapshots read back from dataplanes.", figures.reads),
        ("polls_total", "States read from dataplanes and shims.", figures.polls),
        (
            "control_failures_total",
            "Requests and connections to control APIs that failed, pushes included.",
            figures.failures,
        ),
        ("dataplane_restarts_total", "Dataplanes found to have started again.", figures.restarts),
    ] {
        let metrics = vec![counter(value, None)];
        all.push(family(name, help, MetricType::COUNTER, metrics));
    }
    for (name, help, value) in [
        ("dataplanes", "Dataplanes there are.", figures.dataplanes),
        (
            "dataplanes_in_sync",
            "Dataplanes that hold the newest content of their class.",
            figures.dataplanes_in_sync,
        ),
        ("shims", "Shims there are.", figures.shims),
    ] {
        let mut gauge = Gauge::default();
        gauge.set_value(float(value));
        let mut metric = Metric::default();
        metric.set_gauge(gauge);
        all.push(family(name, help, MetricType::GAUGE, vec![metric]));
    }
    let mut metric = Metric::default();
    metric.set_histogram(histogram(figures));
    all.push(family(
        "push_duration_seconds",
        "From a push's request to the dataplane's answer, of those accepted.",
        MetricType::HISTOGRAM,
        vec![metric],
    ));
    all
}

fn histogram(figures: &Figures) -> Histogram {
    let mut below = 0;
    let buckets = PUSH_BUCKETS_SECONDS.iter().zip(figures.push_buckets);
    let buckets = buckets.map(|(end, count)| {
        below += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*end);
        bucket.set_cumulative_count(below);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(figures.push_buckets.iter().sum());
    histogram.set_sample_sum(float(figures.push_micros) / 1e6);
    histogram
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(format!("{PREFIX}{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn counter(value: u64, label: Option<(&str, &str)>) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(float(value));
    let mut metric = Metric::default();
    metric.set_counter(counter);
    let labels = label.map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    metric.set_label(labels.into_iter().collect());
    metric
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the metric type is a float: exact up to 2^53, then rounded"
)]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Encoder, TextEncoder};

    #[test]
    fn figures_become_families_with_cumulative_buckets() {
        let mut figures =
            Figures { pushes_accepted: 3, push_micros: 1_500_000, ..Figures::default() };
        figures.push_buckets[0] = 2;
        figures.push_buckets[9] = 1;
        let mut text = Vec::new();
        TextEncoder::new().encode(&families(&figures), &mut text).expect("good");
        let text = String::from_utf8(text).expect("text");
        for line in [
            "baton_operator_pushes_total{result=\"accepted\"} 3",
            "baton_operator_push_duration_seconds_bucket{le=\"0.001\"} 2",
            "baton_operator_push_duration_seconds_bucket{le=\"0.5\"} 2",
            "baton_operator_push_duration_seconds_bucket{le=\"1\"} 3",
            "baton_operator_push_duration_seconds_bucket{le=\"+Inf\"} 3",
            "baton_operator_push_duration_seconds_sum 1.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
