//! Where this process itself listens, and that these places collide with nothing.

use super::Config;
use baton_api::{ControlAddress, Endpoint, SnapshotError};
use std::net::{IpAddr, SocketAddr};

/// One place to listen at.
struct Listener {
    /// Its field.
    field: &'static str,
    /// What is offered there.
    what: &'static str,
    address: SocketAddr,
}

impl Config {
    fn listeners(&self) -> impl Iterator<Item = Listener> {
        let one = |field, what, address| Listener { field, what, address };
        let tls = self.control_tls.as_ref().map(|tls| tls.listen);
        let tls = tls.map(|at| one("controlTls.listen", "the control API listens with TLS", at));
        let probes = self.probes.map(|at| one("probes", "health and metrics are asked for", at));
        let control = match self.control {
            ControlAddress::Tcp(at) => Some(one("control", "the control API listens", at)),
            // A path takes no port from anybody.
            ControlAddress::Unix(_) => None,
        };
        [control, tls, probes].into_iter().flatten()
    }

    /// Checks the places against each other and the legs' ports.
    pub(super) fn check_listeners(&self) -> Result<(), SnapshotError> {
        let mut before: Vec<Listener> = Vec::new();
        for one in self.listeners() {
            let refuse = |problem| Err(SnapshotError { path: one.field.to_owned(), problem });
            let port = one.address.port();
            if port == 0 {
                return refuse("expected a port from 1 to 65535".to_owned());
            }
            if !one.address.ip().is_loopback() && self.ports.contains(port) {
                return refuse(format!(
                    "port {port} is one of the legs' ports {}: choose another",
                    self.ports
                ));
            }
            if let Some(other) = before.iter().find(|other| overlap(other.address, one.address)) {
                return refuse(format!(
                    "{} is where {} (`{}: {}`): choose another port",
                    one.address, other.what, other.field, other.address
                ));
            }
            before.push(one);
        }
        Ok(())
    }

    /// What listens where a frontend would be, in words; `own` are the dataplane's addresses.
    pub(super) fn listener_at(&self, frontend: Endpoint, own: &[IpAddr]) -> Option<String> {
        let at = frontend.address();
        let ours = at.is_unspecified() || own.contains(&at);
        let found = self.listeners().find(|one| {
            let here = one.address.ip();
            let same = at == here
                || ours && here.is_unspecified()
                || at.is_unspecified() && own.contains(&here) && at.is_ipv4() == here.is_ipv4();
            frontend.port() == one.address.port() && same
        })?;
        Some(format!("{} (`{}: {}`)", found.what, found.field, found.address))
    }
}

/// Whether the kernel would refuse the second.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && (any || a.ip() == b.ip())
}
