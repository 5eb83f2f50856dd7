//! What a class grants to policies of which namespaces: ports and addresses of listeners, addresses
//! of endpoints.
//!
//! Owns the grants' types and what they cover. Who asks for what is found out elsewhere
//! (`standing`, `backends`).
//!
//! # Decisions
//!
//! - **What a class grants is a list in the class, and what is in no entry is refused**: ports and
//!   addresses of listeners, addresses of endpoints, by namespaces' names and labels. Its default
//!   is a value that `kubectl get` shows: ports from 1,024 on of the dataplanes' own addresses.
//!   Before, a policy could take any port of a class (22 and 10250 of a node, where dataplanes use
//!   its network) and any address, and an EndpointSlice could name anybody's Pods. Reserved ports
//!   (control, probes, the node's) stand above all entries. An endpoint counts if it is a Pod of
//!   the namespace that has the address, as far as the API server says; a Pod that is not there any
//!   more does not. `operator/index/tests/it/refusals.rs` gives snapshots of generated clusters to
//!   the engine's own check. Rejected: ReferenceGrants per namespace (a dataplane is shared: its
//!   admin has to agree, not the other tenant alone).

use crate::{Labels, Text, messages::few};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    str::FromStr,
    sync::Arc,
};

/// The label that the API server gives each Namespace, with its name as the value. It holds here
/// without a Namespace too.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// All labels.
    pub labels: Labels,
}

/// What policies of some namespaces may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Whose policies.
    pub namespaces: NamespaceSelector,
    /// Ports of listeners, at the dataplanes' own addresses and at those in `addresses`.
    pub ports: Vec<PortRange>,
    /// Other addresses of listeners.
    pub addresses: Vec<Network>,
    /// Addresses that endpoints may have although no Pod of the policy's namespace has them.
    pub endpoints: Vec<Network>,
}

/// Namespaces; both parts have to fit, and an empty one fits all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceSelector {
    /// By name.
    pub names: BTreeSet<Text>,
    /// By labels.
    pub labels: Labels,
}

/// Ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

/// A text is no port, range of ports, address or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRange;

impl PortRange {
    /// Whether a port is one of them.
    #[must_use]
    pub const fn contains(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl FromStr for PortRange {
    type Err = NoRange;

    /// `8080`, or `8000-8999`.
    fn from_str(text: &str) -> Result<Self, NoRange> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            let port: Option<u16> = text.parse().ok().filter(|port| digits && *port != 0);
            port.ok_or(NoRange)
        };
        let (first, last) = (port(first)?, port(last)?);
        (first <= last).then_some(Self { first, last }).ok_or(NoRange)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// An address's bits, the first one highest, and how many they are.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

impl Network {
    /// Whether an address is one of them. An IPv4 address is the same in whichever way it is
    /// written.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let ((net, _), (bits, _)) = (bits(self.address), bits(address.to_canonical()));
        let differ = (net ^ bits).leading_zeros();
        self.address.is_ipv4() == address.to_canonical().is_ipv4() && differ >= self.prefix
    }
}

impl FromStr for Network {
    type Err = NoRange;

    /// `192.0.2.0/24`, or one address.
    fn from_str(text: &str) -> Result<Self, NoRange> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NoRange)?;
        let most = bits(address).1;
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| NoRange)?,
            None => most,
        };
        (prefix <= most).then_some(Self { address, prefix }).ok_or(NoRange)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix == bits(self.address).1 {
            true => write!(f, "{}", self.address),
            false => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

/// Who asks: a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant<'a> {
    name: &'a Text,
    labels: Option<&'a Labels>,
}

impl<'a> Tenant<'a> {
    pub fn new(name: &'a Text, namespaces: &'a BTreeMap<Text, Arc<Namespace>>) -> Self {
        let labels = namespaces.get(name).map(|namespace| &namespace.labels);
        Self { name, labels }
    }

    fn has(&self, key: &str, value: &str) -> bool {
        if key == NAMESPACE_NAME_LABEL {
            return value == &**self.name;
        }
        let own = self.labels.and_then(|labels| labels.get(key));
        own.is_some_and(|own| &**own == value)
    }
}

impl NamespaceSelector {
    fn fits(&self, tenant: &Tenant<'_>) -> bool {
        let named = self.names.is_empty() || self.names.contains(tenant.name);
        named && self.labels.iter().all(|(k, v)| tenant.has(k, v))
    }
}

/// What a class grants to a namespace.
#[derive(Debug)]
pub(crate) struct Grants<'a>(Vec<&'a Allowance>);

impl<'a> Grants<'a> {
    pub fn of(allowed: &'a [Allowance], tenant: &Tenant<'_>) -> Self {
        let fitting = allowed.iter().filter(|a| a.namespaces.fits(tenant));
        Self(fitting.collect())
    }

    /// A listener at this port of the dataplanes' own address.
    pub fn own(&self, port: u16) -> bool {
        let has = |a: &&Allowance| a.ports.iter().any(|range| range.contains(port));
        self.0.iter().any(has)
    }

    /// A listener at some port of the dataplanes' own address.
    pub fn any_own(&self) -> bool {
        self.0.iter().any(|a| !a.ports.is_empty())
    }

    /// A listener at this port of another address.
    pub fn address(&self, address: IpAddr, port: u16) -> bool {
        self.0.iter().any(|a| {
            a.ports.iter().any(|range| range.contains(port))
                && a.addresses.iter().any(|network| network.contains(address))
        })
    }

    /// An endpoint that is no Pod of the namespace.
    pub fn endpoint(&self, address: IpAddr) -> bool {
        let mut networks = self.0.iter().flat_map(|a| &a.endpoints);
        networks.any(|network| network.contains(address))
    }
}

/// What listeners may have, in words.
impl fmt::Display for Grants<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_listeners = self.0.iter().filter(|a| !a.ports.is_empty());
        let said = few(
            of_listeners.map(|a| {
                let ports = few(&a.ports, ", ");
                match a.addresses.is_empty() {
                    true => format!("ports {ports} of the dataplanes' own addresses"),
                    false => {
                        let addresses = few(&a.addresses, ", ");
                        format!("ports {ports} of the dataplanes' own addresses and of {addresses}")
                    }
                }
            }),
            "; ",
        );
        f.write_str(if said.is_empty() { "nothing" } else { &said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_alike() {
        let ip = |text: &str| text.parse::<IpAddr>().expect(text);
        for (text, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.9/24", "192.0.2.1", "192.0.1.9"),
            ("192.0.2.9", "192.0.2.9", "192.0.2.8"),
            ("192.0.2.9", "::ffff:192.0.2.9", "::ffff:192.0.2.8"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("::/0", "2001:db8::1", "0.0.0.0"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ] {
            assert!(network(text).contains(ip(inside)), "{text} {inside}");
            assert!(!network(text).contains(ip(outside)), "{text} {outside}");
        }
        assert_eq!(network("192.0.2.9/32").to_string(), "192.0.2.9");
        assert_eq!(network("::/0").to_string(), "::/0");
        for text in ["", "192.0.2.0/33", "::/129", "192.0.2/24", "a", "::/-1"] {
            assert_eq!(text.parse::<Network>(), Err(NoRange), "{text}");
        }
    }

    #[test]
    fn a_range_of_ports_has_both_its_ends() {
        let range: PortRange = "8000-8999".parse().expect("a range");
        let found = [7_999, 8_000, 8_999, 9_000].map(|port| range.contains(port));
        assert_eq!(found, [false, true, true, false]);
        assert_eq!(range.to_string(), "8000-8999");
        let one: PortRange = "80".parse().expect("a port");
        assert_eq!((one.to_string(), one.contains(80)), ("80".into(), true));
        for text in ["", "0", "0-1", "2-1", "65536", "1-65536", "+1", "1-", "a"] {
            assert_eq!(text.parse::<PortRange>(), Err(NoRange), "{text}");
        }
    }

    #[test]
    fn a_namespace_is_chosen_by_name_and_by_labels() {
        let [edge, shop]: [Text; 2] = ["edge".into(), "shop".into()];
        let labels = Labels::from_iter([("tier", "front")]);
        let namespaces = BTreeMap::from([(edge.clone(), Arc::new(Namespace { labels }))]);
        let [edge_asks, shop_asks] = [&edge, &shop].map(|name| Tenant::new(name, &namespaces));
        let both =
            |selector: NamespaceSelector| (selector.fits(&edge_asks), selector.fits(&shop_asks));
        let by_labels = |pairs: &[(&str, &str)]| NamespaceSelector {
            labels: pairs.iter().copied().collect(),
            ..NamespaceSelector::default()
        };
        assert_eq!(both(NamespaceSelector::default()), (true, true));
        assert_eq!(both(by_labels(&[("tier", "front")])), (true, false));
        assert_eq!(both(by_labels(&[("tier", "back")])), (false, false));
        // Without an object too.
        assert_eq!(both(by_labels(&[(NAMESPACE_NAME_LABEL, "shop")])), (false, true));
        let named =
            NamespaceSelector { names: [shop.clone()].into(), ..by_labels(&[("tier", "front")]) };
        assert_eq!(both(named), (false, false), "both have to fit");
    }
}
