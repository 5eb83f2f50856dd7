//! Fields that a create has set, handed over to server-side apply.
//!
//! Owns who has which fields of an object that this operator created. A create is the only write
//! that never changes an object that is there already, but what it sets belongs to the field
//! manager as an `Update`; an apply takes away only what an apply has set, so a port that a policy
//! no longer has would stay. So the entry of the create becomes one of an apply. That is how
//! `kubectl` and client-go (`csaupgrade`) do it too.

use k8s_openapi::{
    api::core::v1::Service,
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry},
};
use serde_json::{Value, json};

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// The merge patch by which what `manager` has set by a create is as if it had applied it; nothing
/// where that is so. With the object's version, so that entries of others stay as they are.
pub(super) fn to_apply(object: &Service, manager: &str) -> Option<Value> {
    let meta = &object.metadata;
    let mut entries = meta.managed_fields.clone()?;
    let by = |operation: &str| {
        let is = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref() == Some(manager)
                && entry.operation.as_deref() == Some(operation)
                && entry.subresource.is_none()
        };
        entries.iter().position(is)
    };
    let (created, applied) = (by(UPDATE)?, by(APPLY));
    match applied {
        None => entries[created].operation = Some(APPLY.to_owned()),
        Some(applied) => {
            let more = entries[created].fields_v1.take();
            let fields = entries[applied].fields_v1.get_or_insert(FieldsV1(json!({})));
            union(&mut fields.0, more.map_or(Value::Null, |more| more.0));
            entries.remove(created);
        }
    }
    Some(json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "managedFields": entries,
    }}))
}

/// Sets of fields are objects of objects.
fn union(fields: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) = (fields, more) {
        for (name, below) in more {
            union(fields.entry(name).or_insert_with(|| json!({})), below);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(entries: &Value) -> Service {
        let object = json!({"metadata": {
            "name": "web", "uid": "u", "resourceVersion": "7", "managedFields": entries,
        }});
        serde_json::from_value(object).expect("a Service")
    }

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "fieldsV1": fields})
    }

    #[test]
    fn what_was_created_becomes_applied_and_entries_of_others_stay() {
        let fields = json!({"f:spec": {"f:type": {}}});
        let other = entry("them", UPDATE, &json!({"f:status": {}}));
        let created = object(&json!([other, entry("us", UPDATE, &fields)]));
        let expected = json!({"metadata": {
            "uid": "u", "resourceVersion": "7", "managedFields": [other, entry("us", APPLY, &fields)],
        }});
        assert_eq!(to_apply(&created, "us"), Some(expected));
        let applied = object(&json!([other, entry("us", APPLY, &fields)]));
        assert_eq!(to_apply(&applied, "us"), None);
    }

    #[test]
    fn one_that_was_applied_since_has_both_sets_of_fields() {
        let both = object(&json!([
            entry("us", APPLY, &json!({"f:spec": {"f:ports": {"80": {}}}})),
            entry("us", UPDATE, &json!({"f:spec": {"f:ports": {"81": {"f:name": {}}}}, "f:a": {}})),
        ]));
        let patch = to_apply(&both, "us").expect("a patch");
        let all = json!({"f:spec": {"f:ports": {"80": {}, "81": {"f:name": {}}}}, "f:a": {}});
        let expected = json!([entry("us", APPLY, &all)]);
        assert_eq!(patch["metadata"]["managedFields"], expected);
    }
}
