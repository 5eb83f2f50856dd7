// SPDX-License-Identifier: Apache-2.0
/*
 * What comes to the dataplane through the host's own stack, on a node's network: by other
 * interfaces than the one that it serves, after routing, netfilter and the translation of Services.
 * Uses the maps of steer.bpf.c, so that both always match the same.
 *
 * filter_host   a raw socket gets a copy of ours only.
 * filter_errors the same of ICMP errors about what left by the host's stack.
 * silence_host  sk_lookup: ours meet a listener that drops all, so that the kernel's TCP never
 *               answers with a reset.
 * drop_host     that listener's filter.
 */
#include "match.h"

/* Index of each family's listener in `silent`; src/host.rs has the same. */
enum silent_family { SILENT_V4, SILENT_V6, SILENT_FAMILIES };

/*
 * Peers with segment sizes at a time: as many as flows by default (65,536). One that is pushed out
 * is noted again.
 */
#define SEGMENT_SIZES_MAX 65536

struct peer {
	struct address address;
	__be16 source;
	__be16 destination;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, SILENT_FAMILIES);
	__type(key, __u32);
	__type(value, __u64);
} silent SEC(".maps");

/*
 * A raw socket hands over packets that hold several segments without their size. A sender's is the
 * same for as long as it lives.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SEGMENT_SIZES_MAX);
	__type(key, struct peer);
	__type(value, __u32);
} segment_sizes SEC(".maps");

SEC("socket")
int filter_host(struct __sk_buff *skb)
{
	struct source from = { .ctx = skb, .kind = SOURCE_NET };
	struct peer peer = {};
	struct layer3 outer;
	__be16 ports[2];
	__u32 bytes;
	__u8 first;

	if (load(&from, 0, &first, sizeof(first)) ||
	    (first >> 4 == 4 ? parse_v4(&from, 0, &outer) : parse_v6(&from, 0, &outer)))
		return 0;
	if (outer.protocol != IPPROTO_TCP || load(&from, outer.payload, ports, sizeof(ports)) ||
	    end_at(&outer.destination, &outer.source, ports) == END_NONE)
		return 0;
	bytes = skb->gso_size;
	if (bytes) {
		__u32 *known;

		peer.address = outer.source;
		peer.source = ports[0];
		peer.destination = ports[1];
		known = bpf_map_lookup_elem(&segment_sizes, &peer);
		if (!known || *known != bytes)
			bpf_map_update_elem(&segment_sizes, &peer, &bytes, BPF_ANY);
	}
	return -1;
}

/*
 * The kernel has no socket for these connections, so it tells nobody what it hears of them. Of
 * paths that take less than what was sent it makes such errors itself.
 */
SEC("socket")
int filter_errors(struct __sk_buff *skb)
{
	struct source from = { .ctx = skb, .kind = SOURCE_NET };
	struct found found = {};
	struct layer3 outer;
	int version;
	__u8 first;

	if (load(&from, 0, &first, sizeof(first)))
		return 0;
	version = first >> 4;
	if (version == 4 ? parse_v4(&from, 0, &outer) : parse_v6(&from, 0, &outer))
		return 0;
	return match_layer4(&from, &outer, version, &found) == OURS ? -1 : 0;
}

SEC("sk_lookup")
int silence_host(struct bpf_sk_lookup *ctx)
{
	struct address to = { .word = { 0, 0, bpf_htonl(0xffff), ctx->local_ip4 } };
	struct address from = { .word = { 0, 0, bpf_htonl(0xffff), ctx->remote_ip4 } };
	__be16 ports[2] = { ctx->remote_port, bpf_htons(ctx->local_port) };
	__u32 family = SILENT_V4;
	struct bpf_sock *socket;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	if (ctx->family != 2) {
		to.word[0] = ctx->local_ip6[0];
		to.word[1] = ctx->local_ip6[1];
		to.word[2] = ctx->local_ip6[2];
		to.word[3] = ctx->local_ip6[3];
		from.word[0] = ctx->remote_ip6[0];
		from.word[1] = ctx->remote_ip6[1];
		from.word[2] = ctx->remote_ip6[2];
		from.word[3] = ctx->remote_ip6[3];
		family = SILENT_V6;
	}
	if (end_at(&to, &from, ports) == END_NONE)
		return SK_PASS;
	socket = bpf_map_lookup_elem(&silent, &family);
	if (socket) {
		/* Of another family than the packet: left to the kernel. */
		bpf_sk_assign(ctx, socket, BPF_SK_LOOKUP_F_REPLACE);
		bpf_sk_release(socket);
	}
	return SK_PASS;
}

SEC("socket")
int drop_host(struct __sk_buff *skb)
{
	return 0;
}

char LICENSE[] SEC("license") = "Apache-2.0";
