// SPDX-License-Identifier: Apache-2.0
/*
 * Gives the dataplane its frames and leaves all others to the kernel.
 *
 * steer_xdp     AF_XDP modes: ours go into the socket of their worker on their queue.
 * silence_tc    packet mode, tc ingress: ours are dropped after the packet socket has its copy, so
 *               that the kernel's TCP never sees them and never answers with a reset.
 * filter_socket packet mode: only ours wake the packet socket.
 */
#include "match.h"
#include <linux/pkt_cls.h>

/* A socket per receive queue and worker; src/steer.rs refuses more. */
#define QUEUES_MAX 256
#define WORKERS_MAX 16

/* At `queue * workers + worker`. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX * WORKERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int steer_xdp(struct xdp_md *ctx)
{
	struct source from = {
		.ctx = ctx,
		.data = (void *)(long)ctx->data,
		.data_end = (void *)(long)ctx->data_end,
		.kind = SOURCE_XDP,
	};
	__u32 zero = 0, socket;
	struct settings *set;
	struct found found = {};
	int action;

	switch (match(&from, &found)) {
	case OURS:
		break;
	case OUR_FRAGMENT:
		count(COUNT_FRAGMENTS);
		return XDP_PASS;
	default:
		count(COUNT_PASSED);
		return XDP_PASS;
	}
	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return XDP_PASS;
	if (from.data_end - from.data > set->frame_bytes_max) {
		count(COUNT_OVERSIZE);
		return XDP_DROP;
	}
	socket = ctx->rx_queue_index * set->workers + worker_of(set, &found);
	action = bpf_redirect_map(&sockets, socket, XDP_PASS);
	count(action == XDP_REDIRECT ? COUNT_TAKEN : COUNT_NO_SOCKET);
	return action;
}

SEC("tc")
int silence_tc(struct __sk_buff *skb)
{
	struct source from = { .ctx = skb, .kind = SOURCE_SKB };
	struct found found = {};

	/* The tag may have been taken out of the frame already. */
	if (skb->vlan_present) {
		count(COUNT_PASSED);
		return TC_ACT_UNSPEC;
	}
	switch (match(&from, &found)) {
	case OURS:
		count(COUNT_TAKEN);
		return TC_ACT_SHOT;
	case OUR_FRAGMENT:
		count(COUNT_FRAGMENTS);
		return TC_ACT_UNSPEC;
	default:
		count(COUNT_PASSED);
		return TC_ACT_UNSPEC;
	}
}

SEC("socket")
int filter_socket(struct __sk_buff *skb)
{
	struct source from = { .ctx = skb, .kind = SOURCE_SKB };
	struct found found = {};

	/* Each frame is counted once, by the tc program. */
	return !skb->vlan_present && match(&from, &found) == OURS ? -1 : 0;
}

char LICENSE[] SEC("license") = "Apache-2.0";
