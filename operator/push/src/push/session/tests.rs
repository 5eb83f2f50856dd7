//! One rule of the session after the other.

use super::*;

const BASE: u64 = 5 << 32;

struct Bench {
    session: Session,
    now: Duration,
}

fn settings() -> Settings {
    Settings::default()
}

fn bench_with(settings: Settings) -> Bench {
    let interval = settings.poll_interval;
    let rng = fastrand::Rng::with_seed(1);
    let now = Duration::from_secs(100);
    let session = Session::new(Arc::new(settings), interval, Epoch(5), rng, now);
    Bench { session, now }
}

fn bench() -> Bench {
    bench_with(settings())
}

impl Bench {
    fn event(&mut self, event: Event) -> Next {
        self.session.handle(self.now, event)
    }

    fn want(&mut self, version: u64) -> Next {
        self.event(Event::Wanted(Some(Version(version))))
    }

    fn answer(&mut self, answer: Answer) -> Next {
        self.event(Event::Answer(answer))
    }

    fn holds(&mut self, generation: u64, version: Option<u64>) -> Next {
        self.answer(Answer::Holds { generation, version: version.map(Version) })
    }

    fn state(&mut self, generation: u64, uptime_seconds: u64) -> Next {
        self.answer(Answer::State { generation, uptime_seconds, took: Duration::from_millis(1) })
    }

    /// Lets time pass until the session wants to wake up.
    fn sleep(&mut self) -> (Duration, Next) {
        let at = self.session.wake_at().expect("nothing under way");
        assert!(at > self.now, "no progress");
        let slept = at - self.now;
        self.now = at;
        (slept, self.event(Event::Tick))
    }

    /// Version 1 is pushed as `BASE + 1`, the first poll is under way.
    fn synced() -> Self {
        let mut bench = bench();
        assert_eq!(bench.want(1).ask, Some(Request::Read));
        assert_eq!(bench.holds(0, None).ask, put(BASE + 1, 1));
        let next = bench.answer(Answer::Accepted);
        assert_eq!(next.news, [acknowledged(BASE + 1, 1, true)]);
        assert_eq!(next.ask, Some(Request::Poll));
        bench
    }
}

fn put(generation: u64, version: u64) -> Option<Request> {
    Some(Request::Put { generation, version: Version(version) })
}

fn acknowledged(generation: u64, version: u64, pushed: bool) -> News {
    News::Acknowledged { generation, version: Version(version), pushed }
}

#[test]
fn equal_content_is_not_pushed_whatever_its_generation() {
    for generation in [1, BASE, BASE + 9, 9 << 32] {
        let mut bench = bench();
        let _ = bench.want(1);
        let next = bench.holds(generation, Some(1));
        assert_eq!(next.news, [acknowledged(generation, 1, false)]);
        assert_eq!(next.ask, Some(Request::Poll));
        assert!(bench.session.is_in_sync());
    }
}

#[test]
fn content_that_is_not_in_force_is_pushed_even_if_it_is_equal() {
    let mut bench = bench();
    let _ = bench.want(1);
    assert_eq!(bench.holds(0, Some(1)).ask, put(BASE + 1, 1));
}

#[test]
fn a_push_goes_above_what_is_there() {
    for (there, pushed) in [
        (0, BASE + 1),
        (1, BASE + 1),
        ((4 << 32) + 99, BASE + 1),
        (BASE, BASE + 1),
        // An old leader of the same epoch with a higher count.
        (BASE + 77, BASE + 78),
    ] {
        let mut bench = bench();
        let _ = bench.want(1);
        assert_eq!(bench.holds(there, None).ask, put(pushed, 1), "{there}");
    }
}

#[test]
fn only_the_newest_content_is_pushed_and_one_request_is_under_way() {
    let mut bench = bench();
    let _ = bench.want(1);
    for version in 2..50 {
        assert_eq!(bench.want(version).ask, None);
    }
    assert_eq!(bench.holds(0, None).ask, put(BASE + 1, 49));
    assert_eq!(bench.want(50).ask, None);
    assert_eq!(bench.want(51).ask, None);
    let next = bench.answer(Answer::Accepted);
    assert_eq!(next.news, [acknowledged(BASE + 1, 49, true)]);
    assert_eq!(next.ask, put(BASE + 2, 51));
}

#[test]
fn without_content_the_target_is_only_polled() {
    let mut bench = bench();
    assert_eq!(bench.event(Event::Tick).ask, Some(Request::Poll));
    assert_eq!(bench.state(7, 7).ask, None);
    let (slept, next) = bench.sleep();
    assert_eq!(next.ask, Some(Request::Poll));
    assert!((1_800..=2_200).contains(&slept.as_millis()), "{slept:?}");
    assert!(!bench.session.is_in_sync());
}

#[test]
fn a_conflict_is_read_again_and_gone_above() {
    let mut bench = bench();
    let _ = bench.want(1);
    let _ = bench.holds(0, None);
    assert_eq!(bench.answer(Answer::Conflict).ask, Some(Request::Read));
    assert_eq!(bench.holds(BASE + 8, None).ask, put(BASE + 9, 1));
    // A second one too; from the third on there is a pause, for that is no race any more.
    assert_eq!(bench.answer(Answer::Conflict).ask, Some(Request::Read));
    assert_eq!(bench.holds(BASE + 8, None).ask, put(BASE + 10, 1));
    assert_eq!(bench.answer(Answer::Conflict).ask, None);
    let (_, next) = bench.sleep();
    assert_eq!(next.ask, Some(Request::Read));
}

#[test]
fn refused_content_is_not_repeated_until_something_changes() {
    let refusal = Refusal {
        field: Some("policies[0].name".to_owned()),
        problem: "no".to_owned(),
        ..Refusal::default()
    };
    let refused = || {
        let mut bench = Bench::synced();
        let _ = bench.state(BASE + 1, 60);
        assert_eq!(bench.want(2).ask, put(BASE + 2, 2));
        let next = bench.answer(Answer::Refused(refusal.clone()));
        let version = Version(2);
        let refusal = refusal.clone();
        assert_eq!(next.news, [News::Refused { version, refusal }]);
        assert_eq!(next.ask, None);
        bench
    };
    // Polls go on; it is offered again after a minute.
    let mut bench = refused();
    let begin = bench.now;
    let again = loop {
        let (_, next) = bench.sleep();
        match next.ask {
            Some(Request::Poll) => {
                let next = bench.state(BASE + 1, 60);
                assert_eq!(next.news, []);
                if next.ask.is_some() {
                    break next;
                }
            }
            _ => break next,
        }
    };
    assert_eq!(again.ask, put(BASE + 3, 2));
    assert_eq!(bench.now - begin, settings().refused_retry);
    // A change is offered at once.
    assert_eq!(refused().want(3).ask, put(BASE + 3, 3));
    // To one that started again, too.
    let mut bench = refused();
    let (_, next) = bench.sleep();
    assert_eq!(next.ask, Some(Request::Poll));
    let next = bench.state(0, 1);
    assert_eq!(next.news, [News::Restarted]);
    assert_eq!(next.ask, Some(Request::Read));
    assert_eq!(bench.holds(0, None).ask, put(BASE + 3, 2));
}

#[test]
fn a_restart_shows_in_the_state_and_is_mended_at_once() {
    // By generation, by uptime alone (it may have other content under the same number), and by a
    // foreign push.
    for (generation, uptime, restarted) in
        [(0, 100, true), (BASE + 1, 3, true), (BASE + 5, 100, false)]
    {
        let mut bench = Bench::synced();
        assert_eq!(bench.state(BASE + 1, 60).ask, None);
        assert_eq!(bench.sleep().1.ask, Some(Request::Poll));
        let next = bench.state(generation, uptime);
        assert_eq!(next.news.contains(&News::Restarted), restarted);
        assert_eq!(next.ask, Some(Request::Read));
        assert!(!bench.session.is_in_sync());
        let above = generation.max(BASE + 1) + 1;
        assert_eq!(bench.holds(generation, None).ask, put(above, 1));
    }
}

#[test]
fn after_a_failure_it_waits_longer_each_time_and_reads_first() {
    let mut bench = Bench::synced();
    let mut waits = Vec::new();
    for failure in 1..=12 {
        let next = bench.answer(Answer::Failed("refused".to_owned()));
        assert_eq!(next.ask, None);
        assert!(
            matches!(&next.news[..], [News::Unreachable(Unreached { failures, .. })] if *failures == failure),
            "{next:?}"
        );
        assert!(!bench.session.is_in_sync());
        let (slept, next) = bench.sleep();
        assert_eq!(next.ask, Some(Request::Read));
        waits.push(slept);
    }
    let settings = settings();
    for (i, wait) in waits.iter().enumerate() {
        let whole = (settings.backoff_min * 2_u32.pow(i as u32)).min(settings.backoff_max);
        assert!((whole / 2..=whole).contains(wait), "wait {i}: {wait:?}");
    }
    // Having succeeded, it begins anew.
    let _ = bench.holds(BASE + 1, Some(1));
    let _ = bench.answer(Answer::Failed("refused".to_owned()));
    assert!(bench.sleep().0 <= settings.backoff_min);
}

/// Something that is not a whole dataplane, or one that is older: `/v1/snapshot` is there,
/// `/v1/state` is not.
#[test]
fn who_has_no_state_to_tell_is_asked_less_and_less_often() {
    let mut bench = Bench::synced();
    let begin = bench.now;
    let (mut reads, mut polls) = (0_u32, vec![begin]);
    let mut next = bench.answer(Answer::Failed("404 Not Found".to_owned()));
    while bench.now - begin < Duration::from_secs(60) {
        next = match next.ask {
            None => bench.sleep().1,
            Some(Request::Read) => {
                reads += 1;
                let next = bench.holds(BASE + 1, Some(1));
                assert_eq!(next.news, [acknowledged(BASE + 1, 1, false)]);
                assert!(bench.session.is_in_sync());
                next
            }
            Some(Request::Poll) => {
                polls.push(bench.now);
                let next = bench.answer(Answer::Failed("404 Not Found".to_owned()));
                // It can be reached: this is no failure after another.
                assert!(
                    matches!(&next.news[..], [News::Unreachable(Unreached { failures: 1, .. })]),
                    "{next:?}"
                );
                next
            }
            Some(Request::Put { .. }) => panic!("it has what it shall have"),
        };
    }
    let settings = settings();
    for (i, pair) in polls.windows(2).enumerate() {
        let whole = (settings.backoff_min * 2_u32.pow(i as u32)).min(settings.backoff_max);
        let wait = pair[1] - pair[0];
        assert!((whole / 2..=whole).contains(&wait), "wait {i}: {wait:?}");
    }
    // 100 ms, doubled seven times, comes to more than 10 s, and each look is followed by one read.
    assert!((10..=24).contains(&polls.len()), "{}", polls.len());
    assert!(reads.abs_diff(u32::try_from(polls.len()).expect("few")) <= 1);
    // Content goes there at once all the same.
    while bench.session.is_busy() || !bench.session.is_in_sync() {
        next = match next.ask {
            Some(Request::Read) => bench.holds(BASE + 1, Some(1)),
            Some(Request::Poll) => bench.answer(Answer::Failed("404 Not Found".to_owned())),
            _ => bench.sleep().1,
        };
    }
    assert_eq!(bench.want(2).ask, put(BASE + 2, 2));
    // One good look, and the pace is the usual one.
    let mut next = bench.answer(Answer::Accepted);
    while next.ask != Some(Request::Poll) {
        next = bench.sleep().1;
    }
    assert_eq!(bench.state(BASE + 2, 60).ask, None);
    let (slept, next) = bench.sleep();
    assert_eq!(next.ask, Some(Request::Poll));
    assert!((1_800..=2_200).contains(&slept.as_millis()), "{slept:?}");
}

#[test]
fn a_nudge_ends_a_wait_but_not_the_shortest() {
    let mut bench = bench();
    let _ = bench.want(1);
    for _ in 0..9 {
        let _ = bench.answer(Answer::Failed("refused".to_owned()));
        let _ = bench.sleep();
    }
    let _ = bench.answer(Answer::Failed("refused".to_owned()));
    assert_eq!(bench.event(Event::Nudge).ask, None);
    let (slept, next) = bench.sleep();
    assert_eq!(slept, settings().backoff_min);
    assert_eq!(next.ask, Some(Request::Read));
    let _ = bench.answer(Answer::Failed("refused".to_owned()));
    bench.now += Duration::from_millis(200);
    assert_eq!(bench.event(Event::Nudge).ask, Some(Request::Read));
}

#[test]
fn a_push_whose_end_is_unknown_is_looked_for() {
    // It arrived.
    let mut bench = bench();
    let _ = bench.want(1);
    let _ = bench.holds(0, None);
    let _ = bench.answer(Answer::Failed("no answer".to_owned()));
    assert_eq!(bench.sleep().1.ask, Some(Request::Read));
    let next = bench.holds(BASE + 1, Some(1));
    assert_eq!(next.news, [acknowledged(BASE + 1, 1, false)]);
    // It did not; should it come late, the next number is above it.
    let mut bench = self::bench();
    let _ = bench.want(1);
    let _ = bench.holds(0, None);
    let _ = bench.answer(Answer::Failed("no answer".to_owned()));
    let _ = bench.sleep();
    assert_eq!(bench.holds(0, None).ask, put(BASE + 2, 1));
}

#[test]
fn a_later_epoch_is_left_alone_until_the_wait_is_over() {
    let there = (6 << 32) + 3;
    let mut bench = bench();
    let begin = bench.now;
    let _ = bench.want(1);
    let next = bench.holds(there, None);
    assert_eq!(next.news, [News::Overtaken { generation: there }]);
    let mut ask = next.ask;
    while ask == Some(Request::Poll) {
        let next = bench.state(there, 60);
        assert_eq!(next.news, [], "told once");
        ask = next.ask;
        if ask.is_none() {
            ask = bench.sleep().1.ask;
        }
    }
    assert_eq!(bench.now - begin, settings().overtaken_wait);
    assert_eq!(ask, put(there + 1, 1));
    // From then on our numbers are of that epoch and nothing waits.
    let _ = bench.answer(Answer::Accepted);
    let _ = bench.state(there + 1, 60);
    assert_eq!(bench.want(2).ask, put(there + 2, 2));
}

#[test]
fn a_later_epoch_is_gone_above_at_once_without_election() {
    let there = (6 << 32) + 3;
    let mut bench = bench_with(Settings { overtaken_wait: Duration::ZERO, ..settings() });
    let _ = bench.want(1);
    assert_eq!(bench.holds(there, None).ask, put(there + 1, 1));
}

#[test]
fn equal_content_of_a_later_epoch_is_not_changed_by_an_old_leader() {
    let there = (6 << 32) + 3;
    let mut bench = bench();
    let _ = bench.want(1);
    let _ = bench.holds(there, Some(1));
    assert_eq!(bench.state(there, 60).ask, None);
    let next = bench.want(2);
    assert_eq!(next.ask, None);
    assert_eq!(next.news, [News::Overtaken { generation: there }]);
    // Who still runs after the wait is the leader.
    bench.now += settings().overtaken_wait;
    assert_eq!(bench.event(Event::Tick).ask, Some(Request::Poll));
    assert_eq!(bench.state(there, 80).ask, put(there + 1, 2));
}

#[test]
fn the_last_generation_is_told_and_not_hammered() {
    let mut bench = bench();
    let _ = bench.want(1);
    bench.now += Duration::from_secs(60);
    let _ = bench.holds(u64::MAX, None);
    let _ = bench.state(u64::MAX, 1);
    bench.now += settings().overtaken_wait;
    assert_eq!(bench.event(Event::Tick).ask, Some(Request::Poll));
    let next = bench.state(u64::MAX, 20);
    assert!(
        matches!(&next.news[..], [News::Refused { refusal, .. }] if refusal.field.as_deref() == Some("generation")),
        "{next:?}"
    );
    assert_eq!(next.ask, None);
    assert_eq!(bench.sleep().1.ask, Some(Request::Poll));
    let next = bench.state(u64::MAX, 80);
    assert_eq!((next.news, next.ask), (vec![], None));
}

#[test]
fn looks_take_a_share_of_the_time_at_most() {
    let mut bench = Bench::synced();
    let took = Duration::from_secs(4);
    let _ = bench.answer(Answer::State { generation: BASE + 1, uptime_seconds: 60, took });
    let (slept, next) = bench.sleep();
    assert_eq!(slept, took * 9);
    assert_eq!(next.ask, Some(Request::Poll));
    assert_eq!(bench.answer(Answer::NoRoom).ask, None);
    assert!(bench.sleep().0 < settings().poll_interval / 2);
}

#[test]
fn content_that_changes_without_end_does_not_blind_it() {
    let mut bench = Bench::synced();
    let _ = bench.state(BASE + 1, 60);
    let mut polls = 0;
    let begin = bench.now;
    let mut version = 2;
    let mut ask = bench.want(version).ask;
    while bench.now - begin < Duration::from_secs(60) {
        bench.now += Duration::from_millis(5);
        version += 1;
        assert_eq!(bench.want(version).ask, None);
        ask = match ask {
            Some(Request::Put { .. }) => bench.answer(Answer::Accepted).ask,
            Some(Request::Poll) => {
                polls += 1;
                bench.state(BASE + version - 3 + 1 - polls, 60).ask
            }
            Some(Request::Read) => bench.holds(BASE + version, None).ask,
            None => panic!("idle while out of sync"),
        };
    }
    assert!((6..=12).contains(&polls), "{polls} polls in 60 s");
}

#[test]
fn an_answer_to_another_question_is_a_failure() {
    let mut bench = bench();
    let _ = bench.want(1);
    let next = bench.answer(Answer::Accepted);
    assert!(matches!(&next.news[..], [News::Unreachable(Unreached { .. })]), "{next:?}");
    assert!(!bench.session.is_in_sync());
}
