//! What libbpf prints. Owns it until an error is made of it; never prints it.

use libbpf_rs::{PrintLevel, set_print};
use std::sync::{Mutex, PoisonError};

/// libbpf explains failures only by printing; what it prints while a program loads is kept for the
/// error.
static SAID: Mutex<String> = Mutex::new(String::new());
/// The verifier can print megabytes; the end is what matters.
const SAID_BYTES_MAX: usize = 16 * 1024;

#[expect(clippy::needless_pass_by_value, reason = "libbpf-rs gives callbacks this signature")]
fn listen(_: PrintLevel, text: String) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.push_str(&text);
    if let Some(surplus) = said.len().checked_sub(SAID_BYTES_MAX) {
        // Keeps the end, where the complaint is.
        let cut = (surplus..said.len()).find(|at| said.is_char_boundary(*at));
        said.drain(..cut.unwrap_or(0));
    }
}

/// Makes libbpf silent; its words go into errors instead.
pub(crate) fn quiet() {
    set_print(Some((PrintLevel::Warn, listen)));
}

/// What libbpf printed since the last call, without the noise around it. Of the verifier's log,
/// which repeats the program, only its complaint: the last line before its statistics.
pub(crate) fn what_was_said() -> String {
    let said = std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner));
    let (mut kept, mut in_log, mut complaint) = (Vec::new(), false, None);
    for line in said.lines().map(|l| l.trim().trim_start_matches("libbpf: ")) {
        if line.contains("-- BEGIN PROG LOAD LOG --") {
            in_log = true;
        } else if line.contains("-- END PROG LOAD LOG --") {
            in_log = false;
            kept.extend(complaint.take());
        } else if in_log && !line.starts_with("processed ") && !line.is_empty() {
            complaint = Some(line);
        } else if !in_log && !line.is_empty() && !line.starts_with("permission error while") {
            kept.push(line);
        }
    }
    // A log cut at the limit of what is kept has no end.
    kept.extend(complaint);
    kept.join("; ")
}
