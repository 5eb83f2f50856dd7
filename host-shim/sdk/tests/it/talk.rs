//! Who is told what, when, and what an application learns of it.

use crate::shim::{LONG, Shim, Space};
use baton_sdk::{Link, Why, wire::Message};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{self, AddressFamily, SocketType, sockopt},
    process::Uid,
    thread::set_thread_uid,
};
use std::{
    env,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    pin::pin,
    process::Command,
    sync::{Arc, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    (client, listener.accept().expect("a connection").0)
}

fn want(id: u64, stream: &TcpStream) -> Message {
    Message::Want {
        id,
        local: stream.local_addr().expect("connected"),
        remote: stream.peer_addr().expect("connected"),
    }
}

fn offer(id: u64, stream: &TcpStream) -> Message {
    Message::Offer {
        id,
        local: stream.local_addr().expect("connected"),
        remote: stream.peer_addr().expect("connected"),
        state: b"state".to_vec(),
    }
}

fn back(id: u64, why: &str) -> Message {
    let reason = why.to_owned();
    Message::Back { id, reason }
}

/// Any process of the pod may take the name while host-shim is away, and would be handed
/// connections.
#[test]
fn nobody_but_root_is_host_shim() {
    let _space = Space::enter();
    let stranger = thread::spawn(|| {
        set_thread_uid(Uid::from_raw(65_534)).expect("root becomes anybody");
        Shim::new()
    });
    let stranger = stranger.join().expect("it listens");
    let link = Link::connect(&[80]).expect("a link");
    stranger.accept().has_closed();
    assert!(!link.is_connected());
    drop(stranger);
    let shim = Shim::new();
    let _application = shim.greet();
    assert!(link.wait_connected(LONG));
}

#[test]
fn a_link_comes_and_goes_with_host_shim() {
    let _space = Space::enter();
    let link = Link::connect(&[80, 443]).expect("a link");
    assert!(!link.is_connected());
    assert!(!link.wait_connected(Duration::from_millis(1)));
    for _ in 0..2 {
        let shim = Shim::new();
        let (application, ports) = shim.greet();
        assert_eq!(ports, [80, 443]);
        assert!(link.wait_connected(LONG));
        drop((application, shim));
        while link.is_connected() {
            thread::yield_now();
        }
    }
    for ports in [vec![0], vec![1; 65]] {
        let refused = Link::connect(&ports).expect_err("no such ports");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn what_is_wanted_is_handed_out_or_goes_on() {
    let _space = Space::enter();
    let shim = Shim::new();
    let link = Link::connect(&[80]).expect("a link");
    let (application, _) = shim.greet();
    let (mut client, server) = connection();
    application.say(&want(1, &server));
    assert_eq!(application.hear().0, Message::NotMine { id: 1 });

    let registered = link.register(&server).expect("connected");
    let mut wakes =
        [PollFd::from_borrowed_fd(registered.wake().expect("a descriptor"), PollFlags::IN)];
    let at_once = Timespec::default();
    assert_eq!(poll(&mut wakes, Some(&at_once)), Ok(0));
    application.say(&want(2, &server));
    let patience = Timespec::try_from(LONG).expect("a while");
    assert_eq!(poll(&mut wakes, Some(&patience)), Ok(1));
    assert!(registered.is_wanted());
    let stream = thread::scope(|threads| {
        let handing = threads.spawn(|| registered.hand_out(server, b"state"));
        let (out, copy) = application.hear();
        let state = b"state".to_vec();
        assert_eq!(out, Message::Out { id: 2, state });
        assert!(copy.is_some());
        application.say(&back(2, "not now"));
        handing.join().expect("it ends").expect_err("it stays")
    });
    assert_eq!(stream.why, Why::Kept("not now".into()));
    assert!(!registered.is_wanted());
    registered.wake().expect("a descriptor");
    assert_eq!(poll(&mut wakes, Some(&at_once)), Ok(0), "it waits for the next");

    // Withdrawn before the application looked.
    application.say(&want(3, &stream.stream));
    while !registered.is_wanted() {
        thread::yield_now();
    }
    application.say(&back(3, "too late"));
    while registered.is_wanted() {
        thread::yield_now();
    }
    application.say(&want(4, &stream.stream));
    while !registered.is_wanted() {
        thread::yield_now();
    }
    assert_eq!(poll(&mut wakes, Some(&at_once)), Ok(1));
    registered.refuse("busy");
    let reason = "busy".to_owned();
    assert_eq!(application.hear().0, Message::Refuse { id: 4, reason });
    assert_eq!(poll(&mut wakes, Some(&at_once)), Ok(0), "that one is over");

    application.say(&want(5, &stream.stream));
    while !registered.is_wanted() {
        thread::yield_now();
    }
    thread::scope(|threads| {
        let handing = threads.spawn(|| registered.hand_out(stream.stream, b""));
        let (_, copy) = application.hear();
        application.say(&Message::Gone { id: 5 });
        handing.join().expect("it ends").expect("it has gone");
        let mut copy = TcpStream::from(copy.expect("a descriptor"));
        copy.write_all(b"it lives").expect("open");
    });
    let mut got = [0; 8];
    client.read_exact(&mut got).expect("open");
}

#[test]
fn what_is_offered_is_taken_or_refused() {
    let _space = Space::enter();
    let shim = Shim::new();
    let link = Link::connect(&[80]).expect("a link");
    let (application, _) = shim.greet();
    let (client, server) = connection();
    let ends = (server.local_addr().expect("connected"), server.peer_addr().expect("connected"));
    application.say(&offer(1, &server));
    let incoming = link.accept().expect("open");
    assert_eq!(incoming.state(), b"state");
    assert_eq!((incoming.local(), incoming.remote()), ends);
    incoming.refuse("full");
    let reason = "full".to_owned();
    assert_eq!(application.hear().0, Message::Refuse { id: 1, reason });
    application.say(&offer(2, &server));
    drop(link.accept().expect("open"));
    assert!(matches!(application.hear().0, Message::Refuse { id: 2, .. }));

    application.say(&offer(3, &server));
    let incoming = link.accept().expect("open");
    thread::scope(|threads| {
        let taking = threads.spawn(|| incoming.take());
        assert_eq!(application.hear().0, Message::Take { id: 3 });
        application.say(&back(3, "withdrawn"));
        let refused = taking.join().expect("it ends").expect_err("withdrawn");
        assert!(refused.to_string().contains("withdrawn"));
    });

    application.say(&offer(4, &server));
    let incoming = link.accept().expect("open");
    drop((client, server));
    thread::scope(|threads| {
        let taking = threads.spawn(|| incoming.take());
        let (mut client, server) = application.gives(4);
        // As host-shim does: who does not hear of it, resets it.
        sockopt::set_socket_linger(&server, Some(Duration::ZERO)).expect("an option");
        application.say(&Message::Yours { id: 4 });
        let stream = taking.join().expect("it ends").expect("taken");
        assert_eq!(sockopt::socket_linger(&stream), Ok(None));
        drop((stream, server));
        assert_eq!(client.read(&mut [0]).expect("an end, no reset"), 0);
    });
    // An offer of a host-shim that has ended is void.
    let (_, other) = connection();
    application.say(&offer(5, &other));
    let incoming = link.accept().expect("open");
    drop(application);
    let (application, _) = shim.greet();
    incoming.take().expect_err("void");
    thread::scope(|threads| {
        threads.spawn(|| link.close());
        assert!(link.accept().is_none());
    });
    application.has_closed();
}

#[test]
fn a_connection_in_doubt_is_asked_for_at_the_next_host_shim() {
    let _space = Space::enter();
    let shim = Shim::new();
    let link = Link::connect(&[80]).expect("a link");
    for gone in [false, true] {
        let (application, _) = shim.greet();
        assert!(link.wait_connected(LONG));
        let (_client, server) = connection();
        let registered = link.register(&server).expect("connected");
        application.say(&want(1, &server));
        while !registered.is_wanted() {
            thread::yield_now();
        }
        thread::scope(|threads| {
            let handing = threads.spawn(|| registered.hand_out(server, b""));
            application.hear();
            drop(application);
            let (application, _) = shim.greet();
            let (doubt, copy) = application.hear();
            let Message::Doubt { id, .. } = doubt else {
                panic!("{doubt:?}");
            };
            assert!(copy.is_some());
            application.say(&if gone { Message::Gone { id } } else { back(id, "yours") });
            assert_eq!(handing.join().expect("it ends").is_ok(), gone);
        });
    }
}

/// Two dataplanes may have the same port of one client's address each.
#[test]
fn connections_in_doubt_with_the_same_ports_are_two() {
    let _space = Space::enter();
    let shim = Shim::new();
    let link = Link::connect(&[80]).expect("a link");
    let (application, _) = shim.greet();
    assert!(link.wait_connected(LONG));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound");
    let from: [SocketAddr; 2] = [2, 3].map(|end| ([127, 0, 0, end], 4_321).into());
    let clients = from.map(|from| {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let socket = socket.expect("a socket");
        net::bind(&socket, &from).expect("the port is free");
        net::connect(&socket, &at).expect("it listens");
        (socket, listener.accept().expect("a connection").0)
    });
    let (tells, told) = mpsc::channel();
    for (n, (_, server)) in clients.iter().enumerate() {
        let registered = link.register(server).expect("connected");
        application.say(&want(n as u64 + 1, server));
        while !registered.is_wanted() {
            thread::yield_now();
        }
        let (tells, server) = (tells.clone(), server.try_clone().expect("a descriptor"));
        thread::spawn(move || {
            let gone = registered.hand_out(server, b"").is_ok();
            tells.send((n, gone)).expect("the test waits");
        });
        application.hear();
    }
    drop(application);
    let (application, _) = shim.greet();
    let doubts = [0, 1].map(|_| match application.hear().0 {
        Message::Doubt { id, remote, .. } => (id, remote),
        other => panic!("{other:?}"),
    });
    for (id, remote) in doubts {
        application.say(&if remote == from[0] { Message::Gone { id } } else { back(id, "yours") });
    }
    let mut ends = [0, 1].map(|_| told.recv_timeout(LONG).expect("it ends"));
    ends.sort_unstable();
    assert_eq!(ends, [(0, true), (1, false)]);
}

/// As every application of a Pod: host-shim has no PID there, so who it is cannot be asked with
/// what takes 0 for none.
#[test]
fn an_application_with_a_pid_namespace_of_its_own_is_greeted() {
    const IN_A_POD: &str = "BATON_SDK_IN_A_POD";
    const THIS: &str = "talk::an_application_with_a_pid_namespace_of_its_own_is_greeted";
    if env::var_os(IN_A_POD).is_some() {
        let link = Link::connect(&[80]).expect("a link");
        while !link.is_connected() {
            thread::yield_now();
        }
        return;
    }
    let _space = Space::enter();
    let shim = Shim::new();
    let mut application = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", THIS])
        .env(IN_A_POD, "")
        .spawn()
        .expect("unshare of util-linux");
    let _greeted = shim.greet();
    assert!(application.wait().expect("it ends").success());
}

/// Some executors run or end a task where it is woken.
#[test]
fn who_is_woken_may_call_the_link_at_once() {
    struct Calls(&'static Link, mpsc::Sender<bool>);
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.1.send(self.0.is_connected()).expect("the test waits");
        }
    }
    let _space = Space::enter();
    let shim = Shim::new();
    // A link that hangs would hang this, too, when it is dropped.
    let link: &'static Link = Box::leak(Box::new(Link::connect(&[80]).expect("a link")));
    let (application, _) = shim.greet();
    let (_client, server) = connection();
    let registered = Box::leak(Box::new(link.register(&server).expect("connected")));
    let (tells, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(Calls(link, tells)));
    let mut task = Context::from_waker(&waker);
    let called = || told.recv_timeout(LONG).expect("it is woken, and goes on");
    let mut wanted = pin!(registered.wanted());
    assert!(wanted.as_mut().poll(&mut task).is_pending());
    application.say(&want(1, &server));
    assert!(called());
    let mut accepted = pin!(link.accept_async());
    assert!(accepted.as_mut().poll(&mut task).is_pending());
    application.say(&offer(2, &server));
    assert!(called());
    link.close();
}

/// It was not sent, so it stays, and no other host-shim is waited for.
#[test]
fn what_is_not_sent_stays_at_once() {
    let _space = Space::enter();
    let shim = Shim::new();
    let link = Link::connect(&[80]).expect("a link");
    let (application, _) = shim.greet();
    let (_client, server) = connection();
    let registered = link.register(&server).expect("connected");
    application.say(&want(1, &server));
    while !registered.is_wanted() {
        thread::yield_now();
    }
    application.reads_nothing();
    let refused = registered.hand_out(server, b"").expect_err("it stays");
    match refused.why {
        Why::Kept(why) => assert!(why.contains("host-shim is not told"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(link.is_connected());
}

#[test]
fn tasks_wait_without_threads() {
    let _space = Space::enter();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let shim = Shim::new();
    let link = Link::connect(&[80]).expect("a link");
    let (application, _) = shim.greet();
    let (_client, server) = connection();
    let told = server.try_clone().expect("a descriptor");
    server.set_nonblocking(true).expect("an option");
    let registered = link.register(&server).expect("connected");
    let (gives_up, given_up) = mpsc::channel();
    thread::scope(|threads| {
        threads.spawn(move || {
            application.say(&want(1, &told));
            let (out, copy) = application.hear();
            assert!(matches!(out, Message::Out { id: 1, .. }), "{out:?}");
            application.say(&Message::Gone { id: 1 });
            assert!(copy.is_some());
            application.say(&offer(2, &told));
            let (mut client, _) = application.gives(2);
            given_up.recv().expect("it is");
            application.say(&Message::Yours { id: 2 });
            client.write_all(b"x").expect("open");
            client.read_exact(&mut [0]).expect("an answer");
        });
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(server).expect("non-blocking");
            // Given up and begun anew, as in a select.
            let early = tokio::time::timeout(Duration::ZERO, link.accept_async()).await;
            assert!(early.is_err());
            registered.wanted().await;
            registered.hand_out_async(stream, b"x").await.expect("gone");
            let incoming = link.accept_async().await.expect("open");
            // Given up as well.
            let early = tokio::time::timeout(Duration::ZERO, incoming.take_async()).await;
            assert!(early.is_err());
            gives_up.send(()).expect("it waits");
            let incoming = link.accept_async().await.expect("it is there again");
            assert_eq!(incoming.state(), b"state");
            let stream = incoming.take_async().await.expect("taken");
            let mut stream = tokio::net::TcpStream::from_std(stream).expect("non-blocking");
            stream.read_exact(&mut [0]).await.expect("open");
            stream.write_all(b"x").await.expect("open");
        });
    });
}
