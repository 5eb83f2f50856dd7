//! Each command: asks, shows. The only place that knows both the dataplanes and the output.

use crate::{
    args::{Again, Backends, Capture, Command, Drain, Flows, Migrate, Output, Trace},
    backends, capture, drain,
    fleet::{
        self, Dataplane, Fleet, FlowsQuery, Refused, Request, Response, ask, heard, silent, states,
        told,
    },
    flows, migrate,
    names::{FlowId, unknown_policy},
    progress::Progress,
    show::Show,
    trace,
};
use anyhow::bail;
use baton_api::{Endpoint, FlowsReply, MigrateRequest, StateReply};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Dataplanes, and what the user said of how to ask them.
pub struct Asking<'a, F> {
    /// The dataplanes.
    pub fleet: F,
    /// Where answers go.
    pub show: &'a Show,
    /// Only policies of this namespace; none is all.
    pub namespace: Option<&'a str>,
}

impl<F: Fleet> Asking<'_, F> {
    /// Does what is asked for; the exit code says how it went.
    ///
    /// # Errors
    /// No dataplane could be asked.
    pub async fn run<O: Args>(&self, command: &Command<O>) -> anyhow::Result<ExitCode> {
        match command {
            Command::Backends(with) => self.backends(&with.order).await,
            Command::Flows(with) => self.flows(&with.order).await,
            Command::Drain(with) => self.drain(&with.order).await,
            Command::Capture(with) => self.capture(&with.order).await,
            Command::Migrate(with) => self.migrate(&with.order).await,
            Command::Trace(with) => self.trace(&with.order).await,
        }
    }

    /// The dataplanes; what could not be looked at is noted.
    async fn dataplanes(&self) -> anyhow::Result<Vec<F::Dataplane>> {
        let (dataplanes, unseen) = self.fleet.dataplanes().await?;
        self.show.notes(&unseen);
        Ok(dataplanes)
    }

    /// What the dataplanes say of themselves.
    ///
    /// # Errors
    /// None says anything.
    pub async fn states(&self) -> anyhow::Result<Vec<Response<F::Dataplane, StateReply>>> {
        heard(states(&self.fleet, &self.dataplanes().await?).await)
    }

    async fn backends(&self, wanted: &Backends) -> anyhow::Result<ExitCode> {
        let policy = wanted.policy.as_deref();
        let answers = self.states().await?;
        let mut unseen = silent(&answers);
        let nodes = self.fleet.nodes(self.namespace, &mut unseen).await?;
        self.show.notes(&unseen);
        let found =
            backends::backends(&told(&answers), &nodes, |name| name.is(policy, self.namespace));
        if let (true, Some(policy)) = (found.is_empty(), policy) {
            let note = unknown_policy(&told(&answers), policy, self.namespace);
            self.show.note(&note);
            return Ok(ExitCode::FAILURE);
        }
        self.show.print(&found, |found, style| backends::render(found, style))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn flows(&self, wanted: &Flows) -> anyhow::Result<ExitCode> {
        if !wanted.watch {
            let found = self.flows_once(wanted).await?;
            self.show.notes(&found.silent);
            self.show.print(&found, flows::render)?;
            return Ok(ExitCode::SUCCESS);
        }
        self.show.clear()?;
        repeated(wanted.again, async || {
            let found = self.flows_once(wanted).await?;
            self.show.frame(&found, flows::render)
        })
        .await
    }

    async fn flows_once(&self, wanted: &Flows) -> anyhow::Result<flows::Flows> {
        let answers = self.replies(&flows::query(wanted)).await?;
        Ok(flows::flows(&answers, wanted, self.namespace))
    }

    async fn replies(
        &self,
        query: &FlowsQuery,
    ) -> anyhow::Result<Vec<Response<F::Dataplane, FlowsReply>>> {
        heard(fleet::flows(&self.fleet, &self.dataplanes().await?, query).await)
    }

    /// The flows that are meant, each with its dataplane, `most` at most; none if that was noted.
    ///
    /// # Errors
    /// No dataplane answers.
    pub async fn meant(
        &self,
        wanted: &FlowId,
        frontend: Option<Endpoint>,
        most: usize,
    ) -> anyhow::Result<Vec<(F::Dataplane, flows::Flow)>> {
        let query = FlowsQuery { client: Some(wanted.client), ..FlowsQuery::default() };
        let mut answers = self.replies(&query).await?;
        self.show.notes(&silent(&answers));
        answers.retain(|asked| {
            let named = wanted.dataplane.as_ref();
            named.is_none_or(|name| name == asked.name())
        });
        let found: Vec<_> = answers
            .iter()
            .flat_map(|asked| {
                let flows = flows::all(std::slice::from_ref(asked));
                let with = |flow| (asked.dataplane.clone(), flow);
                flows.into_iter().map(with)
            })
            .filter(|(_, flow)| frontend.is_none_or(|frontend| frontend == flow.flow.frontend))
            .collect();
        if found.is_empty() {
            let all = self.fleet.command(None, "flows");
            self.show.note(&format!(
                "no dataplane has a flow of {wanted}: it has ended, or goes another way (behind a \
                 NAT its address is another one): `{all}`"
            ));
        } else if found.len() > most {
            let words = format!("flows -o wide --client {}", wanted.client);
            self.show.note(&format!(
                "{wanted} has {} flows: name one, or the `--frontend` of a move, as `{}` shows it",
                found.len(),
                self.fleet.command(None, &words),
            ));
            return Ok(Vec::new());
        }
        Ok(found)
    }

    async fn migrate(&self, wanted: &Migrate) -> anyhow::Result<ExitCode> {
        let found = self.meant(&wanted.flow, wanted.frontend, 1).await?;
        let Some((dataplane, flow)) = found.into_iter().next() else {
            return Ok(ExitCode::FAILURE);
        };
        let order = MigrateRequest {
            client: flow.flow.client,
            frontend: Some(flow.flow.frontend),
            to: wanted.to.clone(),
        };
        let request = Request::post("/v1/migrate", &json!(order));
        match ask(&self.fleet, &dataplane, &request).await {
            Ok(reply) => {
                let outcome = migrate::Outcome { id: flow.id, client: flow.flow.client, reply };
                let words = format!("trace --past --for 1s --flow {}", outcome.client);
                let trace = self.fleet.command(None, &words);
                self.show.print(&outcome, |outcome, _| {
                    migrate::render(outcome, drain::noun::<F>(), &trace)
                })?;
                Ok(ExitCode::SUCCESS)
            }
            Err(Refused::Finally(why)) => {
                self.show.note(&format!("{} is not moved: {why}", flow.id));
                Ok(ExitCode::FAILURE)
            }
            Err(Refused::Unanswered(why)) => {
                bail!("{} did not take the order: {why}", dataplane.words())
            }
        }
    }

    async fn trace(&self, wanted: &Trace) -> anyhow::Result<ExitCode> {
        let mut looks = interval(wanted.interval.unwrap_or(F::LOOK));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = wanted.time.map(|time| Instant::now() + time);
        let mut cursors = trace::Cursors::default();
        let client = wanted.flow.as_ref().map(|flow| flow.client);
        let named = wanted.flow.as_ref().and_then(|flow| flow.dataplane.clone());
        let wide = self.show.output == Output::Wide;
        let (mut noted, mut behind) = (Vec::new(), false);
        loop {
            // One whose answer did not hold all is asked again at once.
            if !behind {
                looks.tick().await;
            }
            let last = end.is_some_and(|end| Instant::now() >= end);
            let mut dataplanes = self.dataplanes().await?;
            dataplanes.retain(|d| named.as_ref().is_none_or(|name| name == d.name()));
            let since = |dataplane: &F::Dataplane| cursors.since(dataplane.uid(), wanted.past);
            let answers = heard(fleet::events(&self.fleet, &dataplanes, client, since).await)?;
            behind = answers.iter().any(|a| a.result.as_ref().is_ok_and(|told| told.more));
            let (lines, notes) = cursors.take(&answers, wanted, self.namespace);
            for line in &lines {
                self.show.line(line, |line, _| trace::render(line, wide))?;
            }
            // What stays as it is is said once.
            let new = notes.iter().filter(|note| !noted.contains(*note));
            new.for_each(|note| self.show.note(note));
            noted = notes;
            if last && !behind {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    async fn drain(&self, wanted: &Drain) -> anyhow::Result<ExitCode> {
        let mut progress = Progress::default();
        let outcome = drain::run(&self.fleet, wanted, self.namespace, &mut progress).await;
        drop(progress);
        let outcome = outcome?;
        self.show.print(&outcome, |outcome, _| drain::render(&self.fleet, outcome))?;
        self.show.notes(&outcome.problems);
        Ok(code(outcome.is_good()))
    }

    async fn capture(&self, wanted: &Capture) -> anyhow::Result<ExitCode> {
        let all = self.dataplanes().await?;
        let (errands, notes) = capture::errands(&self.fleet, wanted, self.namespace, all).await?;
        self.show.notes(&notes);
        if errands.is_empty() {
            self.show.note(&format!(
                "no dataplane has such a policy or backend here: `{}` shows all",
                self.fleet.command(None, "backends")
            ));
            return Ok(ExitCode::FAILURE);
        }
        let mut out = capture::output(wanted)?;
        let stop = capture::interruptions()?;
        let outcomes =
            capture::run(&self.fleet, wanted, &errands, &stop.subscribe(), &mut *out).await?;
        if let [(dataplane, Err(Refused::Unanswered(why)))] = &*outcomes {
            bail!("{} made no whole capture: {why}", dataplane.words());
        }
        let mut good = true;
        for (dataplane, said) in outcomes {
            let text = match (said, dataplane.name()) {
                (Ok(words), "") => words,
                (Ok(words), name) => format!("{name}: {words}"),
                (Err(why), _) => {
                    good = false;
                    format!("{} made no whole capture: {why}", dataplane.words())
                }
            };
            self.show.note(&text);
        }
        Ok(code(good))
    }
}

/// The exit code of what was done as asked, or was not.
pub fn code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Looks as often as the user wants.
///
/// # Errors
/// A look fails.
pub async fn repeated(
    again: Again,
    mut look: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let mut looks = interval(again.interval);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = again.count;
    while left != Some(0) {
        looks.tick().await;
        look().await?;
        left = left.map(|left| left - 1);
    }
    Ok(ExitCode::SUCCESS)
}
