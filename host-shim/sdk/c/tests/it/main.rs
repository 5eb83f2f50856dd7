//! A program of C, compiled with the header and linked with the static library, hands a connection
//! to another one. Needs a C compiler, and root for a network namespace.

#[path = "../../../tests/it/shim.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod shim;

use baton_sdk::wire::Message;
use shim::{Shim, Space};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Where cargo puts what it builds for tests: the static library is beside this program.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.parent().expect("a directory").to_owned()
}

fn compile() -> PathBuf {
    let here = env!("CARGO_MANIFEST_DIR");
    let library = built().join("libbaton.a");
    static PROGRAMS: AtomicU32 = AtomicU32::new(0);
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let program = built().join(format!("baton-c-{}-{number}", std::process::id()));
    let done = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE"])
        .arg(format!("-I{here}/include"))
        .arg(format!("{here}/tests/it/program.c"))
        .arg(&library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler is there");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", library.display());
    program
}

#[test]
fn programs_of_c_hand_a_connection_over() {
    let program = compile();
    let _space = Space::enter();
    let shim = Shim::new();
    let start = |how: &str| {
        let child = Command::new(&program).arg(how).stdout(Stdio::piped()).spawn();
        child.expect("it runs")
    };
    let mut first = start("serve");
    let (old, ports) = shim.greet();
    assert_eq!(ports, [8080]);
    let mut listening = String::new();
    let mut said = BufReader::new(first.stdout.take().expect("piped"));
    said.read_line(&mut listening).expect("it listens");
    let mut second = start("take");
    let (new, _) = shim.greet();
    let mut client = TcpStream::connect("127.0.0.1:8080").expect("it listens");
    let mut answer = [0; 2];
    client.write_all(b"a\n").expect("open");
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"1\n");

    let (local, remote) =
        (client.peer_addr().expect("connected"), client.local_addr().expect("connected"));
    let want = |id| Message::Want { id, local, remote };
    old.say(&want(1));
    assert!(matches!(old.hear().0, Message::Out { id: 1, .. }));
    let reason = "not now".to_owned();
    old.say(&Message::Back { id: 1, reason });
    old.say(&want(2));
    let (Message::Out { id: 2, state }, Some(_)) = old.hear() else {
        panic!("not handed out");
    };
    // What host-shim does to the sockets is tested elsewhere: here another connection comes.
    new.say(&Message::Offer { id: 2, local, remote, state });
    let (mut client, _) = new.gives(2);
    old.say(&Message::Gone { id: 2 });
    assert!(first.wait().expect("it ends").success());
    new.say(&Message::Yours { id: 2 });
    client.write_all(b"b\n").expect("open");
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"2\n");
    drop(client);
    assert!(second.wait().expect("it ends").success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
    std::fs::remove_file(program).expect("ours");
}

#[test]
fn the_librarys_thread_takes_no_signal_of_the_programs() {
    let program = compile();
    let mut child = Command::new(&program).arg("signal").spawn().expect("it runs");
    let ended = child.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    std::fs::remove_file(program).expect("ours");
}
