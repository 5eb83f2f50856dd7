//! `explain`: why a flow is on its Pod, and why it can or cannot move, in sentences. Pure.
//!
//! Says only what follows from what dataplanes tell. One that tells no expected waits (an older
//! one) leaves open whether another Pod is better *enough*, unless the bound that follows from its
//! other figures is.

use crate::{
    pins,
    waits::{self, Around, CAUSE_LEGLESS, OTHERS_MAX, owner},
};
use baton_api::{BackendLoad, BackendState, FlowView, LastMove, MoveBy, Protocol};
use baton_cli::{Flow, PolicyName, Style, Tone, count, line, micros, toned, wrapped};
use baton_crds::{LoadBalancerPolicySpec, MigrationMode, MoveMethod};
use serde::Serialize;

/// What is said of a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// The flow.
    #[serde(flatten)]
    pub flow: Flow,
    /// Why it is where it is.
    pub here: Vec<String>,
    /// Whether it can move.
    pub verdict: Verdict,
    /// Why.
    pub why: Vec<String>,
}

/// Whether a flow can move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It moves with its next request, or is on its way.
    Moves,
    /// It moves with a request when another Pod is better.
    MayMove,
    /// Not as things are.
    Stays,
    /// Whatever happens.
    Never,
}

impl Verdict {
    fn words(self) -> (&'static str, Tone) {
        match self {
            Self::Moves => ("It moves", Tone::Good),
            Self::MayMove => ("It can move", Tone::Good),
            Self::Stays => ("It stays for now", Tone::Warn),
            Self::Never => ("It can never move", Tone::Bad),
        }
    }
}

/// A flow that no Pod has a connection of.
const LEGLESS: &str = "Legless";

/// All sentences about one flow.
pub fn explain(flow: &Flow, around: &Around<'_>) -> Explained {
    let (verdict, why) = verdict(flow, around);
    Explained { flow: flow.clone(), here: here(flow, around), verdict, why }
}

fn here(flow: &Flow, around: &Around<'_>) -> Vec<String> {
    let (view, pod) = (&flow.flow, &flow.flow.backend);
    if view.state == LEGLESS {
        return vec![format!(
            "All that was asked is answered, and no Pod has a connection of its until its next request: with `migration.legs: Shared` its own is another client's by now (quiet for {}).",
            micros(view.quiet.0)
        )];
    }
    let mut said = Vec::new();
    let again = view.last_move.as_ref();
    let again = again.filter(|last| last.cause.as_deref() == Some(CAUSE_LEGLESS));
    if let Some(LastMove { ago, .. }) = again {
        said.push(format!(
            "It had left its connection to others between two requests, as `migration.legs: Shared` has it; its request {} ago took one to {pod}, the better of two Pods.",
            micros(ago.0)
        ));
    }
    match view.migrations {
        0 if again.is_some() => {}
        moves if again.is_some() => said.push(format!("Before, it had moved {}.", times(moves))),
        0 => {
            let algorithm =
                around.state.map(|state| format!(" ({:?})", state.algorithm)).unwrap_or_default();
            let bound = around.spec.is_some_and(|spec| spec.affinity.is_some());
            let by = if bound {
                format!(
                    "the policy's affinity, or for a client's first flow its algorithm{algorithm}, chose it"
                )
            } else {
                format!("the policy's algorithm{algorithm} chose it")
            };
            said.push(format!("It has been on {pod} since the client connected: {by}."));
        }
        moves => said.push(format!(
            "It has moved {}, the last time to {pod}{}.",
            times(moves),
            last_move(view),
        )),
    }
    if let Some(LastMove { cause: None, ago, .. }) = &view.last_move {
        said.push(format!(
            "A move was taken back {} ago: the other Pod refused it, or did not answer in time.",
            micros(ago.0)
        ));
    }
    said.push(state_words(&view.state, pod, &micros(view.quiet.0)));
    if let Some(owner) = owner(flow, around) {
        let word = owner.word();
        said.push(format!(
            "{pod} ({}) owns {} here, has {} outstanding and takes about {} to the first byte of an answer{}; its state: {word}.",
            owner.endpoint,
            count(owner.flows, "flow"),
            count(owner.outstanding, "request"),
            micros(owner.first_byte.0),
            owner.wait.map_or_else(String::new, |wait| format!(
                "; one more request is expected to wait {}",
                micros(wait.0)
            )),
        ));
        said.extend(owner.load.and_then(|load| kernel_says(pod, load)));
    } else if around.state.is_some() {
        said.push(format!(
            "{pod} has left the policy; the flow stays there until it can move or ends."
        ));
    }
    said
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

/// What the Pod's kernel says of its load, if it is not calm.
fn kernel_says(pod: &str, load: BackendLoad) -> Option<String> {
    let mut said = Vec::new();
    if load.accept_queue > 0 {
        let (queue, room) = (load.accept_queue, load.accept_queue_room);
        said.push(format!("{queue} of {room} places of its accept queue are taken"));
    }
    for (percent, what) in [
        (load.throttled_percent, "of the last seconds it ran out of its CPU quota"),
        (load.cpu_percent, "of them it wanted a CPU and had none"),
        (load.memory_percent, "of them it waited for memory"),
    ] {
        let percent = percent.filter(|percent| *percent > 0);
        said.extend(percent.map(|percent| format!("{percent} % {what}")));
    }
    (!said.is_empty()).then(|| {
        format!(
            "{pod}'s kernel says: {}. With `load: LatencyAndPressure` that counts for the choice of a Pod.",
            said.join("; ")
        )
    })
}

/// When and why it last moved, as far as that is told.
fn last_move(view: &FlowView) -> String {
    let Some(LastMove { cause: Some(cause), ago, by }) = &view.last_move else {
        return String::new();
    };
    let why = match cause.as_str() {
        "better" => "the mean wait was shorter there",
        "distress" => "the Pod before it was distressed or stalled",
        "share" => "its Pod had come or come back, and was given its share",
        "uneven" => "the queue there was shorter, while the Pods were unevenly busy",
        "every_request" => "the policy moves each request (`migration.mode: Always`)",
        "drain" => "the Pod before it drained or left the policy",
        "ejected" => "the Pod before it was ejected for failures",
        "down" => "nobody listened at the Pod before it any more",
        "rescue" => "the Pod before it ended the connection or died",
        "overdue" => "the Pod before it did not answer within `responseTimeout`",
        "stall" => {
            "the Pod before it stood still and had not read the request (`onStall: Release`)"
        }
        "manual" => "somebody asked for it (`migrate`)",
        other => other,
    };
    let how = match by {
        Some(MoveBy::Transfer) => ", handed on by its application",
        Some(MoveBy::Translation) => ", by translation",
        Some(MoveBy::SharedLeg) => ", on a connection that another client had before",
        Some(MoveBy::Adoption) | None => "",
    };
    format!(", {} ago{how}, because {why}", micros(ago.0))
}

/// What a state of the flow table means.
fn state_words(state: &str, pod: &str, quiet: &str) -> String {
    match state {
        "SynSent" | "SynAcked" => "The handshake is not finished.".to_owned(),
        "Fresh" => format!("It is open, and the client has asked nothing yet (quiet for {quiet})."),
        "Idle" => format!("It is at rest: all that was asked is answered (quiet for {quiet})."),
        "Request" => format!(
            "A request is in progress: {pod} has not begun to answer it (quiet for {quiet})."
        ),
        "Response" => format!("A response is under way (quiet for {quiet})."),
        "Adopting" | "AdoptingIdle" => "It is on its way to another Pod at this moment.".to_owned(),
        "OwnerFinPending" => format!(
            "{pod} ended it; the dataplane asks whether that was meant, or whether {pod} died."
        ),
        "Orphan" => format!("{pod} died; it waits for another Pod that adopts it."),
        "ClientFin" | "ServerFin" | "FinSentToClient" | "Closed" | "Gone" => {
            format!("It is closing ({state}).")
        }
        other => format!("Its state is {other} (quiet for {quiet})."),
    }
}

fn verdict(flow: &Flow, around: &Around<'_>) -> (Verdict, Vec<String>) {
    let (view, pod) = (&flow.flow, &flow.flow.backend);
    if let Some(pin) = &view.pinned {
        let pinned = format!("It is pinned: {}.", pins::words(pin));
        return match transfers(flow, around) {
            Some(why) => (Verdict::MayMove, vec![pinned, why]),
            None => (Verdict::Never, vec![pinned]),
        };
    }
    match view.state.as_str() {
        "Adopting" | "AdoptingIdle" | "Orphan" => {
            return (Verdict::Moves, vec!["It is being adopted, or waits for that.".to_owned()]);
        }
        LEGLESS => {
            return (
                Verdict::MayMove,
                vec!["Its next request goes to the better of two Pods.".to_owned()],
            );
        }
        "ClientFin" | "ServerFin" | "FinSentToClient" | "Closed" | "Gone" => {
            return (Verdict::Never, vec!["A flow that closes is not moved any more.".to_owned()]);
        }
        _ => {}
    }
    // The dataplane knows it also where the Service's port says it.
    let by_spec = || around.spec?.protocol.map(|it| it == baton_crds::Protocol::None);
    let by_state = around.state.map(|state| state.protocol == Protocol::None);
    if by_state.or_else(by_spec) == Some(true) {
        let why = format!(
            "The policy's protocol is None, so no begin of a request is known to move at. It stays until it ends; a drain waits \
             for that, and {pod}'s death ends it."
        );
        return match transfers(flow, around) {
            Some(but) => (Verdict::MayMove, vec![why, but]),
            None => (Verdict::Stays, vec![why]),
        };
    }
    if let Some(to) = &view.asked_to {
        let to = if to.is_empty() { "the best other Pod" } else { to };
        return (
            Verdict::Moves,
            vec![format!(
                "Somebody asked for it (`migrate`): it goes to {to} with its next request."
            )],
        );
    }
    let Some(spec) = around.spec else {
        return (
            Verdict::MayMove,
            vec![format!(
                "It is not pinned. The policy `{}` cannot be read from the cluster, so what it allows is not known here.",
                view.policy
            )],
        );
    };
    let migration = &spec.migration;
    let leaves = owner(flow, around).is_none_or(|owner| owner.draining || owner.drain.is_some());
    if migration.mode == MigrationMode::Never {
        return (
            Verdict::Stays,
            vec![format!(
                "The policy says `migration.mode: Never`: it stays until it ends, also while {pod} drains; only if {pod} dies does it go on \
             elsewhere, as `onBackendFailure` says."
            )],
        );
    }
    if migration.per_flow > 0
        && view.migrations >= u32::try_from(migration.per_flow).unwrap_or(u32::MAX)
    {
        return (
            Verdict::Stays,
            vec![format!(
                "It has made the {} that `migration.perFlow` allows; only its Pod's death moves it again.",
                count(u64::from(migration.per_flow.unsigned_abs()), "move")
            )],
        );
    }
    let mut why = Vec::new();
    let others = others(flow, around);
    let can: Vec<&&BackendState> = others.iter().filter(|b| takes(b, migration.method)).collect();
    let translated = by_translation(&can, migration.method);
    if leaves {
        why.push(format!(
            "{pod} drains or has left: the flow goes with its next request, or at rest after `drain.quiet` ({}).",
            spec.drain.quiet
        ));
    } else if let Some(reason) = stays(spec, pod) {
        return (Verdict::Stays, vec![reason]);
    }
    if can.is_empty() {
        why.push(match others.is_empty() {
            true => format!("{pod} is the only Pod of the policy."),
            false => format!("No other Pod can take it now: {}.", refusals(&others)),
        });
        return (Verdict::Stays, why);
    }
    if leaves {
        why.extend(translated);
        return (Verdict::Moves, why);
    }
    if view.state == "Request" || view.state == "Response" {
        why.push(
            "It can move at the begin of a request only; the present one is answered where it is."
                .to_owned(),
        );
    }
    if migration.mode == MigrationMode::Always {
        why.push(
            "The policy says `migration.mode: Always`: it goes to another Pod with each request."
                .to_owned(),
        );
        why.extend(translated);
        return (Verdict::Moves, why);
    }
    why.extend(waits::when_better(flow, around, spec, &can));
    why.extend(translated);
    (Verdict::MayMove, why)
}

/// How it leaves although nobody else knows where its requests begin.
fn transfers(flow: &Flow, around: &Around<'_>) -> Option<String> {
    let why = "Its application cooperates: if its Pod drains, or somebody asks (`migrate`), it hands the connection on.";
    owner(flow, around)?.transfers.then(|| why.to_owned())
}

/// What the policy holds a flow with that is on a good Pod.
fn stays(spec: &LoadBalancerPolicySpec, pod: &str) -> Option<String> {
    if spec.affinity.is_some() {
        return Some(format!(
            "The policy's affinity keeps all flows of this client on {pod}; they leave together when it drains, dies or is ejected."
        ));
    }
    (spec.migration.mode == MigrationMode::DrainOnly)
        .then(|| format!("The policy says `migration.mode: DrainOnly`, and {pod} does not drain."))
}

/// Takes flows that move, as far as its state says.
fn takes(backend: &BackendState, method: MoveMethod) -> bool {
    let opens = backend.untranslatable().is_none();
    match (backend.word(), method) {
        ("up" | "slow start", MoveMethod::Translation) => opens,
        ("up" | "slow start", _) => true,
        ("no adopt", MoveMethod::Adoption) => false,
        ("no adopt", _) => opens,
        _ => false,
    }
}

/// To which Pods it would go by translation, and why.
fn by_translation(can: &[&&BackendState], method: MoveMethod) -> Option<String> {
    if method == MoveMethod::Translation {
        let why = "The policy says `migration.method: Translation`: a move takes one round trip to the Pod longer than an adoption.";
        return Some(why.to_owned());
    }
    let those = can.iter().filter(|b| !b.adoptability.is_ready());
    let words: Vec<String> =
        those.take(OTHERS_MAX).map(|b| format!("{} ({})", b.name, b.adoptability)).collect();
    (!words.is_empty()).then(|| {
        format!(
            "By translation, one round trip longer, to Pods that do not adopt: {}.",
            words.join("; ")
        )
    })
}

fn others<'a>(flow: &Flow, around: &Around<'a>) -> Vec<&'a BackendState> {
    let all = around.state.map_or(&[][..], |state| &state.backends);
    all.iter().filter(|backend| backend.name != flow.flow.backend).collect()
}

fn refusals(others: &[&BackendState]) -> String {
    let one = |backend: &&BackendState| match (backend.word(), backend.untranslatable()) {
        ("no adopt", None) => format!("{} cannot adopt: {}", backend.name, backend.adoptability),
        // Where nobody listens or accepts.
        ("no adopt", Some(why)) if why == backend.adoptability.words() => {
            format!("{} can neither adopt nor be connected to: {why}", backend.name)
        }
        ("no adopt", Some(why)) => format!(
            "{} cannot adopt: {}, and none moves there by translation: {why}",
            backend.name, backend.adoptability
        ),
        ("up" | "slow start", Some(why)) => {
            format!("none moves to {} by translation: {why}", backend.name)
        }
        ("drains", _) => format!("{} drains", backend.name),
        ("weight 0", _) => format!("{} has weight 0", backend.name),
        _ => format!("{} is {}", backend.name, backend.health),
    };
    let mut words: Vec<String> = others.iter().take(OTHERS_MAX).map(one).collect();
    if others.len() > OTHERS_MAX {
        words.push(format!("{} more", others.len() - OTHERS_MAX));
    }
    words.join("; ")
}

/// The sentences as text.
pub fn render(explained: &[Explained], style: Style) -> String {
    let mut text = String::new();
    for one in explained {
        if !text.is_empty() {
            line(&mut text, "");
        }
        let view = &one.flow.flow;
        wrapped(
            &mut text,
            "",
            &format!(
                "{} -> {} is on {} (policy {}, dataplane {}).",
                view.client,
                view.frontend,
                match view.backend.as_str() {
                    "" => "no Pod",
                    pod => pod,
                },
                PolicyName::parse(&view.policy),
                one.flow.dataplane
            ),
        );
        line(&mut text, "Why it is there:");
        for sentence in &one.here {
            wrapped(&mut text, "  - ", sentence);
        }
        let (words, tone) = one.verdict.words();
        toned(&mut text, style, tone, &format!("{words}:"));
        for sentence in &one.why {
            wrapped(&mut text, "  - ", sentence);
        }
    }
    text
}
