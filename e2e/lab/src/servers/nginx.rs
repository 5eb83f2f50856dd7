//! Unmodified nginx in a pod, with content that a client can check byte by byte.
//!
//! What it serves: `/` (2 bytes), `/echo/ANYTHING` (a text made of the request, the same from every
//! pod), `/page` (32 KiB of text, compressed on the fly for who accepts gzip: work for the CPU as a
//! real page has it), `/files/10m.bin` and `/files/10k.bin` (fixed bytes), and `PUT /upload/NAME`
//! (kept on disk). Each response names its pod in `X-Pod`.

use crate::{
    node::{lab::Pod, process::Spec},
    servers::server::Server,
};
use anyhow::{Context, Result};
use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Size of `/files/10m.bin`.
pub const DOWNLOAD_BYTES: usize = 10 * 1024 * 1024;
/// Size of `/files/10k.bin`.
pub const SMALL_BYTES: usize = 10 * 1024;
/// Size of `/page`: the order of a page's markup.
const PAGE_BYTES: usize = 32 * 1024;
/// nginx closes no connection by itself within a test: an hour idle, a day in all, ten million
/// requests.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3_600);
const KEEPALIVE_REQUESTS: u64 = 10_000_000;

/// How nginx is set up.
#[derive(Clone, Debug)]
pub struct NginxOptions {
    /// Port, on all IPv4 and IPv6 addresses.
    pub port: u16,
    /// Length of the accept queue; the kernel's `somaxconn` limits it too.
    pub backlog: u32,
    /// Connections at one time, of each worker.
    pub connections: u32,
    /// Worker processes.
    pub workers: u32,
    /// A listener for each worker (`SO_REUSEPORT`) instead of one for all.
    pub reuseport: bool,
    /// Close a connection after so many requests; `None` keeps it for ten million.
    pub keepalive_requests: Option<u64>,
    /// Close a connection that is idle for so long; `None` keeps it for an hour.
    pub keepalive_timeout: Option<Duration>,
    /// Log whom each request came from ([`Server::peers`]).
    pub peers: bool,
    /// Expect a header of the PROXY protocol on each connection; whom it names is logged.
    pub header: bool,
    /// Further lines of the `http` block, as more servers.
    pub more: String,
}

impl Default for NginxOptions {
    fn default() -> Self {
        Self {
            port: 80,
            // nginx's own default on Linux.
            backlog: 511,
            connections: 8192,
            workers: 1,
            reuseport: false,
            keepalive_requests: None,
            keepalive_timeout: None,
            peers: false,
            header: false,
            more: String::new(),
        }
    }
}

impl Pod {
    /// Starts nginx on all addresses of the pod.
    ///
    /// # Errors
    /// If it is not installed, or ends or stays silent, with what it said.
    pub fn nginx(&self, options: &NginxOptions) -> Result<Server> {
        let directory = self.nginx_directory(options.port)?;
        let uploads = directory.join("upload");
        for path in [&uploads, &directory.join("files"), &directory.join("tmp")] {
            fs::create_dir_all(path).with_context(|| path.display().to_string())?;
        }
        // One copy for all pods of the lab: the page cache holds it once.
        let shared = self.lab.directory().join("10m.bin");
        if !shared.exists() {
            fs::write(&shared, content(DOWNLOAD_BYTES, 0))?;
        }
        let link = directory.join("files/10m.bin");
        if !link.exists() {
            fs::hard_link(&shared, &link)?;
        }
        fs::write(directory.join("files/10k.bin"), content(SMALL_BYTES, 1))?;
        fs::write(directory.join("page"), page())?;
        let config = directory.join("nginx.conf");
        fs::write(&config, self.nginx_config(&directory, options))?;
        let arguments = [
            "-c".to_owned(),
            config.display().to_string(),
            "-p".to_owned(),
            directory.display().to_string(),
            "-e".to_owned(),
            directory.join("error.log").display().to_string(),
        ];
        self.serve(Spec::new("nginx", arguments), options.port)
    }

    fn nginx_directory(&self, port: u16) -> Result<PathBuf> {
        Ok(self.directory()?.join(format!("nginx-{port}")))
    }

    fn nginx_config(&self, directory: &Path, options: &NginxOptions) -> String {
        let (dir, pod) = (directory.display(), self.name());
        let NginxOptions { port, backlog, connections, workers, more, .. } = options;
        let reuseport = if options.reuseport { " reuseport" } else { "" };
        let access = match options.peers {
            true => format!("{dir}/peers.log peer"),
            false => "off".to_owned(),
        };
        let (header, peer) = match options.header {
            true => (" proxy_protocol", "proxy_protocol"),
            false => ("", "remote"),
        };
        let requests = options.keepalive_requests.unwrap_or(KEEPALIVE_REQUESTS);
        let timeout = options.keepalive_timeout.unwrap_or(KEEPALIVE_TIMEOUT);
        let timeout_ms = timeout.as_millis();
        // A connection costs one descriptor; listeners, logs and files need a few more.
        let files = connections + 1_024;
        format!(
            r#"# Written by baton-lab.
daemon off;
user root;
worker_processes {workers};
worker_rlimit_nofile {files};
pid {dir}/nginx.pid;
error_log {dir}/error.log warn;
events {{ worker_connections {connections}; }}
http {{
  log_format peer '${peer}_addr ${peer}_port';
  access_log {access};
  default_type text/plain;
  keepalive_requests {requests};
  keepalive_timeout {timeout_ms}ms;
  keepalive_time 24h;
  client_max_body_size 16m;
  client_body_temp_path {dir}/tmp/body;
  proxy_temp_path {dir}/tmp/proxy;
  fastcgi_temp_path {dir}/tmp/fastcgi;
  uwsgi_temp_path {dir}/tmp/uwsgi;
  scgi_temp_path {dir}/tmp/scgi;
  server {{
    listen 0.0.0.0:{port} backlog={backlog}{reuseport}{header};
    listen [::]:{port} ipv6only=on backlog={backlog}{reuseport}{header};
    add_header X-Pod {pod} always;
    location = / {{ return 200 "ok"; }}
    location /echo/ {{ return 200 "pod-independent body: $request_uri $http_x_nonce\n"; }}
    location = /page {{ root {dir}; default_type text/html; gzip on; }}
    location = /close {{ access_log {dir}/closed.log; return 444; }}
    location /files/ {{ root {dir}; }}
    location /upload/ {{ root {dir}; dav_methods PUT; }}
  }}
  {more}
}}
"#
        )
    }
}

/// Of an nginx.
impl Server {
    /// What was put to `/upload/NAME`.
    pub fn uploaded(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.nginx_file("upload")?.join(name);
        fs::read(&path).with_context(|| path.display().to_string())
    }

    /// The address and port that each request came from, as `getpeername` or the header says, in
    /// order.
    ///
    /// # Errors
    /// If the log cannot be read ([`NginxOptions::peers`]).
    pub fn peers(&self) -> Result<Vec<(IpAddr, u16)>> {
        let path = self.nginx_file("peers.log")?;
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        text.lines()
            .map(|line| {
                let (address, port) = line.split_once(' ').context("no port")?;
                Ok((address.parse()?, port.parse()?))
            })
            .collect()
    }

    /// How many requests for `/close` it answered by a close: its log has a line for each.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn closed(&self) -> Result<usize> {
        let path = self.nginx_file("closed.log")?;
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.lines().count())
    }

    fn nginx_file(&self, name: &str) -> Result<PathBuf> {
        let directory = self.pod().nginx_directory(self.address().port())?;
        Ok(directory.join(name))
    }
}

/// The body of `/echo/…` for a request target and the value of its `X-Nonce` header.
#[must_use]
pub fn echo_body(target: &str, nonce: &str) -> String {
    format!("pod-independent body: {target} {nonce}\n")
}

/// A text of words, which compresses about as well as a page does.
fn page() -> String {
    let mut rng = fastrand::Rng::with_seed(1);
    let words: Vec<String> =
        (0..400).map(|_| (0..rng.usize(2..10)).map(|_| rng.lowercase()).collect()).collect();
    let mut text = String::with_capacity(PAGE_BYTES + 16);
    while text.len() < PAGE_BYTES {
        text += &words[rng.usize(..words.len())];
        text.push(if rng.u8(..) < 20 { '\n' } else { ' ' });
    }
    text
}

/// Fixed bytes without a period that a segment's length could hide; `seed` tells contents apart.
#[must_use]
pub fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}
