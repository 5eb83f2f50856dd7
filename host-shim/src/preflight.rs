//! What this kernel and these namespaces can do, what is missing and what to change. Changes
//! nothing.

mod node;
mod pod;
mod report;

use crate::{
    config::{Config, Keys, Pod},
    tracking::NodeNetwork,
};
use baton_adopter::{DEFAULT_PIN_DIR, Netns};
use baton_crds::PodMultipathTcp;
use report::Finding;
pub use report::Report;
use std::path::Path;

/// Checks the node, then each pod.
pub fn check(config: Option<&Path>, extra: Option<(String, String)>) -> Report {
    let mut report = Report::default();
    let read = config.map(|file| (file, Config::read(file)));
    let pin = match &read {
        Some((_, Ok(config))) => config.pin.as_path(),
        _ => Path::new(DEFAULT_PIN_DIR),
    };
    let network = match &read {
        Some((_, Ok(config))) => NodeNetwork::new(config.discovery.as_ref()),
        _ => NodeNetwork::Own,
    };
    node::check(pin, &network, &mut report);
    let (mut pods, mut port) = (Vec::new(), 0);
    match read {
        Some((file, Ok(config))) => {
            let keys = match &config.keys {
                Keys::Configured(keys) => format!("{} keys", keys.len()),
                Keys::Operator { .. } => "keys from the operator".to_owned(),
            };
            let found = format!("{}: {keys}, {} pods", file.display(), config.pods.len());
            report.add("node", "configuration", Finding::good(found));
            (pods, port) = (config.pods, config.transfers_port);
        }
        Some((_, Err(refusal))) => {
            let change = "correct that line; the pods in it were not checked";
            report.add("node", "configuration", Finding::missing(refusal.to_string(), change));
        }
        None => {}
    }
    if let Some((name, interface)) = extra {
        pods.push(Pod {
            name: name.clone(),
            netns: Netns::Name(name),
            interface,
            multipath: PodMultipathTcp::Unchanged,
        });
    }
    for checked in &pods {
        pod::check(checked, port, &mut report);
    }
    report
}
