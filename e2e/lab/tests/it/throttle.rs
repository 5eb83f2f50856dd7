//! A throttled pod gets the CPU time that its limit says, and all of it back afterwards.

use baton_lab::{Lab, Options, Spec};
use std::{
    thread,
    time::{Duration, Instant},
};

#[test]
fn cpu_time_under_load_is_near_the_limit() {
    let lab = Lab::new("throttle", &Options::with_pods(1)).unwrap();
    let pod = &lab.pods()[0];
    pod.throttle(10.0).unwrap();
    // Two children in one pod share its limit.
    let busy = Spec::new("sh", ["-c", "(while :; do :; done) & while :; do :; done"]);
    let process = pod.spawn(&busy).unwrap();
    assert!(pod.processes().unwrap().contains(&i32::try_from(process.pid()).unwrap()));

    let share = |seconds: f64| {
        let (start, before) = (Instant::now(), process.cpu_time());
        thread::sleep(Duration::from_secs_f64(seconds));
        (process.cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
    };
    // The scheduler may overrun by a tick per period and a period may be cut at either end.
    let limited = share(2.0);
    assert!((0.05..0.15).contains(&limited), "{limited}");
    pod.unthrottle().unwrap();
    let free = share(1.0);
    assert!(free > limited * 2.0, "{free} after {limited}");

    for nonsense in [0.0, -1.0, 0.1, f64::NAN] {
        assert!(pod.throttle(nonsense).is_err(), "{nonsense}");
    }
    assert!(lab.client().throttle(5.0).is_err(), "a client has no cgroup");
}
