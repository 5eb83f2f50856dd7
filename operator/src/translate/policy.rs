//! `LoadBalancerPolicy`: every field of its spec becomes what the index and the dataplanes are
//! told.
//!
//! Owns the conversion. The API server has checked the spec by the rules of the CRD that was
//! installed when the object was written, which may be an older one: whatever does not fit becomes
//! a refusal of this policy with the field.

use super::{Translator, cluster::pairs, refuse};
use baton_api as api;
use baton_crds as crd;
use baton_index::{
    Change, Frontend, Key, Labels, Listener, Policy, PortRef, Refusal, WeightSource, Weights,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{net::IpAddr, sync::Arc};

/// Stands in for what each listener has of its own while the rest is checked.
const STAND_IN: &str = "checked";

impl Translator {
    /// A policy; `spec` and `status` are what the object has there, whatever that is.
    pub fn policy(&self, meta: &ObjectMeta, spec: &Value, status: &Value) -> Change {
        let key = self.key(meta);
        let translated = serde_path_to_error::deserialize::<_, crd::LoadBalancerPolicySpec>(spec)
            .map_err(|error| super::unreadable("spec", &error))
            .and_then(|spec| self.readable(meta, &key, &spec));
        let mut policy =
            translated.unwrap_or_else(|refusal| self.partly(meta, &key, spec, refusal));
        if policy.frontend.is_some() {
            for listener in &mut policy.listeners {
                listener.allocated = allocated(status, &listener.name);
            }
        }
        Change::Policy(key, Some(Arc::new(policy)))
    }

    /// A policy that cannot be used, with what can be read all the same: which Service it is for,
    /// say. That serves to follow the endpoints of what dataplanes have of it.
    fn partly(&self, meta: &ObjectMeta, key: &Key, spec: &Value, refusal: Refusal) -> Policy {
        fn part<T: DeserializeOwned>(value: Option<&Value>) -> Option<T> {
            T::deserialize(value?).ok()
        }
        let section = spec.pointer("/targetRefs/0/sectionName");
        let section = section.and_then(Value::as_str);
        let listeners = spec.get("listeners").and_then(Value::as_array);
        let listeners = listeners.into_iter().flatten();
        let listeners = listeners.filter_map(|one| {
            let one = part::<crd::Listener>(Some(one))?;
            self.listener("", &one, section).ok()
        });
        let service = spec.pointer("/targetRefs/0/name").and_then(Value::as_str);
        let weights = part::<crd::Weights>(spec.get("weights"));
        let cost = part::<crd::PodDeletionCost>(spec.get("podDeletionCost"));
        Policy {
            service: self.text(service.unwrap_or_default()),
            listeners: listeners.collect(),
            weights: weights.and_then(|weights| self.weights(&weights).ok()),
            deletion_cost: cost == Some(crd::PodDeletionCost::Enabled),
            drain_cordoned: true,
            ..self.refused(meta, key, refusal)
        }
    }

    /// A policy of which no more is known than why it cannot be used.
    pub fn refused(&self, meta: &ObjectMeta, key: &Key, refusal: Refusal) -> Policy {
        Policy {
            uid: self.uid(meta, key),
            created: super::created(meta),
            generation: meta.generation.unwrap_or_default(),
            service: self.text(""),
            listeners: Vec::new(),
            template: Err(refusal),
            weights: None,
            classes: Labels::default(),
            frontend: None,
            allow_from: None,
            deletion_cost: false,
            drain_cordoned: false,
        }
    }

    fn readable(
        &self,
        meta: &ObjectMeta,
        key: &Key,
        spec: &crd::LoadBalancerPolicySpec,
    ) -> Result<Policy, Refusal> {
        let [target] = spec.target_refs.as_slice() else {
            let problem = format!("has {} items: expected one", spec.target_refs.len());
            return Err(refuse("spec.targetRefs", problem));
        };
        // The only kind of the only group.
        let (crd::TargetGroup::Core, crd::TargetKind::Service) = (target.group, target.kind);
        let section = target.section_name.as_deref();
        let listeners = spec.listeners.iter().enumerate();
        let listeners = listeners
            .map(|(i, one)| {
                let at = format!("spec.listeners[{i}]");
                let listener = self.listener(&at, one, section)?;
                self.with_its_own(&at, spec, one, listener)
            })
            .collect::<Result<_, _>>()?;
        let selector = spec.dataplane_selector.as_ref();
        let classes = pairs(selector.map(|s| &s.match_labels));
        let classes = self.interner().labels(classes);
        Ok(Policy {
            uid: self.uid(meta, key),
            created: super::created(meta),
            generation: meta.generation.unwrap_or_default(),
            service: self.text(&target.name),
            listeners,
            template: Ok(self.template(template(spec)?)),
            weights: spec.weights.as_ref().map(|w| self.weights(w)).transpose()?,
            classes,
            frontend: spec.frontend.as_ref().map(|f| self.frontend(&f.service)),
            allow_from: self.allow_from(spec.allow_from.as_deref())?,
            deletion_cost: spec.pod_deletion_cost == crd::PodDeletionCost::Enabled,
            // A node is cordoned because it shall become empty.
            drain_cordoned: true,
        })
    }

    fn listener(
        &self,
        at: &str,
        one: &crd::Listener,
        section: Option<&str>,
    ) -> Result<Listener, Refusal> {
        let port = port(&format!("{at}.port"), one.port)?;
        let service_port = match (&one.service_port, section) {
            (None, None) => PortRef::Number(port),
            (None, Some(section)) => PortRef::Section(self.text(section)),
            (Some(crd::ServicePort::Number(number)), _) => {
                PortRef::Number(self::port(&format!("{at}.servicePort"), *number)?)
            }
            (Some(crd::ServicePort::Name(name)), _) => PortRef::Name(self.text(name)),
        };
        let addresses = one.addresses.iter().enumerate().map(|(i, address)| {
            address.parse::<IpAddr>().map_err(|_| {
                refuse(
                    &format!("{at}.addresses[{i}]"),
                    format!("`{address}` is no address: expected as 192.0.2.1 or 2001:db8::1"),
                )
            })
        });
        Ok(Listener {
            name: self.text(&one.name),
            port,
            allocated: None,
            service_port,
            addresses: addresses.collect::<Result<_, _>>()?,
            own: None,
            protocol_by_port: false,
        })
    }

    /// The listener with what it has in place of the policy's.
    fn with_its_own(
        &self,
        at: &str,
        spec: &crd::LoadBalancerPolicySpec,
        one: &crd::Listener,
        mut listener: Listener,
    ) -> Result<Listener, Refusal> {
        let its = spec.of(one);
        listener.protocol_by_port = its.protocol.is_none();
        if its != *spec {
            let own = template(&its).map_err(|refusal| Refusal {
                field: self.text(&refusal.field.replacen("spec", at, 1)),
                ..refusal
            })?;
            listener.own = Some(self.template(own));
        }
        Ok(listener)
    }

    fn frontend(&self, service: &crd::FrontendService) -> Arc<Frontend> {
        let annotations = service.annotations.iter();
        let ranges = service.load_balancer_source_ranges.iter();
        let class = service.load_balancer_class.as_ref();
        Arc::new(Frontend {
            service: self.text(&service.name),
            kind: self.text(service.type_.as_str()),
            load_balancer_class: class.map(|class| self.text(class)),
            local: service.external_traffic_policy == crd::TrafficPolicy::Local,
            source_ranges: ranges.map(|range| self.text(range)).collect(),
            annotations: annotations.map(|(k, v)| (self.text(k), self.text(v))).collect(),
        })
    }

    fn weights(&self, weights: &crd::Weights) -> Result<Weights, Refusal> {
        let source = match (&weights.label, &weights.annotation) {
            (Some(label), None) => WeightSource::Label(self.text(label)),
            (None, Some(annotation)) => WeightSource::Annotation(self.text(annotation)),
            _ => {
                let problem = "needs one source: expected either `label` or `annotation`";
                return Err(refuse("spec.weights", problem));
            }
        };
        Ok(Weights { source, default: number("spec.weights.default", weights.default)? })
    }
}

/// The dataplanes' port of a listener, as the status says.
fn allocated(status: &Value, listener: &str) -> Option<u16> {
    let ports = status.pointer("/frontend/ports")?.as_array()?;
    let is = |port: &&Value| port.get("listener").and_then(Value::as_str) == Some(listener);
    let port = ports.iter().find(is)?.get("port")?.as_u64()?;
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn template(spec: &crd::LoadBalancerPolicySpec) -> Result<api::Policy, Refusal> {
    let policy = api::Policy {
        name: STAND_IN.to_owned(),
        frontends: "0.0.0.0:1".parse().into_iter().collect(),
        backends: Vec::new(),
        // The index knows the Pods that it selects.
        allow_from: None,
        algorithm: match spec.algorithm {
            crd::Algorithm::LeastOutstanding => api::Algorithm::LeastOutstanding,
            crd::Algorithm::Maglev => api::Algorithm::Maglev,
            crd::Algorithm::WeightedRoundRobin => api::Algorithm::WeightedRoundRobin,
            crd::Algorithm::Random => api::Algorithm::Random,
        },
        load: match spec.load {
            crd::LoadSignal::Latency => api::LoadSignal::Latency,
            crd::LoadSignal::LatencyAndPressure => api::LoadSignal::LatencyAndPressure,
        },
        client_address: match spec.client_address {
            crd::ClientAddress::Hidden => api::ClientAddress::Hidden,
            crd::ClientAddress::Restore => api::ClientAddress::Restore,
            crd::ClientAddress::ProxyV2 => api::ClientAddress::ProxyV2,
        },
        affinity: match &spec.affinity {
            None => None,
            Some(affinity) => {
                let at = "spec.affinity.clientIP.timeout";
                let timeout = span(at, &affinity.client_ip.timeout)?;
                let client_ip = api::ClientIp { timeout };
                Some(api::Affinity { client_ip })
            }
        },
        protocol: match spec.protocol.unwrap_or_default() {
            crd::Protocol::Http1 => api::Protocol::Http1,
            crd::Protocol::Resp => api::Protocol::Resp,
            crd::Protocol::Memcached => api::Protocol::Memcached,
            crd::Protocol::RequestResponse => api::Protocol::RequestResponse,
            crd::Protocol::None => api::Protocol::None,
        },
        migration: migration(&spec.migration)?,
        on_stall: match spec.on_stall {
            crd::OnStall::Release => api::OnStall::Release,
            crd::OnStall::Wait => api::OnStall::Wait,
        },
        on_backend_failure: match spec.on_backend_failure {
            crd::BackendFailure::ReplayIdempotent => api::BackendFailure::ReplayIdempotent,
            crd::BackendFailure::Replay => api::BackendFailure::Replay,
            crd::BackendFailure::AdoptIdleOnly => api::BackendFailure::AdoptIdleOnly,
            crd::BackendFailure::Reset => api::BackendFailure::Reset,
        },
        response_timeout: match &spec.response_timeout {
            None => None,
            Some(timeout) => Some(span("spec.responseTimeout", timeout)?),
        },
        drain: api::Drain {
            quiet: span("spec.drain.quiet", &spec.drain.quiet)?,
            deadline: span("spec.drain.deadline", &spec.drain.deadline)?,
            on_deadline: match spec.drain.on_deadline {
                crd::OnDeadline::Wait => api::OnDeadline::Wait,
                crd::OnDeadline::Close => api::OnDeadline::Close,
            },
        },
        health: health(&spec.health)?,
        slow_start: span("spec.slowStart", &spec.slow_start)?,
        timeouts: api::Timeouts {
            idle: span("spec.timeouts.idle", &spec.timeouts.idle)?,
            handshake: span("spec.timeouts.handshake", &spec.timeouts.handshake)?,
            half_closed: span("spec.timeouts.halfClosed", &spec.timeouts.half_closed)?,
        },
    };
    checked(policy)
}

/// What a dataplane would refuse is refused here, where the admin sees which field of which object
/// it is: one such policy in a snapshot would keep all others of its class from being served.
fn checked(policy: api::Policy) -> Result<api::Policy, Refusal> {
    let snapshot = api::Snapshot { generation: 1, policies: vec![policy] };
    snapshot.validate().map_err(|error| {
        // The fields have the same names in both.
        let field = error.path.strip_prefix("policies[0]").unwrap_or(&error.path);
        refuse(&format!("spec{field}"), error.problem)
    })?;
    let mut policies = snapshot.policies;
    let mut policy = policies.swap_remove(0);
    policy.name = String::new();
    policy.frontends = Vec::new();
    Ok(policy)
}

fn migration(migration: &crd::Migration) -> Result<api::Migration, Refusal> {
    Ok(api::Migration {
        mode: match migration.mode {
            crd::MigrationMode::Always => api::MigrationMode::Always,
            crd::MigrationMode::WhenBetter => api::MigrationMode::WhenBetter,
            crd::MigrationMode::DrainOnly => api::MigrationMode::DrainOnly,
            crd::MigrationMode::Never => api::MigrationMode::Never,
        },
        method: match migration.method {
            crd::MoveMethod::Auto => api::MoveMethod::Auto,
            crd::MoveMethod::Adoption => api::MoveMethod::Adoption,
            crd::MoveMethod::Translation => api::MoveMethod::Translation,
        },
        legs: match migration.legs {
            crd::Legs::Private => api::Legs::Private,
            crd::Legs::Shared => api::Legs::Shared,
        },
        ratio_percent: number("spec.migration.ratioPercent", migration.ratio_percent)?,
        gain: span("spec.migration.gain", &migration.gain)?,
        cooldown: span("spec.migration.cooldown", &migration.cooldown)?,
        per_second: number("spec.migration.perSecond", migration.per_second)?,
        per_flow: number("spec.migration.perFlow", migration.per_flow)?,
        per_backend_per_second: number(
            "spec.migration.perBackendPerSecond",
            migration.per_backend_per_second,
        )?,
    })
}

fn health(health: &crd::Health) -> Result<api::Health, Refusal> {
    Ok(api::Health {
        active: health.active.as_ref().map(active).transpose()?,
        failure_threshold: number("spec.health.failureThreshold", health.failure_threshold)?,
        base_ejection_time: span("spec.health.baseEjectionTime", &health.base_ejection_time)?,
        max_ejected_percent: number("spec.health.maxEjectedPercent", health.max_ejected_percent)?,
        panic_percent: number("spec.health.panicPercent", health.panic_percent)?,
    })
}

fn active(check: &crd::ActiveCheck) -> Result<api::ActiveCheck, Refusal> {
    let expect = check.expect.iter().enumerate().map(|(i, codes)| {
        let codes: Result<api::StatusRange, _> = codes.0.parse();
        codes.map_err(|error| refuse(&format!("spec.health.active.expect[{i}]"), error.to_string()))
    });
    let at = |field: &str| format!("spec.health.active.{field}");
    Ok(api::ActiveCheck {
        path: check.path.clone(),
        host: check.host.clone(),
        expect: expect.collect::<Result<_, _>>()?,
        port: check.port.map(|p| port(&at("port"), p)).transpose()?,
        interval: span(&at("interval"), &check.interval)?,
        jitter_percent: number(&at("jitterPercent"), check.jitter_percent)?,
        timeout: span(&at("timeout"), &check.timeout)?,
        success_threshold: number(&at("successThreshold"), check.success_threshold)?,
        failure_threshold: number(&at("failureThreshold"), check.failure_threshold)?,
    })
}

fn span(field: &str, duration: &crd::Duration) -> Result<api::Micros, Refusal> {
    duration.micros().map_err(|error| refuse(field, error.to_string()))
}

/// A whole number of a type that holds what is allowed there.
fn number<T: TryFrom<i32>>(field: &str, value: i32) -> Result<T, Refusal> {
    T::try_from(value).map_err(|_| refuse(field, format!("{value} is out of range")))
}

pub(super) fn port(field: &str, value: i32) -> Result<u16, Refusal> {
    let port = u16::try_from(value).ok().filter(|port| *port != 0);
    port.ok_or_else(|| refuse(field, format!("{value} is no port: expected 1 to 65535")))
}
