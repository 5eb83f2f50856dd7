//! The program: `baton-files --listen ADDRESS:PORT --directory DIRECTORY`.

use baton_files::Server;
use baton_sdk::Link;
use std::{net::TcpListener, path::PathBuf, process::ExitCode, sync::Arc};

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
    eprintln!("baton-files: listening on {listen}");
    server.accept(&listener).map_err(|e| e.to_string())
}
