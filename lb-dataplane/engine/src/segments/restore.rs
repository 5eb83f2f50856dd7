//! Whose address a pod sees: where the policy restores it, each SYN and each Adopt of a leg has a
//! client block ([`ClientBlock`]), which the adopter in the pod takes off and goes by.
//!
//! Owns which legs are restored, and what is in their blocks. Addresses are written by the adopter,
//! in the pod; here a restored leg is a leg like any other.
//!
//! # Decisions
//!
//! - **The block is in the segment that begins the leg**, not in one ahead of it: that could be
//!   lost, or overtaken, and the pod's application would see the dataplane. A kernel without the
//!   adopter does not acknowledge a SYN's data, and opens the connection all the same.
//! - **A pod that has not said yet whether it restores gets no SYN**, but another one that has; if
//!   there is none, the client sends its SYN again. Who said no, or does not answer any probe, sees
//!   the dataplane's address: counted, and better than no connection.
//! - **One that said yes is told while its adopter is in doubt**, too: after an adoption that met
//!   silence, or the exit of one of its processes. It is the same pod.
//! - **A leg is restored or not for all its life**: a repeated SYN with a block would be another
//!   connection to the pod than the one without.

use crate::{
    Engine, balance::policy::Policy, clock::Instant, ids::FlowId, ids::from_addr,
    obs::counters::Counter,
};
use baton_api::ClientAddress;
use baton_packet::{CLIENT_BLOCK_BYTES, ClientBlock, SegmentSpec};

impl Policy {
    /// Whether its pods shall see clients' addresses.
    pub(crate) fn restores(&self) -> bool {
        self.spec.client_address == ClientAddress::Restore
    }
}

impl Engine {
    /// Whether the pod will say soon if it restores.
    fn is_yet_to_say(&self, policy: u16, backend: u16) -> bool {
        self.policies[usize::from(policy)].restores()
            && !self.keys.is_empty()
            && self.backends[usize::from(backend)].adopter.is_asked()
    }

    /// The backend for a new flow, by the policy's algorithm, of those that are past that question.
    /// `Err`: there is one, but not yet.
    pub(crate) fn choose_restoring(
        &mut self,
        now: Instant,
        of: (u16, crate::ids::Addr),
        by: (bool, u64),
    ) -> Result<Option<u16>, ()> {
        let Some(first) = self.choose_new(now, of, by, None) else {
            return Ok(None);
        };
        if !self.is_yet_to_say(of.0, first) {
            return Ok(Some(first));
        }
        match self.choose_new(now, of, by, Some(first)) {
            Some(other) if !self.is_yet_to_say(of.0, other) => Ok(Some(other)),
            _ => Err(()),
        }
    }

    /// The flow begins on its owner leg: whether that one is restored.
    pub(crate) fn note_restored(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        let asks = self.policies[usize::from(flow.policy)].restores();
        let backend = &self.backends[usize::from(flow.owner.backend)];
        // To the pod a connection from its own address would be one with itself, and there is none
        // from an address of the other family.
        let restored = asks
            && backend.adopter.restores()
            && backend.addr != flow.client
            && backend.addr.is_v6() == flow.is_v6();
        if asks {
            self.counters.add(match restored {
                true => Counter::LegsRestored,
                false => Counter::LegsHidden,
            });
        }
        self.leg_begins(id, restored);
    }

    /// Whether segments that begin the owner leg have a block.
    #[inline]
    pub(crate) fn is_restored(&self, id: FlowId) -> bool {
        self.flows[id].progress.told.is_restored()
    }

    /// The block for such a segment, which is for the namespace of that number.
    pub(crate) fn client_block(
        &self,
        id: FlowId,
        of: &SegmentSpec<'_>,
        namespace: u64,
    ) -> Option<[u8; CLIENT_BLOCK_BYTES]> {
        let flow = &self.flows[id];
        if !self.is_restored(id) {
            return None;
        }
        let (epoch, key) = self.signing_key(flow.owner.backend)?;
        let block = ClientBlock {
            client: from_addr(flow.client),
            port: flow.client_port,
            epoch: epoch & 15,
            namespace,
        };
        Some(block.bytes(of, &key))
    }
}
