//! Flows without an owner, and requests that an owner does not answer in time: who serves them
//! next, and when that is given up.
//!
//! # Decisions
//!
//! - **An outstanding request is not held back for the liveness probe**: this pod will not answer
//!   it, whether it lives or not. If the FIN's ACK shows that the pod had none of it, it goes to
//!   another pod whatever its method is; otherwise policy decides, twice at most (a request that
//!   ends each process that reads it must not end them all), the second time 300 ms after the end:
//!   where pods end together, as in a scale-down from 6 to 1, 4 requests of 106,099 had met three
//!   of them (suite of `make e2e` beside a load of 12 to 16).

use super::{Deciding, Effect, Mark, Then};
use crate::{
    obs::pins::Lost,
    states::{Event, State},
    timing::{LAST_REPLAY_MS, PAUSE_MAX_SHIFT, REPLAYS_MAX, RESCUE_MS, UNACKED_MS},
};

impl Deciding<'_> {
    /// Another backend is needed if one can have the flow now; otherwise it is tried again soon, or
    /// given up.
    pub(super) fn orphan_due(&mut self, waited_ms: u64) {
        debug_assert_eq!(self.view.state, State::Orphan);
        let (numbers, request) = (self.view.numbers, self.view.kept_whole);
        let has_all = numbers.server_acked == numbers.server_next;
        let only_fin = self.progress().is(Mark::ClientFin)
            && numbers.client_acked.add(1) == numbers.client_next;
        let closes = only_fin && self.safe.kept_fin_is_answered;
        if !request && closes && has_all {
            // Nothing but the client's close is unanswered.
            self.step(Event::ClientFin);
        } else if !request && !closes && numbers.client_acked != numbers.client_next {
            self.lose(Lost::NotKept);
        } else if !has_all && waited_ms >= UNACKED_MS {
            self.lose(Lost::ResponseUnacknowledged);
        } else if !has_all {
            self.try_later();
        } else if waited_ms >= RESCUE_MS {
            self.ends_alone();
        } else if self.may_have_run()
            && self.progress().replays + 1 == REPLAYS_MAX
            && waited_ms < LAST_REPLAY_MS
        {
            self.try_later();
        } else {
            // At first not where it just ended; a restarted process may have it later. Whoever let
            // go of it stands still.
            let first = self.progress().tries == 0;
            self.then(Then::FindRescuer {
                another: first || self.decision.progress.is(Mark::Released),
                or_same: !first,
            });
        }
    }

    /// The flow had no leg, and needs one.
    pub(super) fn wanted(&mut self) {
        self.progress().tries = 0;
        self.progress().set(Mark::OwnerFin, false);
        self.step(Event::Wanted);
        self.with(Effect::OrphanSince);
    }

    /// There is a request, and some pod may have executed it.
    fn may_have_run(&self) -> bool {
        self.view.kept_whole && !self.decision.progress.is(Mark::Unseen)
    }

    pub(super) fn rescuer(&mut self, found: bool) {
        if !found {
            return self.try_later();
        }
        if self.may_have_run() {
            self.replays();
        }
        let owned = self.view.owned;
        let progress = self.progress();
        progress.set(Mark::StandbyGone, true);
        // One that was legless lost nobody.
        progress.set(Mark::Rescue, owned);
        progress.set(Mark::Unseen, false);
        progress.tries = 1;
        progress.leg_is_new();
        self.with(Effect::RescueBegins);
        self.step(if self.view.kept_whole { Event::RescueRequest } else { Event::RescueIdle });
    }

    /// Nobody adopted the flow in all the time: it ends as its owner ended it, if the client has
    /// all and wants nothing.
    fn ends_alone(&mut self) {
        if self.view.kept_whole || !self.progress().is(Mark::OwnerFin) {
            return self.lose(Lost::NoBackend);
        }
        self.with(Effect::Lost(Lost::NoBackend));
        self.progress().tries = 0;
        self.step(Event::CloseStands);
    }

    fn try_later(&mut self) {
        let progress = self.progress();
        progress.tries = (progress.tries + 1).min(PAUSE_MAX_SHIFT);
        self.step(Event::Doubt);
    }

    /// The owner has not begun to answer within policy's time.
    pub(super) fn overdue(&mut self) {
        // What the client lacks (`100 Continue`) the owner alone can send again.
        let numbers = &self.view.numbers;
        let has_all = numbers.server_acked == numbers.server_next;
        if self.view.pinned || !has_all || !self.may_replay_again() {
            self.then(Then::Stays);
        } else {
            self.then(Then::FindRival);
        }
    }

    pub(super) fn rival(&mut self, found: bool) {
        if !found {
            return self.then(Then::Stays);
        }
        self.replays();
        self.progress().hand_over();
        self.progress().set(Mark::Rescue, true);
        self.step(Event::ResponseTimeout);
    }
}
