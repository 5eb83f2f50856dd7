//! Protocols that cannot move are recognised, stay where they are, are counted, and their bytes
//! pass unharmed.

use anyhow::{Context, Result, ensure};
use baton_api::Protocol;
use baton_lab::{NginxOptions, Pod, content, policy, run_command};
use baton_ns::{Scene, always, until};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

/// A ClientHello of TLS 1.2 (RFC 5246 section 7.4.1.2): record header, handshake header, version,
/// then what is random.
fn client_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    hello.extend(content(194, 1));
    hello
}

/// The preface of RFC 9113 section 3.4 and an empty SETTINGS frame.
fn http2_preface() -> Vec<u8> {
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    preface
}

const BANNER: &[u8] = b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";
const ECHO_PORT: u16 = 9_000;
const BANNER_PORT: u16 = 9_022;
const CONNECTIONS: usize = 5;
/// Exchanges on each connection: each would be a boundary by the bare rule.
const EXCHANGES: u64 = 20;

struct Case {
    name: &'static str,
    port: u16,
    opening: Vec<u8>,
    /// Any of these words is in the reason of the pin, in whatever case.
    words: &'static [&'static str],
}

#[test]
fn protocols_that_cannot_move_are_pinned_and_counted() -> Result<()> {
    let mut scene = Scene::with_pods("guards", 3)?;
    for (port, banner) in [(ECHO_PORT, &b""[..]), (BANNER_PORT, BANNER)] {
        let start = |pod: &Pod| Ok((pod.name().to_owned(), echo_server(pod, port, banner)?));
        let backends = scene.lab.in_each_pod(start)?;
        let mut raw = policy(&format!("raw-{port}"), port, &backends);
        raw.protocol = Protocol::Http1;
        raw.migration = always();
        scene.config.policies.push(raw);
    }
    scene.start()?;
    let cases = [
        Case { name: "TLS", port: ECHO_PORT, opening: client_hello(), words: &["tls"] },
        Case {
            name: "HTTP/2",
            port: ECHO_PORT,
            opening: http2_preface(),
            words: &["http/2", "h2", "http2"],
        },
        Case {
            name: "SSH",
            port: BANNER_PORT,
            opening: b"SSH-2.0-OpenSSH_9.2p1 Client\r\n".to_vec(),
            words: &["server", "ssh"],
        },
    ];
    for case in &cases {
        let result = check(&scene, case).with_context(|| case.name);
        scene.explained(result)?;
    }
    Ok(())
}

fn check(scene: &Scene, case: &Case) -> Result<()> {
    let index = if case.port == ECHO_PORT { 1 } else { 2 };
    let pins = || -> Result<u64> {
        let pins = scene.policy(index)?.pins_total;
        let ours = pins.iter().filter(|(reason, _)| {
            let reason = reason.to_ascii_lowercase();
            case.words.iter().any(|w| reason.contains(w))
        });
        Ok(ours.map(|(_, count)| *count).sum())
    };
    let before = pins()?;
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let address = scene.address(case.port)?;
        let namespace = scene.lab.client().namespace();
        let mut stream = namespace.run(|| TcpStream::connect(address))??;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        if case.port == BANNER_PORT {
            let mut banner = vec![0; BANNER.len()];
            stream.read_exact(&mut banner)?;
            ensure!(banner == BANNER, "another banner: {banner:?}");
        }
        echoed(&mut stream, &case.opening)?;
        for i in 0..EXCHANGES {
            let length = 1 + (i as usize * 397) % 4_000;
            echoed(&mut stream, &content(length, i + 100 * number as u64))?;
        }
        streams.push(stream);
    }
    until("counted", || {
        let counted = pins()? - before;
        ensure!(
            counted == CONNECTIONS as u64,
            "{counted} of {CONNECTIONS} pinned for this reason: {:?}",
            scene.policy(index)?.pins_total
        );
        Ok(())
    })?;
    for flow in scene.dataplane()?.flows()? {
        let ours = streams.iter().any(|s| s.local_addr().is_ok_and(|a| a == flow.client));
        ensure!(!ours || (flow.pinned.is_some() && flow.migrations == 0), "{flow:?}");
    }
    eprintln!("{}: {:?}", case.name, scene.policy(index)?.pins_total);
    Ok(())
}

#[test]
fn real_tls_and_http2_pass_and_stay() -> Result<()> {
    const TLS_PORT: u16 = 443;
    const HTTP2_PORT: u16 = 8_081;
    const REQUESTS: usize = 20;
    let mut scene = Scene::with_pods("guards-real", 3)?;
    let folder = scene.lab.directory().to_owned();
    let file = |name: &str| folder.join(name).display().to_string();
    let (key, certificate) = (file("tls.key"), file("tls.pem"));
    let make = ["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"];
    let what = ["ec_paramgen_curve:prime256v1", "-subj", "/CN=lab", "-keyout"];
    let arguments = [&make[..], &what, &[&key, "-out", &certificate]].concat();
    run_command("openssl", &arguments)?;
    let answer = "location / { return 200 \"body of $request_uri\\n\"; }";
    let web = NginxOptions {
        port: 8_000,
        more: format!(
            "server {{ listen 0.0.0.0:{TLS_PORT} ssl http2; ssl_certificate {certificate}; \
             ssl_certificate_key {key}; {answer} }}\n  \
             server {{ listen 0.0.0.0:{HTTP2_PORT} http2; {answer} }}"
        ),
        ..NginxOptions::default()
    };
    let pods = scene.lab.pods();
    let _servers = scene.lab.in_each_pod(|pod| pod.nginx(&web))?;
    for port in [TLS_PORT, HTTP2_PORT] {
        let backends: Vec<_> =
            pods.iter().map(|p| (p.name().to_owned(), SocketAddr::new(p.ipv4(), port))).collect();
        let mut real = policy(&format!("real-{port}"), port, &backends);
        real.migration = always();
        scene.config.policies.push(real);
    }
    scene.start()?;
    // Over TLS, curl makes all requests on one connection. In the clear it cannot (curl 7.88:
    // "Error in the HTTP2 framing layer" at the second, without Baton too), so each has its own.
    for (index, scheme, flag, port, connections, each) in [
        (1, "https", "--insecure", TLS_PORT, 1, REQUESTS),
        (2, "http", "--http2-prior-knowledge", HTTP2_PORT, 5, 1),
    ] {
        let namespace = scene.lab.client().namespace();
        for connection in 0..connections {
            let targets: Vec<_> = (0..each)
                .map(|i| {
                    let address = scene.address(port)?;
                    Ok(format!("{scheme}://{address}/n{connection}-{i}"))
                })
                .collect::<Result<_>>()?;
            let mut arguments = vec!["--silent", "--show-error", "--fail", "--max-time", "20"];
            arguments.push(flag);
            arguments.extend(targets.iter().map(String::as_str));
            let result = namespace.run(|| run_command("curl", &arguments))?;
            let bodies = scene.explained(result)?;
            let expected: String =
                (0..each).map(|i| format!("body of /n{connection}-{i}\n")).collect();
            ensure!(bodies == expected, "{bodies}");
        }
        let figures = scene.policy(index)?;
        let pinned: u64 = figures.pins_total.values().sum();
        eprintln!("{scheme}: {:?}", figures.pins_total);
        let check = || {
            ensure!(
                figures.flows_total == connections as u64
                    && pinned == connections as u64
                    && figures.migrations_total == 0,
                "{figures:?}"
            );
            Ok(())
        };
        scene.explained(check())?;
    }
    Ok(())
}

/// Sends bytes and expects the same back.
fn echoed(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes)?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    ensure!(back == bytes, "{} bytes came back changed", bytes.len());
    Ok(())
}

/// Says `banner` to whoever connects and then gives back what it gets. Its threads end with the
/// test's process.
fn echo_server(pod: &Pod, port: u16, banner: &'static [u8]) -> Result<SocketAddr> {
    let address = SocketAddr::new(pod.ipv4(), port);
    let listener = pod.namespace().run(|| TcpListener::bind(address))??;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = [0; 16_384];
                if stream.write_all(banner).is_err() {
                    return;
                }
                while let Ok(n) = stream.read(&mut bytes) {
                    if n == 0 || stream.write_all(&bytes[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}
