//! Servers that close for reasons of their own: the close reaches the client in order and soon, and
//! nothing is rescued.

use anyhow::{Context, Result, ensure};
use baton_api::{Endpoint, Migration};
use baton_lab::{HttpClient, NginxOptions, Options, Response, Server};
use baton_ns::{HTTP_PORT, Scene};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command},
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
    let options = Options::with_pods(2);
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
        ensure!(balanced <= alone + SLACK, "{what}: {balanced:?}, directly {alone:?}");
    }
    nothing_rescued(&scene)?;
    ensure!(scene.counter("resets_sent_total{to=\"client\"}")? == 0, "a client was reset");
    Ok(())
}

/// What `return 444` is for: the client is told nothing but the end. It is no failure, and what it
/// answers runs once.
#[test]
fn a_close_instead_of_an_answer_runs_once_and_ejects_nobody() -> Result<()> {
    const CLOSES: usize = 1_000;
    for (name, migration) in
        [("closebetter", Migration::default()), ("closealways", baton_ns::always())]
    {
        let mut scene = Scene::with_pods(name, 4)?;
        scene.config.policies[0].migration = migration;
        scene.start()?;
        let through = scene.address(HTTP_PORT)?;
        let client = scene.lab.client().namespace();
        for number in 0..CLOSES {
            let mut stream = client.run(|| TcpStream::connect(through))??;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            // The second request of every other connection: with `Always` it moves.
            let mut said = Vec::new();
            if number % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nhost: pod\r\n\r\n")?;
                while !said.ends_with(b"\r\n\r\nok") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    said.push(byte[0]);
                }
                said.clear();
            }
            stream.write_all(b"GET /close HTTP/1.1\r\nhost: pod\r\n\r\n")?;
            let ended = stream.read_to_end(&mut said);
            let ended = ended.with_context(|| format!("close {number}"));
            scene.explained(ended)?;
            ensure!(said.is_empty(), "close {number}: {said:?}");
        }
        let ran: Result<Vec<usize>> = scene.nginx.iter().map(Server::closed).collect();
        let ran = ran?;
        ensure!(ran.iter().sum::<usize>() == CLOSES, "{ran:?}");
        nothing_rescued(&scene)?;
        for result in ["ejected", "capped"] {
            let count = scene.counter(&format!("ejections_total{{result=\"{result}\"}}"))?;
            ensure!(count == 0, "{count} {result}");
        }
    }
    Ok(())
}

/// The port of a server of the test's own, at the first pod: other than nginx's, so that its accept
/// queue is its own.
const OWN_PORT: u16 = 81;

/// A scene whose frontend is at that server alone.
fn own_server(name: &str) -> Result<Scene> {
    let mut scene = Scene::with_pods(name, 2)?;
    let mut backend = scene.config.policies[0].backends[0].clone();
    backend.endpoint = Endpoint::new(backend.endpoint.address(), OWN_PORT).context("port")?;
    scene.config.policies[0].backends = vec![backend];
    Ok(scene)
}

/// It listens. Its accept queue holds two: the kernel's test is "more than".
fn own_listener(scene: &Scene) -> Result<(TcpListener, SocketAddr)> {
    let pod = &scene.lab.pods()[0];
    let address = SocketAddr::new(pod.ipv4(), OWN_PORT);
    let listener = pod.namespace().run(|| -> Result<TcpListener> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1)?;
        Ok(socket.into())
    })??;
    Ok((listener, address))
}

/// A client through Baton that has its answer, and the connection that it has come by.
fn served(scene: &Scene, server: &TcpListener) -> Result<(HttpClient, TcpStream)> {
    let mut client = connect(scene, scene.address(HTTP_PORT)?)?;
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
    Ok((client, accepted))
}

/// A process that has a connection and does not listen.
struct Worker {
    process: Child,
    word: UnixStream,
}

impl Worker {
    fn new(connection: TcpStream) -> Result<Self> {
        let (word, its) = UnixStream::pair()?;
        let process = Command::new("sh")
            .args(["-c", "read word <&1; exec 0<&-; read word <&1"])
            .stdin(OwnedFd::from(connection))
            .stdout(OwnedFd::from(its))
            .spawn()?;
        Ok(Self { process, word })
    }

    fn closes(&mut self) -> Result<()> {
        Ok(self.word.write_all(b"close\n")?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server with a full accept queue, of which a process that does not listen closes what it was
/// given before.
#[test]
fn a_close_is_no_later_while_others_wait_to_be_accepted() -> Result<()> {
    let mut scene = own_server("closesfull")?;
    let (server, address) = own_listener(&scene)?;
    scene.start()?;
    // Known for longer than it takes until its holders are believed.
    thread::sleep(IDLE);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let (client, accepted) = served(&scene, &server)?;
        let mut worker = Worker::new(accepted)?;
        let waiting = [(); 2].map(|()| connect(&scene, address));
        scene.wait_reason("pod-a", "accept queue full")?;
        worker.closes()?;
        best = best.min(end_of(&client)?);
        drop(waiting);
        for _ in 0..2 {
            server.accept()?;
        }
        scene.wait_reason("pod-a", "ready")?;
    }
    eprintln!("closed after {best:?} while the accept queue was full");
    ensure!(best <= SLACK, "closed after {best:?}");
    ensure!(scene.counter("listener_marks_total")? == 0);
    nothing_rescued(&scene)
}

/// A server of which nothing was known a moment before: it closes as it means to.
#[test]
fn a_close_by_a_server_that_just_began_is_no_later() -> Result<()> {
    let mut scene = own_server("closesnew")?;
    let mut server = own_listener(&scene)?.0;
    scene.start()?;
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        drop(server);
        scene.wait_reason("pod-a", "nothing listens on the port")?;
        server = own_listener(&scene)?.0;
        scene.wait_reason("pod-a", "ready")?;
        let (client, accepted) = served(&scene, &server)?;
        // Not by its last descriptor: a fork of another test has a copy of that until it executes,
        // and would be the process that closes.
        accepted.shutdown(Shutdown::Both)?;
        best = best.min(end_of(&client)?);
    }
    eprintln!("closed after {best:?} by a server that just began");
    ensure!(best <= SLACK, "closed after {best:?}");
    ensure!(scene.counter("listener_marks_total")? == ROUNDS as u64);
    nothing_rescued(&scene)
}

fn nothing_rescued(scene: &Scene) -> Result<()> {
    let figures = scene.nothing_lost(0)?;
    ensure!(
        figures.rescues_total == 0 && figures.replays_total == 0,
        "{} rescued, {} replayed",
        figures.rescues_total,
        figures.replays_total
    );
    Ok(())
}

fn connect(scene: &Scene, address: SocketAddr) -> Result<HttpClient> {
    HttpClient::connect(scene.lab.client().namespace(), address)
}

fn right(response: &Response) -> Result<()> {
    ensure!(response.status == 200 && response.body == b"ok", "{response:?}");
    Ok(())
}

/// Time until the end of the stream. A reset is an error of the read, and so are bytes.
fn end_of(client: &HttpClient) -> Result<Duration> {
    let start = Instant::now();
    let n = client.stream().read(&mut [0; 16]).context("waiting for the close")?;
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
