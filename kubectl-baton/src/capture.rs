//! `capture`: has dataplanes copy packets of chosen connections, and puts what they send into one pcapng file.
//!
//! Owns which dataplanes are asked for what. Each of them makes a section of its own, and a pcapng file may have several,
//! one behind the other: the first one's goes out as it comes, the others' wait for its end.

use crate::{
    args::Capture,
    ask::{self, Dataplane, PolicyName},
    cluster::{Bounded, Cluster, ExecOptions},
};
use anyhow::{Context as _, bail};
use baton_api::PolicyState;
use baton_config::create_private;
use futures_util::future::join_all;
use std::io::{IsTerminal as _, Write, stdout};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Captures under way at one time: each is a stream through the API server.
const DATAPLANES_MAX: usize = 8;
/// What waits here of each dataplane but the first: with headers only this is a million packets.
const WAITING_MAX_BYTES: usize = 64 << 20;
const TOO_MUCH: &str =
    "more than 64 MiB wait for the other dataplanes: name one with `--dataplane`";
/// Names in one filter, as the dataplane has it.
const NAMES_MAX: usize = 32;

/// What one dataplane is asked: its Pod, and the names that it has for what the user means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// Whom.
    pub dataplane: Dataplane,
    /// Only these policies; all if there are none.
    pub policies: Vec<String>,
}

/// What became of it: who, and its last words or why there are none.
pub type Outcome = (String, Result<String, String>);

/// Which policies of a dataplane are meant; none: nothing of it is.
pub fn meant(
    wanted: &Capture,
    namespace: Option<&str>,
    policies: &[PolicyState],
) -> Option<Vec<String>> {
    let has = |policy: &PolicyState| {
        let name = PolicyName::parse(&policy.name);
        let backend = wanted.backend.as_ref();
        name.is(wanted.policy.as_deref(), namespace)
            && backend.is_none_or(|wanted| policy.backends.iter().any(|b| b.name == *wanted))
    };
    let names = policies.iter().filter(|policy| has(policy));
    let names: Vec<String> = names.map(|policy| policy.name.clone()).collect();
    (!names.is_empty()).then_some(names)
}

/// What each dataplane is asked. With all namespaces and no names, they are asked for everything that the client says.
///
/// # Errors
/// No dataplane answers, or none has what is meant.
pub async fn errands(
    cluster: &impl Cluster,
    wanted: &Capture,
    namespace: Option<&str>,
    mut dataplanes: Vec<Dataplane>,
) -> anyhow::Result<(Vec<Errand>, Vec<String>)> {
    if let Some(name) = &wanted.dataplane {
        dataplanes.retain(|dataplane| dataplane.pod.name.name == *name);
        if dataplanes.is_empty() {
            bail!("no dataplane is named {name}: `kubectl baton status -o wide` shows them");
        }
    }
    if dataplanes.len() > DATAPLANES_MAX {
        bail!(
            "{} dataplanes are too many for one file: name one of them with `--dataplane` (`kubectl baton flows` shows which has \
             the connection)",
            dataplanes.len()
        );
    }
    let answers = ask::heard(ask::policies(cluster, &dataplanes).await)?;
    let notes = ask::silent(&answers);
    let anything = namespace.is_none() && wanted.policy.is_none() && wanted.backend.is_none();
    let errands: Vec<Errand> = answers
        .into_iter()
        .filter_map(|answer| {
            let policies = answer.result.ok()?;
            let policies = match anything {
                true => Vec::new(),
                false => meant(wanted, namespace, &policies)?,
            };
            Some(Errand {
                dataplane: answer.dataplane,
                policies,
            })
        })
        .collect();
    if errands.is_empty() {
        bail!(
            "no dataplane has such a policy or backend here: `kubectl baton backends -A` shows all"
        );
    }
    if errands.iter().any(|e| e.policies.len() > NAMES_MAX) {
        bail!("more than {NAMES_MAX} listeners are meant: name a policy with `--policy`");
    }
    Ok((errands, notes))
}

/// The words behind the program's name.
pub fn words(wanted: &Capture, errand: &Errand) -> Vec<String> {
    let client = wanted.client.map(|clients| clients.to_string());
    let time = format!("{}us", wanted.time.as_micros());
    let mut words = ask::words(&["capture"], [("--for", Some(time)), ("--client", client)]);
    for policy in &errand.policies {
        words.extend(["--policy".to_owned(), policy.clone()]);
    }
    let snaplen = wanted.snaplen.map(|bytes| bytes.to_string());
    let last = [
        ("--backend", wanted.backend.clone()),
        ("--snaplen", snaplen),
    ];
    words.extend(ask::words(&[], last));
    if wanted.payload {
        words.push("--payload".to_owned());
    }
    words.push("--end-on-input".to_owned());
    words
}

/// Counts how often the user has interrupted: once has all captures end in order, twice at once.
///
/// # Errors
/// Signals cannot be taken.
pub fn interruptions() -> anyhow::Result<watch::Receiver<u32>> {
    let (tell, told) = watch::channel(0);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind).context("signals cannot be taken")?;
        let tell = tell.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                tell.send_modify(|wishes| *wishes += 1);
            }
        });
    }
    Ok(told)
}

/// Runs all captures at one time and writes their sections one after the other.
///
/// # Errors
/// The output cannot be written.
pub async fn run(
    cluster: &impl Cluster,
    wanted: &Capture,
    errands: &[Errand],
    stop: &watch::Receiver<u32>,
    out: &mut dyn Write,
) -> anyhow::Result<Vec<Outcome>> {
    let Some((first, others)) = errands.split_first() else {
        return Ok(Vec::new());
    };
    let one = async {
        let mut out = &mut *out;
        run_one(cluster, wanted, first, stop, &mut out).await
    };
    let rest = join_all(others.iter().map(async |errand| {
        let mut waiting = Bounded::new(WAITING_MAX_BYTES, TOO_MUCH);
        let outcome = run_one(cluster, wanted, errand, stop, &mut waiting).await;
        (outcome, waiting.bytes)
    }));
    let (one, rest) = futures_util::join!(one, rest);
    let mut outcomes = vec![one];
    for (outcome, section) in rest {
        out.write_all(&section)
            .context("the file cannot be written")?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

async fn run_one(
    cluster: &impl Cluster,
    wanted: &Capture,
    errand: &Errand,
    stop: &watch::Receiver<u32>,
    out: &mut dyn Write,
) -> Outcome {
    let words = words(wanted, errand);
    let options = ExecOptions {
        limit: wanted.time,
        stop: Some(stop.clone()),
    };
    let said = ask::capture(cluster, &errand.dataplane, &words, options, out).await;
    (errand.dataplane.pod.name.name.clone(), said)
}

/// The file, or the standard output where that is no terminal.
///
/// # Errors
/// It cannot be written, or there is none.
pub fn output(wanted: &Capture) -> anyhow::Result<Box<dyn Write>> {
    match wanted.write.as_deref() {
        Some(path) if path.as_os_str() != "-" => {
            // What clients and servers say is nobody else's.
            let file = create_private(path);
            let file = file.with_context(|| format!("`--write {}`", path.display()))?;
            Ok(Box::new(file))
        }
        _ if stdout().is_terminal() => {
            bail!("packets are nothing for a terminal: `-w FILE`, or `-w - | wireshark -k -i -`")
        }
        _ => Ok(Box::new(stdout())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ExecOutput;
    use crate::{
        args::{Command, tests::parsed},
        fake::{Fake, answer, bad, which},
    };

    fn wanted(line: &str) -> Capture {
        match parsed(&format!("kubectl-baton capture {line}"))
            .expect(line)
            .command
        {
            Command::Capture(capture) => capture,
            other => panic!("{other:?}"),
        }
    }

    /// A cluster whose dataplanes send their names as sections.
    fn fake() -> Fake {
        let mut fake = Fake::new();
        fake.answers = Box::new(|pod, words| match words[0] {
            "capture" => Ok(ExecOutput {
                stdout: format!("[{}]", which(pod)).into_bytes(),
                stderr: "7 frames; ended because its time is over".to_owned(),
                code: 0,
            }),
            _ => answer(which(pod), words),
        });
        fake
    }

    async fn captured(fake: &Fake, line: &str, namespace: Option<&str>) -> (String, Vec<Outcome>) {
        let wanted = wanted(line);
        let fleet = ask::fleet(fake).await.expect("a fleet");
        let asked = errands(fake, &wanted, namespace, fleet.dataplanes).await;
        let (errands, _) = asked.expect("something is meant");
        let mut out = Vec::new();
        let (_never, stop) = watch::channel(0);
        let outcomes = run(fake, &wanted, &errands, &stop, &mut out).await;
        (
            String::from_utf8(out).expect("text"),
            outcomes.expect("written"),
        )
    }

    #[tokio::test]
    async fn every_dataplane_is_asked_in_its_own_names_and_makes_a_section() {
        let fake = fake();
        let line = "--policy web --client 192.0.2.0/24 --for 2s --snaplen 100 --payload";
        let (file, outcomes) = captured(&fake, line, Some("shop")).await;
        assert_eq!(file, "[a][b]");
        assert!(
            outcomes
                .iter()
                .all(|(_, said)| said.as_deref() == Ok("7 frames; ended because its time is over"))
        );
        let ran = fake.ran.borrow();
        let captures: Vec<&String> = ran.iter().filter(|r| r.contains(" capture ")).collect();
        assert_eq!(captures.len(), 2);
        for capture in captures {
            let (_, words) = capture.split_once(' ').expect("a Pod and words");
            assert_eq!(
                words,
                "capture --for 2000000us --client 192.0.2.0/24 --policy shop/web/http --snaplen 100 --payload --end-on-input"
            );
        }
    }

    #[tokio::test]
    async fn a_namespace_is_kept_to_and_a_pod_is_found_with_its_policies() {
        for (line, namespace, words) in [
            (
                "",
                Some("shop"),
                "capture --for 30000000us --policy shop/web/http",
            ),
            ("", None, "capture --for 30000000us"),
            (
                "--backend cache-0",
                None,
                "capture --for 30000000us --policy data/cache/redis --backend cache-0",
            ),
        ] {
            let fake = fake();
            let line = format!("{line} --dataplane baton-lb-dataplane-6c8d5b7f9-x2b4k");
            let (file, _) = captured(&fake, &line, namespace).await;
            assert_eq!(file, "[a]", "only the one that is named");
            let ran = fake.ran.borrow();
            assert!(
                ran.iter()
                    .any(|r| r.ends_with(&format!(" {words} --end-on-input"))),
                "{ran:?}"
            );
        }
    }

    #[tokio::test]
    async fn what_nobody_has_is_told_and_a_refusal_is_quoted() {
        let fake = fake();
        let fleet = ask::fleet(&fake).await.expect("a fleet");
        for (line, namespace, why) in [
            ("--policy nobody", None, "no dataplane has such a policy"),
            (
                "--backend cache-0",
                Some("shop"),
                "no dataplane has such a policy or backend here",
            ),
            ("--dataplane nobody", None, "no dataplane is named nobody"),
        ] {
            let all = fleet.dataplanes.clone();
            let error = errands(&fake, &wanted(line), namespace, all).await;
            let error = error.expect_err(line).to_string();
            assert!(error.contains(why), "{error}");
        }
        let mut fake = fake;
        fake.answers = Box::new(|pod, words| match words[0] {
            "capture" => bad(1, "lb-dataplane: another capture is under way"),
            _ => answer(which(pod), words),
        });
        let (file, outcomes) = captured(&fake, "", Some("shop")).await;
        assert_eq!(file, "");
        assert_eq!(
            outcomes[0].1,
            Err("another capture is under way".to_owned())
        );
    }

    #[test]
    fn a_section_that_waits_is_bounded() {
        let mut waiting = Bounded::new(WAITING_MAX_BYTES, TOO_MUCH);
        waiting.bytes.resize(WAITING_MAX_BYTES - 1, 0);
        assert!(waiting.write_all(&[1]).is_ok());
        let error = waiting.write_all(&[1]).expect_err("full").to_string();
        assert!(error.contains("--dataplane"), "{error}");
    }
}
