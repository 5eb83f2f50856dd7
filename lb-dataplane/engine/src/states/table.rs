//! The rows of the state machine. What a row's names mean is in the parent module.

use super::{Action, Event, Frame, Row, State};

macro_rules! table {
    ($($from:ident + $event:ident => $to:ident [$($action:ident),*] $frame:ident;)+) => {
        /// Every transition.
        pub const TABLE: &[Row] = &[$(Row {
            from: State::$from, event: Event::$event, to: State::$to,
            actions: &[$(Action::$action),*], frame: Frame::$frame,
        }),+];
    };
}

macro_rules! stays {
    ($($state:ident: $($event:ident),+;)+) => {
        /// Events that a state meets and that change nothing; their frames are forwarded.
        pub const STAYS: &[(State, &[Event])] = &[$((State::$state, &[$(Event::$event),+])),+];
    };
}

table! {
    SynSent + SynAck => SynAcked [ArmHandshake] Forward;
    SynSent + SynStale => SynSent [RenewPort, SendSyn] Absorb;
    SynSent + SynRefused => SynSent [Redirect, SendSyn] Absorb;
    SynSent + SynRefusedByAll => Gone [Release] Forward;
    SynSent + Outnumbered => Gone [ResetOwner, EndOwner, Release] Absorb;
    SynSent + ClientRst => Gone [Release] Forward;
    SynSent + Timeout => Gone [Release] Absorb;

    SynAcked + Established => Fresh [ArmIdle] Forward;
    SynAcked + Outnumbered => Gone [ResetOwner, EndOwner, Release] Absorb;
    SynAcked + ClientRst => Gone [Release] Forward;
    SynAcked + ServerRst => Gone [Release] Forward;
    SynAcked + Timeout => Gone [ResetOwner, Release] Absorb;

    Fresh + ClientData => Request [RequestBegins] Forward;
    Fresh + MoveIdle => AdoptingIdle [TakeOver, SendAdoption, SendKeepalive, ArmAdoption] Absorb;
    Fresh + ServerData => Response [] Forward;
    Fresh + OwnerEnded => OwnerFinPending [ArmOwnerFinPending] Absorb;
    Fresh + OwnerGone => Orphan [ArmRescue] Absorb;
    Fresh + DrainClose => FinSentToClient [CloseOwner, SendFin, ArmFinSentToClient] Absorb;
    Fresh + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Fresh + ServerFin => ServerFin [ArmHalfClosed] Forward;
    Fresh + ClientRst => Gone [Release] Forward;
    Fresh + ServerRst => Gone [Release] Forward;
    Fresh + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Request + ServerData => Response [RequestAnswered, DropKept] Forward;
    Request + ResponseTimeout => Adopting [RequestForgotten, TakeOver, SendAdoption, ReplayKept, RequestBegins, ArmAdoption] Absorb;
    Request + OwnerGone => Orphan [RequestForgotten, ArmRescue] Absorb;
    Request + ClientFin => ClientFin [DropKept, ArmHalfClosed] Forward;
    Request + ServerFin => ServerFin [RequestForgotten, DropKept, ArmHalfClosed] Forward;
    Request + ClientRst => Gone [RequestForgotten, DropKept, Release] Forward;
    Request + ServerRst => Gone [RequestForgotten, DropKept, Release] Forward;
    Request + DrainCut => Gone [RequestForgotten, DropKept, CutClient, ResetOwner, Release] Absorb;
    Request + Timeout => Gone [RequestForgotten, DropKept, ResetClient, ResetOwner, Release] Absorb;

    Response + AllAcked => Idle [] Forward;
    Response + ClientData => Request [RequestBegins] Forward;
    Response + OwnerEnded => OwnerFinPending [ArmOwnerFinPending] Absorb;
    Response + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Response + ServerFin => ServerFin [ArmHalfClosed] Forward;
    Response + ClientRst => Gone [Release] Forward;
    Response + ServerRst => Gone [Release] Forward;
    Response + DrainCut => Gone [CutClient, ResetOwner, Release] Absorb;
    Response + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Idle + ClientData => Request [RequestBegins] Forward;
    Idle + Move => Adopting [TakeOver, SendAdoption, RequestBegins, ArmAdoption] Forward;
    Idle + MoveIdle => AdoptingIdle [TakeOver, SendAdoption, SendKeepalive, ArmAdoption] Absorb;
    Idle + ServerData => Response [] Forward;
    Idle + OwnerEnded => OwnerFinPending [ArmOwnerFinPending] Absorb;
    Idle + OwnerGone => Orphan [ArmRescue] Absorb;
    Idle + DrainClose => FinSentToClient [CloseOwner, SendFin, ArmFinSentToClient] Absorb;
    Idle + DrainCut => Gone [CutClient, ResetOwner, Release] Absorb;
    Idle + ClientFin => ClientFin [ArmHalfClosed] Forward;
    Idle + ServerFin => ServerFin [ArmHalfClosed] Forward;
    Idle + ClientRst => Gone [Release] Forward;
    Idle + ServerRst => Gone [Release] Forward;
    Idle + LegLeft => Legless [LeaveOwner, ArmIdle] Absorb;
    Idle + LegOver => Legless [ResetOwner, DropOwner, ArmIdle] Absorb;
    Idle + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Legless + Wanted => Orphan [ArmRescue] Absorb;
    Legless + ClientFin => Closed [SendFin, ArmFinSentToClient] Absorb;
    Legless + ClientRst => Gone [Release] Absorb;
    Legless + Timeout => FinSentToClient [SendFin, ArmFinSentToClient] Absorb;

    Adopting + Confirmed => Request [CloseStandby, ArmIdle] Forward;
    Adopting + ConfirmedWithout => Request [ReplayKept, CloseStandby, ArmIdle] Forward;
    Adopting + Refused => Request [RequestForgotten, ResumeStandby, RequestBegins, ReplayKept, ArmIdle] Absorb;
    Adopting + Withdrawn => Request [RequestForgotten, ResetOwner, ResumeStandby, RequestBegins, ReplayKept, ArmIdle] Absorb;
    Adopting + RefusedNext => Adopting [RequestForgotten, Redirect, RequestBegins, SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + RefusedAll => Orphan [RequestForgotten, DropStandby, ArmRescue] Absorb;
    Adopting + TupleTaken => Adopting [RenewPort, SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + Opened => Adopting [SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + Doubt => Adopting [SendAdoption, ReplayKept, ArmAdoption] Absorb;
    Adopting + FateUnknownReplay => Request [RequestForgotten, ResetOwner, ResumeStandby, RequestBegins, ReplayKept, ArmIdle] Absorb;
    Adopting + FateUnknownNext => Orphan [RequestForgotten, DropStandby, ArmRescue] Absorb;
    Adopting + FateUnknownReset => Gone [RequestForgotten, DropKept, ResetClient, ResetOwner, ResetStandby, Release] Absorb;
    Adopting + ClientRst => Gone [RequestForgotten, DropKept, ResetStandby, Release] Forward;

    AdoptingIdle + Confirmed => Idle [CloseStandby, ArmIdle] Forward;
    AdoptingIdle + Refused => Idle [ResumeStandby, ArmIdle] Absorb;
    AdoptingIdle + Withdrawn => Idle [ResetOwner, ResumeStandby, ArmIdle] Absorb;
    AdoptingIdle + RefusedAll => Orphan [DropStandby, ArmRescue] Absorb;
    AdoptingIdle + FateUnknownReset => Gone [DropKept, ResetClient, ResetOwner, ResetStandby, Release] Absorb;
    AdoptingIdle + TupleTaken => AdoptingIdle [RenewPort, SendAdoption, SendKeepalive, ArmAdoption] Absorb;
    AdoptingIdle + Opened => AdoptingIdle [SendAdoption, SendKeepalive, ArmAdoption] Absorb;
    AdoptingIdle + Doubt => AdoptingIdle [SendAdoption, SendKeepalive, ArmAdoption] Absorb;
    AdoptingIdle + ClientData => Adopting [RequestBegins] Forward;
    AdoptingIdle + ClientFin => Adopting [] Forward;
    AdoptingIdle + ClientRst => Gone [DropKept, ResetStandby, Release] Forward;

    OwnerFinPending + CloseStands => ServerFin [SendFin, ReplayKept, DropKept, ArmHalfClosed] Absorb;
    OwnerFinPending + ResetStands => Gone [DropKept, ResetClient, Release] Absorb;
    OwnerFinPending + OwnerGone => Orphan [ArmRescue] Absorb;
    OwnerFinPending + ClientRst => Gone [DropKept, Release] Forward;

    Orphan + ClientData => Orphan [] Absorb;
    Orphan + RescueRequest => Adopting [ResetOwner, Redirect, SendAdoption, ReplayKept, RequestBegins, ArmAdoption] Absorb;
    Orphan + RescueIdle => AdoptingIdle [ResetOwner, Redirect, SendAdoption, SendKeepalive, ArmAdoption] Absorb;
    Orphan + Doubt => Orphan [ArmRescue] Absorb;
    Orphan + CloseStands => FinSentToClient [DropKept, ResetOwner, DropOwner, SendFin, ArmFinSentToClient] Absorb;
    Orphan + Lost => Gone [DropKept, ResetClient, ResetOwner, Release] Absorb;
    Orphan + ClientFin => Closed [DropKept, ResetOwner, DropOwner, SendFin, ArmFinSentToClient] Absorb;
    Orphan + ClientRst => Gone [DropKept, ResetOwner, Release] Absorb;

    ClientFin + ServerData => ClientFin [RequestAnswered] Forward;
    ClientFin + ServerFin => Closed [RequestForgotten, ArmLinger] Forward;
    ClientFin + DrainClose => Closed [RequestForgotten, ResetOwner, DropOwner, SendFin, ArmFinSentToClient] Absorb;
    ClientFin + DrainCut => Gone [RequestForgotten, CutClient, ResetOwner, Release] Absorb;
    ClientFin + ClientRst => Gone [RequestForgotten, Release] Forward;
    ClientFin + ServerRst => Gone [RequestForgotten, Release] Forward;
    ClientFin + Timeout => Gone [RequestForgotten, ResetClient, ResetOwner, Release] Absorb;

    ServerFin + ClientFin => Closed [ArmLinger] Forward;
    ServerFin + DrainCut => Gone [CutClient, ResetOwner, Release] Absorb;
    ServerFin + ClientRst => Gone [Release] Forward;
    ServerFin + ServerRst => Gone [Release] Forward;
    ServerFin + Timeout => Gone [ResetClient, ResetOwner, Release] Absorb;

    Closed + AllAcked => Closed [EndOwner] Forward;
    Closed + Doubt => Closed [SendFin, ArmFinSentToClient] Absorb;
    Closed + ClientRst => Gone [Release] Forward;
    Closed + ServerRst => Gone [Release] Forward;
    Closed + DrainCut => Gone [CutClient, ResetOwner, Release] Absorb;
    Closed + Lost => Gone [ResetClient, ResetOwner, Release] Absorb;
    Closed + Timeout => Gone [Release] Absorb;

    FinSentToClient + Doubt => FinSentToClient [SendFin, ArmFinSentToClient] Absorb;
    FinSentToClient + ClientData => Gone [ResetClient, Release] Absorb;
    FinSentToClient + ClientFin => Closed [AckClient, ArmFinSentToClient] Absorb;
    FinSentToClient + ClientRst => Gone [Release] Absorb;
    FinSentToClient + Timeout => Gone [ResetClient, Release] Absorb;
}

stays! {
    SynAcked: ServerData;
    Response: ServerData;
    ClientFin: ClientFin;
    ServerFin: ServerData, ServerFin;
    Closed: ServerData, ServerFin, ClientFin;
}
