//! Places of a listener that anybody may reach, with TLS or without: who goes when all are taken.
//!
//! Owns the list of connections that are served. Whoever holds one place is not driven out by
//! somebody who wants many: the one that goes is the oldest of the address that holds most of them.
//! Accepts nothing and knows no protocol.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::task::AbortHandle;

/// Places for connections, each with the task that serves it.
pub struct Places {
    /// Without a handle until its task is spawned.
    held: Mutex<Held<Option<AbortHandle>>>,
}

impl Places {
    /// So many at most.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { held: Mutex::new(Held::new(most)) })
    }

    /// Runs the task that serves a connection from this address (none: a process of this machine)
    /// in a place that is given back at its end. Returns whether another one had to go, whose task
    /// ends and whose connection closes.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn serve(
        self: &Arc<Self>,
        from: Option<IpAddr>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> bool {
        let mut held = self.lock();
        let number = held.number();
        let gone = held.take(number, from, None);
        drop(held);
        let place = Place { places: Arc::clone(self), number };
        // A runtime that ends drops it here, which gives its place back: not under the lock.
        let task = tokio::spawn(async move {
            let _place = place;
            task.await;
        });
        let task = task.abort_handle();
        match self.lock().held(number) {
            Some(handle) => *handle = Some(task),
            // It has ended, or had to go meanwhile.
            None => task.abort(),
        }
        if let Some(task) = gone.as_ref().and_then(Option::as_ref) {
            task.abort();
        }
        gone.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Held<Option<AbortHandle>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place that is given back, however its task ends.
struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().give_back(self.number);
    }
}

/// Who holds places, the oldest first.
struct Held<T> {
    all: Vec<(u64, Option<IpAddr>, T)>,
    most: usize,
    next: u64,
}

impl<T> Held<T> {
    fn new(most: usize) -> Self {
        Self { all: Vec::with_capacity(most + 1), most, next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns who has to go.
    fn take(&mut self, number: u64, from: Option<IpAddr>, task: T) -> Option<T> {
        self.all.push((number, from.map(network), task));
        if self.all.len() <= self.most {
            return None;
        }
        let count = |from: &Option<IpAddr>| self.all.iter().filter(|held| held.1 == *from).count();
        // The first of those that are equal.
        let at = (0..self.all.len()).rev().max_by_key(|at| count(&self.all[*at].1))?;
        Some(self.all.remove(at).2)
    }

    /// Of one that still holds its place.
    fn held(&mut self, number: u64) -> Option<&mut T> {
        let found = self.all.iter_mut().find(|held| held.0 == number);
        found.map(|held| &mut held.2)
    }

    fn give_back(&mut self, number: u64) {
        self.all.retain(|held| held.0 != number);
    }
}

/// What one machine has for certain: an IPv4 address, or the first 64 bits of an IPv6 one (RFC
/// 6177).
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;

    fn at(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn the_oldest_of_who_holds_most_goes() {
        let mut held = Held::new(4);
        let mut take = |from, name| {
            let number = held.number();
            held.take(number, from, name)
        };
        assert_eq!(take(at("10.0.0.1"), "kubelet"), None);
        assert_eq!(take(at("10.0.0.9"), "first"), None);
        assert_eq!(take(at("10.0.0.9"), "second"), None);
        assert_eq!(take(None, "local"), None);
        assert_eq!(take(at("10.0.0.9"), "third"), Some("first"));
        // Two each of two: the oldest of them.
        assert_eq!(take(at("10.0.0.1"), "kubelet 2"), Some("kubelet"));
        assert_eq!(take(at("10.0.0.9"), "fourth"), Some("second"));
    }

    #[test]
    fn an_ipv6_network_is_one_and_a_mapped_address_an_ipv4_one() {
        assert_eq!(at("2001:db8::1").map(network), at("2001:db8::ffff").map(network));
        assert_ne!(at("2001:db8::1").map(network), at("2001:db8:0:1::1").map(network));
        assert_eq!(at("::ffff:10.0.0.1").map(network), at("10.0.0.1"));
    }

    /// Where a runtime has ended, a task ends as it is spawned.
    #[test]
    fn what_comes_at_the_end_waits_for_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let handle = runtime.handle().clone();
        drop(runtime);
        let _within = handle.enter();
        let places = Places::new(1);
        for _ in 0..2 {
            assert!(!places.serve(None, std::future::pending()));
        }
        assert!(places.lock().all.is_empty());
    }

    /// Two hundred that hold on, and one that comes once.
    #[tokio::test]
    async fn whoever_comes_is_served() {
        let places = Places::new(8);
        for n in 0..200 {
            let goes = places.serve(at("10.0.0.9"), std::future::pending());
            assert_eq!(goes, n >= 8);
        }
        let (tell, told) = oneshot::channel();
        let goes = places.serve(at("10.0.0.1"), async {
            let _ = tell.send(());
        });
        assert!(goes);
        let told = tokio::time::timeout(Duration::from_secs(5), told).await;
        assert_eq!(told, Ok(Ok(())));
        while places.held.lock().expect("no panic").all.len() > 7 {
            tokio::task::yield_now().await;
        }
        assert!(!places.serve(at("10.0.0.1"), async {}), "it gave its place back");
    }
}
