//! The operator with many objects: what dataplanes come to have is checked, what it takes is
//! printed.
//!
//! Small in `make test`. `make bench-operator` sets `BATON_SCALE_POLICIES=5000`, the size for which
//! the product has limits: whatever is over one is said, and nothing is asserted of time and
//! memory, because machines differ.

mod cluster;
mod process;
mod report;
mod world;

use anyhow::{Context, Result};
use baton_operator_tests::dataplane::Dataplane;
use futures_util::future::try_join_all;
use process::Operator;
use report::{Life, print};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use world::{DATAPLANES_EACH, World, content};

/// Policies where nothing else is asked for.
const POLICIES_DEFAULT: usize = 60;
/// Of a bench: figures alone are written after 15 s, so that those count too.
const POLLS_OF_A_BENCH: u64 = 10;
/// For whatever one waits for, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// What is asked for.
#[derive(Clone, Copy)]
struct Size {
    policies: usize,
    /// Of each dataplane's state, before a life counts as settled.
    polls: u64,
    changes: usize,
}

fn size() -> Result<Size> {
    let Ok(policies) = env::var("BATON_SCALE_POLICIES") else {
        let policies = POLICIES_DEFAULT;
        return Ok(Size { policies, polls: 1, changes: 3 });
    };
    let policies = policies.parse().context("BATON_SCALE_POLICIES: expected a number")?;
    Ok(Size { policies, polls: POLLS_OF_A_BENCH, changes: 20 })
}

/// Two dataplanes for each class, which share its port.
async fn dataplanes(
    classes: usize,
    first: &(IpAddr, Option<baton_tls::Material>),
    second: IpAddr,
) -> Result<(Vec<[Dataplane; DATAPLANES_EACH]>, Vec<u16>)> {
    let mut pairs = Vec::new();
    // Another process may have the first one's port at the second address: then with another port.
    for _ in 0..100 {
        if pairs.len() == classes {
            break;
        }
        let address = SocketAddr::new(first.0, 0);
        let one = match &first.1 {
            Some(material) => Dataplane::start(address, material.clone()).await?,
            None => Dataplane::start_plain(address).await?,
        };
        let address = SocketAddr::new(second, one.address().port());
        if let Ok(other) = Dataplane::start_plain(address).await {
            one.be_busy();
            other.be_busy();
            pairs.push([one, other]);
        }
    }
    anyhow::ensure!(pairs.len() == classes, "no ports are free at {} and {second}", first.0);
    let ports = pairs.iter().map(|[one, _]| one.address().port()).collect();
    Ok((pairs, ports))
}

/// What is the same for both sources.
struct Scene<'a> {
    size: Size,
    world: &'a World,
    dataplanes: &'a [[Dataplane; DATAPLANES_EACH]],
    arguments: Vec<OsString>,
    log: PathBuf,
    /// Rounds of changes, by policy.
    changed: BTreeMap<usize, usize>,
}

impl Scene<'_> {
    /// One life of the operator, which writes so many statuses. `change` writes a policy's slice as
    /// of a round.
    async fn life(
        &mut self,
        what: &'static str,
        writes: usize,
        change: impl AsyncFn(usize, usize) -> Result<()>,
    ) -> Result<Life> {
        let before = self.pushes();
        let mut operator = Operator::start(&self.arguments, &self.log).await?;
        let began = operator.began;
        let all = self.world.dataplanes() as f64;
        let in_sync = "baton_operator_dataplanes_in_sync";
        let synchronised = if before == 0 {
            self.served().await.with_context(|| operator.log())?
        } else {
            let since = operator.until(in_sync, DEADLINE, |n| n == all).await?;
            assert_eq!(self.pushes(), before, "what is there already is not pushed");
            since
        };
        let then = operator.memory()?;
        let is_told = |n: f64| n >= writes as f64;
        let told = operator.until("baton_operator_writes_total", DEADLINE, is_told).await?;
        operator.until(in_sync, DEADLINE, |n| n == all).await?;
        let (clock, used) = (Instant::now(), operator.processor()?);
        let all = self.dataplanes.iter().flatten();
        try_join_all(all.map(|d| d.wait_looks(DEADLINE, self.size.polls))).await?;
        let processor =
            (operator.processor()? - used).as_secs_f64() / clock.elapsed().as_secs_f64();
        let mut changes = Vec::new();
        for number in 0..self.size.changes {
            let at = number * 97 % self.world.policies;
            let round = self.changed.get(&at).copied().unwrap_or_default() + 1;
            self.changed.insert(at, round);
            let expected = self.world.expected(self.world.class(at), &self.changed);
            let began = Instant::now();
            change(at, round).await?;
            let mut last = began;
            for dataplane in &self.dataplanes[self.world.class(at)] {
                let has = dataplane.wait(DEADLINE, |s| content(s) == expected).await;
                last = last.max(has.with_context(|| operator.log())?.at);
            }
            changes.push(last - began);
        }
        let settled = operator.memory()?;
        operator.terminate()?;
        self.served().await?;
        Ok(Life {
            what,
            synchronised: synchronised - began,
            told: (writes > 0).then(|| told - began),
            then,
            settled,
            processor,
            changes,
        })
    }

    fn pushes(&self) -> usize {
        let all = self.dataplanes.iter().flatten();
        all.map(|dataplane| dataplane.pushes().len()).sum()
    }

    /// Waits until each dataplane has exactly what it must have; gives since when.
    async fn served(&self) -> Result<Instant> {
        let mut last = None;
        for (class, pair) in self.dataplanes.iter().enumerate() {
            let expected = self.world.expected(class, &self.changed);
            for dataplane in pair {
                let has = dataplane.wait(DEADLINE, |s| content(s) == expected).await?;
                last = last.max(Some(has.at));
            }
        }
        last.context("there are no dataplanes")
    }
}

/// A directory of this process, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let path = env::temp_dir().join(format!("baton-scale-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("manifests"))?;
        Ok(Self(path))
    }

    fn manifests(&self) -> PathBuf {
        self.0.join("manifests")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// As `mv` into the directory: whoever reads it sees the old file or the new one.
fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let half = directory.join(format!(".{name}.new"));
    fs::write(&half, text)?;
    fs::rename(half, directory.join(name))?;
    Ok(())
}

// Large answers of one dataplane keep no other from answering.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_directory_of_manifests() -> Result<()> {
    let size = size()?;
    let folder = Folder::new("directory")?;
    let first = (IpAddr::from([127, 0, 0, 1]), None);
    let second = IpAddr::from([127, 0, 0, 2]);
    let (dataplanes, control_ports) =
        dataplanes(world::classes(size.policies), &first, second).await?;
    let world = World {
        policies: size.policies,
        control_ports,
        addresses: ["127.0.0.1".into(), "127.0.0.2".into()],
    };
    let manifests = folder.manifests();
    let file = |at: usize, round: usize| {
        let text = world.policy(at) + &world.slice(at, round);
        write(&manifests, &format!("app-{at:05}.yaml"), &text)
    };
    write(&manifests, "baton.yaml", &world.system())?;
    for at in 0..size.policies {
        file(at, 0)?;
    }
    let arguments = [
        "--from-dir".into(),
        manifests.clone().into(),
        "--state-dir".into(),
        folder.0.join("state").into(),
    ];
    let mut scene = Scene {
        size,
        world: &world,
        dataplanes: &dataplanes,
        arguments: arguments.into(),
        log: folder.0.join("operator.log"),
        changed: BTreeMap::new(),
    };
    let change = async |at: usize, round: usize| file(at, round);
    let lives = [
        scene.life("first start", size.policies, change).await?,
        scene.life("restart", size.policies, change).await?,
    ];
    let statuses = fs::read_dir(folder.0.join("state/status"))?.count();
    assert_eq!(statuses, size.policies + world.control_ports.len(), "each object has its status");
    print(&title("a directory of manifests", &world), &lives);
    Ok(())
}

fn title(source: &str, world: &World) -> String {
    format!(
        "{source}: {} policies, {} endpoints, {} dataplanes in {} classes",
        world.policies,
        world.endpoints(),
        world.dataplanes(),
        world.control_ports.len()
    )
}
