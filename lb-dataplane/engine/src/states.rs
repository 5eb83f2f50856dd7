//! The declared state machine of a flow: every state, event, action and timer in one table.
//!
//! Owns the table and its rendering (`docs/generated/flow-states.md`, compared by a test).
//! It never touches a flow: [`crate::Engine`] classifies packets and timers into events, looks the row up
//! here, performs the row's actions in their order and then treats the frame as the row says.

use std::fmt::Write as _;

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
        /// Response bytes seen, not everything acknowledged.
        Response,
        /// Nothing outstanding, everything acknowledged: the only state a flow moves from.
        Idle,
        /// Moved with a request that the new owner has not confirmed; the old owner stands by.
        Adopting,
        /// The client closed its direction.
        ClientFin,
        /// The backend closed its direction.
        ServerFin,
        /// Both closed.
        Closed,
        /// Not a flow any more.
        Gone,
    }
}

names! {
    /// What can happen to a flow.
    Event {
        /// SYN-ACK for the client's SYN.
        SynAck,
        /// Something that is not an answer to the SYN: a stale socket is on the leg's tuple.
        SynStale,
        /// The backend refused the SYN, and another backend is left to try.
        SynRefused,
        /// The backend refused the SYN, and none is left.
        SynRefusedByAll,
        /// The client acknowledged the SYN-ACK.
        Established,
        /// New client bytes that stay with the owner.
        ClientData,
        /// A new request begins and goes to another backend.
        Move,
        /// The backend sent data.
        ServerData,
        /// Both directions are fully acknowledged.
        AllAcked,
        /// First valid packet from the new owner.
        Confirmed,
        /// Confirmed, but the new owner lacks the request's bytes.
        ConfirmedWithout,
        /// An authenticated refusal: the new owner never had the request.
        Refused,
        /// An authenticated refusal while the old owner is gone too, and another backend is left to try.
        RefusedNext,
        /// Another socket is on the new leg's tuple.
        TupleTaken,
        /// Silence or a bare RST, and tries are left: ask again.
        Doubt,
        /// The request may or may not have been executed; policy allows to execute it again.
        FateUnknownReplay,
        /// The request may or may not have been executed; policy forbids to execute it again.
        FateUnknownReset,
        /// The client closed its direction.
        ClientFin,
        /// The owner closed its direction.
        ServerFin,
        /// The client reset the connection.
        ClientRst,
        /// The owner reset the connection.
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
        /// Send the kept copies to the owner leg.
        ReplayKept,
        /// Send the adoption segment to the owner leg.
        SendAdoption,
        /// Move the standby leg to the closing table: its application shall see a clean end of stream.
        CloseStandby,
        /// The standby leg is owner again.
        ResumeStandby,
        /// Reset the stale socket on the owner leg's tuple, and take another port to the same backend.
        RenewPort,
        /// Open the owner leg to another backend (chosen by the event's classifier).
        Redirect,
        /// Reset the owner leg.
        ResetOwner,
        /// Reset the standby leg.
        ResetStandby,
        /// Reset the client's connection in the backend's name.
        ResetClient,
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
        /// Arm the half-closed timer.
        ArmHalfClosed,
        /// Arm the linger timer.
        ArmLinger,
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

macro_rules! table {
    ($($from:ident + $event:ident => $to:ident [$($action:ident),*] $frame:ident;)+) => {
        /// Every transition. A pair that is not here keeps its state, does nothing and forwards its frame.
        pub const TABLE: &[Row] = &[$(Row {
            from: State::$from, event: Event::$event, to: State::$to,
            actions: &[$(Action::$action),*], frame: Frame::$frame,
        }),+];
    };
}

table! {
    SynSent + SynAck => SynAcked [DropKept, ArmHandshake] Forward;
    SynSent + SynStale => SynSent [RenewPort, ReplayKept] Absorb;
    SynSent + SynRefused => SynSent [Redirect, ReplayKept] Absorb;
    SynSent + SynRefusedByAll => Gone [DropKept, Release] Forward;
    SynSent + ClientRst => Gone [DropKept, Release] Forward;
    SynSent + Timeout => Gone [DropKept, Release] Absorb;

    SynAcked + Established => Fresh [ArmIdle] Forward;
    SynAcked + ClientRst => Gone [Release] Forward;
    SynAcked + ServerRst => Gone [Release] Forward;
    SynAcked + Timeout => Gone [ResetOwner, Release] Absorb;

    Fresh + ClientData => Request [RequestBegins] Forward;
    Fresh + ServerData => Response [] Forward;
    Fresh + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Fresh + ServerFin => ServerFin [ArmHalfClosed] Forward;
    Fresh + ClientRst => Gone [Release] Forward;
    Fresh + ServerRst => Gone [Release] Forward;
    Fresh + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Request + ServerData => Response [RequestAnswered] Forward;
    Request + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Request + ServerFin => ServerFin [RequestForgotten, ArmHalfClosed] Forward;
    Request + ClientRst => Gone [RequestForgotten, Release] Forward;
    Request + ServerRst => Gone [RequestForgotten, Release] Forward;
    Request + Timeout => Gone [RequestForgotten, ResetClient, ResetOwner, Release] Absorb;

    Response + AllAcked => Idle [] Forward;
    Response + ClientData => Request [RequestBegins] Forward;
    Response + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Response + ServerFin => ServerFin [ArmHalfClosed] Forward;
    Response + ClientRst => Gone [Release] Forward;
    Response + ServerRst => Gone [Release] Forward;
    Response + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Idle + ClientData => Request [RequestBegins] Forward;
    Idle + Move => Adopting [SendAdoption, RequestBegins, ArmAdoption] Forward;
    Idle + ServerData => Response [] Forward;
    Idle + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Idle + ServerFin => ServerFin [ArmHalfClosed] Forward;
    Idle + ClientRst => Gone [Release] Forward;
    Idle + ServerRst => Gone [Release] Forward;
    Idle + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Adopting + Confirmed => Request [DropKept, CloseStandby, ArmIdle] Forward;
    Adopting + ConfirmedWithout => Request [ReplayKept, DropKept, CloseStandby, ArmIdle] Forward;
    Adopting + Refused => Request [RequestForgotten, ResumeStandby, RequestBegins, ReplayKept, DropKept, ArmIdle] Absorb;
    Adopting + RefusedNext => Adopting [RequestForgotten, Redirect, RequestBegins, SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + TupleTaken => Adopting [RenewPort, SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + Doubt => Adopting [SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + FateUnknownReplay => Request [RequestForgotten, ResetOwner, ResumeStandby, RequestBegins, ReplayKept, DropKept, ArmIdle] Absorb;
    Adopting + FateUnknownReset => Gone [RequestForgotten, DropKept, ResetClient, ResetOwner, ResetStandby, Release] Absorb;
    Adopting + ClientRst => Gone [RequestForgotten, DropKept, ResetStandby, Release] Forward;

    ClientFin + ServerData => ClientFin [RequestAnswered] Forward;
    ClientFin + ServerFin => Closed [RequestForgotten, ArmLinger] Forward;
    ClientFin + ClientRst => Gone [RequestForgotten, Release] Forward;
    ClientFin + ServerRst => Gone [RequestForgotten, Release] Forward;
    ClientFin + Timeout => Gone [RequestForgotten, ResetClient, ResetOwner, Release] Absorb;

    ServerFin + ClientFin => Closed [ArmLinger] Forward;
    ServerFin + ClientRst => Gone [Release] Forward;
    ServerFin + ServerRst => Gone [Release] Forward;
    ServerFin + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Closed + ClientRst => Gone [Release] Forward;
    Closed + ServerRst => Gone [Release] Forward;
    Closed + Timeout => Gone [Release] Absorb;
}

const NO_ROW: u8 = u8::MAX;
const STATES: usize = State::ALL.len();
const EVENTS: usize = Event::ALL.len();

/// Row numbers by state and event, so that a look-up is two array accesses.
const ROW_OF: [[u8; EVENTS]; STATES] = {
    let mut of = [[NO_ROW; EVENTS]; STATES];
    let mut row = 0;
    while row < TABLE.len() {
        let (from, event) = (TABLE[row].from as usize, TABLE[row].event as usize);
        assert!(of[from][event] == NO_ROW, "a transition is declared twice");
        of[from][event] = row as u8;
        row += 1;
    }
    of
};

/// The transition of `state` on `event`, with its number, if one is declared.
#[must_use]
pub fn transition(state: State, event: Event) -> Option<(usize, &'static Row)> {
    let row = usize::from(ROW_OF[state as usize][event as usize]);
    TABLE.get(row).map(|r| (row, r))
}

/// The table and its picture as Markdown.
#[must_use]
pub fn render() -> String {
    let mut text = String::from(
        "# States of a flow\n\nGenerated from `lb-dataplane/engine/src/states.rs`; `make generate` writes it, a test compares it.\n\n```mermaid\nstateDiagram-v2\n    [*] --> SynSent: client SYN\n",
    );
    for row in TABLE.iter().filter(|r| r.from != r.to) {
        let to = if row.to == State::Gone {
            "[*]"
        } else {
            row.to.name()
        };
        let _ = writeln!(
            text,
            "    {} --> {to}: {}",
            row.from.name(),
            row.event.name()
        );
    }
    text.push_str("```\n\n| state | event | next state | actions, in order | frame |\n|---|---|---|---|---|\n");
    for row in TABLE {
        let actions: Vec<_> = row.actions.iter().map(|a| a.name()).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.from.name(),
            row.event.name(),
            row.to.name(),
            actions.join(", "),
            row.frame.name()
        );
    }
    text.push_str(
        "\nA pair that is not in the table keeps its state, does nothing and forwards its frame.\n",
    );
    text
}
