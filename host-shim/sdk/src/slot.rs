//! A place for one value that a thread or a task waits for.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    task::{Poll, Waker},
};

#[derive(Debug)]
pub(crate) struct Slot<T> {
    inner: Mutex<(Option<T>, Option<Waker>)>,
    filled: Condvar,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { inner: Mutex::new((None, None)), filled: Condvar::new() }
    }
}

impl<T> Slot<T> {
    /// The first value stays.
    pub(crate) fn put(&self, value: T) {
        if let Some(waker) = self.fill(value) {
            waker.wake();
        }
    }

    /// The same for who has a lock: whom to wake once it is let go of.
    pub(crate) fn fill(&self, value: T) -> Option<Waker> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.get_or_insert(value);
        let waker = inner.1.take();
        drop(inner);
        self.filled.notify_all();
        waker
    }

    pub(crate) fn wait(&self) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = inner.0.take() {
                return value;
            }
            inner = self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Poll<T> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                inner.1 = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}
