//! `capture` as a user types it, against the samples' cluster: what dataplanes are asked, and what
//! comes of their sections.

use super::tests::{Seen, typed_in};
use crate::fake::{Fake, Said, answer, bad, good, which};
use std::{env::temp_dir, fs, process};

/// A section that says which dataplane's it is, with a last block as they end with.
fn section(name: &str) -> Vec<u8> {
    const WORDS: &[u8] = b"7 frames; ended because its time is over";
    let length: u32 = 20 + 4 + 40 + 4 + 4;
    assert_eq!(WORDS.len(), 40);
    // A block whose content is the name.
    let mut block = Vec::new();
    for word in [0xbad, 16] {
        block.extend(u32::to_le_bytes(word));
    }
    block.extend(name.as_bytes().iter().chain(&[0; 8]).take(4));
    block.extend(16_u32.to_le_bytes());
    // Type, length, interface, time; the comment; the end of options; the length again.
    for word in [5, length, 0, 0, 0] {
        block.extend(word.to_le_bytes());
    }
    block.extend([1, 0, 40, 0]);
    block.extend(WORDS);
    block.extend([0; 4]);
    block.extend(length.to_le_bytes());
    block
}

/// A cluster whose dataplanes send this.
fn fake(capture: impl Fn(&str) -> Said + 'static) -> Fake {
    let mut fake = Fake::new();
    fake.answers = Box::new(move |pod, words| match words[0] {
        "capture" => capture(which(pod)),
        _ => answer(which(pod), words),
    });
    fake
}

/// What is written, and what is seen.
async fn captured(fake: &Fake, line: &str) -> (Vec<u8>, Seen) {
    let number = line.bytes().map(usize::from).sum::<usize>();
    let file = temp_dir().join(format!("bt-capture-{}-{number}", process::id()));
    let seen = typed_in(fake, &format!("capture -w {} {line}", file.display())).await;
    let bytes = fs::read(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    (bytes, seen)
}

fn asked(fake: &Fake) -> Vec<String> {
    let ran = fake.ran.borrow();
    let captures = ran.iter().filter_map(|r| r.split_once(" capture?"));
    captures.map(|(_, query)| query.to_owned()).collect()
}

#[tokio::test]
async fn every_dataplane_is_asked_in_its_own_names_and_makes_a_section() {
    let fake = fake(|which| good(section(which)));
    let line = "--policy web --client 192.0.2.0/24 --for 2s --snaplen 100 --payload";
    let (file, seen) = captured(&fake, line).await;
    assert_eq!(file, [section("a"), section("b")].concat());
    let words = ": 7 frames; ended because its time is over\n";
    assert!(seen.is(0) && seen.err.matches(words).count() == 2, "{}", seen.err);
    let query = "for=2000000us&payload=true&client=192.0.2.0/24&snaplen=100&policy=shop/web/http";
    assert_eq!(asked(&fake), [query, query]);
}

#[tokio::test]
async fn a_namespace_is_kept_to_and_a_pod_is_found_with_its_policies() {
    for (line, query) in [
        ("", "for=30000000us&payload=false&policy=shop/web/http"),
        ("-A", "for=30000000us&payload=false"),
        ("-A --backend cache-0", "for=30000000us&payload=false&backend=cache-0"),
        (
            "-n data --backend cache-0",
            "for=30000000us&payload=false&policy=data/cache/redis&backend=cache-0",
        ),
        (
            "-A --policy cache --policy shop/web/http",
            "for=30000000us&payload=false&policy=data/cache/redis&policy=shop/web/http",
        ),
    ] {
        let fake = fake(|which| good(section(which)));
        let line = format!("{line} --dataplane baton-lb-dataplane-6c8d5b7f9-x2b4k");
        let (file, _) = captured(&fake, &line).await;
        assert_eq!(file, section("a"), "only the one that is named");
        assert_eq!(asked(&fake), [query], "{line}");
    }
}

#[tokio::test]
async fn what_nobody_has_is_told_and_a_refusal_is_quoted() {
    let whole = fake(|which| good(section(which)));
    for line in ["-A --policy nobody", "--backend cache-0"] {
        let (_, seen) = captured(&whole, line).await;
        seen.refuses("no dataplane has such a policy or backend here");
    }
    let (_, seen) = captured(&whole, "--dataplane nobody").await;
    let error = seen.code.expect_err("nobody");
    assert!(error.contains("no dataplane is named nobody"), "{error}");
    let refusing = fake(|_| bad(1, "lb-dataplane: another capture is under way"));
    let (file, seen) = captured(&refusing, "").await;
    assert_eq!(file, b"");
    seen.refuses("made no whole capture: another capture is under way");
    // A stream that ends without its last block, and in the middle of another one.
    let broken = |which: &str| section(which)[..24].to_vec();
    let (file, seen) = captured(&fake(move |which| good(broken(which))), "").await;
    assert_eq!(file, [&section("a")[..16], &section("b")[..16]].concat());
    seen.refuses("the capture broke off; what there is can be read");
}
