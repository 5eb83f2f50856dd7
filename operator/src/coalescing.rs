//! A coalescing queue: each key waits once, with its latest value.
//!
//! Owns the order: what is urgent goes first, the rest when it is due. It cannot grow beyond the
//! number of keys, however often they are offered. A key that was handed out has no other turn
//! until that one has ended: of two writes at a time the older one may arrive last.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The coalescing queue.
#[derive(Debug)]
pub struct CoalescingQueue<K: Clone + Ord + Hash, V> {
    inner: Arc<Inner<K, V>>,
}

#[derive(Debug)]
struct Inner<K, V> {
    waiting: Mutex<Waiting<K, V>>,
    changed: Notify,
}

#[derive(Debug)]
struct Waiting<K, V> {
    values: HashMap<K, Item<V>>,
    /// Without those whose turn it is.
    order: BTreeSet<(Rank, K)>,
    /// With whether the key was taken out since its turn began.
    turns: HashMap<K, bool>,
    count: u64,
}

/// A key's turn; the next one may begin when it is dropped.
#[derive(Debug)]
pub struct Turn<K: Clone + Ord + Hash, V> {
    key: K,
    inner: Arc<Inner<K, V>>,
}

impl<K: Clone + Ord + Hash, V> Drop for Turn<K, V> {
    fn drop(&mut self) {
        let mut waiting = self.inner.lock();
        waiting.turns.remove(&self.key);
        if let Some(rank) = waiting.values.get(&self.key).map(|item| item.rank) {
            waiting.order.insert((rank, self.key.clone()));
            drop(waiting);
            self.inner.changed.notify_one();
        }
    }
}

impl<K, V> Inner<K, V> {
    fn lock(&self) -> MutexGuard<'_, Waiting<K, V>> {
        // No code of others runs while it is held, but for `Ord` and `Hash` of keys.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

impl<K: Clone + Ord + Hash, V> Default for CoalescingQueue<K, V> {
    fn default() -> Self {
        let waiting = Waiting {
            values: HashMap::new(),
            order: BTreeSet::new(),
            turns: HashMap::new(),
            count: 0,
        };
        Self { inner: Arc::new(Inner { waiting: Mutex::new(waiting), changed: Notify::new() }) }
    }
}

impl<K: Clone + Ord + Hash, V> CoalescingQueue<K, V> {
    fn lock(&self) -> MutexGuard<'_, Waiting<K, V>> {
        self.inner.lock()
    }

    /// Whether it is the key's turn now.
    pub fn is_under_way(&self, key: &K) -> bool {
        self.lock().turns.contains_key(key)
    }

    /// A value whose turn is at once, in the place of what waits for the key.
    pub fn urgent(&self, key: K, value: V) {
        self.put(key, value, None);
    }

    /// A value whose turn is at `due`, or when the turn is of what waits for the key and is
    /// replaced.
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
        if !waiting.turns.contains_key(&key) {
            waiting.order.insert((rank, key.clone()));
        }
        waiting.values.insert(key, Item { value, rank });
        drop(waiting);
        self.inner.changed.notify_one();
    }

    /// The same for a value that could not be handled, if nothing newer waits for the key and the
    /// key was not taken out meanwhile. Belongs to the key's turn.
    pub fn again(&self, key: K, value: V, due: Instant) {
        let waiting = self.lock();
        let out = waiting.turns.get(&key).is_some_and(|out| *out);
        let newer = waiting.values.contains_key(&key);
        drop(waiting);
        if !newer && !out {
            self.later(key, value, due);
        }
    }

    /// Waits for the next whose turn it is, and takes it out.
    pub async fn next(&self) -> (K, V, Turn<K, V>) {
        loop {
            let first = self.first();
            match first {
                Ok(taken) => return taken,
                Err(None) => self.inner.changed.notified().await,
                Err(Some(due)) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.inner.changed.notified() => {}
                },
            }
        }
    }

    fn first(&self) -> Result<(K, V, Turn<K, V>), Option<Instant>> {
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
        let Some(item) = waiting.values.remove(&key) else {
            return Err(None);
        };
        waiting.turns.insert(key.clone(), false);
        let turn = Turn { key: key.clone(), inner: Arc::clone(&self.inner) };
        Ok((key, item.value, turn))
    }

    /// Takes a key out. What its turn, if it has one, could not handle does not wait again.
    pub fn remove(&self, key: &K) {
        let mut waiting = self.lock();
        if let Some(out) = waiting.turns.get_mut(key) {
            *out = true;
        }
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
    use std::{fmt::Debug, time::Duration};

    /// A turn that ends at once.
    async fn taken<K: Clone + Ord + Hash + Debug, V>(queue: &CoalescingQueue<K, V>) -> (K, V) {
        let (key, value, _turn) = queue.next().await;
        (key, value)
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_waits_once_with_its_latest_value_and_the_urgent_go_first() {
        let queue = CoalescingQueue::default();
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
            assert_eq!(taken(&queue).await, expected);
        }
        assert_eq!(taken(&queue).await, ("a", 1));
        assert!(Instant::now() >= soon);
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_becomes_urgent_does_not_wait_and_what_failed_gives_way_to_what_is_newer() {
        let queue = CoalescingQueue::default();
        let later = Instant::now() + Duration::from_secs(60);
        queue.later("a", 1, later);
        queue.urgent("a", 2);
        assert_eq!(taken(&queue).await, ("a", 2));
        assert!(Instant::now() < later);
        queue.urgent("a", 3);
        queue.again("a", 2, later);
        queue.again("b", 1, later);
        assert_eq!(taken(&queue).await, ("a", 3));
        assert_eq!(taken(&queue).await, ("b", 1));
        queue.urgent("a", 4);
        queue.urgent("b", 4);
        queue.remove(&"a");
        assert_eq!(taken(&queue).await, ("b", 4));
        queue.urgent("a", 5);
        queue.clear();
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_out_during_its_turn_does_not_come_again() {
        let queue = CoalescingQueue::default();
        queue.urgent("a", 1);
        let (key, value, turn) = queue.next().await;
        queue.remove(&"a");
        queue.again(key, value, Instant::now());
        drop(turn);
        assert_eq!(queue.len(), 0);
        // Its next turn is one like any other.
        queue.urgent("a", 2);
        let (key, value, turn) = queue.next().await;
        queue.again(key, value, Instant::now());
        drop(turn);
        assert_eq!(taken(&queue).await, ("a", 2));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_woken() {
        let queue = std::sync::Arc::new(CoalescingQueue::default());
        let other = std::sync::Arc::clone(&queue);
        let waiting = tokio::spawn(async move { taken(&other).await });
        tokio::task::yield_now().await;
        queue.urgent(1, "x");
        assert_eq!(waiting.await.expect("ends"), (1, "x"));
    }

    /// Of two writes of one object at a time, the older one may be the last to arrive.
    #[tokio::test(start_paused = true)]
    async fn a_key_has_one_turn_at_a_time() {
        let queue = CoalescingQueue::default();
        queue.urgent("a", 1);
        let (_, first, turn) = queue.next().await;
        assert_eq!(first, 1);
        assert!(queue.is_under_way(&"a"));
        queue.urgent("a", 2);
        queue.urgent("b", 1);
        assert_eq!(taken(&queue).await, ("b", 1));
        let pause = Duration::from_secs(60);
        assert!(tokio::time::timeout(pause, queue.next()).await.is_err());
        // What failed gives way to what came meanwhile.
        queue.again("a", 1, Instant::now());
        drop(turn);
        assert_eq!(taken(&queue).await, ("a", 2));
        assert!(!queue.is_under_way(&"a"));
        assert_eq!(queue.len(), 0);
    }
}
