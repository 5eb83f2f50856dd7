/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Transfers: a connection goes, in the middle of a request or response, to another pod whose
 * application cooperates (docs/adoption-wire.md, Transfers). Owns the fate of each Transfer, the
 * silence of the old pod afterwards, and which listeners' applications cooperate. Moves nothing:
 * user space does (host-shim/src/transfers).
 *
 * Decisions:
 * - Only a RST without ACK is looked for in `moved`. The kernel answers a segment of the old
 *   connection, which has an ACK, by one (RFC 9293, 3.10.7.1; tcp_v4_send_reset()), with the number
 *   that the segment acknowledges. What a socket that lives says in its own name has an ACK
 *   (tcp_send_active_reset()), and so has the refusal of a SYN: a pair that is used again by a
 *   handshake is told all that it would be told without the entry.
 * - The number must be one that the old connection had reached, at most a queue's length ago: a
 *   later connection on the pair, over which no Forget went, is somewhere else.
 */
#ifndef BATON_TRANSFER_H
#define BATON_TRANSFER_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "asked.h"
#include "readdress.h"
#include "tables.h"
#include "wire.h"

/*
 * Most bytes that a connection had under way when it was moved (QUEUE_BYTES_MAX of
 * host-shim/tcp-repair), twice.
 */
#define UNDER_WAY_MAX (16 << 20)
/* Four ports for each of 4,096 namespaces. */
#define PORTS_MAX 16384

/* One Transfer, however many copies of it arrive. As src/transfers.rs has it. */
struct transfer {
	struct adoption of;	/* of.zero: the message's flag, FLAG_ADDRESS or none */
	__be64 namespace;	/* of the other pod; with FLAG_ADDRESS bytes 4 to 11 of its address */
	__be32 address_end;	/* the last four bytes of its address */
	__be16 port;		/* of its application */
	__be16 peer_port;	/* that the peer has there */
	__u8 peer[16];		/* and its address */
};

/* A pair of ends of a pod. As src/transfers.rs has it. */
struct pair {
	__u8 remote[16];
	__u8 local[16];
	__be16 remote_port;
	__be16 local_port;
	__u32 zero;
	__u64 netns;
};

/* Where an application listens. As src/transfers.rs has it. */
struct place {
	__u64 netns;
	__u32 port;
	__u32 zero;
};

/*
 * What became of a Transfer. Written by the program at ingress (asked) and by user space (asked to
 * done or kept).
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct transfer);
	__type(value, struct asked);
} transfers SEC(".maps");

/* What was asked, for user space: a `struct transfer` each, 5,400 of 88 bytes with their heads. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, ASKS_BYTES);
} transfer_asks SEC(".maps");

/* Whether user space moves connections; 0: whatever is asked is kept at once. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} can_transfer SEC(".maps");

/*
 * Pairs whose connection lives in another pod, with the number of the next byte that it would have
 * sent here, in the host's order. Written by user space before the old socket ends; deleted by a
 * Forget that is answered, an adoption that is taken, and by user space when a connection comes
 * back. As many as Transfers are remembered.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct pair);
	__type(value, __u32);
} moved SEC(".maps");

/*
 * Ports whose application is connected to user space: 1, and 2 where its connections go to other
 * nodes as well. Written by user space.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct place);
	__type(value, __u8);
} transfers_on SEC(".maps");

/* As release(); `peer`: its end in the other pod. */
static __noinline __u32 transfer(const struct tagged *t, const struct end *peer, __u64 netns, __u32 *outcome)
{
	struct transfer this = { .of.netns = netns };

	if (!t || !peer || !outcome)
		return UNDECIDED;
	*outcome = TRANSFER_ASKED;
	__builtin_memcpy(&this, t, __builtin_offsetof(struct adoption, zero));
	/* Both timestamps, as they are on the wire. */
	__builtin_memcpy(&this.namespace, &t->tsval, sizeof(this.namespace));
	this.of.zero = t->flags & FLAG_ADDRESS;
	this.address_end = t->server_timestamp;
	this.port = t->mss;
	this.peer_port = peer->port;
	__builtin_memcpy(this.peer, peer->address, sizeof(this.peer));
	return ask(&transfers, &transfer_asks, &can_transfer, &this, sizeof(this), MOVED, outcome);
}

/* Its pair is used again. */
static __noinline int forget_moved(const struct tagged *t, __u64 netns)
{
	struct pair pair = { .netns = netns };

	if (!t)
		return 0;
	__builtin_memcpy(&pair, t, __builtin_offsetof(struct pair, zero));
	bpf_map_delete_elem(&moved, &pair);
	return 0;
}

/* Whether a RST without ACK is about a connection that lives elsewhere. */
static __always_inline int is_moved(const struct pair *pair, __be32 seq)
{
	const __u32 *next = bpf_map_lookup_elem(&moved, pair);

	return next && *next - bpf_ntohl(seq) <= UNDER_WAY_MAX;
}

/* TRANSFERS if the application that listens there is connected, BETWEEN_NODES if so far. */
static __always_inline __u32 transfers_at(__u64 netns, __u16 port)
{
	struct place place = { .netns = netns, .port = port };

	const __u8 *reach = bpf_map_lookup_elem(&transfers_on, &place);

	if (!reach)
		return 0;
	return *reach & 2 ? TRANSFERS | BETWEEN_NODES : TRANSFERS;
}

#endif
