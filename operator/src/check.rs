//! `check`: says what is wrong with manifests, by the CRDs' own rules, without an API server.

use baton_crds::Checker;
use std::{fs, path::PathBuf, process::ExitCode};

/// The question could not even be asked: no such file.
const NOT_ASKED: u8 = 2;

/// Checks files and prints what is wrong, one line each.
///
/// # Errors
/// The rules cannot be compiled, which is a bug.
pub fn run(files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let checker = Checker::new()?;
    let (mut problems, mut unread, mut checked, mut passed_over) = (0, 0, 0, 0);
    for file in files {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("baton-operator: {}: cannot be read: {error}", file.display());
                unread += 1;
                continue;
            }
        };
        let report = checker.check(&text, file);
        for problem in &report.problems {
            println!("{problem}");
        }
        problems += report.problems.len();
        checked += report.checked;
        passed_over += report.passed_over;
    }
    if unread > 0 {
        return Ok(ExitCode::from(NOT_ASKED));
    }
    if problems > 0 {
        return Ok(ExitCode::FAILURE);
    }
    println!("{checked} objects are good, {passed_over} of other kinds were not looked at");
    Ok(ExitCode::SUCCESS)
}
