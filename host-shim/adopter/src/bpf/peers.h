/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Who has spoken to a pod with a valid tag: only these addresses get the end marks, which look
 * strange to others (strict firewalls drop an urgent pointer without URG). Owns that table; what a
 * mark means is in exit_mark.h.
 */
#ifndef BATON_PEERS_H
#define BATON_PEERS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/*
 * 110 pods of a node with 128 dataplanes' addresses each, and some. Each probe, one a second, keeps
 * its entry from being pushed out.
 */
#define PEERS_MAX 16384

/*
 * A dataplane's address, IPv4 as ::ffff:a.b.c.d, and the network namespace of the pod that it spoke
 * to.
 */
struct peer {
	__u8 address[16];
	__u64 netns;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PEERS_MAX);
	__type(key, struct peer);
	__type(value, __u8);
} peers SEC(".maps");

static __always_inline int is_known(const struct peer *peer)
{
	return bpf_map_lookup_elem(&peers, peer) != NULL;
}

/* A message of `address` was authentic. */
static __always_inline void remember_peer(const __u8 *address, __u64 netns)
{
	struct peer peer = { .netns = netns };
	__u8 known = 1;

	__builtin_memcpy(peer.address, address, sizeof(peer.address));
	if (!is_known(&peer))
		bpf_map_update_elem(&peers, &peer, &known, BPF_ANY);
}

#endif
