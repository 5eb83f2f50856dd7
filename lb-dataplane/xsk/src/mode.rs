//! The modes that frames can come in and go out by, and which of them are tried.

use std::fmt;

/// How frames come in and go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// AF_XDP, the program in the driver.
    Native,
    /// AF_XDP, the program after the kernel has made its socket buffer.
    Generic,
    /// AF_PACKET.
    Packet,
}

impl Mode {
    /// A fixed word for metrics and state.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Packet => "packet",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Which mode to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// The first that works of native and packet. Generic mode loses frames that are larger than a
    /// buffer, as GRO and a local sender's segmentation offload make them, and packet mode cuts
    /// them up: it works wherever generic mode does.
    #[default]
    Auto,
    /// This or an error.
    Native,
    /// This or an error.
    Generic,
    /// This or an error.
    Packet,
}

impl ModeChoice {
    pub(crate) const fn candidates(self) -> &'static [Mode] {
        match self {
            Self::Auto => &[Mode::Native, Mode::Packet],
            Self::Native => &[Mode::Native],
            Self::Generic => &[Mode::Generic],
            Self::Packet => &[Mode::Packet],
        }
    }
}
