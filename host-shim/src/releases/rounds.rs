//! A thread for each namespace of which something is asked, while that is so: a pass over one
//! pod's sockets may wait for as long as that pod likes. Owns what waits for the next pass and how
//! much of it there may be; never what a pass does.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What waits of one namespace: more than a dataplane asks of a pod's connections within their
/// lease.
const WAITING_MAX: usize = 4_096;

/// Of each namespace that has a thread what is asked and not passed on yet.
#[derive(Debug)]
pub struct Rounds<A>(Mutex<BTreeMap<u64, BTreeSet<A>>>);

impl<A> Default for Rounds<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A: Ord + Send + 'static> Rounds<A> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, BTreeSet<A>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what is asked of a namespace passed to `pass` on the namespace's thread, all at once
    /// that has come until then. Returns how much finds no room.
    ///
    /// # Errors
    /// No thread can be made: nothing is passed on.
    pub fn add(
        self: &Arc<Self>,
        netns: u64,
        mut asked: BTreeSet<A>,
        pass: impl Fn(&BTreeSet<A>) + Send + 'static,
    ) -> io::Result<usize> {
        let mut waiting = self.lock();
        if let Some(known) = waiting.get_mut(&netns) {
            known.append(&mut asked);
            let too_many = known.len().saturating_sub(WAITING_MAX);
            for _ in 0..too_many {
                known.pop_last();
            }
            return Ok(too_many);
        }
        waiting.insert(netns, asked);
        drop(waiting);
        let rounds = Arc::clone(self);
        let made = std::thread::Builder::new().name("release".into()).spawn(move || {
            while let Some(asked) = rounds.next(netns) {
                pass(&asked);
            }
        });
        if made.is_err() {
            self.lock().remove(&netns);
        }
        made.map(|_| 0)
    }

    /// Without anything the namespace's thread ends, and the next ask makes another one.
    fn next(&self, netns: u64) -> Option<BTreeSet<A>> {
        let mut waiting = self.lock();
        let asked = std::mem::take(waiting.get_mut(&netns)?);
        if asked.is_empty() {
            waiting.remove(&netns);
            return None;
        }
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_namespace_whose_pass_does_not_end_keeps_no_other_waiting() {
        let rounds = Arc::new(Rounds::default());
        let (passes, passed) = mpsc::channel();
        let (ends, ended) = mpsc::channel::<()>();
        let stuck = move |asked: &BTreeSet<usize>| {
            passes.send(asked.clone()).expect("the test waits");
            ended.recv_timeout(PATIENCE).expect("the test goes on");
        };
        let unused = |_: &BTreeSet<usize>| panic!("it has a thread");
        assert_eq!(rounds.add(1, [7].into(), stuck).expect("a thread"), 0);
        assert_eq!(passed.recv_timeout(PATIENCE), Ok([7].into()));
        // What comes meanwhile is the next pass's, as far as there is room.
        assert_eq!(rounds.add(1, [8].into(), unused).expect("a thread"), 0);
        let many: BTreeSet<usize> = (9..9 + WAITING_MAX).collect();
        assert_eq!(rounds.add(1, many, unused).expect("a thread"), 1);

        let (others, of_others) = mpsc::channel();
        for n in 0..2 {
            let others = others.clone();
            let pass = move |asked: &BTreeSet<usize>| {
                others.send(asked.clone()).expect("the test waits");
            };
            assert_eq!(rounds.add(2 + n, [1].into(), pass).expect("a thread"), 0);
            assert_eq!(of_others.recv_timeout(PATIENCE), Ok([1].into()));
        }

        ends.send(()).expect("it waits");
        let next: BTreeSet<usize> = (8..8 + WAITING_MAX).collect();
        assert_eq!(passed.recv_timeout(PATIENCE), Ok(next));
        ends.send(()).expect("it waits");
        // Nothing is left, so its thread ends.
        assert!(passed.recv_timeout(PATIENCE).is_err());
    }
}
