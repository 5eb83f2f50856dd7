//! Packet cases as data: `vectors/*.cases` say what comes in, what leaves byte by byte, what is
//! counted and where the flow is then.
//!
//! `BATON_RECORD=1` writes what the engine does into the files, as a draft to be read critically
//! before it is kept; `BATON_GENERATE=1` writes the table of canonical cases and that of the flow's
//! states.

#[path = "common/mod.rs"]
mod common;

#[path = "vectors/cases.rs"]
mod cases;
#[path = "vectors/frames.rs"]
mod frames;
#[path = "vectors/goals.rs"]
mod goals;
#[path = "vectors/icmp.rs"]
mod icmp;
#[path = "vectors/names.rs"]
mod names;
#[path = "vectors/options.rs"]
mod options;
#[path = "vectors/scene.rs"]
mod scene;
#[path = "vectors/words.rs"]
mod words;

use baton_engine::{Counter, Lost};
use cases::{Case, File};
use names::Names;
use scene::{Scene, Seen};
use std::{collections::BTreeSet, path::PathBuf};

/// As many cases as are asked for at least.
const CASES_MIN: usize = 150;

fn every_case(files: &[File]) -> Vec<Case> {
    files.iter().flat_map(|f| f.cases.clone()).collect()
}

fn says(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|v| v == "1")
}

/// What each step of a case led to, its own steps only. With `compare`, the steps before must lead
/// to what their own cases say, also where this case's world differs from theirs.
fn run(cases: &[Case], case: &Case, compare: bool) -> Result<Vec<Seen>, String> {
    let chain = cases::chain(cases, case)?;
    let mut scene = Scene::new(&chain)?;
    let mut own = Vec::new();
    for part in &chain {
        for (number, step) in part.steps.iter().enumerate() {
            let at =
                |why: String| format!("{} step {} `{}`: {why}", part.name, number + 1, step.act);
            let seen = scene.step(&step.act).map_err(at)?;
            if part.name == case.name {
                own.push(seen);
            } else if compare {
                same(&step.results, &seen.lines).map_err(at)?;
            }
        }
    }
    Ok(own)
}

fn same(expected: &[String], seen: &[String]) -> Result<(), String> {
    if expected == seen {
        return Ok(());
    }
    let list = |lines: &[String]| lines.join("\n      ");
    Err(format!("\n    expected\n      {}\n    but was\n      {}", list(expected), list(seen)))
}

/// Everything that is wrong with a case.
fn judge(cases: &[Case], case: &Case) -> Result<(), String> {
    let seen = std::panic::catch_unwind(|| run(cases, case, true));
    let seen = seen.map_err(|_| format!("{}: panicked", case.name))??;
    for (step, seen) in case.steps.iter().zip(&seen) {
        same(&step.results, &seen.lines)
            .map_err(|why| format!("{}: {}: {why}", case.name, step.act))?;
    }
    for goal in &case.covers {
        let mut steps = case.steps.iter().zip(&seen);
        if !steps.any(|(step, seen)| goals::reached(goal, &step.act, seen)) {
            return Err(format!("{}: does not reach `{goal}`", case.name));
        }
    }
    Ok(())
}

/// Writes what every step leads to.
fn record(files: &mut [File]) {
    let cases = every_case(files);
    for case in files.iter_mut().flat_map(|f| &mut f.cases) {
        let seen = std::panic::catch_unwind(|| run(&cases, case, false));
        match seen.unwrap_or_else(|_| Err("panicked".into())) {
            Ok(seen) => {
                for (step, seen) in case.steps.iter_mut().zip(seen) {
                    step.results = seen.lines;
                }
            }
            Err(why) => eprintln!("{} is not recorded: {why}", case.name),
        }
    }
    for file in files {
        file.write();
    }
}

#[test]
fn every_case_holds() {
    let mut files = cases::all();
    if says("BATON_RECORD") {
        record(&mut files);
    }
    let cases = every_case(&files);
    let wrong: Vec<String> = cases.iter().filter_map(|c| judge(&cases, c).err()).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn there_are_enough_cases_and_each_has_its_own_name() {
    let cases = every_case(&cases::all());
    let names: BTreeSet<&str> = cases.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= CASES_MIN, "{}", cases.len());
}

#[test]
fn every_drop_reason_row_and_pair_has_one_canonical_case() {
    let cases = every_case(&cases::all());
    let (_, wrong) = goals::canonical(&cases);
    assert!(wrong.is_empty(), "{wrong:#?}");
    generated("vectors.md", &goals::table(&cases));
}

/// What the declared rows are. That each does what it says is the cases'.
#[test]
fn the_rendered_table_is_the_committed_one() {
    generated("flow-states.md", &baton_engine::states::render());
}

/// Asserts that a generated page is what is committed.
fn generated(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated");
    if says("BATON_GENERATE") {
        std::fs::create_dir_all(&path).expect("make docs/generated");
        std::fs::write(path.join(name), text).expect("write a generated page");
    }
    let committed = std::fs::read_to_string(path.join(name)).unwrap_or_default();
    assert!(committed == text, "docs/generated/{name} is stale: run `make generate`");
}

/// Beside the goals: what the engine counts, and why flows are lost. Only mistakes of its own have
/// no case.
#[test]
fn every_counter_grows_in_some_case() {
    let cases = every_case(&cases::all());
    let results = cases.iter().flat_map(|c| &c.steps).flat_map(|s| &s.results);
    let grown: BTreeSet<&str> = results
        .filter_map(|line| line.strip_prefix("+ "))
        .flat_map(|line| line.split(", "))
        .filter_map(|counter| counter.split(' ').next())
        .collect();
    let counters = Counter::ALL.iter().map(|c| match c.metric() {
        (name, Some((key, value))) => format!("{name}{{{key}={value}}}"),
        (name, None) => name.to_owned(),
    });
    let lost = Lost::ALL.iter().map(|l| format!("lost_total{{reason={}}}", l.label()));
    let missing: Vec<String> =
        counters.chain(lost).filter(|c| !grown.contains(c.as_str())).collect();
    // These take 65,536 pairs (`flows/forget.rs`), 20,000 segments or 4,096 clients
    // (`flows/bounds.rs`), 1,024 transfers (`flows/transfer.rs`), small tables
    // (`flows/translation.rs`, `flows/sharing.rs`), more than 20 pods (`flows/load.rs`), or who
    // knows the keys (`flow`).
    let none = [
        "openings_total{result=table_full}",
        "legs_parked_full_total",
        "resets_limited_total{to=client}",
        "resets_limited_total{to=backend}",
        "stays_total{reason=tracked_limit}",
        "stays_total{reason=shifts_full}",
        "next_hops_full_total",
        "transfers_total{result=table_full}",
        "flow_table_rekeys_total",
        "unexpected_events_total",
        "load_probes_paced_total",
    ];
    assert_eq!(missing, none);
}

/// No bit of a frame can be another one without its text being another one.
#[test]
fn every_bit_of_a_frame_is_said() {
    let v4 = [
        "ours:40001 > a: . seq 19 ack 39 win 501 <adopt mss 1460 scales 9/7 flags wst epoch 3 server-ts 0,nop,nop,TS val 0 ecr 0>",
        "client > frontend: P. seq 1:19 ack 1 win 501 ttl 63 <nop,nop,TS val 0 ecr 0> \"GET / HTTP/1.1\\r\\n\\r\\n\"",
        "icmp 198.51.100.1 > ours: 3/1 rest 00000000 ttl 60 quoting client > frontend: len 40 ttl 62 seq 1 then 7ffffff1501801f5....0000",
    ];
    let v6 = [
        "client > frontend: S seq 0 win 64240 <mss 1460,nop,nop,sackOK,nop,nop,TS val 0 ecr =0,nop,wscale 7>",
        "icmp 2001:db8:9::1 > ours: 2/0 rest 00000578 ttl 60 quoting frontend > client: len 78 ttl 62 seq 19",
    ];
    let all = v4.iter().map(|t| (false, t)).chain(v6.iter().map(|t| (true, t)));
    for (v6, text) in all {
        let mut names = Names::new(v6);
        let frame = frames::bytes(text, &mut names).expect(text);
        assert_eq!(frames::text(&frame, &mut names.clone()), *text);
        for bit in 0..frame.len() * 8 {
            let mut other = frame.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let said = frames::text(&other, &mut names.clone());
            assert_ne!(said, *text, "bit {bit}");
            assert_eq!(frames::bytes(&said, &mut names.clone()), Ok(other), "{said}");
        }
    }
}

/// The checks can fail: a case whose data is changed anywhere does not hold.
#[test]
fn changed_data_is_found() {
    let cases = every_case(&cases::all());
    let case = cases.iter().find(|c| c.name == "moving").expect("a case");
    assert_eq!(judge(&cases, case), Ok(()));
    for line in 0..case.steps[0].results.len() {
        let text = &case.steps[0].results[line];
        let mut changed = vec![String::new(), format!("{text} ")];
        for (at, digit) in text.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
            let other = if digit == '9' { "8" } else { "9" };
            changed.push(format!("{}{other}{}", &text[..at], &text[at + 1..]));
        }
        for text in changed {
            let mut case = case.clone();
            case.steps[0].results[line] = text;
            assert!(judge(&cases, &case).is_err(), "{:?}", case.steps[0].results);
        }
        let mut case = case.clone();
        case.steps[0].results.remove(line);
        assert!(judge(&cases, &case).is_err());
    }
    let mut longer = case.clone();
    longer.steps[0].results.push("< a frame more".into());
    assert!(judge(&cases, &longer).is_err());
}

/// A claim that is not true, a goal without a case or with two, and one that does not exist are
/// found.
#[test]
fn wrong_claims_are_found() {
    let mut cases = every_case(&cases::all());
    let case = cases.iter().find(|c| c.name == "idle").expect("a case");
    for goal in
        ["row Idle + Move", "drop no_flow", "malformed ipv4_version", "stays Closed + ServerData"]
    {
        let mut wrong = case.clone();
        wrong.covers.push(goal.into());
        assert!(judge(&cases, &wrong).is_err(), "{goal}");
        assert!(goals::canonical(&[case.clone(), wrong]).1.iter().any(|w| w.contains("two cases")));
    }
    for case in &mut cases {
        case.covers.retain(|goal| goal != "row Idle + Move");
    }
    cases[0].covers.push("row Idle + Nonsense".into());
    let (_, wrong) = goals::canonical(&cases);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}
