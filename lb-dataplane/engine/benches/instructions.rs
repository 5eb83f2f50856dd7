//! Forwards many packets of one kind, for counting instructions:
//! `instructions <ack|request|response> <4|6> <packets>`. Run it under callgrind with two packet counts; the
//! difference divided by the difference of the counts is one packet's cost, without setup.

mod support;

use baton_engine::Verdict;
use support::{Kind, Loaded};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo bench` and `cargo test --benches` pass flags of their own: nothing to do then.
    let [kind, family, packets] = &args[..] else {
        println!("usage: instructions <ack|request|response> <4|6> <packets>");
        return;
    };
    let kind = match kind.as_str() {
        "ack" => Kind::Ack,
        "request" => Kind::Request,
        _ => Kind::Response,
    };
    let packets: u32 = packets.parse().expect("a number of packets");
    let flows = 1_024;
    let mut loaded = Loaded::new(family == "6", flows);
    for i in 0..packets {
        let verdict = loaded.forward(kind, i as usize % flows);
        assert!(matches!(verdict, Verdict::Transmit(_)));
    }
    println!("{packets} packets forwarded");
}
