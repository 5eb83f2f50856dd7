//! What a snapshot and the limits may say beyond what their types can: ranges, uniqueness, fields
//! that exclude each other.
//!
//! Owns every refusal of a value, with its path and what was expected. Never changes a value.

use crate::{
    ActiveCheck, Affinity, Algorithm, Backend, ClientAddress, Drain, Endpoint, Health,
    LIMIT_ALLOW_FROM, LIMIT_BACKENDS_PER_POLICY, LIMIT_NAME_BYTES, LIMIT_NODE_BYTES,
    LIMIT_POLICIES, Legs, Limits, Micros, MigrationMode, Policy, Snapshot, SnapshotError, is_name,
    is_node_name, text::shortened,
};
use std::{
    collections::{HashMap, HashSet},
    fmt::Display,
};

/// Bytes of a check's path or host: far below what servers take in a request line (8 KiB is usual).
const LIMIT_TEXT_BYTES: usize = 1_024;

/// Moves of one flow that are counted: sixteen bits of a flow's entry.
const MOVES_COUNTED: u32 = 65_535;

const ZERO: Micros = Micros(0);
const MILLISECOND: Micros = Micros::from_millis(1);
const SECOND: Micros = Micros::from_secs(1);
/// Below it, checks and ejections would follow chance rather than the backend.
const SHORTEST: Micros = Micros::from_millis(100);
/// Checks that wait for an answer take places from the others.
const CHECK_TIMEOUT_MAX: Micros = Micros::from_secs(10);
const HOUR: Micros = Micros::from_secs(3_600);
const DAY: Micros = Micros::from_secs(24 * 3_600);
const WEEK: Micros = Micros::from_secs(7 * 24 * 3_600);

type Checked = Result<(), SnapshotError>;

fn refuse(path: String, problem: impl Into<String>) -> Checked {
    Err(SnapshotError { path, problem: problem.into() })
}

/// Refuses a value outside of `min` to `max`, both included.
fn range<T: Copy + PartialOrd + Display>(
    at: &str,
    field: &str,
    value: T,
    min: T,
    max: T,
) -> Checked {
    if value < min || value > max {
        return refuse(
            format!("{at}.{field}"),
            format!("{value} is out of range: expected {min} to {max}"),
        );
    }
    Ok(())
}

impl Limits {
    /// Checks each size against what the engine can reserve; the paths start with `limits.`.
    ///
    /// # Errors
    /// The first size out of range, with the range.
    pub fn validate(&self) -> Result<(), SnapshotError> {
        for (field, value, min, max) in [
            ("flows", self.flows, 16, 1 << 24),
            ("backends", u32::from(self.backends), 1, 4_096),
            ("closingLegs", self.closing_legs, 16, 1 << 24),
            ("keptSegments", self.kept_segments, 1, 1 << 20),
            ("guardedFlows", self.guarded_flows, 1, 1 << 24),
            ("respSessions", self.resp_sessions, 1, 1 << 24),
            ("affinities", self.affinities, 1, 1 << 24),
            ("trackedPairs", self.tracked_pairs, 64, 1 << 24),
        ] {
            range("limits", field, value, min, max)?;
        }
        Ok(())
    }
}

impl Snapshot {
    /// Checks everything that the types alone cannot say.
    ///
    /// # Errors
    /// The first field that is wrong, with what was expected.
    pub fn validate(&self) -> Result<(), SnapshotError> {
        if self.policies.len() > LIMIT_POLICIES {
            return refuse("policies".into(), format!("at most {LIMIT_POLICIES} are possible"));
        }
        self.names()?;
        let mut frontends: HashMap<Endpoint, &str> = HashMap::new();
        for (p, policy) in self.policies.iter().enumerate() {
            policy.validate(&format!("policies[{p}]"))?;
            for (i, frontend) in policy.frontends.iter().enumerate() {
                if let Some(other) = frontends.insert(*frontend, &policy.name) {
                    return refuse(
                        format!("policies[{p}].frontends[{i}]"),
                        format!("{frontend} is already a frontend of policy `{other}`"),
                    );
                }
            }
        }
        Ok(())
    }

    /// The places of policies by their names: the one thing without which nothing can be said of
    /// any of them.
    ///
    /// # Errors
    /// The first name that is none, or that two have.
    pub fn names(&self) -> Result<HashMap<&str, usize>, SnapshotError> {
        let mut names: HashMap<&str, usize> = HashMap::with_capacity(self.policies.len());
        for (p, policy) in self.policies.iter().enumerate() {
            let at = format!("policies[{p}]");
            name(&at, &policy.name)?;
            if let Some(first) = names.insert(&policy.name, p) {
                return Err(SnapshotError {
                    path: format!("{at}.name"),
                    problem: format!("`{}` is already the name of policies[{first}]", policy.name),
                });
            }
        }
        Ok(names)
    }
}

impl Policy {
    /// Checks what a policy has to be by itself, but for its name; `at` is where it is.
    ///
    /// # Errors
    /// The first field that is wrong, with what was expected.
    pub fn validate(&self, at: &str) -> Result<(), SnapshotError> {
        frontends(at, &self.frontends)?;
        policy(at, self)
    }
}

fn frontends(at: &str, frontends: &[Endpoint]) -> Checked {
    if frontends.is_empty() {
        return refuse(format!("{at}.frontends"), "at least one address and port is needed");
    }
    let mut seen = HashSet::new();
    for (i, frontend) in frontends.iter().enumerate() {
        let refuse = |problem| refuse(format!("{at}.frontends[{i}]"), problem);
        if frontend.address().is_multicast() {
            let address = frontend.address();
            return refuse(format!("{address} is not an address that clients connect to"));
        }
        if !seen.insert(frontend) {
            return refuse(format!("{frontend} is there twice"));
        }
    }
    Ok(())
}

fn policy(at: &str, policy: &Policy) -> Checked {
    let networks = policy.allow_from.as_ref().map_or(0, Vec::len);
    if networks > LIMIT_ALLOW_FROM {
        return refuse(
            format!("{at}.allowFrom"),
            format!("has {networks} networks: at most {LIMIT_ALLOW_FROM} are possible"),
        );
    }
    if policy.migration.ratio_percent < 100 {
        return refuse(
            format!("{at}.migration.ratioPercent"),
            format!(
                "{} is below 100, which would move flows to slower backends",
                policy.migration.ratio_percent
            ),
        );
    }
    let at_migration = format!("{at}.migration");
    range(&at_migration, "perFlow", policy.migration.per_flow, 0, MOVES_COUNTED)?;
    if let Some(Affinity { client_ip }) = policy.affinity {
        // The range that a Service's timeoutSeconds has.
        range(&format!("{at}.affinity.clientIP"), "timeout", client_ip.timeout, SECOND, DAY)?;
    }
    if policy.affinity.is_some() && policy.migration.mode == MigrationMode::Always {
        return refuse(
            format!("{at_migration}.mode"),
            "Always is not possible with affinity, which keeps a client's flows together: expected another mode, or \
             no affinity",
        );
    }
    if policy.client_address != ClientAddress::Hidden && policy.migration.legs == Legs::Shared {
        return refuse(
            format!("{at_migration}.legs"),
            "Shared is not possible with clientAddress Restore or ProxyV2, by which each connection to a pod is one client's: \
             expected Private, or clientAddress Hidden",
        );
    }
    if let Some(timeout) = policy.response_timeout {
        range(at, "responseTimeout", timeout, MILLISECOND, HOUR)?;
    }
    drain(&format!("{at}.drain"), policy.drain)?;
    health(&format!("{at}.health"), &policy.health)?;
    range(at, "slowStart", policy.slow_start, ZERO, HOUR)?;
    if policy.slow_start != ZERO && policy.algorithm == Algorithm::Maglev {
        return refuse(
            format!("{at}.slowStart"),
            format!(
                "{} is not possible with algorithm Maglev, whose table gives each backend its whole share at once so \
                 that clients keep theirs: expected 0s, or another algorithm",
                policy.slow_start
            ),
        );
    }
    for (field, value) in [
        ("idle", policy.timeouts.idle),
        ("handshake", policy.timeouts.handshake),
        ("halfClosed", policy.timeouts.half_closed),
    ] {
        range(&format!("{at}.timeouts"), field, value, SHORTEST, WEEK)?;
    }
    backends(at, &policy.backends)
}

fn drain(at: &str, drain: Drain) -> Checked {
    range(at, "quiet", drain.quiet, ZERO, HOUR)?;
    range(at, "deadline", drain.deadline, ZERO, DAY)
}

fn health(at: &str, health: &Health) -> Checked {
    range(at, "failureThreshold", health.failure_threshold, 0, 1_000)?;
    range(at, "baseEjectionTime", health.base_ejection_time, SHORTEST, HOUR)?;
    range(at, "maxEjectedPercent", health.max_ejected_percent, 0, 100)?;
    range(at, "panicPercent", health.panic_percent, 0, 100)?;
    match &health.active {
        Some(check) => active(&format!("{at}.active"), check),
        None => Ok(()),
    }
}

fn active(at: &str, check: &ActiveCheck) -> Checked {
    if let Some(path) = &check.path {
        self::path(at, path)?;
    }
    if let Some(host) = &check.host {
        self::host(at, host)?;
        if check.path.is_none() {
            return refuse(
                format!("{at}.host"),
                "means nothing without `path`: expected a path to GET, or no host",
            );
        }
    }
    if check.expect.is_empty() {
        return refuse(
            format!("{at}.expect"),
            "no status would be healthy: expected at least one, as 200 or 200-299",
        );
    }
    if check.port == Some(0) {
        return refuse(
            format!("{at}.port"),
            "0 is no port: expected 1 to 65535, or no `port` for the backend's own",
        );
    }
    range(at, "interval", check.interval, SHORTEST, HOUR)?;
    range(at, "jitterPercent", check.jitter_percent, 0, 100)?;
    range(at, "timeout", check.timeout, MILLISECOND, CHECK_TIMEOUT_MAX)?;
    if check.timeout > check.interval {
        return refuse(
            format!("{at}.timeout"),
            format!(
                "{} is longer than the interval: expected at most {}, so that one check ends before the next",
                check.timeout, check.interval
            ),
        );
    }
    range(at, "successThreshold", check.success_threshold, 1, 100)?;
    range(at, "failureThreshold", check.failure_threshold, 1, 100)
}

/// Visible ASCII, and not too much of it.
fn is_plain(text: &str, but: &str) -> bool {
    (1..=LIMIT_TEXT_BYTES).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_graphic() && !but.contains(c))
}

fn path(at: &str, path: &str) -> Checked {
    // What RFC 3986 wants escaped, and what would end the path.
    if !path.starts_with('/') || !is_plain(path, "\"#<>\\^`{|}") {
        return refuse(
            format!("{at}.path"),
            format!(
                "`{}` is not a path: expected `/` and up to {} visible ASCII characters without spaces, others as %20",
                shortened(path),
                LIMIT_TEXT_BYTES - 1
            ),
        );
    }
    Ok(())
}

fn host(at: &str, host: &str) -> Checked {
    if !is_plain(host, "\"#/<>?@\\^`{|}") {
        return refuse(
            format!("{at}.host"),
            format!(
                "`{}` is not a host: expected 1 to {LIMIT_TEXT_BYTES} characters, as example.org or example.org:8080",
                shortened(host)
            ),
        );
    }
    Ok(())
}

fn backends(at: &str, backends: &[Backend]) -> Checked {
    if backends.len() > LIMIT_BACKENDS_PER_POLICY {
        return refuse(
            format!("{at}.backends"),
            format!("at most {LIMIT_BACKENDS_PER_POLICY} are possible"),
        );
    }
    let (mut seen, mut ends) = (HashMap::new(), HashMap::new());
    for (i, backend) in backends.iter().enumerate() {
        let at = format!("{at}.backends[{i}]");
        name(&at, &backend.name)?;
        if let Some(first) = seen.insert(backend.name.as_str(), i) {
            return refuse(
                format!("{at}.name"),
                format!("`{}` is already the name of backends[{first}]", backend.name),
            );
        }
        if let Some(first) = ends.insert(backend.endpoint, i) {
            return refuse(
                format!("{at}.endpoint"),
                format!("{} is already the endpoint of backends[{first}]", backend.endpoint),
            );
        }
        let address = backend.endpoint.address();
        if address.is_unspecified() || address.is_multicast() {
            return refuse(
                format!("{at}.endpoint"),
                format!("{address} is not the address of a pod"),
            );
        }
        if let Some(node) = backend.node.as_deref().filter(|node| !is_node_name(node)) {
            return refuse(
                format!("{at}.node"),
                format!(
                    "`{}` is not a node's name: expected 1 to {LIMIT_NODE_BYTES} letters, digits, `-`, `.` or `_`",
                    shortened(node)
                ),
            );
        }
    }
    Ok(())
}

fn name(at: &str, name: &str) -> Checked {
    if !is_name(name) {
        return refuse(
            format!("{at}.name"),
            format!(
                "`{}` is not a name: expected 1 to {LIMIT_NAME_BYTES} letters, digits, `-`, `.`, `_` or `/`",
                shortened(name)
            ),
        );
    }
    Ok(())
}
