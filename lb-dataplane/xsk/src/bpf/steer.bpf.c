// SPDX-License-Identifier: Apache-2.0
/*
 * Gives the dataplane its frames and leaves all others to the kernel.
 *
 * steer_xdp     AF_XDP modes: ours go into the socket of their worker on their queue.
 * silence_tc    packet mode, tc ingress: ours are dropped after the packet socket has its copy, so
 *               that the kernel's TCP never sees them and never answers with a reset.
 * filter_socket packet mode: only ours wake the packet socket.
 *
 * As in the kernel's TCP, what is sent to another hardware address is another host's: switches and
 * bridges give everybody what they do not know the way of, and that host may serve the same
 * frontend.
 */
#include "match.h"
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

/* A socket per receive queue and worker; src/steer.rs refuses more. */
#define QUEUES_MAX 256
#define WORKERS_MAX 16
/* Of a tag's second half. */
#define VLAN_ID 0x0fff

/* At `queue * workers + worker`. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES_MAX * WORKERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/*
 * A tag of VLAN 0 says a priority alone (IEEE 802.1Q), and the kernel takes the frame as one
 * without: so it goes. At most two, which the kernel takes off as well.
 */
static __always_inline void untag(struct xdp_md *ctx)
{
	for (int i = 0; i < 2; i++) {
		__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
		__u8 macs[2 * ETH_ALEN];
		__be16 tag[2];

		if (data + sizeof(macs) + sizeof(tag) > end)
			return;
		__builtin_memcpy(tag, data + sizeof(macs), sizeof(tag));
		if ((tag[0] != bpf_htons(ETH_P_8021Q) && tag[0] != bpf_htons(ETH_P_8021AD)) ||
		    tag[1] & bpf_htons(VLAN_ID))
			return;
		__builtin_memcpy(macs, data, sizeof(macs));
		if (bpf_xdp_adjust_head(ctx, sizeof(tag)))
			return;
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		if (data + sizeof(macs) > end)
			return;
		__builtin_memcpy(data, macs, sizeof(macs));
	}
}

static __always_inline int is_sent_to(const struct source *from, const __u8 mac[ETH_ALEN])
{
	__u16 to[ETH_ALEN / 2], own[ETH_ALEN / 2];

	if (load(from, 0, to, sizeof(to)))
		return 0;
	__builtin_memcpy(own, mac, sizeof(own));
	return to[0] == own[0] && to[1] == own[1] && to[2] == own[2];
}

/*
 * A tag is taken out of the frame already, and one of VLAN 0 is none. Whose hardware address it has
 * the kernel has seen.
 */
static __always_inline int is_for_this_host(const struct __sk_buff *skb)
{
	return skb->pkt_type == PACKET_HOST && !(skb->vlan_present && skb->vlan_tci & VLAN_ID);
}

SEC("xdp")
int steer_xdp(struct xdp_md *ctx)
{
	struct source from = { .ctx = ctx, .kind = SOURCE_XDP };
	__u32 zero = 0, socket;
	struct settings *set;
	struct found found = {};
	int action;

	from.data = (void *)(long)ctx->data;
	from.data_end = (void *)(long)ctx->data_end;
	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return XDP_PASS;
	if (!is_sent_to(&from, set->mac)) {
		count(COUNT_PASSED);
		return XDP_PASS;
	}
	untag(ctx);
	from.data = (void *)(long)ctx->data;
	from.data_end = (void *)(long)ctx->data_end;
	switch (match(&from, &found)) {
	case OURS:
		break;
	case OUR_FRAGMENT:
		count(COUNT_FRAGMENTS);
		return XDP_PASS;
	case OUR_FIRST_FRAGMENT:
		count(COUNT_FRAGMENTS);
		return XDP_DROP;
	default:
		count(COUNT_PASSED);
		return XDP_PASS;
	}
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

	if (!is_for_this_host(skb)) {
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
	case OUR_FIRST_FRAGMENT:
		count(COUNT_FRAGMENTS);
		return TC_ACT_SHOT;
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
	return is_for_this_host(skb) && match(&from, &found) == OURS ? -1 : 0;
}

char LICENSE[] SEC("license") = "Apache-2.0";
