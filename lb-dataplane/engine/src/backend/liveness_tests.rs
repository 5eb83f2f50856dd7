//! Each piece of evidence in each state of a pod, as tables.

use super::*;
use baton_packet::Listener;
use std::num::NonZeroU8;

const NOW: Instant = Instant(10_000_000);

const fn ms(ms: u64) -> Instant {
    Instant(ms * 1_000)
}

fn listener(id: u16, holders: u8, several: bool) -> ListenerReport {
    ListenerReport {
        marks_exits: true,
        forgets: false,
        transfers: false,
        between_nodes: false,
        restores: false,
        listener: NonZeroU8::new(holders).map(|holders| Listener { id, holders, several }),
    }
}

/// A pod whose adopter has told of the same listener since the first second.
fn known() -> Liveness {
    let mut pod = Liveness::default();
    for at in [1_000, 2_000] {
        assert!(!pod.reported(ms(at), listener(7, 2, false)));
    }
    pod
}

fn probed(pod: &mut Liveness, at: Instant, times: u8) {
    for _ in 0..times {
        pod.send(at, (SeqNumber(1), SeqNumber(2)));
        pod.probe_left();
    }
}

const HEARD: Evidence = Evidence::Answer { reported: false };
const TOLD: Evidence = Evidence::Answer { reported: true };
const END: Evidence = Evidence::End { closer_listens: false };

/// An end 10 ms ago, and this many probes since.
fn ended(times: u8) -> Liveness {
    let mut pod = known();
    assert_eq!(pod.learn(ms(9_990), true, END), Belief::Probe);
    probed(&mut pod, ms(9_990), times);
    pod
}

fn states() -> [(&'static str, Liveness); 8] {
    let mut watched = ended(1);
    watched.learn(ms(9_991), true, HEARD);
    let mut syn = ended(1);
    syn.learn(ms(9_991), true, Evidence::NoAdopter);
    probed(&mut syn, ms(9_991), 1);
    let mut heard = ended(LIVENESS_TRIES_HEARD_MAX);
    heard.heard(ms(9_995));
    let mut unsent = ended(LIVENESS_TRIES_MAX);
    unsent.probe.left = false;
    unsent.heard(ms(9_995));
    let mut down = ended(LIVENESS_TRIES_MAX);
    let silence = Evidence::Silence { link_settled: true };
    down.learn(ms(9_995), true, silence);
    let mut down_probed = down.clone();
    probed(&mut down_probed, ms(9_999), 1);
    [
        ("quiet", known()),
        ("watched", watched),
        ("probed", ended(1)),
        ("syn", syn),
        ("heard", heard),
        ("unsent", unsent),
        ("down", down),
        ("down, probed", down_probed),
    ]
}

fn shown(belief: Belief) -> String {
    match belief {
        Belief::Unchanged => "-".into(),
        Belief::Probe => "probe".into(),
        Belief::Believe { back, held, wait_until_ms } => {
            let back = if back { "back" } else { "lives" };
            let held = if held { ", ends" } else { "" };
            let until = wait_until_ms.map(|ms| format!(" {ms}"));
            format!("{back}{held}{}", until.unwrap_or_default())
        }
        Belief::Orphan { why, news } => {
            let why = if why == Down::Silent { "silent" } else { "gone" };
            format!("{why}{}", if news { "!" } else { "" })
        }
    }
}

const EVIDENCE: &str = "
                                quiet    watched           probed            syn               heard             unsent            down   down, probed
End { closer_listens: false }   probe    -                 -                 -                 -                 -                 -      -
End { closer_listens: true }    probe    probe             -                 -                 -                 -                 probe  -
Exit                            probe    -                 -                 -                 -                 -                 -      -
Doubt                           probe    -                 -                 -                 -                 -                 -      -
Answer { reported: false }      lives    lives, ends 10005 lives, ends 10005 lives, ends 10005 lives, ends 10005 lives, ends 10005 back   back
Answer { reported: true }       lives    lives, ends       lives, ends       lives, ends 10005 lives, ends       lives, ends       back   back
Ready                           lives    lives             lives             lives             lives             lives             back   back
Refused                         gone!    gone!             gone!             gone!             gone!             gone!             gone!  gone!
NoListener                      probe    probe             probe             -                 -                 -                 probe  probe
NoAdopter                       probe    probe             probe             probe             probe             probe             probe  probe
Silence { link_settled: true }  silent!  silent!           silent!           silent!           lives, ends 10005 silent!           silent silent
Silence { link_settled: false } probe    probe             probe             probe             lives, ends 10005 probe             probe  probe
";

/// `back`: it was down; `ends`: those that are old enough stand, the others wait until then; `!`:
/// news.
#[test]
fn each_evidence_in_each_state() {
    let all = [
        END,
        Evidence::End { closer_listens: true },
        Evidence::Exit,
        Evidence::Doubt,
        HEARD,
        TOLD,
        Evidence::Ready,
        Evidence::Refused,
        Evidence::NoListener,
        Evidence::NoAdopter,
        Evidence::Silence { link_settled: true },
        Evidence::Silence { link_settled: false },
    ];
    let widths = [9, 18, 18, 18, 18, 18, 7, 12];
    let row = |head: &str, cells: &[String]| {
        let cells = cells.iter().zip(widths);
        let cells: String = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{head:<32}{cells}").trim_end().to_owned()
    };
    let names = states().map(|(name, _)| name.to_owned());
    let mut table = vec![row("", &names)];
    for evidence in all {
        let beliefs = states().map(|(_, mut pod)| shown(pod.learn(NOW, true, evidence)));
        table.push(row(&format!("{evidence:?}"), &beliefs));
    }
    let table = table.join("\n");
    assert_eq!(table, EVIDENCE.trim_matches('\n'), "\n{table}");
}

/// What was reported of the listener (its number, `x` holders, `s` of several; in which
/// millisecond); how a flow ended in the millisecond 9,990; who answers a probe of 9,991; whether
/// the end stands by that. If it does not, a second has to pass.
const SETTLES: &str = "
-                            end   kernel   stands
-                            exit  kernel   stands
0x0@1000                     end   adopter  stands
0x0@1000                     exit  adopter  waits
7x2@1000                     end   adopter  waits
7x2@1000 7x2@1999            end   adopter  waits
7x2@1000 7x2@2000            end   adopter  stands
7x2@1000 7x2@2000            end   kernel   waits
7x2@1000 7x2@2000            exit  adopter  waits
7x2@8990 7x2@9990            end   adopter  stands
7x2@8990 7x2@9991            end   adopter  waits
7x1@1000 7x2@8991 7x2@9990   end   adopter  waits
7x2@1000 7x2@2000 7x1@9995   end   adopter  waits
7x2@1000 7x2@2000 7x3@9995   end   adopter  waits
7x2@1000 7x2@2000 8x2@9995   end   adopter  waits
7x2@1000 7x2@2000 0x0@9995   end   adopter  stands
7x2s@1000 7x2s@2000 8x2s@9995 end  adopter  waits
7x2s@1000 7x2s@9000 7x2s@9995 end  adopter  stands
";

fn report(text: &str) -> Option<(Instant, ListenerReport)> {
    let (what, at) = text.split_once('@')?;
    let (id, holders) = what.split_once('x')?;
    let several = holders.ends_with('s');
    let holders = holders.trim_end_matches('s').parse().ok()?;
    let report = listener(id.parse().ok()?, holders, several);
    Some((ms(at.parse().ok()?), report))
}

#[test]
fn whose_answer_settles_an_end() {
    for row in SETTLES.trim().lines() {
        let words: Vec<_> = row.split_whitespace().collect();
        let (reports, rest) = words.split_at(words.len() - 3);
        let mut pod = Liveness::default();
        for (at, report) in reports.iter().filter_map(|text| report(text)) {
            pod.reported(at, report);
        }
        let exit = rest[0] == "exit";
        pod.learn(ms(9_990), true, if exit { Evidence::Exit } else { END });
        probed(&mut pod, ms(9_991), 1);
        let answer = if rest[1] == "adopter" { TOLD } else { HEARD };
        pod.learn(ms(9_996), true, answer);
        let (ended, stands) = (ms(9_990).0 as u32, rest[2] == "stands");
        assert_eq!(pod.settles(ended, false), stands, "{row}");
        assert_eq!(pod.is_probed(), !stands, "{row}");
        assert!(pod.settles(ended, true), "the closer listens: {row}");
        assert!(!pod.settles(ms(9_992).0 as u32, true), "after that: {row}");
        let mut now_ms = 9_996;
        while pod.is_probed() {
            assert!(now_ms <= 10_990, "watched for a second: {row}");
            now_ms = pod.probe_due_ms();
            probed(&mut pod, ms(now_ms), 1);
            pod.learn(ms(now_ms), true, answer);
        }
        assert!(pod.settles(ended, false), "{row}");
    }
}

#[test]
fn another_listener_is_another_process_unless_there_are_several() {
    let one = listener(7, 2, false);
    // Old, new: restarted?
    for (old, new, restarted) in [
        (one, one, false),
        (one, listener(7, 1, false), false),
        (one, listener(8, 2, false), true),
        (one, listener(8, 1, true), false),
        (listener(7, 2, true), listener(8, 2, true), false),
        (one, ListenerReport::default(), false),
        (ListenerReport::default(), one, false),
    ] {
        let mut pod = Liveness::default();
        pod.reported(ms(1_000), old);
        (pod.suspects, pod.ejected_until_ms) = (3, 20_000);
        assert_eq!(pod.reported(NOW, new), restarted, "{old:?} {new:?}");
        assert_eq!(pod.process() == 1 && pod.suspects == 0, restarted);
        assert_eq!(pod.may_be_ejected(NOW), !restarted);
        // Flows of before, of that millisecond, and of after it.
        let later = ms(10_500);
        let of = [9_999, 10_000, 10_001].map(|came_ms| pod.is_replaced_since(later, came_ms));
        assert_eq!(of, [restarted, false, false]);
    }
}

/// Old, new (as in [`SETTLES`]): of several, whoever ends without one a second before or after has
/// let go of it.
#[test]
fn who_ends_when_others_listen_has_let_go() {
    for (old, new, others) in [
        ("7x4s", "7x4s", false),
        ("7x4s", "7x3s", false),
        ("7x4s", "8x4s", true),
        ("7x4s", "3x1", true),
        ("3x1", "7x4s", true),
        ("3x1", "4x1", false),
        ("0x0", "7x4s", false),
    ] {
        let mut pod = Liveness::default();
        for (what, at_ms) in [(old, 1_000), (new, 5_000)] {
            let (at, report) = report(&format!("{what}@{at_ms}")).expect("a report");
            pod.reported(at, report);
        }
        for (ended_ms, now_ms, lately) in [
            (3_000, 5_000, true),
            (5_000, 5_001, true),
            (6_000, 6_003, true),
            (6_001, 6_003, false),
        ] {
            let let_go = pod.let_go_about(ms(now_ms), ms(ended_ms).0 as u32);
            assert_eq!(let_go, others && lately, "{old} {new}, {ended_ms}");
        }
    }
}

#[test]
fn it_is_probed_three_times_or_five_where_something_is_heard() {
    let mut probes = Vec::new();
    for (heard, left, down, tries) in [
        (false, true, false, 3),
        (true, true, false, 5),
        (true, true, true, 1),
        (true, false, false, 3),
    ] {
        let mut pod = known();
        if down {
            pod.learn(ms(9_000), true, Evidence::Refused);
        } else {
            pod.learn(ms(9_000), true, Evidence::Doubt);
        }
        let mut now_ms = 9_000;
        while pod.repeats() {
            pod.adopter_is_mute();
            let (_, ack) = pod.send(ms(now_ms), (SeqNumber(1), SeqNumber(2)));
            probes.push(ack.is_some());
            now_ms = pod.probe_due_ms();
            if left {
                pod.probe_left();
            }
            if heard {
                pod.heard(ms(9_010));
            }
        }
        let case = format!("heard {heard}, left {left}, down {down}");
        assert_eq!(pod.probe.tries, tries, "{case}");
        assert_eq!(now_ms, 9_000 + (20 << tries) - 20);
    }
    // Two may be lost, then the adopter is mute and the kernel is probed.
    assert_eq!(probes[..3], [true, true, false]);
    assert_eq!(probes[3..9], [true, true, false, false, false, true]);
    assert_eq!(probes[9..], probes[..3]);
}

/// While a pod is watched, the way to it may end, too.
#[test]
fn what_left_before_the_last_answer_is_no_way_to_the_pod() {
    let mut pod = ended(1);
    pod.learn(ms(9_991), true, HEARD);
    while pod.repeats() {
        pod.send(ms(pod.probe_due_ms()), (SeqNumber(1), SeqNumber(2)));
        pod.heard(ms(pod.probe_due_ms()));
    }
    assert_eq!(pod.probe.tries, LIVENESS_TRIES_MAX);
    let silence = Evidence::Silence { link_settled: true };
    assert_eq!(shown(pod.learn(NOW, true, silence)), "silent!");
}

#[test]
fn silence_is_noticed_of_one_that_owes_an_answer_or_answered_probes() {
    for (quiet_ms, stalled_ms, answered, silent) in [
        (249, 9_999, true, false),
        (250, 249, true, false),
        (250, 250, false, true),
        (2_199, 0, true, false),
        (2_200, 0, true, true),
        (9_999, 0, false, false),
    ] {
        let mut pod = known();
        pod.heard(Instant(NOW.0 - quiet_ms * 1_000));
        assert_eq!(pod.is_silent(NOW, stalled_ms, answered), silent);
        pod.learn(NOW, false, Evidence::Doubt);
        probed(&mut pod, NOW, 1);
        assert!(!pod.is_silent(NOW, stalled_ms, answered), "probed already");
    }
}

#[test]
fn one_that_is_down_is_probed_more_often_while_flows_wait() {
    for (waiting, pause_ms) in [(true, DOWN_PAUSE_WAITING_MS), (false, DOWN_PAUSE_MS)] {
        let mut pod = ended(1);
        pod.learn(NOW, waiting, Evidence::Refused);
        assert_eq!(pod.probe_due_ms(), NOW.ms() + pause_ms);
        assert_eq!(pod.trouble(), Some(BackendHealth::NotListening));
        assert!(pod.is_back(NOW) && !pod.is_back(NOW));
        assert_eq!((pod.up_ms, pod.process(), pod.trouble()), (10_000, 1, None));
    }
}

#[test]
fn ends_while_it_is_probed_have_it_probed_again_at_once_and_many_once_a_millisecond() {
    for (ends, wait_until_ms) in [(FEW_ENDS, 10_000), (FEW_ENDS + 1, 10_001)] {
        let mut pod = ended(1);
        for _ in 1..ends {
            assert_eq!(pod.learn(ms(9_995), true, END), Belief::Unchanged);
        }
        let expected =
            Belief::Believe { back: false, held: true, wait_until_ms: Some(wait_until_ms) };
        assert_eq!(pod.learn(NOW, true, TOLD), expected);
    }
}
