//! `include/baton.h`, by baton-sdk. Owns pointers and errno, and all `unsafe` of the SDK; nothing
//! that is decided.
//!
//! Each object is a box that C has the pointer of, from the call that returns it to the one that
//! frees it. What the header asks of its caller is what each SAFETY here relies on.
#![expect(unsafe_code, reason = "C passes pointers and descriptors")]
#![expect(clippy::missing_safety_doc, reason = "the header says what a caller must do")]

use baton_sdk::{Incoming, Link, Registered, Why};
use libc::{c_char, c_int, c_void, size_t};
use std::{
    ffi::CStr,
    net::TcpStream,
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd},
    ptr, slice,
};

fn set_errno(code: c_int) {
    // SAFETY: the pointer is the calling thread's own, and valid for its life.
    unsafe { *libc::__errno_location() = code }
}

fn code_of(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        std::io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::ECANCELED,
    })
}

/// # Safety
/// `at` is null or a string of C.
unsafe fn words(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: it is a string of C, as the caller says.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_connect(ports: *const u16, count: size_t) -> *mut Link {
    let ports = match count {
        0 => &[],
        // SAFETY: the caller has so many there.
        _ => unsafe { slice::from_raw_parts(ports, count) },
    };
    match Link::connect(ports) {
        Ok(link) => Box::into_raw(Box::new(link)),
        Err(error) => {
            set_errno(code_of(&error));
            ptr::null_mut()
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_is_connected(link: *const Link) -> c_int {
    // SAFETY: from `baton_connect`, not freed.
    unsafe { &*link }.is_connected().into()
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_close(link: *const Link) {
    // SAFETY: from `baton_connect`, not freed.
    unsafe { &*link }.close();
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_free(link: *mut Link) {
    if !link.is_null() {
        // SAFETY: from `baton_connect`, and freed once.
        drop(unsafe { Box::from_raw(link) });
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_register(link: *const Link, socket: c_int) -> *mut Registered {
    if socket < 0 {
        set_errno(libc::EBADF);
        return ptr::null_mut();
    }
    // SAFETY: the caller's descriptor is open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // SAFETY: from `baton_connect`, not freed.
    let link = unsafe { &*link };
    let registered =
        socket.try_clone_to_owned().and_then(|copy| link.register(&TcpStream::from(copy)));
    match registered {
        Ok(registered) => Box::into_raw(Box::new(registered)),
        Err(error) => {
            set_errno(code_of(&error));
            ptr::null_mut()
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_is_wanted(registered: *const Registered) -> c_int {
    // SAFETY: from `baton_register`, not freed.
    unsafe { &*registered }.is_wanted().into()
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_wake(registered: *const Registered) -> c_int {
    // SAFETY: from `baton_register`, not freed.
    match unsafe { &*registered }.wake() {
        Ok(wake) => wake.as_raw_fd(),
        Err(error) => {
            set_errno(code_of(&error));
            -1
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_hand_out(
    registered: *const Registered,
    socket: c_int,
    state: *const c_void,
    bytes: size_t,
) -> c_int {
    if socket < 0 {
        set_errno(libc::EBADF);
        return -1;
    }
    let state = match bytes {
        0 => &[],
        // SAFETY: the caller has so many bytes there.
        _ => unsafe { slice::from_raw_parts(state.cast::<u8>(), bytes) },
    };
    // SAFETY: the caller's descriptor is open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // SAFETY: from `baton_register`, not freed.
    let registered = unsafe { &*registered };
    let Err(not_moved) = registered.hand_out(socket, state) else {
        return 0;
    };
    set_errno(match not_moved.why {
        Why::NotWanted => libc::EAGAIN,
        Why::StateTooLong(_) => libc::EMSGSIZE,
        Why::Kept(_) => libc::ECANCELED,
        Why::Lost => libc::ECONNRESET,
    });
    -1
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_stay(registered: *const Registered, why: *const c_char) {
    // SAFETY: null or a string of C.
    let why = unsafe { words(why) };
    // SAFETY: from `baton_register`, not freed.
    unsafe { &*registered }.refuse(&why);
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_deregister(registered: *mut Registered) {
    if !registered.is_null() {
        // SAFETY: from `baton_register`, and freed once.
        drop(unsafe { Box::from_raw(registered) });
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_accept(link: *const Link) -> *mut Incoming {
    // SAFETY: from `baton_connect`, not freed.
    let incoming = unsafe { &*link }.accept();
    incoming.map_or(ptr::null_mut(), |incoming| Box::into_raw(Box::new(incoming)))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_state(
    incoming: *const Incoming,
    bytes: *mut size_t,
) -> *const c_void {
    // SAFETY: from `baton_accept`, not freed.
    let state = unsafe { &*incoming }.state();
    // SAFETY: the caller has a number there.
    unsafe { *bytes = state.len() };
    state.as_ptr().cast()
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_take(incoming: *mut Incoming) -> c_int {
    // SAFETY: from `baton_accept`, and freed once.
    let incoming = unsafe { Box::from_raw(incoming) };
    match incoming.take() {
        Ok(stream) => stream.into_raw_fd(),
        Err(error) => {
            set_errno(code_of(&error));
            -1
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_refuse(incoming: *mut Incoming, why: *const c_char) {
    // SAFETY: from `baton_accept`, and freed once.
    let incoming = unsafe { Box::from_raw(incoming) };
    // SAFETY: null or a string of C.
    incoming.refuse(&unsafe { words(why) });
}
