//! The steps of a request: which notes they lie between, and their medians.
//!
//! Pure: notes come in as arguments. Times may be subtracted because all are of one clock, and a
//! step may be negative where two processors work at the same time.

use baton_lab::{ClientStamps, ServerStamps, TapStamps};
use std::collections::BTreeMap;

/// The notes of one request.
#[derive(Clone, Copy, Debug)]
pub struct Trip {
    pub client: ClientStamps,
    pub server: ServerStamps,
    pub arrived_ns: i64,
}

impl Trip {
    /// The event that the request made the server wake up with: for its listener, if the connection
    /// moved.
    fn woken_ns(&self) -> i64 {
        self.server.accepted.map_or(self.server.readable_ns, |a| a.woken_ns)
    }
}

/// A step of a request: its name in the JSON, in the table, and its length in one request.
pub type Step<T> = (&'static str, &'static str, fn(&T) -> Option<i64>);

/// One after the other they are the whole request.
pub const STEPS: &[Step<Trip>] = &[
    ("client_to_pod", "client sends → request at the pod (adoption ahead)", |t| {
        Some(t.arrived_ns - t.client.sent_ns)
    }),
    ("pod_to_server_woken", "→ server woken (moving: for its listener)", |t| {
        Some(t.woken_ns() - t.arrived_ns)
    }),
    ("accept", "→ accepted (accept4)", |t| t.server.accepted.map(|a| a.accepted_ns - a.woken_ns)),
    ("register", "→ registered (epoll_ctl)", |t| {
        t.server.accepted.map(|a| a.registered_ns - a.accepted_ns)
    }),
    ("wait_again", "→ connection readable (epoll_wait)", |t| {
        t.server.accepted.map(|a| t.server.readable_ns - a.registered_ns)
    }),
    ("read", "→ request read", |t| Some(t.server.read_ns - t.server.readable_ns)),
    ("send", "→ answer sent", |t| Some(t.server.sent_ns - t.server.read_ns)),
    ("answer_to_client", "→ answer read by the client", |t| {
        Some(t.client.received_ns - t.server.sent_ns)
    }),
];

pub const WHOLE: Step<Trip> =
    ("whole", "whole request, measured as one", |t| Some(t.client.received_ns - t.client.sent_ns));

/// The notes of one request in a tapped turn.
#[derive(Clone, Copy, Debug)]
pub struct TappedTrip {
    pub trip: Trip,
    pub tap: TapStamps,
}

impl TappedTrip {
    /// The first frame for the request that came back from the dataplane: the adoption, if the
    /// connection moved.
    fn first_back_ns(&self) -> Option<i64> {
        self.tap.adoption_from_ns.or(self.tap.request_from_ns)
    }
}

/// The dataplane as the node sees it, on the node's end of its veth, and the way from there to the
/// server.
pub const DATAPLANE_STEPS: &[Step<TappedTrip>] = &[
    ("dataplane_request", "request in → first frame out (moving: adoption)", |t| {
        Some(t.first_back_ns()? - t.tap.request_to_ns?)
    }),
    ("adoption_to_server_woken", "→ server woken (moving: adoption, accept queue)", |t| {
        Some(t.trip.woken_ns() - t.first_back_ns()?)
    }),
    ("adoption_to_request", "adoption out → request out, at the same time", |t| {
        Some(t.tap.request_from_ns? - t.tap.adoption_from_ns?)
    }),
    ("dataplane_answer", "answer in → answer out", |t| {
        Some(t.tap.answer_from_ns? - t.tap.answer_to_ns?)
    }),
];

/// Requests of which both sides made all notes.
pub fn matched(sent: &[ClientStamps], served: impl Iterator<Item = ServerStamps>) -> Vec<Trip> {
    let served: BTreeMap<u64, ServerStamps> = served.map(|s| (s.request, s)).collect();
    sent.iter()
        .filter_map(|client| {
            let server = *served.get(&client.request)?;
            Some(Trip { client: *client, server, arrived_ns: server.arrived_ns? })
        })
        .collect()
}

/// Requests that were seen at the dataplane in both directions, with an adoption exactly if they
/// are to move.
pub fn tapped(trips: &[Trip], taps: &BTreeMap<u64, TapStamps>, moving: bool) -> Vec<TappedTrip> {
    trips
        .iter()
        .filter_map(|trip| {
            let tap = *taps.get(&trip.client.request)?;
            let passed = tap.request_to_ns.and(tap.request_from_ns);
            passed.and(tap.answer_to_ns).and(tap.answer_from_ns)?;
            (tap.adoption_from_ns.is_some() == moving).then_some(TappedTrip { trip: *trip, tap })
        })
        .collect()
}

/// The lower middle of nanoseconds, in microseconds.
pub fn p50_us(lengths: &mut [i64]) -> Option<f64> {
    let middle = lengths.len().checked_sub(1)? / 2;
    let (_, p50, _) = lengths.select_nth_unstable(middle);
    Some(*p50 as f64 / 1e3)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use baton_lab::Accepted;

    pub fn client(request: u64) -> ClientStamps {
        ClientStamps { request, sent_ns: 1_000, received_ns: 41_000 }
    }

    pub fn server(request: u64, moved: bool) -> ServerStamps {
        ServerStamps {
            request,
            arrived_ns: Some(11_000),
            accepted: moved.then_some(Accepted {
                woken_ns: 13_000,
                accepted_ns: 16_000,
                registered_ns: 17_000,
            }),
            readable_ns: 19_000,
            read_ns: 20_000,
            sent_ns: 26_000,
        }
    }

    pub fn tap() -> TapStamps {
        TapStamps {
            request_to_ns: Some(5_000),
            adoption_from_ns: Some(9_000),
            request_from_ns: Some(9_500),
            answer_to_ns: Some(30_000),
            answer_from_ns: Some(33_000),
        }
    }

    #[test]
    fn the_middle_of_odd_even_and_no_lengths() {
        assert_eq!(p50_us(&mut [3_000, -1_000, 2_000]), Some(2.0));
        assert_eq!(p50_us(&mut [4_000, 1_500, 2_000, 3_000]), Some(2.0));
        assert_eq!(p50_us(&mut []), None);
    }

    #[test]
    fn the_steps_of_a_request_add_up_to_the_whole() {
        for moved in [false, true] {
            let trips = matched(&[client(7)], [server(7, moved)].into_iter());
            let steps: Vec<_> = STEPS.iter().map(|(_, _, f)| f(&trips[0])).collect();
            assert_eq!(steps.iter().flatten().sum::<i64>(), 40_000);
            assert_eq!(WHOLE.2(&trips[0]), Some(40_000));
            let expected = if moved {
                [10_000, 2_000, 3_000, 1_000, 2_000, 1_000, 6_000, 15_000].map(Some)
            } else {
                [
                    Some(10_000),
                    Some(8_000),
                    None,
                    None,
                    None,
                    Some(1_000),
                    Some(6_000),
                    Some(15_000),
                ]
            };
            assert_eq!(steps, expected);
        }
    }

    #[test]
    fn requests_that_lack_a_note_are_left_out() {
        let unstamped = ServerStamps { arrived_ns: None, ..server(2, false) };
        let served = [server(1, false), unstamped, server(4, false)];
        let trips = matched(&[client(1), client(2), client(3)], served.into_iter());
        let requests: Vec<_> = trips.iter().map(|t| t.client.request).collect();
        assert_eq!(requests, [1]);
    }

    #[test]
    fn what_the_tap_saw_counts_if_it_is_whole_and_of_the_side() {
        let trips = matched(&[client(1)], [server(1, true)].into_iter());
        let seen = BTreeMap::from([(1, tap())]);
        assert!(tapped(&trips, &seen, false).is_empty(), "it moved");
        let lengths: Vec<_> =
            DATAPLANE_STEPS.iter().map(|(_, _, f)| f(&tapped(&trips, &seen, true)[0])).collect();
        assert_eq!(lengths, [4_000, 4_000, 500, 3_000].map(Some));
        let no_answer = TapStamps { answer_from_ns: None, ..tap() };
        assert!(tapped(&trips, &BTreeMap::from([(1, no_answer)]), true).is_empty());
        let stayed = TapStamps { adoption_from_ns: None, ..tap() };
        let trips = matched(&[client(1)], [server(1, false)].into_iter());
        let stayed = tapped(&trips, &BTreeMap::from([(1, stayed)]), false);
        let lengths: Vec<_> = DATAPLANE_STEPS.iter().map(|(_, _, f)| f(&stayed[0])).collect();
        assert_eq!(lengths, [Some(4_500), Some(9_500), None, Some(3_000)]);
    }
}
