//! One place where the adopter is attached, with the exit mark on the way out: how they got there,
//! their pins and their end.

use crate::{
    Error, OpenNetns,
    bpffs::PinDir,
    object::Loaded,
    rules::PacketRules,
    sys::{self, Side},
};
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};
use std::{
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    str::FromStr,
};

/// Sets our filter apart from others at the same priority.
const CLSACT_HANDLE: u32 = 0xba70;
/// First of all filters.
const CLSACT_PRIORITY: u32 = 1;

/// How a program is at an interface's ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// A link of Linux 6.6 and newer: it can be pinned, and nobody else can remove it by accident.
    Tcx,
    /// A filter of the `clsact` queueing discipline.
    Clsact,
}

/// Which interface of which network namespace, by the kernel's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachmentId {
    /// See [`OpenNetns::cookie`].
    pub netns: u64,
    /// The interface's index in that namespace.
    pub ifindex: u32,
    /// How it is attached.
    pub hook: Hook,
}

/// The adopter on one interface. Dropping it leaves a pinned or clsact adopter in place, and
/// detaches an unpinned link.
#[derive(Debug)]
pub struct Attachment {
    pub(crate) id: AttachmentId,
    /// It was there before this process and got the new program in one step.
    pub(crate) taken_over: bool,
    /// Of its namespace, as they were last read.
    pub(crate) rules: PacketRules,
    /// `None` for clsact.
    pub(crate) link: Option<OwnedFd>,
    /// Holds the exit mark in place while nothing else does.
    pub(crate) _exit_link: Option<OwnedFd>,
}

impl Hook {
    /// `tcx` or `clsact`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

impl AttachmentId {
    /// The name of the exit mark's pin beside it.
    pub(crate) fn exit_pin(&self) -> String {
        format!("exit-{}-{}", self.netns, self.ifindex)
    }
}

/// The name of the pin: `tcx-<cookie>-<ifindex>`.
impl fmt::Display for AttachmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.hook.name(), self.netns, self.ifindex)
    }
}

impl FromStr for AttachmentId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-');
        let hook = match parts.next() {
            Some("tcx") => Hook::Tcx,
            Some("clsact") => Hook::Clsact,
            _ => return Err(()),
        };
        let netns = parts.next().ok_or(())?.parse().map_err(|_| ())?;
        let ifindex = parts.next().ok_or(())?.parse().map_err(|_| ())?;
        match parts.next() {
            None => Ok(Self { netns, ifindex, hook }),
            Some(_) => Err(()),
        }
    }
}

impl Attachment {
    /// Where it is.
    #[must_use]
    pub fn id(&self) -> AttachmentId {
        self.id
    }

    /// Whether an adopter was there already, left by a predecessor, and only got a new program.
    #[must_use]
    pub fn taken_over(&self) -> bool {
        self.taken_over
    }

    /// Why the adopter refuses adoptions there, as far as packet rules go.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.rules.refusal()
    }

    /// Whether the interface still exists. Always true for clsact, which cannot tell.
    #[must_use]
    pub fn alive(&self) -> bool {
        let link = self.link.as_ref();
        link.is_none_or(|link| is_alive(link.as_fd()))
    }
}

/// Whether the interface of a link still exists.
pub(crate) fn is_alive(link: BorrowedFd<'_>) -> bool {
    sys::tcx_ifindex(link).is_ok_and(|index| index.is_some_and(|i| i != 0))
}

/// Links, pinned if there is a directory. Takes over pinned ones. `None`: this kernel has no tcx.
pub(crate) fn attach_tcx(
    programs: &Loaded,
    netns: &OpenNetns,
    ifindex: u32,
    pins: Option<&PinDir>,
) -> Result<Result<Option<Attachment>, io::Error>, Error> {
    let id = AttachmentId { netns: netns.cookie(), ifindex, hook: Hook::Tcx };
    let place = |program, side, pin: String| {
        let pin = pins.map(|p| p.file(&pin));
        tcx_link(program, side, netns, ifindex, pin)
    };
    // First the exit mark: the adopter says in its answers that the pod has it.
    let exit_link = match place(programs.exit_mark.as_fd(), Side::Egress, id.exit_pin())? {
        Ok((link, _)) => link,
        // Kernels before 6.6 do not know the attach type.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            return Ok(Ok(None));
        }
        Err(e) => return Ok(Err(e)),
    };
    let link = place(programs.program.as_fd(), Side::Ingress, id.to_string())?;
    Ok(link.map(|(link, taken_over)| {
        Some(Attachment {
            id,
            taken_over,
            rules: PacketRules::default(),
            link: Some(link),
            _exit_link: Some(exit_link),
        })
    }))
}

/// One link, and whether it was there before.
fn tcx_link(
    program: BorrowedFd<'_>,
    side: Side,
    netns: &OpenNetns,
    ifindex: u32,
    pin: Option<PathBuf>,
) -> Result<io::Result<(OwnedFd, bool)>, Error> {
    if let Some(pin) = &pin
        && let Ok(link) = sys::pinned(pin)
    {
        // The kernel refuses the update (ENOLINK) if the interface went away in the meantime.
        if sys::link_update(link.as_fd(), program).is_ok() {
            return Ok(Ok((link, true)));
        }
        let _ = fs::remove_file(pin);
    }
    let link = match netns.within(|| sys::tcx_attach(program, side, ifindex))? {
        Ok(link) => link,
        Err(e) => return Ok(Err(e)),
    };
    if let Some(pin) = pin {
        sys::pin(link.as_fd(), &pin).map_err(|e| Error::Pin {
            path: pin,
            problem: format!("a link cannot be pinned: {e}"),
        })?;
    }
    Ok(Ok((link, false)))
}

/// Filters. They outlive the process by themselves; a directory of its name in the pin directory
/// tells a successor.
pub(crate) fn attach_clsact(
    programs: &Loaded,
    netns: &OpenNetns,
    ifindex: u32,
    pins: Option<&PinDir>,
) -> Result<Result<Attachment, io::Error>, Error> {
    let id = AttachmentId { netns: netns.cookie(), ifindex, hook: Hook::Clsact };
    let attached = netns.within(|| {
        let [mut ingress, mut egress] = clsact_hooks(programs, ifindex);
        // Fails if the queueing discipline exists, which is as good.
        let _ = ingress.create();
        let before = ingress.query().is_ok();
        egress
            .attach()
            .and_then(|_| ingress.attach())
            .map(|_| before)
            .map_err(|e| io::Error::other(e.to_string()))
    })?;
    let taken_over = match attached {
        Ok(before) => before,
        Err(e) => return Ok(Err(e)),
    };
    if let Some(pins) = pins {
        let marker = pins.file(&id.to_string());
        if let Err(e) = fs::create_dir(&marker)
            && e.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(Error::Pin {
                path: marker,
                problem: format!("a clsact attachment cannot be noted: {e}"),
            });
        }
    }
    Ok(Ok(Attachment {
        id,
        taken_over,
        rules: PacketRules::default(),
        link: None,
        _exit_link: None,
    }))
}

/// Removes our filters; the queueing discipline stays, because others may use it.
pub(crate) fn detach_clsact(
    programs: &Loaded,
    netns: &OpenNetns,
    ifindex: u32,
) -> Result<(), Error> {
    netns
        .within(|| {
            clsact_hooks(programs, ifindex).into_iter().try_for_each(|mut hook| {
                if hook.query().is_err() {
                    return Ok(());
                }
                hook.detach().map_err(|e| io::Error::other(e.to_string()))
            })
        })?
        .map_err(|source| Error::Detach {
            id: format!("clsact, interface {ifindex} in {}", netns.name()),
            source,
        })
}

/// At ingress and at egress.
fn clsact_hooks(programs: &Loaded, ifindex: u32) -> [TcHook; 2] {
    [(&programs.program, TC_INGRESS), (&programs.exit_mark, TC_EGRESS)].map(|(program, side)| {
        TcHookBuilder::new(program.as_fd())
            .ifindex(i32::try_from(ifindex).unwrap_or(0))
            .replace(true)
            .handle(CLSACT_HANDLE)
            .priority(CLSACT_PRIORITY)
            .hook(side)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_names_round_trip() {
        for hook in [Hook::Tcx, Hook::Clsact] {
            let id = AttachmentId { netns: u64::MAX, ifindex: 7, hook };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "tcx", "tcx-1", "tcx-1-x", "tcx-1-2-3", "map-keys", "xdp-1-2", "exit-1-2"]
        {
            assert_eq!(text.parse::<AttachmentId>(), Err(()), "{text}");
        }
    }
}
