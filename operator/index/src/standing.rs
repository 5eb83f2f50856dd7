//! Whether a policy can be used as it is written, which classes serve it, and what it claims.
//!
//! Owns every refusal that needs only the policy, its namespace and the classes: also what its
//! dataplanes' own checks would refuse, and what is granted to others only. Whether somebody older
//! claims the same is decided elsewhere.

use crate::{
    Family, Key, Listener, Namespace, Policy, Reason, Text,
    allowance::{Grants, Tenant},
    claims::{Claim, Place},
    class::ClassRecord,
};
use baton_api::{Endpoint, LIMIT_NAME_BYTES, Snapshot, is_name};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// What a policy is by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can be used.
    Fit {
        classes: BTreeSet<Text>,
        /// In order.
        claims: Arc<[Claim]>,
    },
    /// It cannot, and what to change.
    Unfit { reason: Reason, message: String },
}

type Judged<T> = Result<T, (Reason, String)>;

fn invalid<T>(message: String) -> Judged<T> {
    Err((Reason::Invalid, message))
}

/// Looks at a policy. `only` are its classes where its selector is not to be asked.
pub(crate) fn examine(
    key: &Key,
    policy: &Policy,
    classes: &BTreeMap<Text, ClassRecord>,
    namespaces: &BTreeMap<Text, Arc<Namespace>>,
    only: Option<&BTreeSet<Text>>,
) -> Standing {
    let judged = shape(key, policy).and_then(|()| {
        let names = match only {
            None => choose(policy, classes)?,
            Some(only) => had(only, classes)?,
        };
        let tenant = Tenant::new(&key.namespace, namespaces);
        let claims = claims(key, policy, &names, classes, &tenant)?;
        Ok(Standing::Fit { classes: names, claims: claims.into_iter().collect() })
    });
    judged.unwrap_or_else(|(reason, message)| Standing::Unfit { reason, message })
}

/// The name of a listener's snapshot policy.
pub(crate) fn snapshot_name(key: &Key, listener: &Listener) -> String {
    format!("{}/{}/{}", key.namespace, key.name, listener.name)
}

/// Where a listener is, for a Service of these families.
pub(crate) fn frontends(listener: &Listener, families: &[Family]) -> Vec<Endpoint> {
    let unspecified = |family: &Family| match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let addresses: Vec<IpAddr> = match (listener.addresses.is_empty(), families.is_empty()) {
        (false, _) => listener.addresses.clone(),
        (true, true) => vec![unspecified(&Family::V4)],
        (true, false) => families.iter().map(unspecified).collect(),
    };
    let made = addresses.into_iter();
    let made: BTreeSet<Endpoint> = made.filter_map(|a| Endpoint::new(a, listener.at())).collect();
    made.into_iter().collect()
}

/// What can be said without anything else.
fn shape(key: &Key, policy: &Policy) -> Judged<()> {
    let template = match &policy.template {
        Ok(template) => template,
        // A field is what an admin can change; without one, the operator failed.
        Err(refusal) if refusal.field.is_empty() => {
            return Err((Reason::InternalError, refusal.problem.to_string()));
        }
        Err(refusal) => return invalid(format!("{}: {}", refusal.field, refusal.problem)),
    };
    if policy.listeners.is_empty() {
        return invalid("spec.listeners: is empty: expected at least one listener".into());
    }
    let mut seen = BTreeMap::new();
    for (i, listener) in policy.listeners.iter().enumerate() {
        let at = format!("spec.listeners[{i}]");
        let name = snapshot_name(key, listener);
        if listener.name.is_empty() || listener.name.contains('/') || !is_name(&name) {
            return invalid(format!(
                "{at}.name: `{name}` is not possible as a name: expected at most {LIMIT_NAME_BYTES} letters, digits, `-`, \
                 `.` or `_` in NAMESPACE/NAME/LISTENER, so shorten metadata.name or the listener's name"
            ));
        }
        if listener.port == 0 {
            return invalid(format!("{at}.port: 0 is no port: expected 1 to 65535"));
        }
        if let Some(first) = seen.insert(&listener.name, i) {
            return invalid(format!(
                "{at}.name: `{}` is already the name of spec.listeners[{first}]: rename one of them",
                listener.name
            ));
        }
        for address in &listener.addresses {
            if address.to_canonical().is_multicast() {
                return invalid(format!(
                    "{at}.addresses: {address} is a multicast address, to which no client can connect"
                ));
            }
        }
        // The dataplane would refuse the whole snapshot for one wrong value, so each policy is
        // asked for alone.
        let mut alone = listener.settings(template, None);
        alone.name = name;
        alone.frontends = frontends(listener, &[Family::V4]);
        alone.backends = Vec::new();
        let alone = Snapshot { generation: 0, policies: vec![alone] };
        if let Err(error) = alone.validate() {
            let path = error.path.strip_prefix("policies[0].").unwrap_or(&error.path);
            return invalid(format!("spec.{path}: {}", error.problem));
        }
    }
    Ok(())
}

/// The classes that a policy's selector picks.
pub(crate) fn choose(
    policy: &Policy,
    classes: &BTreeMap<Text, ClassRecord>,
) -> Judged<BTreeSet<Text>> {
    let fits = |class: &ClassRecord| match policy.classes.is_empty() {
        true => class.spec.default,
        false => class.spec.labels.include(&policy.classes),
    };
    let chosen = classes.iter().filter(|(_, class)| fits(class));
    let names: BTreeSet<Text> = chosen.map(|(name, _)| name.clone()).collect();
    if !names.is_empty() {
        return Ok(names);
    }
    let message = if policy.classes.is_empty() {
        "no BatonDataplane has `spec.default: true`: set it on the one that shall serve policies without a \
         dataplaneSelector, or write one into this policy"
            .to_owned()
    } else {
        format!(
            "no BatonDataplane has the labels {}: correct spec.dataplaneSelector.matchLabels, or label one",
            policy.classes
        )
    };
    Err((Reason::NoDataplaneClass, message))
}

/// Of the classes that had it, those that are there.
fn had(only: &BTreeSet<Text>, classes: &BTreeMap<Text, ClassRecord>) -> Judged<BTreeSet<Text>> {
    let there = only.iter().filter(|name| classes.contains_key(*name));
    let names: BTreeSet<Text> = there.cloned().collect();
    if names.is_empty() {
        let message = "the BatonDataplane that served it does not exist any more".to_owned();
        return Err((Reason::NoDataplaneClass, message));
    }
    Ok(names)
}

/// What it claims. Ports of the dataplane's own address are claimed for the families that the
/// Service has or may get.
fn claims(
    key: &Key,
    policy: &Policy,
    names: &BTreeSet<Text>,
    classes: &BTreeMap<Text, ClassRecord>,
    tenant: &Tenant<'_>,
) -> Judged<BTreeSet<Claim>> {
    let service = Key::new(key.namespace.clone(), policy.service.clone());
    let mut claims = BTreeSet::from([Claim::Service(service)]);
    if policy.service.is_empty() {
        // It is not known.
        claims.clear();
    }
    if let Some(frontend) = &policy.frontend {
        let service = Key::new(key.namespace.clone(), frontend.service.clone());
        claims.insert(Claim::Front(service));
    }
    for (name, class) in names.iter().filter_map(|name| Some((name, classes.get(name)?))) {
        let grants = Grants::of(&class.spec.allowed, tenant);
        for (i, listener) in policy.listeners.iter().enumerate() {
            let port = listener.at();
            if policy.frontend.is_some() && listener.allocated.is_none() {
                return Err((Reason::NoFrontendPort, no_port(i, name, class)));
            }
            if let Some(twice) = own_twice(listener, class) {
                return invalid(format!(
                    "spec.listeners[{i}].addresses: {twice} is an address of a dataplane of class {name}, which the unspecified \
                     address stands for already: leave one of the two out"
                ));
            }
            for place in places(listener, class) {
                may_have(class, &grants, place, listener).map_err(|refused| {
                    let reason = refused.reason();
                    (reason, refused.message(i, name, place, port, &grants, key))
                })?;
                let class = name.clone();
                if !claims.insert(Claim::Frontend { class, place, port }) {
                    return invalid(format!(
                        "spec.listeners[{i}].port: {port} is used by another listener of this policy on the same address: \
                         give it another port"
                    ));
                }
            }
        }
    }
    Ok(claims)
}

fn no_port(listener: usize, name: &Text, class: &ClassRecord) -> String {
    let at = format!("spec.listeners[{listener}]");
    match class.spec.frontend_ports {
        Some((first, last)) => format!(
            "{at}: all ports {first} to {last} of class {name} are given out: widen spec.frontendPorts of BatonDataplane \
             {name}, or select another class"
        ),
        None => format!("{at}: class {name} has no spec.frontendPorts to give out"),
    }
}

/// An own address of a dataplane beside the unspecified one of its family: the dataplane takes them
/// for two frontends at one place and refuses them.
fn own_twice(listener: &Listener, class: &ClassRecord) -> Option<IpAddr> {
    let all = || listener.addresses.iter().map(IpAddr::to_canonical);
    let mut unspecified = all().filter(IpAddr::is_unspecified);
    unspecified.find_map(|any| all().find(|a| a.is_ipv4() == any.is_ipv4() && class.owns(*a)))
}

/// Why a policy may not have a port of a place.
enum Refused {
    /// Legs have it.
    Leg(u16, u16),
    /// Dataplanes or their nodes listen there.
    Reserved,
    /// The operator gives it out.
    Given(u16, u16),
    /// It is not granted.
    NotAllowed,
}

/// Whether a policy may have a port of a place in a class. What is true of the dataplanes' own
/// addresses is judged at the place that stands for these, also for an explicit one.
fn may_have(
    class: &ClassRecord,
    grants: &Grants<'_>,
    place: Place,
    listener: &Listener,
) -> Result<(), Refused> {
    let (spec, port) = (&class.spec, listener.at());
    let allowed = match place {
        Place::Own(_) => {
            if let Some((first, last)) = spec.leg_ports
                && (first..=last).contains(&port)
            {
                return Err(Refused::Leg(first, last));
            }
            let mut reserved = spec.reserved_ports.iter();
            if port == spec.control_port || reserved.any(|range| range.contains(port)) {
                return Err(Refused::Reserved);
            }
            match spec.frontend_ports {
                Some((first, last)) if (first..=last).contains(&port) => {
                    if listener.allocated.is_none() {
                        return Err(Refused::Given(first, last));
                    }
                    // Which one it is, is the operator's choice.
                    grants.any_own()
                }
                _ => grants.own(port),
            }
        }
        Place::Address(address) if class.owns(address) => grants.own(port),
        Place::Address(address) => grants.address(address, port),
    };
    allowed.then_some(()).ok_or(Refused::NotAllowed)
}

impl Refused {
    fn reason(&self) -> Reason {
        match self {
            Self::Leg(..) => Reason::PortInLegRange,
            Self::Reserved => Reason::PortReserved,
            Self::Given(..) => Reason::PortIsAFrontends,
            Self::NotAllowed => Reason::NotAllowed,
        }
    }

    fn message(
        &self,
        listener: usize,
        class: &Text,
        place: Place,
        port: u16,
        grants: &Grants<'_>,
        key: &Key,
    ) -> String {
        let at = format!("spec.listeners[{listener}]");
        match (self, place) {
            (Self::Leg(first, last), _) => format!(
                "{at}.port: {port} is one of the ports {first} to {last} that dataplanes of class {class} use towards pods: \
                 expected another port, or another range in spec.ports of BatonDataplane {class}"
            ),
            (Self::Reserved, _) => format!(
                "{at}.port: {port} is where dataplanes of class {class} or their nodes listen themselves \
                 (spec.controlPort and spec.reservedPorts of BatonDataplane {class}): expected another port"
            ),
            (Self::Given(first, last), _) => format!(
                "{at}.port: {port} is one of the ports {first} to {last} that are given out to policies with spec.frontend in \
                 class {class}: expected another port, spec.frontend, or another range in spec.frontendPorts of \
                 BatonDataplane {class}"
            ),
            (Self::NotAllowed, place) => {
                let what = match place {
                    Place::Own(_) => format!("{at}.port: {port}"),
                    Place::Address(address) => format!("{at}.addresses: port {port} of {address}"),
                };
                format!(
                    "{what} is not allowed: of class {class}, namespace {} may have {grants}; take what is allowed, select \
                     another class, or have an admin of BatonDataplane {class} change its spec.allowed",
                    key.namespace
                )
            }
        }
    }
}

/// Where a listener is in a class. An explicit address that is a dataplane's own one is both,
/// because the dataplane refuses a snapshot in which it meets the unspecified one.
fn places(listener: &Listener, class: &ClassRecord) -> BTreeSet<Place> {
    if listener.addresses.is_empty() {
        return [Place::Own(Family::V4), Place::Own(Family::V6)].into();
    }
    let mut places = BTreeSet::new();
    for address in listener.addresses.iter().map(IpAddr::to_canonical) {
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        if address.is_unspecified() || class.owns(address) {
            places.insert(Place::Own(family));
        }
        if !address.is_unspecified() {
            places.insert(Place::Address(address));
        }
    }
    places
}
