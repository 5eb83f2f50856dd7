/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reads a message's segment: its addresses, its checksum, what its tag covers, and the socket that
 * it is about. Owns the reading; never decides anything.
 */
#ifndef BATON_SEGMENT_H
#define BATON_SEGMENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "kernel.h"
#include "readdress.h"
#include "wire.h"

/* What is on the pair of a message's pod end and another one. */
static __noinline struct bpf_sock *find(struct __sk_buff *skb, const struct tagged *t, const struct end *remote,
					     __be16 source, __u32 tcp_at)
{
	struct bpf_sock_tuple tuple = {};

	if (!t || !remote)
		return NULL;
	if (tcp_at == ETH_HLEN + IPV4_BYTES) {
		__builtin_memcpy(&tuple.ipv4.saddr, remote->address + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, t->daddr + 12, 4);
		tuple.ipv4.sport = source;
		tuple.ipv4.dport = t->dest;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, remote->address, 16);
	__builtin_memcpy(tuple.ipv6.daddr, t->daddr, 16);
	tuple.ipv6.sport = source;
	tuple.ipv6.dport = t->dest;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

static __always_inline int payload_of(__be16 length, __u32 headers)
{
	if (length == bpf_htons(headers))
		return 0;
	return length == bpf_htons(headers + CLIENT_BLOCK_BYTES) ? CLIENT_BLOCK_BYTES : -1;
}

/*
 * Fills the addresses. How long the payload of a message is, by the IP header: none or a client
 * block's; negative if the segment is not one whole message.
 */
static __noinline int addresses(struct __sk_buff *skb, __u32 tcp_at, struct tagged *t)
{
	if (!t)
		return -1;
	if (tcp_at == ETH_HLEN + IPV4_BYTES) {
		__be16 ip[IPV4_BYTES / 2];

		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return -1;
		t->saddr[10] = t->saddr[11] = t->daddr[10] = t->daddr[11] = 0xff;
		__builtin_memcpy(t->saddr + 12, ip + IPV4_ADDRESSES_AT / 2, 4);
		__builtin_memcpy(t->daddr + 12, ip + IPV4_ADDRESSES_AT / 2 + 2, 4);
		return payload_of(ip[IPV4_LENGTH_WORD], IPV4_BYTES + MESSAGE_BYTES);
	}
	__be16 length;

	if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_ADDRESSES_AT, t->saddr, 32) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_LENGTH_AT, &length, 2))
		return -1;
	return payload_of(length, MESSAGE_BYTES);
}

/*
 * Whether the stack will take the segment's checksum for right, which it looks at only later: what
 * it then drops must not have been remembered or answered. Where it trusts the sender on the same
 * machine or the device, so must this. The mapped prefixes of IPv4 addresses are 0xffff, which is
 * nothing in this arithmetic.
 */
static __noinline int sum_is_right(const struct sk_buff *kernel_skb, const struct message *m, const struct tagged *t, int block,
				   int payload)
{
	__u32 sum;

	if (block < 0)
		return 0;
	if (is_verified(kernel_skb))
		return 1;
	sum = sum_words(t->saddr, 32, bpf_htons(IPPROTO_TCP) + bpf_htons(MESSAGE_BYTES + payload) + block);
	return fold(sum_words(m, MESSAGE_BYTES, sum)) == 0xffff;
}

static __always_inline __be32 behind_block(__be32 seq)
{
	return bpf_htonl(bpf_ntohl(seq) + CLIENT_BLOCK_BYTES);
}

/*
 * An Adopt with a client block begins so many bytes in front of the number that it is about: puts
 * that one in its place. Not 0 without memory.
 */
static __noinline int begin_behind(struct __sk_buff *skb, __u32 tcp_at, __be32 seq)
{
	__be32 about = behind_block(seq);

	/* Leaves a checksum that the device completes (CHECKSUM_PARTIAL) alone. */
	if (bpf_l4_csum_replace(skb, tcp_at + TCP_CHECKSUM_AT, seq, about, sizeof(about)) ||
	    bpf_skb_store_bytes(skb, tcp_at + TCP_SEQ_AT, &about, sizeof(about), 0))
		return -1;
	return 0;
}

/* What the tag covers besides the addresses. */
static __always_inline void fill(struct tagged *t, const struct message *m)
{
	t->source = m->source;
	t->dest = m->dest;
	t->seq = m->seq;
	t->ack = m->ack;
	t->exid = m->exid;
	t->mss = m->mss;
	t->scales = m->scales;
	t->flags = m->flags;
	t->window = m->window;
	t->server_timestamp = m->server_timestamp;
	t->tsval = m->tsval;
	t->tsecr = m->tsecr;
	t->namespace = m->namespace;
}

#endif
