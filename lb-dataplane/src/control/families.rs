//! Metric families under construction: puts samples of one name together, as the text format wants
//! them.
//!
//! Owns the prefix of all names. Knows no metric.

use baton_engine::Latency;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use std::collections::BTreeMap;

/// Of every metric's name.
pub const PREFIX: &str = "baton_dataplane_";

/// Metric families under construction, by name.
#[derive(Default)]
pub struct Families {
    all: BTreeMap<String, (MetricFamily, Vec<Metric>)>,
    /// Of every sample at this time.
    within: Vec<LabelPair>,
}

impl Families {
    /// Gives the samples that `fill` adds these labels, in front of their own.
    pub fn within(&mut self, labels: &[(&str, &str)], fill: impl FnOnce(&mut Self)) {
        let before = self.within.len();
        self.within.extend(labels.iter().map(pair));
        fill(self);
        self.within.truncate(before);
    }

    /// Adds a counter's sample.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the metric type is a float: exact up to 2^53, then rounded"
    )]
    pub fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.counter_of(name, help, labels, value as f64);
    }

    /// The same of what is no whole number, such as seconds.
    pub fn counter_of(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        let mut metric = self.with_labels(labels);
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
        self.add(name, help, MetricType::COUNTER, metric);
    }

    /// Adds a gauge's sample.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        let mut metric = self.with_labels(labels);
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
        self.add(name, help, MetricType::GAUGE, metric);
    }

    /// Adds a histogram's samples: the engine's bounds in seconds, infinity, sum and count.
    #[expect(clippy::cast_precision_loss, reason = "bounds and sums are far below 2^53 us")]
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        latency: &Latency,
    ) {
        let mut histogram = Histogram::default();
        let buckets = latency.buckets().map(|(bound_us, below)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound_us as f64 / 1e6);
            bucket.set_cumulative_count(below);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(latency.count());
        histogram.set_sample_sum(latency.sum_us() as f64 / 1e6);
        let mut metric = self.with_labels(labels);
        metric.set_histogram(histogram);
        self.add(name, help, MetricType::HISTOGRAM, metric);
    }

    fn add(&mut self, name: &str, help: &str, kind: MetricType, metric: Metric) {
        let name = format!("{PREFIX}{name}");
        let (_, metrics) = self.all.entry(name).or_insert_with_key(|name| {
            let mut family = MetricFamily::default();
            family.set_name(name.clone());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            (family, Vec::new())
        });
        metrics.push(metric);
    }

    fn with_labels(&self, labels: &[(&str, &str)]) -> Metric {
        let own = labels.iter().map(pair);
        let mut metric = Metric::default();
        metric.set_label(self.within.iter().cloned().chain(own).collect());
        metric
    }

    /// All families.
    pub fn finish(self) -> Vec<MetricFamily> {
        self.all
            .into_values()
            .map(|(mut family, metrics)| {
                family.set_metric(metrics);
                family
            })
            .collect()
    }
}

fn pair((name, value): &(&str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name((*name).to_owned());
    pair.set_value((*value).to_owned());
    pair
}
