//! Unmodified PostgreSQL in a pod, and its client.
//!
//! Owns its files. It refuses to run as root: all of it is the user's that its package makes.

use crate::{
    node::{command::run, lab::Pod, process::Spec},
    servers::server::Server,
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// PostgreSQL's own port.
pub const POSTGRES_PORT: u16 = 5432;
const USER: &str = "postgres";
/// Into the lab's folder, which is root's.
const AS_USER: [&str; 7] = [
    "--reuid=postgres",
    "--regid=postgres",
    "--clear-groups",
    "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override",
    "--reset-env",
    "--",
];
const DEADLINE: Duration = Duration::from_secs(20);

/// Where Debian has the newest one's programs: not in `PATH`.
fn programs() -> Result<PathBuf> {
    let all = fs::read_dir("/usr/lib/postgresql").context("is PostgreSQL installed?")?;
    let all = all.filter_map(|one| Some(one.ok()?.path().join("bin")));
    let newest = all.filter(|bin| bin.join(USER).exists()).max();
    newest.context("no PostgreSQL in /usr/lib/postgresql")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Pod {
    /// Starts PostgreSQL, which logs who connects, lets everybody in and keeps nothing for sure.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn postgres(&self) -> Result<Server> {
        let programs = programs()?;
        let data = self.directory()?.join("postgres");
        let (owner, data) = (["-d", "-o", USER, "-g", USER, "-m", "0700"], text(&data));
        run("install", &[&owner[..], &[&data]].concat())?;
        let initdb = text(&programs.join("initdb"));
        let options = ["-D", &data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8"];
        let locale = ["--locale=C"];
        run("setpriv", &[&AS_USER[..], &[&initdb], &options, &locale].concat())?;
        fs::write(Path::new(&data).join("pg_hba.conf"), "host all all all trust\n")?;
        let server = text(&programs.join(USER));
        let listen = format!("-D {data} -h * -p {POSTGRES_PORT} -k {data}");
        let tuned =
            "-c log_connections=on -c fsync=off -c shared_buffers=8MB -c max_connections=40";
        let arguments = AS_USER.into_iter().chain([server.as_str()]);
        let arguments = arguments.chain(listen.split(' ')).chain(tuned.split(' '));
        self.serve(Spec::new("setpriv", arguments).named("postgres"), POSTGRES_PORT)
    }

    /// What the server at `address` answers to a query, on a connection of its own.
    ///
    /// # Errors
    /// If it does not, with what `psql` said.
    pub fn psql(&self, address: SocketAddr, query: &str) -> Result<String> {
        let at = format!("-h {} -p {} -U {USER} -XAt -c", address.ip(), address.port());
        let arguments = at.split(' ').chain([query]);
        let mut process = self.spawn(&Spec::new("psql", arguments))?;
        let status = process.wait(DEADLINE)?;
        ensure!(status.success(), "psql: {}", process.stderr());
        Ok(process.stdout().trim().to_owned())
    }
}
