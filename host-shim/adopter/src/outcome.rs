//! What the programs did with a segment, and how often. Mirrors `enum outcome` of `bpf/tables.h`.

/// What the adopter did with one segment that carries the adoption option, or with the last one of
/// a connection.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// The listener got a new connection.
    Adopted,
    /// A copy of an adoption that was taken: its socket answers.
    Repeated,
    /// A probe that was answered Ready.
    ProbeReady,
    /// Answered: nothing listens there.
    NoListener,
    /// Answered: the listener's accept queue is full.
    AcceptQueueFull,
    /// Answered: `bpf_sk_assign_tcp_reqsk` returned an error.
    KernelRefused,
    /// Answered: another socket is on that 4-tuple.
    TupleInUse,
    /// Answered: a copy of an adoption that was taken, and that socket is gone.
    AlreadyAdopted,
    /// Answered: `net.ipv4.tcp_syncookies` is 0.
    SyncookiesOff,
    /// Dropped: the TCP checksum is wrong.
    BadChecksum,
    /// Dropped: the tag does not match.
    BadTag,
    /// Dropped: no key of that epoch.
    UnknownEpoch,
    /// Dropped: the option in a segment that is not laid out as a message.
    BadLayout,
    /// Dropped: an Answer that came to a pod.
    StrayAnswer,
    /// Dropped: no memory for the Answer or for remembering it, or a copy of the same adoption was
    /// being decided on another CPU.
    AnswerLost,
    /// A FIN or RST of an exiting process that got the exit mark.
    ExitMarked,
    /// A probe that was answered Ready without a word of who holds the listeners, because more than
    /// 128 are on the port.
    ProbeTooManyListeners,
    /// A FIN or RST of a process that listens on the port, which got the listener or unread mark.
    ListenerMarked,
    /// A FIN or RST whose process has more than 1,024 descriptors and no listener among the first
    /// of them: not marked.
    TooManyDescriptors,
    /// A Forget that was answered: nothing of the pod is on that 4-tuple, and nothing was created.
    Forgotten,
    /// Dropped: a Forget for a 4-tuple that a socket is on.
    ForgetInUse,
    /// A message for a namespace with another number, such as the pod's that had the address
    /// before: nothing created. An adoption is answered, a Forget dropped.
    Renew,
    /// Answered: the pod's packet rules redirect connections, or could not be read.
    PacketRules,
    /// Dropped: a Release that is not decided yet. The next copy is answered.
    ReleaseAsked,
    /// Answered: a Release whose connection was ended with its request unread.
    Released,
    /// Answered: a Release or Transfer whose connection is not as it says, or cannot go there, and
    /// goes on.
    Kept,
    /// A RST of a connection that a Release ended, which got the release mark.
    ReleaseMarked,
    /// Dropped: a Transfer that is not decided yet. The next copy is answered.
    TransferAsked,
    /// Answered: a Transfer whose connection another pod has now.
    Moved,
    /// Dropped: a RST of the kernel's for a connection that a Transfer took to another pod.
    MovedReset,
    /// A SYN or Adopt whose client block the pod's kernel got the client's address from.
    ClientRestored,
    /// Dropped: a client block whose layout, key epoch, namespace or tag is wrong.
    ClientBad,
    /// Dropped: both the client's port and the leg's are in use with the client's address.
    ClientInUse,
    /// A client block whose client cannot be shown to the pod, because of its address, the pod's
    /// packet rules, or because the table is full. The pod sees the dataplane's address.
    ClientHidden,
    /// Dropped: what came for a client's pair of ends, and not by the leg that stands for it.
    ClientSpoofed,
}

impl Outcome {
    /// Every outcome, in the order of the BPF program's table.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// A fixed name for metric labels and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How often each outcome happened, summed over all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters([u64; Outcome::ALL.len()]);

/// Bytes of one CPU's counters in the BPF maps.
pub(crate) const COUNTERS_BYTES: u32 = (Outcome::ALL.len() * size_of::<u64>()) as u32;

impl Default for Counters {
    fn default() -> Self {
        Self([0; Outcome::ALL.len()])
    }
}

impl Counters {
    /// How often `outcome` happened.
    #[must_use]
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Every outcome and how often it happened.
    pub fn iter(&self) -> impl Iterator<Item = (Outcome, u64)> + '_ {
        Outcome::ALL.iter().map(|o| (*o, self.of(*o)))
    }

    pub(crate) fn sum(per_cpu: &[Vec<u8>]) -> Self {
        let mut all = Self::default();
        for cpu in per_cpu {
            for (sum, bytes) in all.0.iter_mut().zip(cpu.as_chunks::<8>().0) {
                *sum += u64::from_ne_bytes(*bytes);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_in_the_order_of_the_table() {
        for (at, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, at);
        }
        let header = include_str!("bpf/tables.h");
        let list = header
            .split("enum outcome {")
            .nth(1)
            .and_then(|rest| rest.split("OUTCOMES,").next())
            .expect("tables.h has the list");
        let names: Vec<String> = list
            .split(',')
            .map(|name| name.trim().to_lowercase().trim_start_matches("answered_").to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        assert!(names.iter().eq(Outcome::ALL.iter().map(|o| o.name())), "{names:?}");
    }

    #[test]
    fn counters_sum_over_cpus() {
        let cpu = |n: u64| -> Vec<u8> {
            (0..Outcome::ALL.len() as u64).flat_map(|i| (n * i).to_ne_bytes()).collect()
        };
        let counters = Counters::sum(&[cpu(1), cpu(10)]);
        assert_eq!(counters.of(Outcome::Adopted), 0);
        assert_eq!(counters.of(Outcome::AnswerLost), 11 * 14);
    }
}
