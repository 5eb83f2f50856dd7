//! Servers that close for reasons of their own: the close reaches the client in order and soon, and nothing is rescued.

use anyhow::{Context, Result, ensure};
use baton_api::Endpoint;
use baton_lab::{HttpClient, NginxOptions, Options, Response};
use baton_ns::{HTTP_PORT, Scene};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const IDLE: Duration = Duration::from_secs(1);
const REQUESTS: u64 = 3;
/// A probe's round trip is some 100 us; the rest is room for a busy machine.
const SLACK: Duration = Duration::from_millis(50);
const ROUNDS: usize = 3;

/// Has a connection to an address closed by the server; gives the time that the close took.
type Way = fn(&Scene, SocketAddr) -> Result<Duration>;

#[test]
fn closes_of_the_server_reach_the_client_in_order() -> Result<()> {
    closes("closes", false)
}

#[test]
fn closes_of_a_server_with_several_listeners_reach_the_client_in_order() -> Result<()> {
    closes("closesgroup", true)
}

fn closes(name: &str, reuseport: bool) -> Result<()> {
    let options = Options {
        pods: 2,
        ..Options::default()
    };
    let web = NginxOptions {
        workers: 2,
        reuseport,
        keepalive_requests: Some(REQUESTS),
        keepalive_timeout: Some(IDLE),
        ..NginxOptions::default()
    };
    let mut scene = Scene::with_nginx(name, &options, &web)?;
    // On one leg, as nginx counts requests and idle time by connection.
    scene.config.policies[0].migration = baton_ns::never();
    scene.start()?;
    let through = scene.address(HTTP_PORT)?;
    let direct = scene.nginx[0].address();
    let ways: [(&str, Way); 4] = [
        ("idle timeout", idle_timeout),
        ("Connection: close", connection_close),
        ("last request of a connection", last_request),
        ("client has finished sending", half_closed),
    ];
    for (what, way) in ways {
        // The fastest of some rounds each: what the machine does beside takes time, too.
        let (mut alone, mut balanced) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let result = way(&scene, direct).with_context(|| format!("{what}, directly"))?;
            alone = alone.min(result);
            let result = way(&scene, through).with_context(|| what.to_owned());
            balanced = balanced.min(scene.explained(result)?);
        }
        eprintln!("{what}: closed after {alone:?} directly, {balanced:?} through Baton");
        ensure!(
            balanced <= alone + SLACK,
            "{what}: {balanced:?}, directly {alone:?}"
        );
    }
    let figures = scene.nothing_lost(0)?;
    ensure!(
        figures.rescues_total == 0 && figures.replays_total == 0,
        "{} rescued, {} replayed",
        figures.rescues_total,
        figures.replays_total
    );
    ensure!(
        scene.counter("resets_sent_total{to=\"client\"}")? == 0,
        "a client was reset"
    );
    Ok(())
}

/// A server with a full accept queue, which closes what it accepted before all the same.
#[test]
fn a_close_is_no_later_while_others_wait_to_be_accepted() -> Result<()> {
    // Its own port, so that the length of the queue is its own.
    const PORT: u16 = 81;
    let mut scene = Scene::with_pods("closesfull", 2)?;
    let pod = &scene.lab.pods()[0];
    let address = SocketAddr::new(pod.ipv4(), PORT);
    let server = pod.namespace().run(|| -> Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&address.into())?;
        // Holds two: the kernel's test is "more than".
        socket.listen(1)?;
        Ok(socket.into())
    })??;
    let mut backend = scene.config.policies[0].backends[0].clone();
    backend.endpoint = Endpoint::new(backend.endpoint.address(), PORT).context("port")?;
    scene.config.policies[0].backends = vec![backend];
    scene.start()?;
    let through = scene.address(HTTP_PORT)?;
    // Known for longer than it takes until its holders are believed.
    thread::sleep(IDLE);
    let mut worst = Duration::ZERO;
    for _ in 0..ROUNDS {
        let mut client = connect(&scene, through)?;
        let accepted = thread::scope(|scope| -> Result<TcpStream> {
            let answered = scope.spawn(|| client.get("/"));
            let (mut stream, _) = server.accept()?;
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                request.push(byte[0]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            right(&answered.join().expect("the client")?)?;
            Ok(stream)
        })?;
        let waiting = [(); 2].map(|()| connect(&scene, address));
        scene.wait_reason("pod-a", "accept queue full")?;
        drop(accepted);
        worst = worst.max(end_of(&client)?);
        drop(waiting);
        for _ in 0..2 {
            server.accept()?;
        }
        scene.wait_reason("pod-a", "ready")?;
    }
    eprintln!("closed after {worst:?} while the accept queue was full");
    ensure!(worst <= SLACK, "closed after {worst:?}");
    let figures = scene.nothing_lost(0)?;
    ensure!(
        figures.rescues_total == 0,
        "{} rescued",
        figures.rescues_total
    );
    Ok(())
}

fn connect(scene: &Scene, address: SocketAddr) -> Result<HttpClient> {
    HttpClient::connect(scene.lab.client().namespace(), address)
}

fn right(response: &Response) -> Result<()> {
    ensure!(
        response.status == 200 && response.body == b"ok",
        "{response:?}"
    );
    Ok(())
}

/// Time until the end of the stream. A reset is an error of the read, and so are bytes.
fn end_of(client: &HttpClient) -> Result<Duration> {
    let start = Instant::now();
    let n = client
        .stream()
        .read(&mut [0; 16])
        .context("waiting for the close")?;
    ensure!(n == 0, "{n} bytes instead of a close");
    Ok(start.elapsed())
}

fn idle_timeout(scene: &Scene, address: SocketAddr) -> Result<Duration> {
    let mut client = connect(scene, address)?;
    right(&client.get("/")?)?;
    let after = end_of(&client)?;
    // Not before its time either.
    ensure!(after + SLACK >= IDLE, "closed after {after:?}");
    Ok(after)
}

fn connection_close(scene: &Scene, address: SocketAddr) -> Result<Duration> {
    let mut client = connect(scene, address)?;
    right(&client.get("/")?)?;
    right(&client.request("GET", "/", &[("Connection", "close")], &[])?)?;
    end_of(&client)
}

fn last_request(scene: &Scene, address: SocketAddr) -> Result<Duration> {
    let mut client = connect(scene, address)?;
    for i in 1..=REQUESTS {
        let response = client.get("/")?;
        right(&response)?;
        let closes = response.header("connection") == Some("close");
        ensure!(closes == (i == REQUESTS), "request {i}: {response:?}");
    }
    end_of(&client)
}

fn half_closed(scene: &Scene, address: SocketAddr) -> Result<Duration> {
    let mut client = connect(scene, address)?;
    right(&client.get("/")?)?;
    client.stream().shutdown(Shutdown::Write)?;
    end_of(&client)
}
