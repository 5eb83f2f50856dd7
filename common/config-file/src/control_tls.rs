//! The field `controlTls`, which both binaries have: where the control API is offered to the
//! operator, and with what.

use baton_tls::{Files, Material, MaterialError, Name, Part};
use serde::{Deserialize, Serialize};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Mutual TLS for the control API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlTls {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The certificate chain (PEM), the own certificate first.
    pub certificate: PathBuf,
    /// Its key (PEM), which only its owner may read.
    pub key: PathBuf,
    /// The authorities (PEM) that sign the operator's certificate.
    pub client_authority: PathBuf,
}

impl ControlTls {
    /// Where the files are, with relative names from `base`.
    #[must_use]
    pub fn files(&self, base: &Path) -> Files {
        Files {
            certificate: base.join(&self.certificate),
            key: base.join(&self.key),
            authority: base.join(&self.client_authority),
        }
    }

    /// Reads the files of somebody who is `name`.
    ///
    /// # Errors
    /// The field that has to be corrected, or whose file, and what is wrong.
    pub fn read(&self, base: &Path, name: Name) -> Result<Material, (String, String)> {
        let material = self.files(base).read().and_then(|material| {
            material.check_name(name)?;
            Ok(material)
        });
        material.map_err(|error| (field(&error), error.to_string()))
    }
}

fn field(error: &MaterialError) -> String {
    let last = match error {
        MaterialError::Unreadable { part, .. }
        | MaterialError::TooLarge { part, .. }
        | MaterialError::Malformed { part, .. }
        | MaterialError::Empty { part, .. }
        | MaterialError::TooMany { part, .. }
        | MaterialError::Certificate { part, .. } => match part {
            Part::Certificate => "certificate",
            Part::Key => "key",
            Part::Authority => "clientAuthority",
        },
        MaterialError::Exposed { .. } | MaterialError::Mismatch | MaterialError::Key(_) => "key",
        MaterialError::Name { .. } | MaterialError::IsAuthority => "certificate",
    };
    format!("controlTls.{last}")
}
