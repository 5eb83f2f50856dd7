//! All orders of what two leaders, a dataplane and the network do, up to a depth: the old leader
//! may have a request in mid-push when the new one begins, answers and requests are late or lost,
//! either side starts again.
//!
//! Contents are numbers that both leaders share: a later number is later content, and the new
//! leader's is the last.

use super::*;

/// Moves of one run, after which nothing goes wrong any more. Each further one takes four times as
/// long.
const DEPTH: usize = 8;

#[derive(Clone, Debug)]
struct Dataplane {
    generation: u64,
    content: u64,
    uptime: u64,
    /// Leader that pushed what is in force, 0 or 1.
    by: Option<usize>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// On its way there.
    Sent(Request),
    /// On its way back.
    Answered(Answer),
}

#[derive(Clone, Debug)]
struct Leader {
    session: Session,
    wanted: u64,
    stage: Option<Stage>,
    runs: bool,
}

/// A request that nobody waits for any more, but which may arrive.
type Ghost = (usize, u64, u64);

#[derive(Clone, Debug)]
struct World {
    now: Duration,
    dataplane: Dataplane,
    leaders: [Leader; 2],
    ghosts: Vec<Ghost>,
    restarts: u32,
    losses: u32,
    changes: u32,
    epochs: [u32; 2],
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Arrive(usize),
    Return(usize),
    Lose(usize),
    Ghost(usize),
    Tick(usize),
    Restart,
    Change,
    StartNew,
    StopOld,
}

impl World {
    fn new(epochs: [u32; 2], dataplane: Dataplane) -> Self {
        let settings = Arc::new(Settings::default());
        let interval = settings.poll_interval;
        let leader = |i: usize| {
            let rng = fastrand::Rng::with_seed(i as u64);
            let now = Duration::ZERO;
            let epoch = Epoch(epochs[i]);
            Leader {
                session: Session::new(Arc::clone(&settings), interval, epoch, rng, now),
                wanted: 0,
                stage: None,
                runs: false,
            }
        };
        let mut world = Self {
            now: Duration::ZERO,
            dataplane,
            leaders: [leader(0), leader(1)],
            ghosts: Vec::new(),
            restarts: 0,
            losses: 0,
            changes: 0,
            epochs,
        };
        world.leaders[0].runs = true;
        world.want(0, 1);
        world
    }

    fn event(&mut self, leader: usize, event: Event) {
        let l = &mut self.leaders[leader];
        let before = l.session.held;
        let was_read = matches!(event, Event::Answer(Answer::Holds { .. }));
        let next = l.session.handle(self.now, event);
        if let Some(ask) = next.ask {
            assert!(l.stage.is_none(), "two requests at one time");
            if let Request::Put { version, .. } = ask {
                assert_eq!(version.0, l.wanted, "not the newest");
                let held = l.session.held.expect("nothing is pushed before it was read");
                assert_ne!(held.version, Some(version), "equal content is pushed");
                assert!(was_read || before.is_some(), "nothing was read");
            }
            l.stage = Some(Stage::Sent(ask));
        }
    }

    fn want(&mut self, leader: usize, content: u64) {
        self.leaders[leader].wanted = content;
        self.event(leader, Event::Wanted(Some(Version(content))));
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (i, leader) in self.leaders.iter().enumerate().filter(|(_, l)| l.runs) {
            match leader.stage {
                Some(Stage::Sent(_)) => moves.push(Move::Arrive(i)),
                Some(Stage::Answered(_)) => moves.push(Move::Return(i)),
                None => moves.push(Move::Tick(i)),
            }
            if leader.stage.is_some() && self.losses < 2 {
                moves.push(Move::Lose(i));
            }
        }
        moves.extend((0..self.ghosts.len()).map(Move::Ghost));
        if self.restarts < 1 {
            moves.push(Move::Restart);
        }
        if !self.leaders[1].runs {
            moves.push(Move::StartNew);
        } else if self.changes < 1 {
            moves.push(Move::Change);
        }
        if self.leaders[0].runs && self.leaders[1].runs {
            moves.push(Move::StopOld);
        }
        moves
    }

    fn make(&mut self, a_move: Move) {
        match a_move {
            Move::Arrive(i) => {
                if let Some(Stage::Sent(request)) = self.leaders[i].stage.take() {
                    let answer = self.arrive(i, request);
                    self.leaders[i].stage = Some(Stage::Answered(answer));
                }
            }
            Move::Return(i) => {
                if let Some(Stage::Answered(answer)) = self.leaders[i].stage.take() {
                    self.event(i, Event::Answer(answer));
                }
            }
            Move::Lose(i) => {
                self.losses += 1;
                self.abandon(i);
                self.event(i, Event::Answer(Answer::Failed("lost".to_owned())));
            }
            Move::Ghost(i) => {
                let (leader, generation, content) = self.ghosts.remove(i);
                let _late = self.put(leader, generation, content);
            }
            Move::Tick(i) => {
                let at = self.leaders[i].session.wake_at();
                let at = at.expect("an idle session has something to wake up for");
                // The other leader's time may have passed it.
                self.now = self.now.max(at);
                self.dataplane.uptime += 1;
                self.event(i, Event::Tick);
                let l = &self.leaders[i];
                let spins =
                    l.stage.is_none() && l.session.wake_at().is_none_or(|at| at <= self.now);
                assert!(!spins, "a session that spins, or sleeps for ever: {self:?}");
            }
            Move::Restart => {
                self.restarts += 1;
                self.dataplane = fresh();
                // Its connections end with it; what was on its way is lost, answers too.
                for i in [0, 1] {
                    if self.leaders[i].stage.take().is_some() {
                        self.event(i, Event::Answer(Answer::Failed("reset".to_owned())));
                    }
                }
                self.ghosts.clear();
            }
            Move::Change => {
                self.changes += 1;
                self.want(1, self.leaders[1].wanted + 1);
            }
            Move::StartNew => {
                self.leaders[1].runs = true;
                self.want(1, 2);
            }
            Move::StopOld => {
                self.abandon(0);
                self.leaders[0].runs = false;
            }
        }
    }

    /// Nobody waits for this leader's request any more.
    fn abandon(&mut self, leader: usize) {
        if let Some(Stage::Sent(Request::Put { generation, version })) =
            self.leaders[leader].stage.take()
        {
            self.ghosts.push((leader, generation, version.0));
        }
    }

    fn arrive(&mut self, leader: usize, request: Request) -> Answer {
        let there = &self.dataplane;
        match request {
            Request::Read => Answer::Holds {
                generation: there.generation,
                version: (there.content == self.leaders[leader].wanted)
                    .then_some(Version(there.content)),
            },
            Request::Poll => Answer::State {
                generation: there.generation,
                uptime_seconds: there.uptime,
                took: Duration::from_millis(1),
            },
            Request::Put { generation, version } => self.put(leader, generation, version.0),
        }
    }

    /// As the dataplane decides.
    fn put(&mut self, leader: usize, generation: u64, content: u64) -> Answer {
        let there = &self.dataplane;
        if generation == there.generation && content == there.content {
            return Answer::Accepted;
        }
        if generation <= there.generation {
            return Answer::Conflict;
        }
        let wait = Settings::default().overtaken_wait;
        let overtakes_newer = there.by == Some(1) && leader == 0 && self.epochs[0] < self.epochs[1];
        assert!(
            !overtakes_newer || self.now >= wait,
            "an old leader replaced what the new one pushed: {self:?}"
        );
        self.dataplane = Dataplane { generation, content, uptime: there.uptime, by: Some(leader) };
        Answer::Accepted
    }

    /// Nothing goes wrong any more and the old leader is gone: in the end the new one's content is
    /// in force, and it knows.
    fn settle(mut self) {
        if !self.leaders[1].runs {
            self.make(Move::StartNew);
        }
        if self.leaders[0].runs {
            self.make(Move::StopOld);
        }
        while !self.ghosts.is_empty() {
            self.make(Move::Ghost(0));
        }
        // Enough for the wait of an overtaken leader, poll by poll.
        for _ in 0..200 {
            match self.leaders[1].stage {
                Some(Stage::Sent(_)) => self.make(Move::Arrive(1)),
                Some(Stage::Answered(_)) => self.make(Move::Return(1)),
                None => self.make(Move::Tick(1)),
            }
        }
        let leader = &self.leaders[1];
        assert!(leader.session.is_in_sync() || leader.session.is_busy(), "{self:#?}");
        assert_eq!(self.dataplane.content, leader.wanted, "{self:#?}");
        assert!(leader.session.held.is_some_and(|h| h.generation == self.dataplane.generation));
    }
}

fn fresh() -> Dataplane {
    Dataplane { generation: 0, content: 0, uptime: 0, by: None }
}

fn explore(world: &World, depth: usize, path: &mut Vec<Move>, runs: &mut u64) {
    if depth == 0 {
        *runs += 1;
        world.clone().settle();
        return;
    }
    for a_move in world.moves() {
        path.push(a_move);
        let mut next = world.clone();
        next.make(a_move);
        explore(&next, depth - 1, path, runs);
        path.pop();
    }
}

/// Begins with this dataplane and these epochs of the old and the new leader.
fn all_orders(epochs: [u32; 2], dataplane: Dataplane) {
    let mut runs = 0;
    explore(&World::new(epochs, dataplane), DEPTH, &mut Vec::new(), &mut runs);
    assert!(runs > 10_000, "only {runs} runs");
    println!("epochs {epochs:?}: {runs} runs of {DEPTH} moves");
}

#[test]
fn a_new_leader_of_a_later_epoch_prevails_and_is_not_overtaken() {
    all_orders([1, 2], fresh());
}

#[test]
fn a_new_leader_of_the_same_epoch_prevails() {
    all_orders([1, 1], fresh());
}

#[test]
fn an_old_leader_with_a_higher_count_in_the_same_epoch_is_gone_above() {
    let dataplane = Dataplane { generation: (1 << 32) + 1_000, content: 7, uptime: 50, by: None };
    all_orders([1, 1], dataplane);
}

#[test]
fn a_dataplane_of_a_later_epoch_than_both_is_won_in_the_end() {
    let dataplane = Dataplane { generation: (9 << 32) + 3, content: 7, uptime: 50, by: None };
    all_orders([1, 2], dataplane);
}
