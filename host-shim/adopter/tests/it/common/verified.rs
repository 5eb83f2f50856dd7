//! A tc program that says of every packet that a device has verified its checksum, as drivers say
//! it.
#![expect(unsafe_code, reason = "loads a program of five instructions")]

use baton_adopter::OpenNetns;
use libbpf_rs::libbpf_sys as raw;
use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// `r2 = BPF_CSUM_LEVEL_INC; call bpf_csum_level; r0 = TC_ACT_UNSPEC; exit`: CHECKSUM_NONE becomes
/// CHECKSUM_UNNECESSARY.
const PROGRAM: [u64; 4] = [0x0000_0001_0000_02b7, (135 << 32) | 0x85, 0xffff_ffff_0000_00b7, 0x95];

/// In front of the programs that are there, while it lives.
pub struct Device {
    _link: OwnedFd,
}

impl Device {
    pub fn attach(netns: &OpenNetns, interface: &str) -> Self {
        let name = CString::new(interface).expect("no NUL");
        let link = netns
            .within(|| {
                // SAFETY: the instructions outlive the call and are counted; no other pointer is
                // given but literals.
                let program = owned(unsafe {
                    raw::bpf_prog_load(
                        raw::BPF_PROG_TYPE_SCHED_CLS,
                        c"verified".as_ptr(),
                        c"GPL".as_ptr(),
                        PROGRAM.as_ptr().cast(),
                        PROGRAM.len() as raw::size_t,
                        std::ptr::null_mut(),
                    )
                });
                // SAFETY: the name ends with NUL.
                let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
                let options = raw::bpf_link_create_opts {
                    sz: size_of::<raw::bpf_link_create_opts>() as raw::size_t,
                    flags: raw::BPF_F_BEFORE,
                    ..Default::default()
                };
                // SAFETY: the descriptor is open; `options` says its own size and outlives the
                // call.
                owned(unsafe {
                    raw::bpf_link_create(
                        program.as_raw_fd(),
                        index as i32,
                        raw::BPF_TCX_INGRESS,
                        &options,
                    )
                })
            })
            .expect("enter the pod");
        Self { _link: link }
    }
}

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel just made it and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
