//! Where objects come from. Both sources tell the same core the same things.

pub mod directory;
mod directory_watch;
pub mod kubernetes;
pub mod report;

use crate::{health::Health, kind::Kind, ledger::Ledger, metrics::Metrics, translate::Translator};
use baton_index::{Change, Key, Text};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use tokio::sync::mpsc;
use tracing::error;

/// What waits for the fold. A source that finds it full waits, and with it the API server's stream:
/// that is all right, the fold takes thousands at once.
pub const LIMIT_QUEUE: usize = 4_096;

/// What a source tells.
#[derive(Debug)]
pub enum Message {
    /// An object came, changed or went.
    Change(Change),
    /// A class, by name, cannot be used as it is now; what it was before stays.
    Refused(Text),
    /// All objects of this kind that there were at the start are told.
    Synced(Kind),
    /// Whether objects that there were before the start may be missing.
    Partial(bool),
}

/// What an object comes to.
#[derive(Debug)]
pub enum Translation {
    /// The index is told.
    Change(Change),
    /// A class cannot be used: what it was before stays.
    Refused,
    /// What was told before stays.
    Nothing,
}

impl<E> From<Result<Change, E>> for Translation {
    fn from(result: Result<Change, E>) -> Self {
        result.map_or(Self::Nothing, Self::Change)
    }
}

/// What a source works with.
#[derive(Clone)]
pub struct Sink {
    /// To the fold.
    pub messages: mpsc::Sender<Message>,
    /// From objects to changes.
    pub translator: Arc<Translator>,
    /// What statuses objects have.
    pub ledger: Arc<Ledger>,
    /// Whether all is known.
    pub health: Arc<Health>,
    /// Figures.
    pub metrics: Metrics,
}

/// The core has ended, so nobody listens any more.
#[derive(Debug)]
pub struct Ended;

impl Sink {
    /// Tells a change.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub async fn change(&self, kind: Kind, change: Change) -> Result<(), Ended> {
        self.metrics.changes.with_label_values(&[kind.as_str()]).inc();
        let message = Message::Change(change);
        self.messages.send(message).await.map_err(|_| Ended)
    }

    /// Tells what became of an object.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub async fn tell(&self, kind: Kind, key: &Key, translation: Translation) -> Result<(), Ended> {
        match translation {
            Translation::Change(change) => self.change(kind, change).await,
            Translation::Refused => {
                let message = Message::Refused(Arc::clone(&key.name));
                self.messages.send(message).await.map_err(|_| Ended)
            }
            Translation::Nothing => Ok(()),
        }
    }

    /// Tells that the start of a kind is complete.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub async fn synced(&self, kind: Kind) -> Result<(), Ended> {
        self.health.synced(kind.as_str());
        let message = Message::Synced(kind);
        self.messages.send(message).await.map_err(|_| Ended)
    }

    /// Tells whether objects may be missing.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub async fn partial(&self, partial: bool) -> Result<(), Ended> {
        let message = Message::Partial(partial);
        self.messages.send(message).await.map_err(|_| Ended)
    }

    /// Translates one object. A panic is a bug in this program that one object has found: it is
    /// told with the object's name, and all other objects go on.
    pub fn caught<T>(
        &self,
        kind: Kind,
        key: &Key,
        translate: impl FnOnce(&Translator) -> T,
    ) -> Result<T, Panicked> {
        let translated = catch_unwind(AssertUnwindSafe(|| translate(&self.translator)));
        translated.map_err(|panic| {
            let words = words(panic.as_ref());
            self.metrics.panics.inc();
            error!(
                kind = kind.as_str(),
                object = %key,
                panic = words,
                "this object cannot be translated because of a bug; please report it with the object"
            );
            Panicked(words)
        })
    }
}

/// A caught panic, with its words.
#[derive(Debug)]
pub struct Panicked(pub String);

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "without words".to_owned()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A sink whose messages come out at the other end.
    pub fn sink() -> (Sink, mpsc::Receiver<Message>) {
        let (messages, received) = mpsc::channel(LIMIT_QUEUE);
        let kinds = Kind::ALL.map(Kind::as_str);
        let sink = Sink {
            messages,
            translator: Arc::new(Translator::new()),
            ledger: Arc::new(Ledger::default()),
            health: Arc::new(Health::new(&kinds)),
            metrics: Metrics::new().expect("figures"),
        };
        (sink, received)
    }

    #[tokio::test]
    async fn a_panic_of_one_object_is_told_and_stops_nothing() {
        let (sink, mut received) = sink();
        let key = Key::new("shop", "bad");
        let caught: Result<(), Panicked> = sink.caught(Kind::Policy, &key, |_| panic!("seven"));
        assert_eq!(caught.expect_err("caught").0, "seven");
        let number = 7;
        let caught: Result<(), Panicked> =
            sink.caught(Kind::Policy, &key, |_| panic!("number {number}"));
        assert_eq!(caught.expect_err("caught").0, "number 7");
        assert_eq!(sink.metrics.panics.get(), 2);
        let change = Change::Policy(key, None);
        sink.change(Kind::Policy, change).await.expect("goes on");
        assert!(matches!(received.recv().await, Some(Message::Change(Change::Policy(..)))));
        drop(received);
        assert!(sink.synced(Kind::Pod).await.is_err(), "nobody listens");
    }
}
