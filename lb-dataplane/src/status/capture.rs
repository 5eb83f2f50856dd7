//! `capture`: has a running dataplane copy frames, and writes what it sends to a file.
//!
//! Only asks and writes: which frames are meant and what of them is copied is the dataplane's to say. Ctrl-C has the dataplane end
//! it in order, so that the file is whole; a second one ends this program at once.

use super::{client, complain};
use crate::{args::CaptureOrder, capture::pcapng};
use anyhow::{Context as _, bail};
use baton_config::create_private;
use std::{
    io::{ErrorKind, IsTerminal as _, Read as _, Write, stdin, stdout},
    process::ExitCode,
    thread,
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

/// More than the block has with which the dataplane ends the file.
const TAIL_BYTES: usize = 4 << 10;

/// Writes the file; the exit code says whether the dataplane took the order.
///
/// # Errors
/// The dataplane could not be asked, or the file not be written.
pub async fn run(order: &CaptureOrder) -> anyhow::Result<ExitCode> {
    if order.write.is_none() && stdout().is_terminal() {
        bail!("packets are nothing for a terminal: `-w FILE`, `> FILE` or `| tshark -r -`");
    }
    let mut out: Option<Box<dyn Write>> = None;
    let limit = Duration::from_micros(order.time.0);
    let mut tail = Vec::new();
    let wishes = wishes(order.end_on_input)?;
    let taken = client::stream(order.at.control, &path(order), limit, wishes, |bytes| {
        // Not before there is something to write: a refusal leaves the file of another day alone.
        let out = match &mut out {
            Some(out) => out,
            None => out.insert(open(order)?),
        };
        out.write_all(bytes)?;
        out.flush()?;
        tail.extend_from_slice(bytes);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
        Ok(())
    })
    .await;
    if let Err(error) = taken {
        // `| head` has seen what it wanted.
        let gone = error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe);
        if gone {
            return Ok(ExitCode::SUCCESS);
        }
        if error.downcast_ref().is_some_and(client::Refusal::is_final) {
            return Ok(complain(&format!("{error:#}")));
        }
        return Err(error);
    }
    let Some(words) = pcapng::last_words(&tail) else {
        bail!("the capture broke off; what there is can be read");
    };
    eprintln!("{words}");
    Ok(ExitCode::SUCCESS)
}

/// Each Ctrl-C or SIGTERM, and what comes on the standard input or its end if that is to be heard.
fn wishes(input: bool) -> anyhow::Result<mpsc::Receiver<()>> {
    let (tell, told) = mpsc::channel(1);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let signals = signal(kind).context("signals cannot be taken")?;
        tokio::spawn(each(signals, tell.clone()));
    }
    if input {
        // A thread of its own, which nothing waits for: reading cannot be called off.
        thread::spawn(move || {
            let _ = stdin().read(&mut [0]);
            let _ = tell.blocking_send(());
        });
    }
    Ok(told)
}

async fn each(mut signals: Signal, tell: mpsc::Sender<()>) {
    while signals.recv().await.is_some() && tell.send(()).await.is_ok() {}
}

fn open(order: &CaptureOrder) -> anyhow::Result<Box<dyn Write>> {
    let Some(path) = &order.write else {
        return Ok(Box::new(stdout()));
    };
    // What clients and servers say is nobody else's.
    let file = create_private(path);
    let file = file.with_context(|| format!("`--write {}`", path.display()))?;
    Ok(Box::new(file))
}

fn path(order: &CaptureOrder) -> String {
    let time = format!("{}us", order.time.0);
    let one = [
        ("for", Some(time)),
        ("payload", Some(order.payload.to_string())),
        ("client", order.client.as_ref().map(ToString::to_string)),
    ];
    let policies = order
        .policy
        .iter()
        .map(|name| ("policy", Some(name.clone())));
    let backends = order
        .backend
        .iter()
        .map(|name| ("backend", Some(name.clone())));
    let last = ("snaplen", order.snaplen.map(|bytes| bytes.to_string()));
    let query = one
        .into_iter()
        .chain(policies)
        .chain(backends)
        .chain([last]);
    client::path("/v1/capture", query)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Question, tests::asked};

    #[test]
    fn the_order_becomes_a_query() {
        let line = "capture --client [fd00::7]:80 --policy shop/web/http --policy b --for 10s --payload --snaplen 100";
        let Question::Capture(mut order) = asked(line) else {
            panic!("{line}");
        };
        order.backend.push("pod a".into());
        assert_eq!(
            path(&order),
            "/v1/capture?for=10000000us&payload=true&client=%5Bfd00%3A%3A7%5D%3A80&policy=shop/web/http&policy=b&backend=pod%20a&snaplen=100"
        );
    }
}
