//! A queue in which each key waits once, with its latest value.
//!
//! Owns the order: what is urgent goes first, the rest when it is due. It cannot grow beyond the number of keys, however often
//! they are offered.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The queue.
#[derive(Debug)]
pub struct Latest<K, V> {
    waiting: Mutex<Waiting<K, V>>,
    changed: Notify,
}

#[derive(Debug)]
struct Waiting<K, V> {
    values: HashMap<K, Item<V>>,
    order: BTreeSet<(Rank, K)>,
    count: u64,
}

#[derive(Debug)]
struct Item<V> {
    value: V,
    rank: Rank,
}

/// Urgent ones in the order in which they came; the others by when they are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Urgent(u64),
    Due(Instant, u64),
}

impl<K: Clone + Ord + Hash, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                values: HashMap::new(),
                order: BTreeSet::new(),
                count: 0,
            }),
            changed: Notify::new(),
        }
    }
}

impl<K: Clone + Ord + Hash, V> Latest<K, V> {
    fn lock(&self) -> MutexGuard<'_, Waiting<K, V>> {
        // No code of others runs while it is held, but for `Ord` and `Hash` of keys.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A value whose turn is at once, in the place of what waits for the key.
    pub fn urgent(&self, key: K, value: V) {
        self.put(key, value, None);
    }

    /// A value whose turn is at `due`, or when the turn is of what waits for the key and is replaced.
    pub fn later(&self, key: K, value: V, due: Instant) {
        self.put(key, value, Some(due));
    }

    fn put(&self, key: K, value: V, due: Option<Instant>) {
        let mut waiting = self.lock();
        waiting.count += 1;
        let number = waiting.count;
        let wanted = due.map_or(Rank::Urgent(number), |due| Rank::Due(due, number));
        let rank = match waiting.values.get(&key).map(|item| item.rank) {
            Some(old) if old <= wanted => old,
            Some(old) => {
                waiting.order.remove(&(old, key.clone()));
                wanted
            }
            None => wanted,
        };
        waiting.order.insert((rank, key.clone()));
        waiting.values.insert(key, Item { value, rank });
        drop(waiting);
        self.changed.notify_one();
    }

    /// The same for a value that could not be handled, if nothing newer waits for the key.
    pub fn again(&self, key: K, value: V, due: Instant) {
        let newer = self.lock().values.contains_key(&key);
        if !newer {
            self.later(key, value, due);
        }
    }

    /// Waits for the next whose turn it is, and takes it out.
    pub async fn next(&self) -> (K, V) {
        loop {
            let first = self.first();
            match first {
                Ok(taken) => return taken,
                Err(None) => self.changed.notified().await,
                Err(Some(due)) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    fn first(&self) -> Result<(K, V), Option<Instant>> {
        let mut waiting = self.lock();
        let Some((rank, key)) = waiting.order.first().cloned() else {
            return Err(None);
        };
        if let Rank::Due(due, _) = rank
            && due > Instant::now()
        {
            return Err(Some(due));
        }
        waiting.order.remove(&(rank, key.clone()));
        match waiting.values.remove(&key) {
            Some(item) => Ok((key, item.value)),
            None => Err(None),
        }
    }

    /// Takes a key out.
    pub fn remove(&self, key: &K) {
        let mut waiting = self.lock();
        if let Some(item) = waiting.values.remove(key) {
            waiting.order.remove(&(item.rank, key.clone()));
        }
    }

    /// Takes all out.
    pub fn clear(&self) {
        let mut waiting = self.lock();
        waiting.values.clear();
        waiting.order.clear();
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lock().values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn each_key_waits_once_with_its_latest_value_and_the_urgent_go_first() {
        let queue = Latest::default();
        let now = Instant::now();
        let soon = now + Duration::from_secs(5);
        queue.later("a", 1, soon);
        queue.later("b", 1, now);
        queue.urgent("c", 1);
        queue.urgent("d", 1);
        queue.urgent("c", 2);
        // Does not postpone what waits already.
        queue.later("d", 2, soon);
        assert_eq!(queue.len(), 4);
        for expected in [("c", 2), ("d", 2), ("b", 1)] {
            assert_eq!(queue.next().await, expected);
        }
        assert_eq!(queue.next().await, ("a", 1));
        assert!(Instant::now() >= soon);
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_becomes_urgent_does_not_wait_and_what_failed_gives_way_to_what_is_newer() {
        let queue = Latest::default();
        let later = Instant::now() + Duration::from_secs(60);
        queue.later("a", 1, later);
        queue.urgent("a", 2);
        assert_eq!(queue.next().await, ("a", 2));
        assert!(Instant::now() < later);
        queue.urgent("a", 3);
        queue.again("a", 2, later);
        queue.again("b", 1, later);
        assert_eq!(queue.next().await, ("a", 3));
        assert_eq!(queue.next().await, ("b", 1));
        queue.urgent("a", 4);
        queue.urgent("b", 4);
        queue.remove(&"a");
        assert_eq!(queue.next().await, ("b", 4));
        queue.urgent("a", 5);
        queue.clear();
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_woken() {
        let queue = std::sync::Arc::new(Latest::default());
        let other = std::sync::Arc::clone(&queue);
        let waiting = tokio::spawn(async move { other.next().await });
        tokio::task::yield_now().await;
        queue.urgent(1, "x");
        assert_eq!(waiting.await.expect("ends"), (1, "x"));
    }
}
