//! The program: `baton-files --listen ADDRESS:PORT --directory DIRECTORY`.
//!
//! SIGTERM ends it as soon as it has no connection: when its pod goes, the others go on with them.
//! A second one ends it at once.

use baton_files::Server;
use baton_sdk::Link;
use signal_hook::{consts::TERM_SIGNALS, iterator::Signals};
use std::{io::Write, net::TcpListener, path::PathBuf, process::ExitCode, sync::Arc};

const USAGE: &str = "usage: baton-files --listen ADDRESS:PORT --directory DIRECTORY";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("baton-files: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (mut listen, mut directory) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--listen" => listen = Some(value),
            "--directory" => directory = Some(PathBuf::from(value)),
            _ => return Err(USAGE.into()),
        }
    }
    let (listen, directory) = listen.zip(directory).ok_or(USAGE)?;
    if !directory.is_dir() {
        return Err(format!("{} is no directory", directory.display()));
    }
    let listener = TcpListener::bind(&listen).map_err(|e| format!("{listen}: {e}"))?;
    let port = listener.local_addr().map_err(|e| e.to_string())?.port();
    let link = Link::connect(&[port]).map_err(|e| e.to_string())?;
    let server = Arc::new(Server::new(directory, link));
    let taker = Arc::clone(&server);
    std::thread::Builder::new()
        .name("taker".into())
        .spawn(move || taker.take_over())
        .map_err(|e| e.to_string())?;
    // As the first process of a container it would not be ended by a signal that it does not catch.
    let mut signals = Signals::new(TERM_SIGNALS).map_err(|e| e.to_string())?;
    let ending = Arc::clone(&server);
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for (number, _) in signals.forever().enumerate() {
                if number > 0 {
                    std::process::exit(0);
                }
                // Nobody may read it any more.
                let _ = writeln!(
                    std::io::stderr(),
                    "baton-files: ends with its last connection; another SIGTERM ends it at once"
                );
                let ending = Arc::clone(&ending);
                std::thread::spawn(move || {
                    ending.wait_until_idle();
                    std::process::exit(0);
                });
            }
        })
        .map_err(|e| e.to_string())?;
    eprintln!("baton-files: listening on {listen}");
    server.accept(&listener).map_err(|e| e.to_string())
}
