//! The loaded adopter: keys in, counters out, attached and detached.

use crate::{
    Attachment, AttachmentId, Counters, Error, Hook, Netns, OpenNetns,
    asked::{map_error, now_ns},
    attachment::{attach_clsact, attach_tcx, detach_clsact, is_alive},
    bpffs::PinDir,
    kernel,
    object::{self, Loaded},
    outcome::COUNTERS_BYTES,
    releases::Releases,
    rules::PacketRules,
    sys,
    transfers::Transfers,
};
use libbpf_rs::{MapCore, MapFlags};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    os::fd::AsFd,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// Key epochs that can be told apart on the wire; an epoch is used modulo this number.
pub const EPOCHS: u8 = 16;

/// What no generation of packet rules is: it cannot be told (src/bpf/rules.h).
const UNKNOWN_GENERATION: u64 = 0;
/// The kernel runs a program on no less than an Ethernet header.
const GENERATION_FRAME_BYTES: usize = 64;
/// So often rules may change while they are read.
const RULES_READ_MAX: u32 = 4;

/// `struct key_slot`: 16 bytes of key, then a 64-bit number that is 1 if the key is live.
const KEY_SLOT_BYTES: usize = 24;

/// The BPF programs and their maps, loaded once per node and shared by all its pods.
#[derive(Debug)]
pub struct Adopter {
    loaded: Loaded,
    pins: Option<PinDir>,
    /// What this process attached and did not detach: a namespace has its number as long as the
    /// adopter is anywhere in it.
    attached: Mutex<BTreeSet<AttachmentId>>,
}

impl Adopter {
    /// Loads the program. With a directory, maps and links are pinned there, and those that a
    /// predecessor left are taken over: its keys, counters and recent adoptions go on. Without, all
    /// ends with this process (but clsact filters, which the kernel keeps).
    ///
    /// # Errors
    /// [`Error::Load`] and [`Error::KernelLacks`] if the kernel refuses the program, [`Error::Pin`]
    /// and [`Error::Busy`] about the directory.
    pub fn load(pin_dir: Option<&Path>) -> Result<Self, Error> {
        Self::load_by(pin_dir, object::load)
    }

    /// As on a kernel that does not take what decides Releases.
    ///
    /// # Errors
    /// As [`Self::load`].
    #[doc(hidden)]
    pub fn load_without_releases(pin_dir: Option<&Path>) -> Result<Self, Error> {
        let refused = || Some("left out".to_owned());
        Self::load_by(pin_dir, |pins| object::load_with(pins, refused()))
    }

    fn load_by(
        pin_dir: Option<&Path>,
        load: impl FnOnce(Option<&PinDir>) -> Result<Loaded, Error>,
    ) -> Result<Self, Error> {
        let pins = pin_dir.map(PinDir::open).transpose()?;
        let loaded = load(pins.as_ref()).map_err(|error| {
            error.on_kernel(kernel::has_function(kernel::ADOPT_FUNCTION), kernel::release())
        })?;
        Ok(Self { loaded, pins, attached: Mutex::default() })
    }

    /// Maps that a predecessor left and that go on.
    #[must_use]
    pub fn reused_maps(&self) -> &[String] {
        &self.loaded.reused
    }

    /// Maps that a predecessor left with another layout; they begin empty.
    #[must_use]
    pub fn replaced_maps(&self) -> &[String] {
        &self.loaded.replaced
    }

    /// What decides Releases, or why this kernel cannot have it: then each is answered Kept.
    ///
    /// # Errors
    /// The kernel's words.
    pub fn releases(&self) -> Result<Releases, String> {
        let release = self.loaded.release.as_ref().map_err(Clone::clone)?;
        Releases::new(release, &self.loaded.releases, &self.loaded.asks).map_err(|e| e.to_string())
    }

    /// What tells of Transfers and has them answered. From now on they are asked; before, each is
    /// answered Kept.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn transfers(&self) -> Result<Transfers, Error> {
        Transfers::new(&self.loaded.transfer)
    }

    /// Makes `key` the live key of an epoch (modulo [`EPOCHS`]).
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_key(&self, epoch: u8, key: &[u8; 16]) -> Result<(), Error> {
        let mut slot = [0; KEY_SLOT_BYTES];
        slot[..16].copy_from_slice(key);
        slot[16..].copy_from_slice(&1_u64.to_ne_bytes());
        self.write_slot(epoch, &slot, "setting a key")
    }

    /// Forgets the key of an epoch; its segments are dropped from now on.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn retire_key(&self, epoch: u8) -> Result<(), Error> {
        self.write_slot(epoch, &[0; KEY_SLOT_BYTES], "retiring a key")
    }

    /// The epochs (modulo [`EPOCHS`]) that have a live key.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn live_epochs(&self) -> Result<Vec<u8>, Error> {
        let mut live = Vec::new();
        for epoch in 0..EPOCHS {
            let slot = self
                .loaded
                .keys
                .lookup(&u32::from(epoch).to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| map_error("keys", "reading", &e))?;
            if slot.is_some_and(|s| s[16..] != [0; 8]) {
                live.push(epoch);
            }
        }
        Ok(live)
    }

    fn write_slot(
        &self,
        epoch: u8,
        slot: &[u8; KEY_SLOT_BYTES],
        operation: &'static str,
    ) -> Result<(), Error> {
        self.loaded
            .keys
            .update(&u32::from(epoch % EPOCHS).to_ne_bytes(), slot, MapFlags::ANY)
            .map_err(|e| map_error("keys", operation, &e))
    }

    /// Whether the kernel has tcx (Linux 6.6); nothing is attached.
    #[must_use]
    pub fn kernel_has_tcx(&self) -> bool {
        // No interface has this index: a kernel that knows the attach type looks for it, another
        // refuses the type.
        let refused = sys::tcx_attach(self.program(), sys::Side::Ingress, i32::MAX as u32);
        refused.is_err_and(|e| e.raw_os_error() == Some(libc::ENODEV))
    }

    /// Puts the adopter, and at the way out the exit mark, on an interface, by tcx where the kernel
    /// has it, else by clsact. One that a predecessor left there gets this program in one step: no
    /// segment passes without an adopter.
    ///
    /// # Errors
    /// [`Error::NetnsMissing`], [`Error::NetnsEnter`], [`Error::InterfaceMissing`],
    /// [`Error::NotEthernet`], [`Error::Attach`], [`Error::Pin`].
    pub fn attach(&self, netns: &Netns, interface: &str) -> Result<Attachment, Error> {
        self.attach_in(&netns.open()?, interface)
    }

    /// As [`Self::attach`], in a namespace that is open: a name may lead to another one by now.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_in(&self, open: &OpenNetns, interface: &str) -> Result<Attachment, Error> {
        let ifindex = open.ifindex(interface)?;
        let rules = self.judge(open)?;
        let attached = self.numbered(open, || {
            attach_tcx(&self.loaded, open, ifindex, self.pins.as_ref())?
                .map_err(|source| refused(open, interface, Hook::Tcx, source))
        })?;
        match attached {
            Some(attachment) => Ok(self.note(Attachment { rules, ..attachment })),
            None => self.clsact_in(open, interface),
        }
    }

    /// Attaches to a namespace that has its number already: without one the adopter answers nobody.
    fn numbered<T>(
        &self,
        netns: &OpenNetns,
        attach: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.give_number(netns.cookie())?;
        let attached = attach();
        if attached.is_err() {
            self.take_number(netns.cookie());
        }
        attached
    }

    /// A number for a namespace, from the system's randomness, unless it has one, from a
    /// predecessor or by another interface.
    fn give_number(&self, netns: u64) -> Result<(), Error> {
        let refuse = |operation, source| Error::Map { map: "namespaces", operation, source };
        let mut random = [0; 8];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(|e| refuse("drawing a number from /dev/urandom", e))?;
        // 0 stands for none, in probes.
        let number = u64::from_ne_bytes(random).max(1);
        let mut value = [0; 16];
        value[..8].copy_from_slice(&number.to_be_bytes());
        value[8..].copy_from_slice(&now_ns().to_ne_bytes());
        let map = &self.loaded.namespaces;
        let given = map.update(&netns.to_ne_bytes(), &value, MapFlags::NO_EXIST);
        match given {
            Err(e) if self.namespace_number(netns)?.is_none() => {
                Err(map_error("namespaces", "giving a namespace its number", &e))
            }
            _ => Ok(()),
        }
    }

    /// Forgets a namespace's number, unless the adopter is still somewhere in it.
    fn take_number(&self, netns: u64) {
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = self.pinned().unwrap_or_default();
        if !attached.iter().chain(&pinned).any(|id| id.netns == netns) {
            // Absent if an earlier call took it.
            let _ = self.loaded.namespaces.delete(&netns.to_ne_bytes());
        }
    }

    /// The number that adoptions for a namespace must name, by [`OpenNetns::cookie`]; `None` where
    /// the adopter is not attached.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn namespace_number(&self, cookie: u64) -> Result<Option<u64>, Error> {
        let value = self
            .loaded
            .namespaces
            .lookup(&cookie.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| map_error("namespaces", "reading", &e))?;
        Ok(value.and_then(|v| Some(u64::from_be_bytes(*v.first_chunk()?))))
    }

    fn note(&self, attachment: Attachment) -> Attachment {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.insert(attachment.id);
        drop(attached);
        attachment
    }

    /// Puts the adopter on an interface by clsact, even where the kernel has tcx.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_clsact(&self, netns: &Netns, interface: &str) -> Result<Attachment, Error> {
        self.clsact_in(&netns.open()?, interface)
    }

    fn clsact_in(&self, open: &OpenNetns, interface: &str) -> Result<Attachment, Error> {
        let ifindex = open.ifindex(interface)?;
        let rules = self.judge(open)?;
        let attachment = self.numbered(open, || {
            attach_clsact(&self.loaded, open, ifindex, self.pins.as_ref())?
                .map_err(|source| refused(open, interface, Hook::Clsact, source))
        })?;
        Ok(self.note(Attachment { rules, ..attachment }))
    }

    /// Reads a namespace's packet rules and tells the program, before it is there: it refuses where
    /// nobody has.
    fn judge(&self, open: &OpenNetns) -> Result<PacketRules, Error> {
        self.judge_again(open, &PacketRules::default())
    }

    /// The verdict is on the generation that there was before and after the reading. The program
    /// refuses under any other one.
    fn judge_again(&self, open: &OpenNetns, known: &PacketRules) -> Result<PacketRules, Error> {
        let (generation, rules) = open.within(|| self.read_rules(known))?;
        let harmless = u64::from(rules.refusal().is_none());
        let verdict = [generation.to_ne_bytes(), harmless.to_ne_bytes()].concat();
        self.loaded
            .rules
            .update(&open.cookie().to_ne_bytes(), &verdict, MapFlags::ANY)
            .map_err(|e| map_error("rules", "telling of packet rules", &e))?;
        Ok(rules)
    }

    /// The rules of the calling thread's namespace and their generation.
    fn read_rules(&self, known: &PacketRules) -> (u64, PacketRules) {
        for _ in 0..RULES_READ_MAX {
            let generation = match self.generation() {
                Ok(UNKNOWN_GENERATION) => return (UNKNOWN_GENERATION, PacketRules::too_many()),
                Ok(generation) => generation,
                Err(problem) => return (UNKNOWN_GENERATION, PacketRules::unreadable(&problem)),
            };
            let rules = known.read_again();
            if self.generation().is_ok_and(|after| after == generation) {
                return (generation, rules);
            }
        }
        (UNKNOWN_GENERATION, PacketRules::unsteady())
    }

    /// What the adopter would find in the calling thread's namespace.
    fn generation(&self) -> io::Result<u64> {
        let mut frame = [0; GENERATION_FRAME_BYTES];
        sys::test_run_once(self.loaded.generation.as_fd(), &mut frame)?;
        Ok(frame.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)))
    }

    /// Looks at the packet rules of namespaces again, which their pods change as they like. A look
    /// costs little while nothing changed. Returns whether an attachment's [`Attachment::refusal`]
    /// is another one. A namespace that the name does not lead to any more is left as it is.
    ///
    /// # Errors
    /// [`Error::Map`] and those of [`Netns::open`]: what was known of the rules before stays in
    /// force.
    pub fn look_at_rules(&self, netns: &Netns, attachment: &mut Attachment) -> Result<bool, Error> {
        let id = attachment.id;
        let open = netns.open()?;
        if open.cookie() != id.netns {
            return Ok(false);
        }
        let rules = self.judge_again(&open, &attachment.rules)?;
        let changed = rules.refusal() != attachment.rules.refusal();
        attachment.rules = rules;
        Ok(changed)
    }

    /// Takes the adopter off an interface, and forgets its pin and the namespace's counters and
    /// number.
    ///
    /// # Errors
    /// [`Error::Detach`] if a pin cannot be removed or a clsact filter cannot.
    pub fn detach(&self, attachment: Attachment) -> Result<(), Error> {
        let id = attachment.id;
        // Unpinned: the link ends with its descriptor.
        drop(attachment);
        self.detach_id(id)
    }

    /// What is pinned, by this process or a predecessor.
    ///
    /// # Errors
    /// [`Error::Pin`].
    pub fn pinned(&self) -> Result<Vec<AttachmentId>, Error> {
        let names = self.pins.as_ref().map_or(Ok(Vec::new()), PinDir::names)?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Whether what is pinned is on an interface still: a pin outlives it.
    #[must_use]
    pub fn is_on(&self, id: AttachmentId) -> bool {
        let pin = || self.pins.as_ref().map(|pins| pins.file(&id.to_string()));
        match id.hook {
            Hook::Tcx => pin()
                .and_then(|pin| sys::pinned(&pin).ok())
                .is_some_and(|link| is_alive(link.as_fd())),
            Hook::Clsact => Netns::by_cookie(id.netns).is_some(),
        }
    }

    /// Takes the adopter off an interface that is only known by its pin, such as one that a
    /// predecessor left and that is no longer wanted.
    ///
    /// # Errors
    /// [`Error::Detach`].
    pub fn detach_id(&self, id: AttachmentId) -> Result<(), Error> {
        if id.hook == Hook::Clsact
            && let Some(netns) = Netns::by_cookie(id.netns)
        {
            detach_clsact(&self.loaded, &netns, id.ifindex)?;
        }
        if let Some(pins) = &self.pins {
            let removed = match id.hook {
                Hook::Tcx => [id.to_string(), id.exit_pin()]
                    .iter()
                    .try_for_each(|name| remove_link(&pins.file(name))),
                Hook::Clsact => missing_is_fine(fs::remove_dir(pins.file(&id.to_string()))),
            };
            removed.map_err(|source| Error::Detach { id: id.to_string(), source })?;
        }
        self.attached.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.take_number(id.netns);
        // Absent if nothing ever came.
        let _ = self.loaded.netns_counters.delete(&id.netns.to_ne_bytes());
        // Its other interfaces, if it has any, are told of at the next look.
        let _ = self.loaded.rules.delete(&id.netns.to_ne_bytes());
        Ok(())
    }

    /// Ends everything that is pinned: attachments, then maps, then the directory.
    ///
    /// # Errors
    /// The first failure; the rest is still tried.
    pub fn unpin_all(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for id in self.pinned()? {
            result = result.and(self.detach_id(id));
        }
        if let Some(pins) = &self.pins {
            for name in pins.names()? {
                if name.starts_with(&object::pin_name(""))
                    && let Err(e) = fs::remove_file(pins.file(&name))
                {
                    result = result
                        .and(Err(Error::Pin { path: pins.file(&name), problem: e.to_string() }));
                }
            }
            pins.remove();
        }
        result
    }

    /// How often each outcome happened on this node, also in namespaces that are gone.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn counters(&self) -> Result<Counters, Error> {
        let per_cpu = self
            .loaded
            .counters
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| map_error("counters", "reading", &e))?;
        Ok(Counters::sum(&per_cpu.unwrap_or_default()))
    }

    /// How often each outcome happened in one namespace, since the adopter was attached there.
    ///
    /// # Errors
    /// [`Error::Map`], and those of [`Netns::open`].
    pub fn counters_of(&self, netns: &Netns) -> Result<Counters, Error> {
        self.counters_of_cookie(netns.open()?.cookie())
    }

    /// As [`Self::counters_of`], by [`OpenNetns::cookie`].
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn counters_of_cookie(&self, cookie: u64) -> Result<Counters, Error> {
        let per_cpu = self
            .loaded
            .netns_counters
            .lookup_percpu(&cookie.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| map_error("netns_counters", "reading", &e))?;
        debug_assert_eq!(self.loaded.netns_counters.value_size(), COUNTERS_BYTES);
        Ok(Counters::sum(&per_cpu.unwrap_or_default()))
    }

    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    pub(crate) fn program(&self) -> std::os::fd::BorrowedFd<'_> {
        self.loaded.program.as_fd()
    }
}

/// Takes a link's program off at once and removes its pin.
fn remove_link(pin: &Path) -> io::Result<()> {
    if let Ok(link) = sys::pinned(pin) {
        // Removing the pin alone would end the link a little later. Fails if the interface is gone
        // already.
        let _ = sys::link_detach(link.as_fd());
    }
    missing_is_fine(fs::remove_file(pin))
}

fn missing_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn refused(netns: &OpenNetns, interface: &str, hook: Hook, source: io::Error) -> Error {
    Error::Attach {
        netns: netns.name().to_owned(),
        interface: interface.to_owned(),
        hook: hook.name(),
        source,
    }
}
