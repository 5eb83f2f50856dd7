//! Which peers are taken, which are refused and why, over connections in memory.

use crate::support::{Authority, Pair};
use baton_tls::{
    Client, ClientStream, HANDSHAKE_LIMIT, Name, Reason, Refusal, Server, ServerStream,
};
use std::{io, sync::Arc};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// As Baton issues them, but its time is over.
fn expired(authority: &Authority, name: Name) -> Pair {
    authority.sign(name.as_str(), |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    })
}

type Ends = (ServerStream<DuplexStream>, ClientStream<DuplexStream>);

fn dataplane(authority: &Authority) -> Server {
    let material = authority.material(&authority.pair(Name::Dataplane));
    Server::new(Name::Dataplane, Name::Operator, material).expect("a server")
}

fn operator(authority: &Authority) -> Client {
    let material = authority.material(&authority.pair(Name::Operator));
    Client::new(Name::Operator, material).expect("a client")
}

/// A client that shows and believes anything, in place of one that checks its own material.
fn anybody(authority: &Authority, pair: Option<&Pair>) -> tokio_rustls::TlsConnector {
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("a certificate");
    roots.add(root).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match pair {
        None => config.with_no_client_auth(),
        Some(pair) => {
            let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
            config.with_client_auth_cert(vec![chain.expect("a certificate")], key).expect("a pair")
        }
    };
    Arc::new(config).into()
}

type Met =
    (Result<ServerStream<DuplexStream>, Refusal>, Result<ClientStream<DuplexStream>, Refusal>);

async fn meet(server: &Server, client: &Client, expected: Name) -> Met {
    let (a, b) = duplex(64 << 10);
    tokio::join!(server.accept(a), client.connect(expected, b))
}

/// Both ends of a connection that succeeds.
async fn connected(server: &Server, client: &Client) -> Ends {
    let (server, client) = meet(server, client, Name::Dataplane).await;
    (server.expect("taken"), client.expect("connected"))
}

/// One word each way.
async fn talk((server, client): &mut Ends) {
    client.write_all(b"ask").await.expect("sent");
    client.flush().await.expect("sent");
    let mut word = [0; 3];
    server.read_exact(&mut word).await.expect("read");
    server.write_all(&word).await.expect("sent");
    server.flush().await.expect("sent");
    client.read_exact(&mut word).await.expect("read");
    assert_eq!(&word, b"ask");
}

/// What a server says of a client that shows `pair`, and what the client sees of that when it
/// reads.
async fn judged(authority: &Authority, pair: Option<&Pair>) -> (Refusal, io::Error) {
    let server = dataplane(authority);
    let connector = anybody(authority, pair);
    let (a, b) = duplex(64 << 10);
    let name = Name::Dataplane.as_str().try_into().expect("a name");
    let client = async {
        let mut stream = connector.connect(name, b).await.expect("the client's part");
        stream.read_u8().await.expect_err("refused")
    };
    let (refused, seen) = tokio::join!(server.accept(a), client);
    let refusal = refused.expect_err("refused");
    assert_eq!(server.counts().refused(refusal.reason), 1);
    assert_eq!(server.counts().accepted(), 0);
    (refusal, seen)
}

#[tokio::test]
async fn the_right_peers_talk() {
    let authority = Authority::new();
    let (server, client) = (dataplane(&authority), operator(&authority));
    talk(&mut connected(&server, &client).await).await;
    assert_eq!(server.counts().accepted(), 1);
    assert_eq!(client.counts().accepted(), 1);
    for reason in Reason::ALL {
        assert_eq!(server.counts().refused(*reason), 0, "{reason:?}");
    }
}

#[tokio::test]
async fn a_client_that_is_not_the_operator_is_refused() {
    let authority = Authority::new();
    let any_use = |name: &str| authority.sign(name, |_| {});
    let cases = [
        (None, Reason::NoCertificate),
        (Some(any_use("dataplane.baton")), Reason::WrongName),
        (Some(any_use("operator.baton.example")), Reason::WrongName),
        (Some(any_use("*.baton")), Reason::WrongName),
        (Some(expired(&authority, Name::Operator)), Reason::Expired),
        (Some(Authority::new().pair(Name::Operator)), Reason::UnknownAuthority),
        // Its certificate is for servers.
        (Some(authority.pair(Name::Dataplane)), Reason::BadCertificate),
    ];
    for (pair, reason) in cases {
        let (refusal, seen) = judged(&authority, pair.as_ref()).await;
        assert_eq!(refusal.reason, reason, "{refusal}");
        let seen = Refusal::find(&seen).expect("the client is told");
        assert_eq!(seen.reason, Reason::RefusedByPeer, "{seen}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_the_expected_one_is_refused() {
    let authority = Authority::new();
    let client = operator(&authority);
    let serving = |pair: &Pair, name| {
        Server::new(name, Name::Operator, authority.material(pair)).expect("a server")
    };
    let right = authority.pair(Name::Dataplane);
    for (server, expected, reason) in [
        (serving(&right, Name::Dataplane), Name::Shim, Reason::WrongName),
        (serving(&expired(&authority, Name::Shim), Name::Shim), Name::Shim, Reason::Expired),
        (dataplane(&Authority::new()), Name::Dataplane, Reason::UnknownAuthority),
    ] {
        let (there, here) = meet(&server, &client, expected).await;
        let refusal = here.expect_err("refused");
        assert_eq!(refusal.reason, reason, "{refusal}");
        let refusal = there.expect_err("told");
        assert_eq!(refusal.reason, Reason::RefusedByPeer, "{refusal}");
        assert_eq!(server.counts().refused(Reason::RefusedByPeer), 1);
    }
    assert_eq!(client.counts().refused(Reason::WrongName), 1);
}

#[tokio::test]
async fn what_is_not_tls_is_refused() {
    let server = dataplane(&Authority::new());
    let (a, mut b) = duplex(64 << 10);
    let plain = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    b.write_all(plain).await.expect("sent");
    let refusal = server.accept(a).await.expect_err("refused");
    assert_eq!(refusal.reason, Reason::Protocol, "{refusal}");
    let (a, b) = duplex(64 << 10);
    drop(b);
    let refusal = server.accept(a).await.expect_err("gone");
    assert_eq!(refusal.reason, Reason::Closed, "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_given_up() {
    let authority = Authority::new();
    let server = dataplane(&authority);
    let start = tokio::time::Instant::now();
    let (a, _b) = duplex(64 << 10);
    let refusal = server.accept(a).await.expect_err("given up");
    assert_eq!(refusal.reason, Reason::Timeout);
    assert_eq!(start.elapsed(), HANDSHAKE_LIMIT);
    let client = operator(&authority);
    let (a, _b) = duplex(64 << 10);
    let refusal = client.connect(Name::Dataplane, a).await.expect_err("given up");
    assert_eq!(refusal.reason, Reason::Timeout);
}

#[tokio::test]
async fn a_rotation_leaves_open_connections_and_holds_for_the_next() {
    let (old, new) = (Authority::new(), Authority::new());
    let (server, client) = (dataplane(&old), operator(&old));
    let mut first = connected(&server, &client).await;

    // The steps of a rotation: everybody believes both, then shows the new, then forgets the old.
    let mut both = Authority::new();
    both.pem = format!("{}{}", old.pem, new.pem);
    let mut open = Vec::new();
    for (shows, believes) in [(&old, &both), (&new, &both), (&new, &new)] {
        let server_side = believes.material(&shows.pair(Name::Dataplane));
        assert!(server.replace(server_side.clone()).expect("taken"));
        assert!(!server.replace(server_side).expect("the same"));
        let (a, b) = meet(&server, &client, Name::Dataplane).await;
        // The client changes after the server; they understand each other in between too.
        open.push((a.expect("taken"), b.expect("connected")));
        let client_side = believes.material(&shows.pair(Name::Operator));
        assert!(client.replace(client_side).expect("taken"));
        open.push(connected(&server, &client).await);
    }
    talk(&mut first).await;
    for ends in &mut open {
        talk(ends).await;
    }
    // Nobody takes the old authority any more.
    let (there, _) = meet(&server, &operator(&old), Name::Dataplane).await;
    assert_eq!(
        there.expect_err("refused").reason,
        Reason::RefusedByPeer,
        "the old client does not know the new server"
    );
}
