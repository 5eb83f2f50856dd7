//! The operator's part of `docs/generated/metrics.md`, from what it really exports.
//! `BATON_GENERATE=1` writes it anew.

use crate::{
    kind::Kind,
    metrics::{Metrics, PREFIX},
    push_metrics::PushFigures,
};
use baton_index::{ConditionKind, Status};
use baton_tidy::metrics::Component;
use std::sync::Arc;

#[test]
fn metric_reference_is_what_the_operator_exports() {
    let metrics = Metrics::new().expect("no name twice");
    metrics.add(PushFigures::new(Arc::default())).expect("no name twice");
    let spans = crate::telemetry::figures().expect("a name");
    for result in ["exported", "failed", "dropped"] {
        spans.with_label_values(&[result]);
    }
    metrics.add(spans).expect("no name twice");
    let kinds = Kind::ALL.map(Kind::as_str);
    let conditions = ConditionKind::ALL.map(ConditionKind::as_str);
    let statuses = [Status::True, Status::False, Status::Unknown].map(Status::as_str);
    metrics.sample_all(&kinds, &conditions, &statuses);
    let component = Component {
        name: "baton-operator",
        prefix: PREFIX,
        place: "http://POD:9912/metrics of each operator; the leader's figures are those of the cluster",
        open: &["version"],
        open_of: &[
            ("objects_refused", "kind"),
            ("writes_total", "what"),
            ("writes_total", "result"),
            ("writes_waiting", "what"),
        ],
        meanings: &[],
    };
    component.keep(&metrics.text());
}
