//! What the operator makes goes with its ServiceAccount, and what an admin made does not. There is
//! no garbage collector here, so the references are looked at; that they suffice is seen in a
//! cluster (`e2e/suite`).

use anyhow::Result;
use baton_operator_tests::{
    OPERATOR, OPERATOR_NAMESPACE,
    cluster::wait_for,
    or_skip,
    world::{SECRETS, World},
};
use serde_json::{Value, json};

const SUPPLIED: &str = "baton-shim-tls";

fn lease() -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "baton-operator", "namespace": OPERATOR_NAMESPACE },
    })
}

/// All that an operator makes, but for what the admin made in its place.
fn made() -> impl Iterator<Item = Value> {
    let secrets = SECRETS.into_iter().filter(|name| *name != SUPPLIED);
    secrets.map(World::secret).chain([lease()])
}

#[tokio::test]
async fn secrets_and_the_lease_go_with_the_account_and_an_admins_secret_stays() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let admin = world.admin.clone();
    let mut supplied = World::secret(SUPPLIED);
    supplied["data"] = json!({ "tls.crt": "bm8=", "tls.key": "bm8=", "ca.crt": "bm8=" });
    let supplied = admin.apply(&supplied).await?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": OPERATOR, "namespace": OPERATOR_NAMESPACE },
    });
    let account = admin.get(&account).await?;
    let expected = json!([{
        "apiVersion": "v1", "kind": "ServiceAccount", "name": OPERATOR, "uid": account["metadata"]["uid"],
    }]);

    // By itself it does not know that the account is Baton's own; so did earlier versions.
    let earlier = world.start_operator("owners-earlier", &[])?;
    let mut before = Vec::new();
    for object in made() {
        let there = |o: &Value| !o["data"].is_null() || !o["spec"]["holderIdentity"].is_null();
        let stored = world.admin.until("it is made", &object, there).await?;
        assert_eq!(stored["metadata"]["ownerReferences"], Value::Null, "{stored}");
        before.push(stored["data"].clone());
    }
    earlier.kill()?;

    let operator = world.start_operator("owners-next", &["--owned-by-account"])?;
    for (object, data) in made().zip(before) {
        let owned = |o: &Value| o["metadata"]["ownerReferences"] == expected;
        let stored = world.admin.until("it has its owner", &object, owned).await?;
        assert_eq!(stored["data"], data, "contents stay");
    }
    // One that is made now has it from the start.
    let again = World::secret("baton-dataplane-tls");
    let old = admin.get(&again).await?;
    admin.delete(&again).await?;
    // Its next look at the Secrets is a minute away; another process looks at once.
    operator.kill()?;
    let operator = world.start_operator("owners-last", &["--owned-by-account"])?;
    let made = wait_for("it is made again", async || {
        let stored = admin.get(&again).await?;
        anyhow::ensure!(stored["metadata"]["uid"] != old["metadata"]["uid"]);
        Ok(stored)
    });
    let made = made.await?;
    assert_eq!(made["metadata"]["ownerReferences"], expected, "{made}");
    assert_eq!(admin.get(&supplied).await?, supplied, "{}", operator.log());
    let log = operator.log();
    assert!(!log.contains("may not be changed"), "{log}");
    Ok(())
}
