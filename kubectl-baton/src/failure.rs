//! Why the cluster could not be asked, in words that say what to change. Knows kube's errors; asks
//! nothing.

use kube::{Error, config::KubeconfigError};

/// What rustls calls `CaUsedAsEndEntity`: OpenSSL and Go take such a certificate.
const CA_SERVES: &str = "its certificate is one of an authority (CA:TRUE), which is taken from no server here; have it \
                         serve one with CA:FALSE that this authority has signed";

/// What was about to be done, for the words and for the right that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// The verb of the right; several if it depends on the server which is asked for.
    pub verb: &'static str,
    /// The resource, as `pods/exec` or `loadbalancerpolicies.baton.dev`.
    pub resource: String,
    /// Where; everywhere if none.
    pub namespace: Option<String>,
}

impl Deed {
    /// `verb` on `resource`.
    pub fn new(verb: &'static str, resource: impl Into<String>, namespace: Option<&str>) -> Self {
        Self { verb, resource: resource.into(), namespace: namespace.map(str::to_owned) }
    }
}

impl std::fmt::Display for Deed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verbs = self.verb.replace(' ', "` and `");
        write!(f, "`{verbs}` on `{}`", self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace `{namespace}`"),
            None => f.write_str(" in all namespaces"),
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no usable kubeconfig. Fatal.
    #[error("{0}")]
    Config(String),
    /// Nobody answers. May pass.
    #[error(
        "the API server at {server} does not answer: {why}: is the cluster up, and is this the right context (`kubectl config get-contexts`)?"
    )]
    Unreachable {
        /// Its address.
        server: String,
        /// In its own words.
        why: String,
    },
    /// The server does not know who asks. Fatal.
    #[error(
        "the API server does not accept the credentials of this context (401): renew them, or choose another one with `--context`"
    )]
    Unauthorized,
    /// A right is missing. Fatal for this deed, others may go on.
    #[error("no permission for {0}: ask for a Role or ClusterRole that grants it")]
    Forbidden(Deed),
    /// The server has no such kind, or no such object. The caller knows which of the two it means.
    #[error("there is nothing at {0}")]
    Missing(Deed),
    /// It took too long. May pass.
    #[error("{what} took longer than {seconds} s")]
    Slow {
        /// What did.
        what: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Anything else. May pass.
    #[error("{what}: {why}")]
    Other {
        /// What was about to be done.
        what: String,
        /// In the server's words.
        why: String,
    },
}

impl Failure {
    /// What kube says, when `deed` failed at `server`.
    pub fn of(error: &Error, deed: &Deed, server: &str) -> Self {
        match error {
            Error::Api(status) => match status.code {
                401 => Self::Unauthorized,
                403 => Self::Forbidden(deed.clone()),
                404 => Self::Missing(deed.clone()),
                code => Self::Other {
                    what: format!("the API server refuses {deed}"),
                    why: format!("{} ({code})", or(&status.message, &status.reason)),
                },
            },
            Error::Service(_) | Error::HyperError(_) => Self::Unreachable {
                server: server.to_owned(),
                why: match innermost(error) {
                    why if why.contains("CaUsedAsEndEntity") => CA_SERVES.to_owned(),
                    why => why,
                },
            },
            Error::Auth(why) => Self::Config(format!(
                "the credentials of this context cannot be had: {why}: does the program or file that the kubeconfig names for its user work?"
            )),
            other => {
                Self::Other { what: format!("asking for {deed} failed"), why: innermost(other) }
            }
        }
    }

    /// The kubeconfig cannot be used.
    pub fn kubeconfig(error: &KubeconfigError) -> Self {
        Self::Config(match error {
            KubeconfigError::CurrentContextNotSet => {
                "the kubeconfig names no current context: choose one with `--context` or `kubectl config use-context`".to_owned()
            }
            KubeconfigError::LoadContext(name) => format!(
                "the kubeconfig has no context `{name}`: `kubectl config get-contexts` shows those that it has"
            ),
            KubeconfigError::ReadConfig(why, path) => format!(
                "the kubeconfig {} cannot be read: {why}: name another one with `--kubeconfig` or $KUBECONFIG",
                path.display()
            ),
            KubeconfigError::FindPath => {
                "there is no kubeconfig: name one with `--kubeconfig` or $KUBECONFIG".to_owned()
            }
            KubeconfigError::ParseNoProxy(why) => format!(
                "$NO_PROXY cannot be read: {why}: expected hosts, addresses and networks with commas between them"
            ),
            other => format!("the kubeconfig cannot be used: {}", innermost(other)),
        })
    }

    /// Whether asking somebody else is of no use either.
    pub fn is_for_all(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Unreachable { .. } | Self::Unauthorized)
    }
}

fn or<'a>(first: &'a str, second: &'a str) -> &'a str {
    if first.is_empty() { second } else { first }
}

/// The cause behind all causes: those around it repeat each other.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16, message: &str) -> Error {
        Error::Api(Status::failure(message, "Reason").with_code(code).boxed())
    }

    #[test]
    fn a_missing_right_names_the_verb_and_the_resource() {
        let exec = Deed::new("get create", "pods/exec", Some("baton-system"));
        let failure = Failure::of(&api(403, "no"), &exec, "https://c");
        assert_eq!(
            failure.to_string(),
            "no permission for `get` and `create` on `pods/exec` in namespace `baton-system`: ask for a Role or \
             ClusterRole that grants it"
        );
        assert!(!failure.is_for_all());
        let list = Deed::new("list", "batondataplanes.baton.dev", None);
        let text = Failure::of(&api(403, "no"), &list, "https://c").to_string();
        assert!(text.contains("`list` on `batondataplanes.baton.dev` in all namespaces"), "{text}");
    }

    #[test]
    fn each_kind_of_failure_is_told_apart() {
        let deed = Deed::new("list", "pods", None);
        let of = |error: &Error| Failure::of(error, &deed, "https://c:6443");
        assert_eq!(of(&api(401, "")), Failure::Unauthorized);
        assert_eq!(of(&api(404, "")), Failure::Missing(deed.clone()));
        assert!(of(&api(500, "etcd is down")).to_string().contains("etcd is down (500)"));
        let refused =
            std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let failure = of(&Error::Service(Box::new(refused)));
        assert!(failure.is_for_all());
        let text = failure.to_string();
        assert!(
            text.starts_with(
                "the API server at https://c:6443 does not answer: connection refused: is"
            ),
            "{text}"
        );
        // In rustls' words, which say nothing to an admin.
        let words = "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))";
        let text = of(&Error::Service(words.into())).to_string();
        assert!(text.contains("with CA:FALSE"), "{text}");
        let text = Failure::kubeconfig(&KubeconfigError::LoadContext("gone".into())).to_string();
        assert!(text.contains("no context `gone`"), "{text}");
    }
}
