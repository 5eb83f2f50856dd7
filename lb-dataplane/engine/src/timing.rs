//! Every duration and every number of tries that the engine has, and how they depend on each other.
//!
//! Owns the numbers, each with the arithmetic or the source behind it; the asserts below say which
//! of them must be longer than which. What policies set is not here (`baton_api`), nor are bounds
//! on how much one call does.
//!
//! # Decisions
//!
//! - **Durations and tries stand in one file**, with asserts on how they depend on each other; a
//!   test (`e2e/tidy` `houses`) finds those that stand elsewhere. The same file of tests holds how
//!   many modules of each crate are in circles; the numbers may only become smaller.

// Adoptions: `adopt`, `answer`, `handover`.
/// First wait for any sign of the new owner; it doubles with each try. A pod network answers in
/// well under 1 ms, a delayed ACK (Linux `TCP_DELACK_MIN`) in 40.
pub(crate) const ADOPTION_WAIT_MS: u64 = 45;
/// Tries of one adoption, the first included: 45 + 90 + 180 + 360 + 720 + 1,440 ms, under the 3 s
/// that people wait.
pub const ADOPTION_TRIES_MAX: u8 = 6;
/// What a client repeats has an adoption in front of it until so many left for one leg: the tries,
/// and as many besides. A kernel repeats a request 4 times while these last (Linux `TCP_RTO_MIN`,
/// doubled); behind that a client has us send no more than it sends itself.
pub(crate) const ADOPTIONS_MAX: u8 = 2 * ADOPTION_TRIES_MAX;
/// Each segment of a request that meets a listener draws a bare RST of its own. After the first
/// one, further ones wait this long for the answer to the second adoption, which a pod network
/// brings in well under 1 ms.
pub(crate) const RST_PAUSE_MS: u64 = 2;
/// Our clock is read once for a batch of frames, and a pod's is told in whole milliseconds.
pub(crate) const CLOCKS_US: u64 = 1_000;

// Rescue: `rescue`, `handover::orphan`.
/// How often one request is executed once more. A request that ends each process that reads it
/// must not end them all.
pub const REPLAYS_MAX: u8 = 2;
/// How long a flow waits for a backend to adopt it: a process that is started again listens within
/// a few seconds, and a client waits longer than this (10 s to 60 s are usual).
pub const RESCUE_MS: u64 = 10_000;
/// How long the last response may stay unacknowledged once its sender is gone: by then a client
/// that lacks bytes of it has asked the dead pod's kernel for them several times (Linux
/// `TCP_RTO_MIN` is 200 ms).
pub const UNACKED_MS: u64 = 3_000;
/// The last time that a request is executed once more waits so long first: where several pods end
/// together (a scale-down), the others are known to go by then.
pub const LAST_REPLAY_MS: u64 = 300;
/// Longest pause between two tries of a rescue; the first is 1 ms, each next one twice as long.
/// (Behind legs that ended unused it begins with more: [`IDLE_ENDS_MAX`].)
pub const PAUSE_MAX_SHIFT: u8 = 5;
/// Legs of one flow that may end one after the other without a mark and without having been sent
/// anything, before one is taken for the server's wish; the last pause is 4 s. One kill can be more
/// than one of them, where the dying server's listener outlives its connections. A server that
/// closes whatever it accepts is asked no more than 13 times in 8 s.
pub const IDLE_ENDS_MAX: u8 = 12;
/// Flows that one backend is given per millisecond without a request of theirs, so that its accept
/// queue (Linux `somaxconn` 4,096, nginx's own limit 511) never fills faster than a busy process
/// empties it.
pub(crate) const ADOPTIONS_PER_MS: u16 = 16;

// Whether a pod lives: `backend/liveness`, `backend/adopter`, `probe`, `health`.
/// First wait for an answer; doubles. A pod network answers in well under 1 ms.
pub(crate) const LIVENESS_WAIT_MS: u64 = 20;
/// Liveness probes without any answer before the pod counts as gone: 20 + 40 + 80 ms.
pub(crate) const LIVENESS_TRIES_MAX: u8 = 3;
/// So many of them go to the adopter where it tells of the listener: one may be lost, and only the
/// adopter's word makes an end stand at once. The rest are SYNs: a pod that lacks the newest key
/// has a kernel still.
pub(crate) const LIVENESS_PROBES_MAX: u8 = 2;
/// Liveness probes to a pod of which something else is heard: 20 + 40 + 80 + 160 + 320 ms.
pub(crate) const LIVENESS_TRIES_HEARD_MAX: u8 = 5;
/// More ends than so many within one probe are told at most once a millisecond that somebody
/// listens: each answer goes through all flows of the pod.
pub(crate) const FEW_ENDS: u32 = 2;
/// While an answer does not settle an end yet, the pod is asked this often.
pub(crate) const WATCH_PAUSE_MS: u64 = 5;
/// So long after a process exited, its pod is given nothing: other processes of its server may be
/// about to (nginx's master listens for about 10 ms after its workers ended), and its kernel says
/// Ready meanwhile.
pub(crate) const EXIT_SETTLE_MS: u64 = 50;
/// A backend that is down is asked this often whether it is back; more often while flows wait.
pub(crate) const DOWN_PAUSE_MS: u64 = 100;
pub(crate) const DOWN_PAUSE_WAITING_MS: u64 = 20;
/// A ready backend is asked this often, any other one more often.
pub(crate) const PROBE_READY_MS: u64 = 1_000;
pub(crate) const PROBE_OTHER_MS: u64 = 100;
/// So many probes without an answer (2 s) are no accident, and an admin is told.
pub(crate) const UNANSWERED_MAX: u8 = 20;
/// So often is it asked for the connections of the pod that it took the place of, at each answer to
/// a probe: two may be lost.
pub(crate) const RENEWED_ASKS: u8 = 3;
/// `Ready` holds this long: three probes may be lost.
pub(crate) const READY_HOLDS_MS: u64 = 3_500;
/// A server starts its processes within this time of its listener, and how many hold it is not
/// known before; the last of them lets go of it within this time of the first (nginx's master
/// after its workers: 10 ms on an idle machine, more than 50 ms where four want each CPU).
pub(crate) const HOLDERS_SETTLE_US: u64 = 1_000_000;
/// The backends are looked over this often.
pub(crate) const HEALTH_ROUND_MS: u64 = 50;
/// With requests outstanding and nothing heard for this long, the pod is asked whether it is
/// there. A pod's kernel acknowledges within 40 ms (Linux `TCP_DELACK_MAX` 200 ms at worst)
/// whatever its application does.
pub(crate) const SILENT_BUSY_MS: u64 = 250;
/// A pod that answered adoption probes, which are sent every second, and does not any more.
pub(crate) const SILENT_IDLE_MS: u64 = 2_200;
/// Whether one more may be ejected is asked this often for one member: that looks at all of its
/// policy.
pub(crate) const CAPPED_AGAIN_MS: u64 = 1_000;
/// So long after our link came up, next hops may be unknown still: Linux asks for an address three
/// times, a second apart (`mcast_solicit`, `retrans_time_ms`).
pub(crate) const LINK_SETTLE_MS: u64 = 3_000;

// Handshakes and requests: `handshake`, `client`, `backlog`, `timers`.
/// Half-open flows make way for new ones, but not before the oldest has had this long: more than a
/// round trip around the world.
pub(crate) const HALF_OPEN_US: u32 = 250_000;
/// Backends that a new flow asks before the client is told that none accepts.
pub(crate) const SYN_TRIES_MAX: u8 = 3;
/// Stale sockets that a SYN steps around at once; the client's retransmission goes on from there.
pub(crate) const SYN_PORTS_MAX: u8 = 8;
/// A client's kernel repeats no earlier than this (Linux `TCP_RTO_MIN`); what comes again sooner,
/// the network doubled.
pub(crate) const REPEATED_US: u32 = 200_000;
/// The next try to send what waits, where no frame was free, or so many segments went at once: some
/// 50 us.
pub(crate) const BACKLOG_AGAIN_MS: u64 = 1;
pub(crate) const BACKLOG_BURST: u32 = 128;
/// An overdue request that nobody can take is looked at again after this long.
pub(crate) const OVERDUE_AGAIN_MS: u64 = 100;
/// Addresses that the kernel has not resolved are asked for again this often.
pub(crate) const RESOLVE_AGAIN_MS: u64 = 1_000;

// Ends: `closing`, `drain`, `timers`, `forget`, `ports`.
/// Both sides closed: lost last segments can still be repeated for this long. A pod's or client's
/// own TIME_WAIT outlives it; what comes later is answered with a reset, which such a socket
/// ignores or ends by.
pub(crate) const LINGER_MS: u64 = 1_000;
/// Both sides closed, and one has not heard all of the other: who still has something to repeat
/// does so within this time (Linux `TCP_RTO_MAX`).
pub(crate) const UNHEARD_MS: u64 = 120_000;
/// A held end whose backend's liveness probe got lost, as with a backend that left the snapshot. An
/// end is judged in half that time.
pub(crate) const HELD_MS: u64 = 2_000;
/// For so long clients wait for their servers' ends while the dataplane has not read all that came
/// to its interface: their next requests may be there.
pub(crate) const BEHIND_MAX_MS: u64 = 500;
/// Closes leave no more often than this, so that they do not compete with the response for the
/// CPU.
pub(crate) const CLOSE_PACE_US: u64 = 250;
/// So many leave at a time that each leaves within about this long of its coming. Our FIN
/// acknowledges the last response, which the old owner's kernel else sends again (Linux
/// `tcp_schedule_loss_probe`, two jiffies: 2 to 8 ms).
pub(crate) const CLOSE_WITHIN_US: u64 = 2_000;
/// Closes in each [`CLOSE_PACE_US`], at most: with some 5 us each for the pods' applications, 160
/// us. 128,000 a second.
pub(crate) const CLOSES_PER_PACE_MAX: u64 = 32;
/// The last response on a leg that nobody has taken for so long is acknowledged to its pod: before
/// the pod's kernel doubts that it arrived (`tcp_schedule_loss_probe`: 200 ms where one segment is
/// out, else two round trips and two jiffies of at most 4 ms).
pub(crate) const PARKED_ACKED_AFTER_MS: u64 = 2;
/// A leg that nobody has taken for so long is closed if more than [`PARKED_KEPT`] are parked at its
/// pod: what a burst needed has nobody to wait for. Otherwise it is asked whether it is still
/// there, and closed after so long without an answer.
pub(crate) const PARKED_SURPLUS_MS: u64 = 250;
/// And the others after so long: less than the shortest time after which servers close idle
/// connections themselves (Node.js and Apache 5 s, gunicorn 2 s, nginx 75 s).
pub(crate) const PARKED_FOR_MS: u64 = 1_500;
/// Parked at one pod without counting as surplus: as many as a pod answers at a time, as a rule.
pub(crate) const PARKED_KEPT: u16 = 8;
/// A flow at rest leaves its leg to others after so long: five times what a client on the same
/// network takes to go on, so that one which sends request behind request keeps it. Each time costs
/// another leg, and a question to the pod where nobody takes the old one.
pub(crate) const LEGLESS_AFTER_MS: u64 = 5;
/// And after so long, which is a millisecond or more, if it had none before this request.
pub(crate) const LEGLESS_AGAIN_MS: u64 = 2;
/// Parked at one pod, at most; what flows leave beyond that is closed.
pub(crate) const PARKED_PER_BACKEND_MAX: u16 = 256;
/// Parked in all, at most: 28 bytes each.
pub(crate) const PARKED_MAX: u32 = 8_192;
/// Of these, so many are looked at for one that fits the next flow.
pub(crate) const PARKED_LOOKED_AT_MAX: usize = 4;
/// First retransmission of our FIN (Linux `TCP_RTO_MIN` is 200 ms); doubles with each.
pub(crate) const CLOSING_FIN_WAIT_MS: u64 = 200;
/// FINs sent before the leg is reset.
pub(crate) const CLOSING_FIN_TRIES_MAX: u8 = 6;
/// FINs that may fail for want of a frame or a next hop: with 200 ms between them, 15 s.
pub(crate) const CLOSING_HELD_UP_MAX: u16 = 75;
/// An application that has not closed its side this long after the pod acknowledged our FIN is
/// reset: Linux `tcp_fin_timeout`.
pub(crate) const CLOSE_WAIT_MS: u64 = 60_000;
/// The same where its pod has more such legs than there is room for in all.
pub(crate) const CLOSE_WAIT_CROWDED_MS: u64 = 1_000;
/// FINs of our own to a client before it is reset instead; 200 ms between the first two (Linux
/// `TCP_RTO_MIN`), doubling.
pub(crate) const PARTED_FIN_TRIES_MAX: u8 = 5;
pub(crate) const PARTED_FIN_WAIT_MS: u64 = 200;
/// What is in progress at the deadline has so long to end: with the default deadline, as long as
/// Kubernetes leaves a pod behind it (`terminationGracePeriodSeconds`, 30 s).
pub(crate) const CUT_AFTER_MS: u64 = 5_000;
/// Where no guard knows whether a response is complete, its last segment may be lost: its sender
/// repeats it within this time (Linux `TCP_RTO_MIN` is 200 ms, twice that for the second try, and
/// the same again in between).
pub(crate) const QUIET_UNGUARDED_US: u64 = 1_000_000;
/// The first wait for an answer; it doubles. A pod network answers in well under 1 ms.
pub(crate) const FORGET_WAIT_MS: u64 = 50;
/// Forgets sent for one pair before it has to wait for its time: 50 + 100 + 200 ms.
pub(crate) const FORGET_TRIES_MAX: u8 = 3;
/// From this copy of an adoption on, the Forget in front of it is answered also where the adoption
/// was taken: the second Forget (`legs/forget.rs`).
pub(crate) const FORGET_IN_USE_FROM: u8 = 3;
/// So long a tracker may remember a pair: Linux `nf_conntrack_tcp_timeout_time_wait` and
/// `_syn_sent` (120 s); after a RST it is `_close` (10 s).
pub(crate) const REMEMBERED_MS: u32 = 120_000;

// Load and placement: `estimate`, `load`, `placement`, `standing`, `policy`, `ledger`.
/// Between two looks of a worker at all that the others have measured.
pub(crate) const EXCHANGE_EVERY_US: u64 = 1_000;
/// Time constant of the decay. Each try of a backend that is still slow costs a request: a pod
/// that its CPU quota stops for 95 of every 100 ms is tried again after ln(95 ms / 1 ms), that is
/// 4.5 of these (with 1 s, `make demo` sent it 0.9 % of the requests, enough to set the p99).
/// Finagle's default is 10 s; this lets a recovered pod come back sooner.
pub(crate) const DECAY_US: u64 = 5_000_000;
/// The decay is computed from the half-life, the constant times the natural logarithm of 2, which
/// needs a division by a power of two instead of an exponential.
pub(crate) const HALF_LIFE_US: u64 = DECAY_US * 693_147 / 1_000_000;
/// Smallest average: an unknown backend is assumed to be this fast, and differences below it are
/// noise of wake-ups, not load.
pub(crate) const FLOOR_US: u64 = 50;
/// Time constant of the short window. A backend that stops shows e times its usual wait after each
/// of these: 28 ms into a stall it shows 4 times (`HOT_RATIO`); a scheduler's
/// slice of 3 ms adds a sixth.
pub(crate) const SHORT_US: f64 = 20_000.0;
/// Time constant of the long window: some hundred slices of the scheduler, and five periods of a
/// CPU quota (`cpu.cfs_period_us`, 100 ms), so that neither is a trend.
pub(crate) const LONG_US: f64 = 500_000.0;
/// Expected waits below this are all alike: wake-ups on a busy machine take as long.
pub(crate) const ALIKE_US: u64 = 512;
/// A move onto a backend of which nothing was measured costs this much; it never costs less (`make
/// bench-migration`: adoption, accept and wake-up take some 10 us without any queue).
pub(crate) const COST_MIN_US: f64 = 20.0;
/// A pool is judged at most this often.
pub(crate) const JUDGE_US: u64 = 2_000;
/// A backend is hot where its wait is longer than the pool's by this, besides the ratio.
pub(crate) const HOT_MORE_US: f64 = 1_000.0;
/// Shorter waits are all alike: wake-ups take as long.
pub(crate) const REFERENCE_MIN_US: f64 = 50.0;
/// A backend that has answered nothing for this long although it should keeps new requests
/// waiting: longer than any slice of the scheduler, and half the time in which distress is to be
/// found.
pub(crate) const STALLED_US: u64 = 25_000;
/// A backend that has answered nothing for this long, and for so many times as long as it usually
/// takes, is asked to let go of what its application has not read; after the longer time whatever
/// is usual. What it has read stays, so that being wrong costs a question and its answer.
pub(crate) const RELEASE_AFTER_US: u64 = 100_000;
pub(crate) const RELEASE_AFTER_MAX_US: u64 = 1_000_000;
pub(crate) const RELEASE_SLOWER: u64 = 4;
/// A pod acts upon a question within 200 ms, or not at all (`docs/adoption-wire.md`). So long, and
/// while it is on its way, a client's next bytes wait.
pub(crate) const RELEASE_OPEN_MS: u64 = 300;
/// A flow of a pod that drains is handed on in the middle of a message (`transfer`) if it does not
/// come to its end in this time: two looks of the drain.
pub(crate) const TRANSFER_AFTER_MS: u64 = 100;
/// A question that met silence is repeated after this long: an application hands out a connection
/// between two of its writes.
pub(crate) const TRANSFER_AGAIN_MS: u64 = 20;
/// And so for this long: what a pod was told of for the first time 200 ms ago it does not do any
/// more.
pub(crate) const TRANSFER_ASK_MS: u64 = 300;
/// What it did until then is seen until then: the new socket repeats its first segment after 200 ms
/// (Linux `TCP_RTO_MIN`) or 1 s.
pub(crate) const TRANSFER_OPEN_MS: u64 = 1_500;
/// What its old pod had sent before is on its way for so long at most. Later it is repeated.
pub(crate) const TRANSFER_DONE_MS: u64 = 50;
/// An application that would not is asked again after this long.
pub(crate) const TRANSFER_REST_MS: u64 = 500;
/// Backends stay unevenly busy for this long after they last were.
pub(crate) const UNEVEN_US: u64 = 5_000_000;
/// It has to be so for most of this time first: what a window of busy time shows by chance does
/// not last.
pub(crate) const UNEVEN_MEMORY_US: f64 = 2_000_000.0;
/// The readings need so long to show what a move changed; so long after one the next may follow. A
/// third of the long window.
pub(crate) const LEAVE_EVERY_US: u64 = 150_000;
/// What a flow is expected to send before the readings are stale: in a second, and at most so many
/// requests.
pub(crate) const STALE_US: f64 = 1_000_000.0;
/// After somebody joined, waits and work are no measure for this long: four long windows.
pub(crate) const PLACEMENT_SETTLE_US: u64 = 4 * LONG_US as u64;
/// Memory of how long a member was hot.
pub(crate) const HOT_MEMORY_US: f64 = 1_000_000.0;
/// A distressed member is left alone for this long; twice as long each time, while it comes back
/// as it was.
pub(crate) const BACKOFF_MIN_US: u64 = 1_000_000;
pub(crate) const BACKOFF_MAX_US: u64 = 16_000_000;
/// A stage of the trial: longer than a CPU quota's period. Each admits twice the flows of the one
/// before.
pub(crate) const STAGE_US: u64 = 200_000;
/// A member that joins has its share of the flows that there are after this long.
pub(crate) const JOIN_US: u64 = 3_000_000;
/// Where flows send nothing, joining ends all the same.
pub(crate) const JOIN_MAX_US: u64 = 10 * JOIN_US;

// What pods' kernels say of their load: `backend/telemetry`, `probe`.
/// A backend of a policy that goes by it (`load: LatencyAndPressure`) and has flows is probed this
/// often, where there are few.
pub(crate) const LOAD_PROBE_MS: u64 = 10;
/// Of all such backends together, in one worker. A probe costs its pod 0.5 us (`cargo bench -p
/// baton-adopter`), so that all of them cost a thousandth of a core; the way there is not counted.
pub(crate) const LOAD_PROBES_PER_SECOND_MAX: u64 = 2_000;
/// Backends that a worker has in all for each millisecond between two probes of one: each time it
/// goes through all of them, which costs some 50 ns for each.
pub(crate) const LOAD_BACKENDS_PER_MS: u64 = 100;
/// What a pod's kernel said counts for so long: two probes may be lost where they are a second
/// apart. Totals of time wrap after 4.3 s.
pub(crate) const LOAD_HOLDS_MS: u64 = 2_500;
/// A policy that has flows is seen four times in this time.
pub(crate) const LOAD_WANTED_MS: u64 = 4 * HEALTH_ROUND_MS;
/// Memory of stalled time: the kernel brings pressure up to date this often (PSI_FREQ).
pub(crate) const STALL_MEMORY_US: f32 = 2_000_000.0;
/// The usual period of a CPU quota: the kernel's default, and Kubernetes'.
pub(crate) const QUOTA_PERIOD_MS: u64 = 100;
/// What a request waits that comes while its pod is stalled: half a period.
pub(crate) const STALL_WAIT_US: f32 = QUOTA_PERIOD_MS as f32 * 500.0;
/// A SYN that a full accept queue drops comes again after this long (Linux `TCP_TIMEOUT_INIT`).
pub(crate) const QUEUE_FULL_WAIT_US: u64 = 1_000_000;

// The timer wheel: `wheel`.
/// A slot of the second level is emptied into the first from so long before its time on: 50,000
/// entries, 256 in each call, take some 20 ms.
pub(crate) const AHEAD_MS: u64 = 1_000;

// How they depend on each other.
const _: () = {
    const fn tries_take_ms(first_ms: u64, tries: u8) -> u64 {
        (first_ms << tries) - first_ms
    }

    // People wait 3 s.
    assert!(tries_take_ms(ADOPTION_WAIT_MS, ADOPTION_TRIES_MAX) < 3_000);
    assert!(RST_PAUSE_MS < ADOPTION_WAIT_MS);

    // The longest pause between two tries of a rescue is shorter than what rescue waits for.
    assert!(1 << PAUSE_MAX_SHIFT < LAST_REPLAY_MS);
    assert!(PAUSE_MAX_SHIFT <= IDLE_ENDS_MAX && 1 << IDLE_ENDS_MAX < RESCUE_MS);
    assert!(LAST_REPLAY_MS < UNACKED_MS && UNACKED_MS < RESCUE_MS);

    // Three probes may be lost before a pod is not ready any more, and one before it is asked for a
    // sign of life.
    assert!(3 * PROBE_READY_MS < READY_HOLDS_MS);
    assert!(2 * PROBE_READY_MS < SILENT_IDLE_MS);
    assert!(PROBE_OTHER_MS < PROBE_READY_MS);
    // A busy pod's kernel acknowledges within Linux' TCP_DELACK_MAX.
    assert!(200 < SILENT_BUSY_MS);
    assert!(HEALTH_ROUND_MS < SILENT_BUSY_MS);
    // Whoever exits is watched while others may still let go of the listener.
    assert!(EXIT_SETTLE_MS * 1_000 < HOLDERS_SETTLE_US);
    // A held end is judged before its own timer ends it.
    assert!(2 * HOLDERS_SETTLE_US <= HELD_MS * 1_000);
    assert!(HOLDERS_SETTLE_US + BEHIND_MAX_MS * 1_000 < HELD_MS * 1_000);
    assert!(tries_take_ms(LIVENESS_WAIT_MS, LIVENESS_TRIES_HEARD_MAX) < HELD_MS);
    assert!(LIVENESS_PROBES_MAX < LIVENESS_TRIES_MAX);
    assert!(LIVENESS_TRIES_MAX < LIVENESS_TRIES_HEARD_MAX);

    assert!(CLOSE_PACE_US < CLOSE_WITHIN_US);
    // A leg that closes is done before its pair is forgotten by trackers.
    assert!(CLOSE_WAIT_MS < REMEMBERED_MS as u64);

    // Repetitions keep a question open.
    assert!(STALLED_US < RELEASE_AFTER_US && RELEASE_AFTER_US < RELEASE_AFTER_MAX_US);
    assert!(2 * HEALTH_ROUND_MS < RELEASE_OPEN_MS);
    assert!(HEALTH_ROUND_MS < TRANSFER_AFTER_MS);
    assert!(TRANSFER_AGAIN_MS < TRANSFER_ASK_MS && TRANSFER_ASK_MS < TRANSFER_OPEN_MS);

    assert!(FLOOR_US < ALIKE_US);
    assert!(LOAD_PROBE_MS < PROBE_READY_MS && 2 * PROBE_READY_MS < LOAD_HOLDS_MS);
    // Two hundredths of stalled time is told from noise, a full queue from any stall.
    assert!(STALL_WAIT_US * 0.02 >= ALIKE_US as f32);
    assert!((STALL_WAIT_US as u64) < QUEUE_FULL_WAIT_US);
    assert!(SHORT_US * 1.25 <= STALLED_US as f64 && SHORT_US < LONG_US);
    assert!(LEAVE_EVERY_US as f64 <= LONG_US);
    assert!(BACKOFF_MIN_US < BACKOFF_MAX_US && JOIN_US < JOIN_MAX_US);
};
