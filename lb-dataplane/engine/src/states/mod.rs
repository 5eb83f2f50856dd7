//! The declared state machine of a flow: every state, event, action and timer in one table.
//!
//! Owns the names and the look-up; the rows are in [`table`], their picture in [`render`]
//! (`docs/generated/flow-states.md`, compared by a test). It never touches a flow: the engine
//! classifies packets and timers into events, looks the row up here, performs the row's actions in
//! their order and then treats the frame as the row says.

mod render;
mod table;

pub use render::render;
pub use table::{STAYS, TABLE};

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// The name, as in the table.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => stringify!($variant)),+ }
            }
        }
    };
}

names! {
    /// Where a flow is in its life.
    State {
        /// The client's SYN went to a backend.
        SynSent,
        /// The backend's SYN-ACK went to the client.
        SynAcked,
        /// Established, and the client has sent nothing yet.
        Fresh,
        /// Client bytes without any response byte yet.
        Request,
        /// Response bytes seen, not everything answered or acknowledged.
        Response,
        /// Nothing outstanding, everything acknowledged: a new request may go to another backend.
        Idle,
        /// The same, and no pod has a leg of it: the next request takes one (`legless`).
        Legless,
        /// Moved with a request that the new owner has not confirmed; the old owner stands by, if
        /// it lives.
        Adopting,
        /// Moved without a request, and the new owner has not confirmed; the old owner stands by,
        /// if it lives.
        AdoptingIdle,
        /// The owner closed or reset. The client is not told before it is known whether the pod is
        /// going away.
        OwnerFinPending,
        /// The owner is gone; the flow waits for another one.
        Orphan,
        /// The client closed its direction.
        ClientFin,
        /// The backend closed its direction.
        ServerFin,
        /// Both closed.
        Closed,
        /// Baton closed the flow (a drain's deadline, an owner without a successor); the client has
        /// not closed its direction yet.
        FinSentToClient,
        /// Not a flow any more.
        Gone,
    }
}

mod axes;
pub use axes::{Conn, Owner, Turn};

names! {
    /// What can happen to a flow.
    Event {
        /// SYN-ACK for the client's SYN.
        SynAck,
        /// Something that is not an answer to the SYN: a stale socket is on the leg's tuple.
        SynStale,
        /// The backend refused the SYN or is gone, and another backend is left to try.
        SynRefused,
        /// The backend refused the SYN, and none is left.
        SynRefusedByAll,
        /// The client acknowledged the SYN-ACK.
        Established,
        /// New client bytes that stay with the owner.
        ClientData,
        /// A new request begins and goes to another backend.
        Move,
        /// A flow at rest leaves a draining backend.
        MoveIdle,
        /// The backend sent data.
        ServerData,
        /// Everything is answered and acknowledged, the closes of both sides too.
        AllAcked,
        /// A flow at rest leaves its leg to others, or closes it.
        LegLeft,
        /// The leg of a flow at rest ended, and that says nothing of the connection.
        LegOver,
        /// The client of a flow without a leg goes on.
        Wanted,
        /// First valid packet from the new owner.
        Confirmed,
        /// Confirmed, but the new owner lacks the request's bytes.
        ConfirmedWithout,
        /// An authenticated refusal: the new owner never had the flow, the old one lives.
        Refused,
        /// The new owner had nothing of the request and will not get it; it may have a socket. The
        /// old one lives.
        Withdrawn,
        /// Refused while the old owner is gone, and another backend is left to try.
        RefusedNext,
        /// Refused while the old owner is gone, and no other backend can adopt at present.
        RefusedAll,
        /// Another socket is on the new leg's tuple.
        TupleTaken,
        /// The new owner has answered our SYN.
        Opened,
        /// Silence or a bare RST, and tries are left: ask again.
        Doubt,
        /// The request may have been executed; policy allows to execute it again, and the old owner
        /// lives.
        FateUnknownReplay,
        /// The request may have been executed; policy allows to execute it again, and the old owner
        /// is gone.
        FateUnknownNext,
        /// The request may have been executed; policy forbids to execute it again.
        FateUnknownReset,
        /// The owner has not begun to answer within the policy's time, and another backend is
        /// ready.
        ResponseTimeout,
        /// The owner closed or reset where that may be the death of its pod.
        OwnerEnded,
        /// The pod lives, or nobody follows it: its FIN was meant.
        CloseStands,
        /// The pod lives: its RST was meant.
        ResetStands,
        /// The owner is gone.
        OwnerGone,
        /// A backend is ready to adopt the flow and its outstanding request.
        RescueRequest,
        /// A backend is ready to adopt the flow, which is at rest.
        RescueIdle,
        /// Nothing can save the flow.
        Lost,
        /// The handshake is not complete, and too many that are not began since.
        Outnumbered,
        /// The drain's deadline has passed and the flow is at rest.
        DrainClose,
        /// The drain's deadline has passed, and what was in progress has had its time.
        DrainCut,
        /// The client closed its direction.
        ClientFin,
        /// The owner closed its direction, and the client may know.
        ServerFin,
        /// The client reset the connection.
        ClientRst,
        /// The owner reset the connection, and the client may know.
        ServerRst,
        /// The state's timer ended.
        Timeout,
    }
}

names! {
    /// What the engine does on a transition.
    Action {
        /// Forget the kept copies of client segments.
        DropKept,
        /// Send the kept copies to the owner leg, and what waits behind them to one that was the
        /// owner before.
        ReplayKept,
        /// Send the client's SYN to the owner leg.
        SendSyn,
        /// Send the adoption segment to the owner leg, and what restores the session. To one that
        /// is opened by a handshake: our SYN, or what ends the handshake.
        SendAdoption,
        /// Send a keepalive to the owner leg: its answer confirms an adoption without a request.
        SendKeepalive,
        /// Close the client's connection in the backend's name.
        SendFin,
        /// Acknowledge the client's FIN in the backend's name.
        AckClient,
        /// The owner becomes the standby leg, the leg chosen by the event's classifier the owner.
        TakeOver,
        /// Move the standby leg to the closing table: its application shall see a clean end of
        /// stream.
        CloseStandby,
        /// Close the standby leg, whose pod has ended it already.
        DropStandby,
        /// Move the owner leg to the closing table; the flow has none any more.
        CloseOwner,
        /// Park the owner leg, or close it; the flow has none any more.
        LeaveOwner,
        /// Free the owner leg's port; the flow has no leg any more.
        DropOwner,
        /// The same where nothing will come from it any more: a TIME_WAIT of its pod is ended.
        EndOwner,
        /// The standby leg is owner again.
        ResumeStandby,
        /// Reset the stale socket on the owner leg's tuple, and take another port to the same
        /// backend.
        RenewPort,
        /// Open the owner leg to another backend (chosen by the event's classifier).
        Redirect,
        /// Reset the owner leg.
        ResetOwner,
        /// Reset the standby leg.
        ResetStandby,
        /// Reset the client's connection in the backend's name.
        ResetClient,
        /// The same because of the drain's deadline.
        CutClient,
        /// Count the request as outstanding at the owner.
        RequestBegins,
        /// The owner answered: take the time to first byte.
        RequestAnswered,
        /// The owner will not answer the outstanding request, if there is one.
        RequestForgotten,
        /// Arm the handshake timer.
        ArmHandshake,
        /// Arm the adoption timer.
        ArmAdoption,
        /// Arm the idle timer.
        ArmIdle,
        /// Arm the timer that ends a held close whose question nobody answered.
        ArmOwnerFinPending,
        /// Arm the timer of the next try to find a new owner.
        ArmRescue,
        /// Arm the half-closed timer.
        ArmHalfClosed,
        /// Arm the linger timer.
        ArmLinger,
        /// Arm the timer that repeats our own FIN.
        ArmFinSentToClient,
        /// Free the flow and its legs' ports (after quarantine).
        Release,
    }
}

names! {
    /// What becomes of the frame that caused the event.
    Frame {
        /// Rewritten and sent to the other leg.
        Forward,
        /// Not forwarded.
        Absorb,
    }
}

/// One transition.
#[derive(Debug)]
pub struct Row {
    /// State before.
    pub from: State,
    /// What happened.
    pub event: Event,
    /// State after.
    pub to: State,
    /// In this order.
    pub actions: &'static [Action],
    /// What becomes of the frame.
    pub frame: Frame,
}

/// What an event means to a state. Every pair has one of these.
#[derive(Clone, Copy, Debug)]
pub enum Transition {
    /// A row of the table, with its number.
    Row(usize, &'static Row),
    /// It changes nothing, and its frame is forwarded.
    Ignore,
    /// It cannot happen: no classifier raises it there. Counted if it does, and changes nothing.
    Invalid,
}

const NEVER: u8 = u8::MAX;
const STAY: u8 = u8::MAX - 1;
const STATES: usize = State::ALL.len();
const EVENTS: usize = Event::ALL.len();

/// Row numbers by state and event, so that a look-up is two array accesses.
const TRANSITIONS: [[u8; EVENTS]; STATES] = {
    let mut of = [[NEVER; EVENTS]; STATES];
    let mut row = 0;
    while row < TABLE.len() {
        let (from, event) = (TABLE[row].from as usize, TABLE[row].event as usize);
        assert!(of[from][event] == NEVER, "a transition is declared twice");
        of[from][event] = row as u8;
        row += 1;
    }
    let mut state = 0;
    while state < STAYS.len() {
        let (from, events) = STAYS[state];
        let mut event = 0;
        while event < events.len() {
            let cell = &mut of[from as usize][events[event] as usize];
            assert!(*cell == NEVER, "a pair is declared twice");
            *cell = STAY;
            event += 1;
        }
        state += 1;
    }
    of
};

/// What `event` means to a flow in `state`.
#[must_use]
#[inline]
pub fn meaning(state: State, event: Event) -> Transition {
    match TRANSITIONS[state as usize][event as usize] {
        NEVER => Transition::Invalid,
        STAY => Transition::Ignore,
        row => Transition::Row(usize::from(row), &TABLE[usize::from(row)]),
    }
}
