//! Marks on objects of a cluster by which Baton's programs know what is whose.

/// Label of a Service in front of dataplanes: the policy that it leads to.
pub const POLICY_LABEL: &str = "baton.dev/policy";
/// Annotation of such a Service that clients had before: the selector that it had, as JSON.
pub const SELECTOR_ANNOTATION: &str = "baton.dev/selector";
/// Who wrote a slice, as `endpointslice.kubernetes.io/managed-by` and, of a Service,
/// `app.kubernetes.io/managed-by` say it.
pub const MANAGER: &str = "baton-operator";
