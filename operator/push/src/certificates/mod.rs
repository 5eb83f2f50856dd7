//! Certificates of the control connections: which are due, and issuing them.
//!
//! - [`renew`] is all that the binary needs where the operator has a CA of its own; it is
//!   [`inspect`], [`plan`] (pure) and [`carry_out`].
//! - [`check_supplied`] judges material that an admin supplied, which is used as it is.
//!
//! A CA lasts ten years. Long before, a next one is made and trusted by all beside the old one; a
//! day later it signs, and once nothing is signed by the old one any more, that is dropped. Each
//! step follows from the certificates alone, so an operator that ends between two steps goes on
//! where it was. Private keys are in [`Files`] only.

mod facts;
mod issue;
mod plan;
mod supplied;

pub use facts::{Authority, Certificate, Existing, Leaf, end, inspect};
pub use issue::{Renewal, carry_out, renew};
pub use plan::{
    Action, CA_LIFE, CA_NEXT_BEFORE_END, LEAF_LIFE, Reason, SKEW, SPREAD, next_look, plan,
};
pub use supplied::{SUPPLIED_WARNING, check_supplied};

use crate::Files;
use std::{collections::BTreeMap, fmt};

/// Of [`Files`]: the certificate, with those of intermediate authorities behind it.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// Of [`Files`]: its private key.
pub const KEY_FILE: &str = "tls.key";
/// Of [`Files`]: whom the holder trusts, one certificate or several.
pub const TRUST_FILE: &str = "ca.crt";
/// Of the authority's [`Files`], while it is renewed: the certificate of the next CA.
pub const NEXT_CERTIFICATE_FILE: &str = "next.crt";
/// Of the authority's [`Files`], while it is renewed: the key of the next CA.
pub const NEXT_KEY_FILE: &str = "next.key";

/// Who holds a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Servers: the dataplanes' control APIs.
    Dataplane,
    /// Servers: the shims' control APIs.
    Shim,
    /// The client of both.
    Operator,
}

impl Role {
    /// Each.
    pub const ALL: [Self; 3] = [Self::Dataplane, Self::Shim, Self::Operator];

    /// The name in its certificate.
    #[must_use]
    pub const fn dns_name(self) -> &'static str {
        match self {
            Self::Dataplane => "dataplane.baton",
            Self::Shim => "shim.baton",
            Self::Operator => "operator.baton",
        }
    }

    /// Whether it opens connections; the others are asked.
    #[must_use]
    pub const fn is_client(self) -> bool {
        matches!(self, Self::Operator)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dns_name())
    }
}

/// What is stored: read from Secrets or directories, or to be written there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The CA: certificate, key, and `ca.crt`, which all holders get; while it is renewed,
    /// `next.crt` and `next.key` too.
    pub authority: Option<Files>,
    /// Certificate, key and `ca.crt` of each holder.
    pub leaves: BTreeMap<Role, Files>,
}

/// Why certificates cannot be used or made. The admin has to act, but for
/// [`CertificateError::Issue`].
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file that must be there.
    #[error("{holder}: `{file}` is missing: expected {expected}")]
    Missing {
        /// `CA`, or the role's name.
        holder: String,
        /// Its name.
        file: &'static str,
        /// What should be there.
        expected: &'static str,
    },
    /// A file that is not what it should be. Shows nothing of it.
    #[error("{holder}: `{file}` {problem}: expected {expected}")]
    Unusable {
        /// `CA`, or the role's name.
        holder: String,
        /// Its name.
        file: &'static str,
        /// What is wrong.
        problem: String,
        /// What should be there.
        expected: &'static str,
    },
    /// A certificate or key could not be made.
    #[error("cannot issue the certificate of {holder}: {source}")]
    Issue {
        /// `CA`, or the role's name.
        holder: String,
        /// Why.
        source: rcgen::Error,
    },
}
