//! The kinds of objects that the operator reads.

/// A kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `LoadBalancerPolicy`.
    Policy,
    /// `BatonDataplane`.
    Class,
    /// `Service`.
    Service,
    /// `EndpointSlice`.
    Slice,
    /// `Pod`.
    Pod,
    /// `Node`.
    Node,
    /// `Namespace`.
    Namespace,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Policy,
        Self::Class,
        Self::Service,
        Self::Slice,
        Self::Pod,
        Self::Node,
        Self::Namespace,
    ];

    /// As in manifests, logs and labels of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "LoadBalancerPolicy",
            Self::Class => "BatonDataplane",
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
        }
    }

    /// The group and version of its manifests.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Policy | Self::Class => "baton.dev/v1alpha1",
            Self::Service | Self::Pod | Self::Node | Self::Namespace => "v1",
            Self::Slice => "discovery.k8s.io/v1",
        }
    }

    /// Whether its objects are in namespaces.
    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Class | Self::Node | Self::Namespace)
    }

    /// The kind of a manifest, if it is one of these.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == kind && k.api_version() == api_version)
    }
}
