//! Where a dataplane takes commands without TLS: an address and port, or a unix socket.

use serde::{Deserialize, Serialize};
use std::{fmt, net::SocketAddr, path::Path, str::FromStr};

/// How a socket's path begins in configurations and on command lines.
const UNIX: &str = "unix:";
/// Bytes of a socket's path: `sun_path` of `struct sockaddr_un` holds 108 with the final zero.
const UNIX_PATH_MAX: usize = 107;

/// A place for the control API: `127.0.0.1:9900`, or `unix:/run/baton/control.sock`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ControlAddress {
    /// Whoever reaches it in this network namespace may come in.
    Tcp(SocketAddr),
    /// Only who may open the socket.
    Unix(SocketPath),
}

/// The absolute path of a unix socket: short enough for the kernel, so that it fits here and is
/// copied as an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SocketPath {
    bytes: [u8; UNIX_PATH_MAX],
    len: u8,
}

impl SocketPath {
    fn parse(path: &str) -> Result<Self, ControlAddressError> {
        let named = Path::new(path).file_name().is_some() && !path.ends_with('/');
        if !path.starts_with('/') || !named || path.contains('\0') {
            return Err(ControlAddressError::Path(path.to_owned()));
        }
        let mut bytes = [0; UNIX_PATH_MAX];
        let (Some(place), Ok(len)) = (bytes.get_mut(..path.len()), u8::try_from(path.len())) else {
            return Err(ControlAddressError::Long(path.len()));
        };
        place.copy_from_slice(path.as_bytes());
        Ok(Self { bytes, len })
    }

    fn text(&self) -> &str {
        // Made from text, and never cut.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(self.text())
    }
}

/// Why a text is no [`ControlAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlAddressError {
    /// Neither form.
    #[error(
        "`{0}` is no place for the control API: expected an address and port, as 127.0.0.1:9900, or unix:/PATH, as unix:/run/baton/control.sock"
    )]
    Form(String),
    /// A path that names no file, or depends on where a program was started.
    #[error(
        "`{0}` is not the path of a socket: expected an absolute one, as unix:/run/baton/control.sock"
    )]
    Path(String),
    /// The kernel takes no such path.
    #[error("the path of the socket has {0} bytes: expected at most {UNIX_PATH_MAX}")]
    Long(usize),
}

impl FromStr for ControlAddress {
    type Err = ControlAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(UNIX) {
            Some(path) => SocketPath::parse(path).map(Self::Unix),
            None => {
                text.parse().map(Self::Tcp).map_err(|_| ControlAddressError::Form(text.to_owned()))
            }
        }
    }
}

impl TryFrom<String> for ControlAddress {
    type Error = ControlAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ControlAddress> for String {
    fn from(address: ControlAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.text()),
        }
    }
}

impl fmt::Debug for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_written_as_they_are() {
        for text in ["127.0.0.1:9900", "[::1]:7", "unix:/run/baton/control.sock", "unix:/s"] {
            let address: ControlAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
            let json = serde_json::to_string(&address).expect("JSON");
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<ControlAddress>(&json).expect("JSON"), address);
        }
        let longest = format!("unix:/{}", "a".repeat(UNIX_PATH_MAX - 1));
        let Ok(ControlAddress::Unix(path)) = longest.parse() else {
            panic!("{longest}");
        };
        assert_eq!(path.as_path().as_os_str().len(), UNIX_PATH_MAX);
    }

    #[test]
    fn what_is_neither_says_what_was_expected() {
        for (text, expected) in [
            ("localhost:9900", "expected an address and port"),
            ("9900", "or unix:/PATH"),
            ("/run/baton/control.sock", "or unix:/PATH"),
            ("unix:", "an absolute one"),
            ("unix:control.sock", "an absolute one"),
            ("unix:/", "an absolute one"),
            ("unix:/run/baton/", "an absolute one"),
            ("unix:/run/..", "an absolute one"),
            ("unix:/a\0b", "an absolute one"),
        ] {
            let error = text.parse::<ControlAddress>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = format!("unix:/{}", "a".repeat(UNIX_PATH_MAX));
        let error = long.parse::<ControlAddress>().expect_err("too long");
        assert_eq!(error, ControlAddressError::Long(108));
    }
}
