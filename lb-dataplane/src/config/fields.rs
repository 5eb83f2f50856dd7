//! The smaller fields of the configuration, each with its default, its range and the reason for
//! both.

use baton_api::SnapshotError;
use baton_config::{
    KeysField,
    logging::{self, EnvFilter, LogFormat},
};
use baton_xsk::WORKERS_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, ops::RangeInclusive, str::FromStr};

/// Ports of the legs, both ends included. Text form: `20000-59999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// Fewest ports that the engine of a worker can quarantine and reuse without waiting.
const PORTS_MIN: u16 = 64;

impl Default for Ports {
    fn default() -> Self {
        // Ends where net.ipv4.ip_local_port_range starts by default (32,768), so that no
        // reservation is needed.
        Self { first: 20_000, last: 32_767 }
    }
}

impl Ports {
    /// Whether `port` is one of them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        self.range().contains(&port)
    }

    /// Workers that have enough of them.
    fn workers_max(self) -> u32 {
        (u32::from(self.last - self.first) + 1) / u32::from(PORTS_MIN)
    }

    /// As a range.
    #[must_use]
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse =
            || format!("`{text}` is not a range of ports: expected first and last, as 20000-32767");
        let (first, last) = text.split_once('-').ok_or_else(refuse)?;
        let first: u16 = first.trim().parse().map_err(|_| refuse())?;
        let last: u16 = last.trim().parse().map_err(|_| refuse())?;
        if first < 1024 {
            return Err(format!("{first} is a well-known port: expected ports from 1024"));
        }
        if last < first || last - first < PORTS_MIN - 1 {
            return Err(format!("`{text}` has too few ports: expected at least {PORTS_MIN}"));
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How frames come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The first that works of the others, in their order.
    #[default]
    Auto,
    /// AF_XDP in the driver.
    Native,
    /// AF_XDP behind the driver.
    Generic,
    /// AF_PACKET.
    Packet,
}

impl From<Mode> for baton_xsk::ModeChoice {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Auto => Self::Auto,
            Mode::Native => Self::Native,
            Mode::Generic => Self::Generic,
            Mode::Packet => Self::Packet,
        }
    }
}

/// What is logged and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Log {
    /// Text for people or JSON for programs.
    pub format: LogFormat,
    /// A level, or levels per module as `info,lb_dataplane=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

impl Log {
    /// The level as the log library wants it.
    ///
    /// # Errors
    /// The level is none.
    pub fn filter(&self) -> Result<EnvFilter, SnapshotError> {
        logging::filter(&self.level).ok_or_else(|| SnapshotError {
            path: "log.level".to_owned(),
            problem: format!(
                "`{}` is not a level: expected off, error, warn, info, debug or trace, or levels per module as info,lb_dataplane=debug",
                self.level
            ),
        })
    }

    pub(super) fn check(&self) -> Result<(), SnapshotError> {
        self.filter().map(drop)
    }
}

pub(super) fn check_keys(keys: &KeysField) -> Result<(), SnapshotError> {
    let refuse = |path: &str, problem: &str| {
        Err(SnapshotError { path: path.to_owned(), problem: problem.to_owned() })
    };
    // What a folder holds shows when it is read.
    let KeysField::Files(keys) = keys else {
        return Ok(());
    };
    if keys.len() > 2 {
        return refuse(
            "keys",
            "expected one key, or two while they are being changed; or none, with which nothing is adopted",
        );
    }
    if let [first, second] = &keys[..]
        && first.epoch % 16 == second.epoch % 16
    {
        return refuse(
            "keys[1].epoch",
            "is the first key's epoch on the wire: expected two that differ modulo 16",
        );
    }
    Ok(())
}

/// Threads that forward packets, each with its part of the ports and tables. Text form: a number,
/// or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One for every two CPUs that the process may use, and one where the interface allows no more.
    Auto,
    /// So many, or the dataplane does not start.
    Exactly(u32),
}

/// `auto` takes no more: beyond it nobody has measured what is gained.
const WORKERS_AUTO_MAX: u32 = 4;

impl Default for Workers {
    fn default() -> Self {
        // What more bring on more than two cores nobody has measured, and each probes all backends.
        Self::Exactly(1)
    }
}

impl Workers {
    pub(super) fn check(self, ports: Ports) -> Result<(), SnapshotError> {
        let refuse = |problem: String| Err(SnapshotError { path: "workers".to_owned(), problem });
        let Self::Exactly(count) = self else {
            return Ok(());
        };
        if !(1..=WORKERS_MAX).contains(&count) {
            return refuse(format!(
                "{count} is not possible: expected auto, or 1 to {WORKERS_MAX}"
            ));
        }
        let most = ports.workers_max();
        if count > most {
            return refuse(format!(
                "{count} is too many for the ports {ports}: each needs {PORTS_MIN}, so expected at most {most}, or more `ports`"
            ));
        }
        Ok(())
    }

    /// What the interface is asked for, with so many CPUs.
    #[must_use]
    pub fn wanted(self, ports: Ports, cpus: u32) -> baton_xsk::Workers {
        match self {
            Self::Auto => {
                let most = WORKERS_AUTO_MAX.min(ports.workers_max());
                baton_xsk::Workers::UpTo((cpus / 2).clamp(1, most))
            }
            Self::Exactly(count) => baton_xsk::Workers::Exactly(count),
        }
    }
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Exactly(count) => serializer.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected auto, or a number of threads")]
        enum Text {
            Count(u32),
            Word(Auto),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Auto {
            Auto,
        }
        Ok(match Text::deserialize(deserializer)? {
            Text::Count(count) => Self::Exactly(count),
            Text::Word(Auto::Auto) => Self::Auto,
        })
    }
}

/// Packet rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rings {
    /// Packet buffers of all rings together; 0: as many as they can hold.
    pub frames: u32,
    /// Entries of a receive ring; half of it where the MTU is above 1,778.
    pub rx: u32,
    /// Entries of a transmit ring; likewise.
    pub tx: u32,
    /// Frames per turn.
    pub batch: u32,
    /// How long to look at the rings before sleeping, where that pays; 0: never.
    pub busy_poll_us: u32,
}

impl Default for Rings {
    fn default() -> Self {
        // 2,048 frames of 1,500 bytes are 2.5 ms of a 10 Gbit/s line: longer than the worker is
        // away from the rings on a busy machine.
        Self {
            frames: 0,
            rx: 2048,
            // What waits here is sent with each batch.
            tx: 512,
            batch: 64,
            // A little longer than an idle CPU of a virtual machine takes to wake up (35 us).
            // Latency at one connection fell from 81 to 53 us with it (`make bench-compare`); where
            // it does not pay, the port stops it, and where CPU time is rationed it is not done.
            busy_poll_us: 40,
        }
    }
}

impl Rings {
    pub(super) fn check(&self) -> Result<(), SnapshotError> {
        let refuse = |path: &str, value: u32, expected: String| {
            Err(SnapshotError {
                path: format!("rings.{path}"),
                problem: format!("{value} is not possible: expected {expected}"),
            })
        };
        for (name, value) in [("rx", self.rx), ("tx", self.tx)] {
            if !value.is_power_of_two() || !(64..=65_536).contains(&value) {
                return refuse(name, value, "a power of two from 64 to 65536".into());
            }
        }
        let smaller = self.rx.min(self.tx);
        if self.batch == 0 || self.batch > smaller {
            return refuse("batch", self.batch, format!("1 to {smaller} (rx and tx)"));
        }
        // The port needs this many with one queue; with more it says so itself when it opens.
        let needed = self.rx + 2 * self.tx + self.batch + 1;
        if self.frames != 0 && self.frames < needed {
            return refuse(
                "frames",
                self.frames,
                format!("0 (as many as the rings hold) or at least {needed}"),
            );
        }
        if self.busy_poll_us > 1_000_000 {
            return refuse("busyPollUs", self.busy_poll_us, "0 to 1000000".into());
        }
        Ok(())
    }
}
