//! The Kubernetes source: lists and watches each kind and translates what comes, object by object.
//!
//! Owns the watches. Keeps no object: after the translation only its key remains here, to find out
//! after a new list what has gone meanwhile. An object that cannot be used stops no watch.
//!
//! # Decisions
//!
//! - **Lists are streamed as JSON from the API server's memory** (`sendInitialEvents`, as new as
//!   etcd; `operator/src/source/kubernetes.rs`), in pages of 500 where it refuses that (before
//!   1.32, 1.33). Pages are read from etcd one after the other, each waited for: with 50,000 Pods a
//!   restart beside a load of 4 took 15 s. Rejected: the API server's binary form, turned into JSON
//!   of the fields that matter. It saved some 4 s of processor time at each side once per start,
//!   for 1,600 lines that knew the wire form of four kinds.

use super::{Ended, Sink, report};
use crate::{kind::Kind, translate};
use baton_index::Key;
use futures_util::{Stream, StreamExt};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, Config, Event, InitialListStrategy, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{collections::HashSet, fmt::Debug, pin::pin, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

/// Objects in one page of a list, where an API server cannot stream them: some 2 MB of Pods at a
/// time.
const PAGE: u32 = 500;
/// First wait after a failure, doubled with each further one.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest wait. A handful of watches at this pace does not hurt an API server that comes up again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Follows all kinds until the core ends.
pub async fn run(client: Client, sink: Sink) {
    let mut watches = JoinSet::new();
    let (all, s) = (client.clone(), sink.clone());
    watches.spawn(follow(Api::all(all), Kind::Policy, s, report::policy));
    let (all, s) = (client.clone(), sink.clone());
    watches.spawn(follow(Api::all(all), Kind::Class, s, report::class));
    let (all, s) = (client.clone(), sink.clone());
    watches.spawn(follow(Api::all(all), Kind::Service, s, report::service));
    let (all, s) = (client.clone(), sink.clone());
    watches.spawn(follow(Api::all(all), Kind::Slice, s, report::slice));
    let (all, s) = (client.clone(), sink.clone());
    watches.spawn(follow(Api::all(all), Kind::Pod, s, report::pod));
    let (all, s) = (client.clone(), sink.clone());
    watches.spawn(follow(Api::all(all), Kind::Node, s, report::node));
    watches.spawn(follow(Api::all(client), Kind::Namespace, sink, report::namespace));
    while let Some(ended) = watches.join_next().await {
        // A watch ends when nobody listens, or by a bug, which ends the process.
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

async fn follow<K>(api: Api<K>, kind: Kind, sink: Sink, translate: report::Translate<K>)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut follower =
        Follower { kind, sink, translate, known: HashSet::new(), listed: None, synced: false };
    // Streamed, they come from the API server's memory and are read here while it goes on writing;
    // each page comes from etcd, and is waited for.
    let mut config = Config::default().page_size(PAGE).streaming_lists();
    let (mut in_pages, mut retry) = (false, Retry::default());
    loop {
        let began = Instant::now();
        let events = watcher(api.clone(), config.clone()).backoff(Retry::default());
        match follower.follow(events).await {
            // The watch could not begin where the list ended: list again.
            Ok(Again::Expired) => debug!(kind = kind.as_str(), "the watch begins anew"),
            Ok(Again::InPages) if !in_pages => {
                info!(
                    kind = kind.as_str(),
                    "this API server cannot stream lists; they are read in pages"
                );
                config.initial_list_strategy = InitialListStrategy::ListWatch;
                in_pages = true;
                continue;
            }
            Ok(Again::InPages) => debug!(kind = kind.as_str(), "the watch is refused"),
            Err(Ended) => return,
        }
        // Who refuses each watch that begins, and each costs a list, is not asked without a pause.
        if began.elapsed() > RETRY_MAX {
            Backoff::reset(&mut retry);
        }
        sleep(retry.pause()).await;
    }
}

/// Why a watch has to begin anew.
#[derive(Debug, PartialEq, Eq)]
enum Again {
    /// What it should go on from is not known any more, or it has ended.
    Expired,
    /// The API server has no streamed lists.
    InPages,
}

/// One kind's keys and where its list stands.
struct Follower<K> {
    kind: Kind,
    sink: Sink,
    translate: report::Translate<K>,
    known: HashSet<Key>,
    /// Those of the list that is being read.
    listed: Option<HashSet<Key>>,
    synced: bool,
}

impl<K: Resource> Follower<K> {
    /// Until the stream ends or has to begin anew.
    async fn follow(
        &mut self,
        events: impl Stream<Item = watcher::Result<Event<K>>>,
    ) -> Result<Again, Ended> {
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.event(event).await?,
                Err(error) => {
                    let kind = self.kind.as_str();
                    self.sink.metrics.watch_errors.with_label_values(&[kind]).inc();
                    warn!(kind, %error, "watching failed; what is known stays, and it is tried again");
                    if let Some(again) = has_to_begin_anew(&error) {
                        return Ok(again);
                    }
                }
            }
        }
        Ok(Again::Expired)
    }

    async fn event(&mut self, event: Event<K>) -> Result<(), Ended> {
        match event {
            Event::Init => {
                let kind = self.kind.as_str();
                self.sink.metrics.watch_lists.with_label_values(&[kind]).inc();
                self.listed = Some(HashSet::new());
            }
            Event::InitApply(object) => {
                let key = self.applied(&object).await?;
                if let Some(listed) = &mut self.listed {
                    listed.insert(key);
                }
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    let gone: Vec<Key> = self.known.difference(&listed).cloned().collect();
                    for key in gone {
                        self.gone(key).await?;
                    }
                }
                if !self.synced {
                    self.synced = true;
                    let kind = self.kind.as_str();
                    info!(kind, objects = self.known.len(), "all are known");
                    self.sink.synced(self.kind).await?;
                }
            }
            Event::Apply(object) => {
                self.applied(&object).await?;
            }
            Event::Delete(object) => {
                let key = self.sink.translator.key(object.meta());
                self.gone(key).await?;
            }
        }
        Ok(())
    }

    async fn applied(&mut self, object: &K) -> Result<Key, Ended> {
        let key = self.sink.translator.key(object.meta());
        let translation = (self.translate)(&self.sink, &key, object);
        self.known.insert(key.clone());
        self.sink.tell(self.kind, &key, translation).await?;
        Ok(key)
    }

    async fn gone(&mut self, key: Key) -> Result<(), Ended> {
        self.known.remove(&key);
        report::gone(&self.sink, self.kind, &key);
        let change = translate::gone(self.kind, key);
        self.sink.change(self.kind, change).await
    }
}

/// The watcher would ask again and again for a version that the API server does not have any more,
/// or for a list in a way that it does not know: those before 1.32, and of 1.33, refuse the
/// parameters of a streamed one (422).
fn has_to_begin_anew(error: &watcher::Error) -> Option<Again> {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => match status.code {
            410 => Some(Again::Expired),
            400 | 422 => Some(Again::InPages),
            _ => None,
        },
        _ => None,
    }
}

/// Waits between failures. The watcher resets it with the first event.
#[derive(Debug, Default)]
struct Retry {
    failures: u32,
}

impl Retry {
    fn pause(&mut self) -> Duration {
        let longest = RETRY_MIN.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        // At least half of it, so that watches that failed together do not come back together.
        longest.mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.pause())
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake_api::FakeApi,
        objects::Pod,
        source::{Message, tests::sink},
    };
    use baton_index::Change;
    use futures_util::stream;
    use serde_json::json;
    use tokio::sync::mpsc;

    fn pod_named(name: &str) -> Pod {
        let value = json!({"metadata": {"namespace": "shop", "name": name}, "status": {"podIP": "10.0.0.1"}});
        serde_json::from_value(value).expect("a Pod")
    }

    fn follower(sink: Sink) -> Follower<Pod> {
        Follower {
            kind: Kind::Pod,
            sink,
            translate: report::pod,
            known: HashSet::new(),
            listed: None,
            synced: false,
        }
    }

    /// What was told, in words: `+name` came, `-name` went, `.` all are known.
    fn told(received: &mut mpsc::Receiver<Message>) -> Vec<String> {
        let mut words = Vec::new();
        while let Ok(message) = received.try_recv() {
            words.push(match message {
                Message::Change(Change::Pod(key, Some(_))) => format!("+{}", key.name),
                Message::Change(Change::Pod(key, None)) => format!("-{}", key.name),
                Message::Synced(Kind::Pod) => ".".to_owned(),
                other => panic!("{other:?}"),
            });
        }
        words
    }

    #[tokio::test]
    async fn a_second_list_tells_what_has_gone_meanwhile() {
        let (sink, mut received) = sink();
        let mut follower = follower(sink);
        let events = [
            Event::Init,
            Event::InitApply(pod_named("a")),
            Event::InitApply(pod_named("b")),
            Event::InitDone,
            Event::Apply(pod_named("c")),
            Event::Delete(pod_named("a")),
            // The watch expired. Nothing is gone before the list is complete.
            Event::Init,
            Event::InitApply(pod_named("c")),
        ];
        let events = stream::iter(events.map(Ok));
        follower.follow(events).await.expect("somebody listens");
        assert_eq!(told(&mut received), ["+a", "+b", ".", "+c", "-a", "+c"]);
        let events = stream::iter([Ok(Event::InitDone), Ok(Event::Apply(pod_named("d")))]);
        follower.follow(events).await.expect("somebody listens");
        assert_eq!(told(&mut received), ["-b", "+d"]);
    }

    #[tokio::test]
    async fn failures_are_counted_and_an_expired_start_begins_anew() {
        let (sink, _received) = sink();
        let errors = sink.metrics.watch_errors.clone();
        let mut follower = follower(sink);
        let expired = kube::core::Status::failure("too old", "Expired").with_code(410);
        let events = stream::iter([
            Err(watcher::Error::NoResourceVersion),
            Err(watcher::Error::WatchStartFailed(kube::Error::Api(expired.boxed()))),
            Ok(Event::Apply(pod_named("never read"))),
        ]);
        let again = follower.follow(events).await.expect("somebody listens");
        assert_eq!(again, Again::Expired);
        assert!(follower.known.is_empty());
        assert_eq!(errors.with_label_values(&["Pod"]).get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_refuses_every_watch_is_asked_less_and_less_often() {
        let (sink, _received) = sink();
        let errors = sink.metrics.watch_errors.clone();
        let errors = || errors.with_label_values(&["Pod"]).get();
        let api = FakeApi::default();
        api.fail(Some(410));
        let pods = Api::<Pod>::all(api.client());
        let following = tokio::spawn(follow(pods, Kind::Pod, sink, report::pod));
        // No time passes meanwhile.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(errors(), 1);
        sleep(Duration::from_secs(60)).await;
        assert!((12..=32).contains(&errors()), "{}", errors());
        following.abort();
    }

    #[tokio::test]
    async fn lists_are_read_in_pages_where_they_cannot_be_streamed() {
        let (sink, _received) = sink();
        let mut follower = follower(sink);
        let message =
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        for (code, expected) in
            [(422, Again::InPages), (400, Again::InPages), (410, Again::Expired)]
        {
            let refusal = kube::core::Status::failure(message, "Invalid").with_code(code);
            let refusal = watcher::Error::WatchStartFailed(kube::Error::Api(refusal.boxed()));
            let events = stream::iter([Err(refusal)]).chain(stream::pending());
            let again = follower.follow(events).await.expect("somebody listens");
            assert_eq!(again, expected, "{code}");
        }
    }

    #[test]
    fn waits_grow_to_a_limit_and_begin_again_after_a_success() {
        let mut retry = Retry::default();
        for expected in [200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let wait = retry.next().expect("always");
            let expected = Duration::from_millis(expected);
            assert!(wait >= expected / 2 && wait <= expected, "{wait:?} of {expected:?}");
        }
        retry.reset();
        assert!(retry.next().expect("always") <= RETRY_MIN);
    }
}
