//! What is asked again, and of whom: lost on the way to user space, told too long ago, of another
//! namespace, of a successor.

use super::{Pod, REQUEST, is_gone};
use crate::common::{
    INTERFACE, Lab, Pins,
    answer::{ACKED, KEY, PORT, RELEASED, SEQ, data},
    ends,
    segment::{Message, PSH_ACK},
    wait_for,
};
use baton_adopter::{Adopter, Netns, Outcome};
use std::{collections::BTreeMap, time::Instant};

#[test]
fn what_user_space_lost_is_asked_again() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let connection = pod.accept();
    let mut asks = pod.releases.asks().expect("the ring");
    pod.lab.send(&pod.release(ours, SEQ, ACKED));
    wait_for("it is asked", || !asks.gather().expect("the ring").is_empty());
    // As if its reader had ended. Copies come on, as those of the dataplane do.
    let copy = || pod.lab.send(&pod.release(ours, SEQ, ACKED));
    let mut again = BTreeMap::new();
    wait_for("it is asked again", || {
        copy();
        again = asks.gather().expect("the ring");
        !again.is_empty()
    });
    let cookie = pod.lab.pod.cookie();
    let pass = pod
        .releases
        .pass(&pod.lab.netns(), cookie, &again[&cookie])
        .expect("a pass")
        .expect("the namespace is the same");
    assert_eq!(pass.released, 1);
    is_gone(&connection);
    pod.reset(ours);
    assert_eq!(pod.told(ours, SEQ, ACKED), RELEASED);
}

/// Who asked may have given up by then.
#[test]
fn what_was_told_too_long_ago_is_not_decided() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let connection = pod.accept();
    let mut asks = pod.releases.asks().expect("the ring");
    pod.lab.send(&pod.release(ours, SEQ, ACKED));
    let mut asked = BTreeMap::new();
    let told = Instant::now();
    wait_for("it is asked, and its lease is over", || {
        asked.append(&mut asks.gather().expect("the ring"));
        !asked.is_empty() && told.elapsed().as_millis() > 250
    });
    let cookie = pod.lab.pod.cookie();
    let pass = |asked| {
        let pass = pod.releases.pass(&pod.lab.netns(), cookie, asked);
        let pass = pass.expect("a pass").expect("the namespace is the same");
        (pass.released, pass.kept)
    };
    assert_eq!(pass(&asked[&cookie]), (0, 0));
    // Its next copy asks again.
    let mut again = BTreeMap::new();
    wait_for("it is asked again", || {
        pod.lab.send(&pod.release(ours, SEQ, ACKED));
        again = asks.gather().expect("the ring");
        !again.is_empty()
    });
    assert_eq!(pass(&again[&cookie]), (1, 0));
    is_gone(&connection);
}

#[test]
fn a_namespace_that_is_another_one_decides_nothing() {
    let pod = Pod::new(false);
    let ours = pod.client(0);
    pod.request(ours);
    let _connection = pod.accept();
    let mut asks = pod.releases.asks().expect("the ring");
    pod.lab.send(&pod.release(ours, SEQ, ACKED));
    let mut asked = BTreeMap::new();
    wait_for("it is asked", || {
        asked = asks.gather().expect("the ring");
        !asked.is_empty()
    });
    let cookie = pod.lab.pod.cookie();
    let own = Netns::Pid(std::process::id());
    let pass = pod.releases.pass(&own, cookie, &asked[&cookie]);
    assert_eq!(pass.expect("it can be entered"), None);
    let none = Netns::Name("bt-no-such".into());
    pod.releases.pass(&none, cookie, &asked[&cookie]).expect_err("no such namespace");
    // It is undecided still.
    let pass = pod.releases.pass(&pod.lab.netns(), cookie, &asked[&cookie]);
    assert_eq!(pass.expect("a pass").expect("the same").released, 1);
}

#[test]
fn a_successor_decides_what_its_predecessor_was_asked() {
    for read_by_predecessor in [false, true] {
        let (lab, pins) = (Lab::new(), Pins::new());
        let (address, ours) = ends(false, 8080, PORT);
        let listener = lab.listen(address);
        let load = || Adopter::load(Some(&pins.0)).expect("load");
        let first = load();
        first.set_key(1, &KEY).expect("set a key");
        let attachment = first.attach(&lab.netns(), INTERFACE).expect("attach");
        lab.learn_number(&first);
        lab.send(&Message::adopt().segment(ours, address, SEQ, ACKED, &KEY));
        lab.send(&data(ours, address, SEQ, ACKED, PSH_ACK, REQUEST));
        let (connection, _) = listener.accept().expect("accept");
        lab.receive(ours).expect("an acknowledgement");
        let release = Message::release().here().segment(ours, address, SEQ, ACKED, &KEY);
        lab.send(&release);
        wait_for("it is asked", || lab.count(&first, Outcome::ReleaseAsked) == 1);
        if read_by_predecessor {
            let releases = first.releases().expect("the iterator");
            let mut asks = releases.asks().expect("the ring");
            wait_for("it is read", || !asks.gather().expect("the ring").is_empty());
        }
        drop((attachment, first));

        let second = load();
        let attachment = second.attach(&lab.netns(), INTERFACE).expect("attach");
        let releases = second.releases().expect("the iterator");
        let mut asks = releases.asks().expect("the ring");
        let cookie = lab.pod.cookie();
        let mut copies = read_by_predecessor;
        wait_for("the successor decides", || {
            if copies {
                lab.send(&release);
            }
            let asked = asks.gather().expect("the ring");
            let Some(asked) = asked.get(&cookie) else {
                return false;
            };
            // Where its lease was over meanwhile, the next copy asks again.
            copies = true;
            let pass = releases.pass(&lab.netns(), cookie, asked);
            pass.expect("a pass").expect("the same").released == 1
        });
        is_gone(&connection);
        // And a third one tells what became of it.
        drop(asks);
        drop((attachment, releases, second));
        let third = load();
        let _attachment = third.attach(&lab.netns(), INTERFACE).expect("attach");
        lab.send(&release);
        wait_for("it is told", || lab.count(&third, Outcome::Released) == 1);
    }
}
