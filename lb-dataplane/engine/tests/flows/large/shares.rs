//! What waits of large requests has an end, and one client's leaves room for others'.

use super::*;

#[test]
fn half_of_the_kept_segments_are_one_networks() {
    let mut w = world(32, MigrationMode::DrainOnly);
    let all = segments(60_000);
    let (mut c, mut stream) = w.moving(1, &all[0]);
    w.uploads(&mut c, &mut stream, &all[1..=16]);
    // The head is a short one.
    assert_eq!(w.table("kept_long_segments"), (16, 32));
    assert_eq!(w.count(Counter::BacklogNetworkFull), 0);
    w.uploads(&mut c, &mut stream, &all[17..19]);
    assert_eq!(w.table("kept_long_segments"), (16, 32));
    assert_eq!(w.count(Counter::BacklogNetworkFull), 2);
    // Other flows have room to move with theirs.
    let mut other = w.idle(2);
    if other.pod != c.pod {
        w.moves(&mut other, POST);
    }
}

#[test]
fn so_many_flows_may_wait() {
    let mut w = world(16, MigrationMode::DrainOnly);
    let all = segments(60_000);
    let of_two_clients = |w: &mut World, n| {
        let mut c = Conn::new(n);
        c.client.set_ip([192, 0, 2, 5 + n as u8 / 2 % 2].into());
        w.idle_as(c)
    };
    let mut flows: Vec<Conn> = (0..48).map(|n| of_two_clients(&mut w, n)).collect();
    let pod = flows[0].pod;
    flows.retain(|c| c.pod == pod);
    // So many of each.
    flows.sort_by_key(|c| c.client.ip());
    flows.drain(4..flows.len() - 5);
    drain(&mut w, pod);
    for c in &mut flows {
        w.moves(c, &all[0]);
        w.offers(c, c.seq, 128 * UNIT);
    }
    assert_eq!(w.count(Counter::BacklogsFull), 1);
    // The ninth goes on as if nobody watched.
    for c in &mut flows[8..] {
        w.stays(c, &all[1]);
    }
}

/// Requests that never end, of one client, on connections that have just moved: another client's
/// large request has its turns all the same.
#[test]
fn half_of_those_that_may_wait_are_one_networks() {
    let mut w = world(16, MigrationMode::DrainOnly);
    let all = segments(60_000);
    let mut flows: Vec<Conn> = (0..24).map(|n| w.idle(n)).collect();
    let pod = flows[0].pod;
    flows.retain(|c| c.pod == pod);
    let mut other = flows.pop().expect("a flow");
    other = loop {
        let mut c = Conn::new(other.client.port() - 30_000 + 100);
        c.client.set_ip([192, 0, 2, 77].into());
        other = w.idle_as(c);
        if other.pod == pod {
            break other;
        }
    };
    drain(&mut w, pod);
    for c in flows.iter_mut().take(8) {
        w.moves(c, &all[0]);
        w.offers(c, c.seq, 128 * UNIT);
    }
    let stream = Stream::new(&other);
    w.moves(&mut other, &all[0]);
    let mut stream = stream;
    stream.bytes.extend(&all[0]);
    stream.next = other.seq;
    w.offers(&other, other.seq, UNIT);
    assert_eq!(w.count(Counter::BacklogsFull), 0);
    assert_eq!(w.count(Counter::BacklogNetworkFull), 4);
    // What the window does not take waits.
    assert!(w.data(&mut other, &all[1]).is_empty());
}
