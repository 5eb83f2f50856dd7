/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Turns a message into the Answer to it and sends it back. Owns addresses, checksums and the
 * Answer's tag.
 */
#ifndef BATON_ANSWER_H
#define BATON_ANSWER_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"
#include "siphash.h"
#include "tables.h"
#include "wire.h"

#define IPV4_TTL_AT 8
#define IPV4_CHECKSUM_AT 10
#define IPV4_ADDRESSES_AT 12
#define IPV6_HOP_LIMIT_AT 7
#define IPV6_ADDRESSES_AT 8
/* The default of net.ipv4.ip_default_ttl. */
#define ANSWER_TTL 64

static __always_inline __u32 sum_words(const void *bytes, int count, __u32 sum)
{
	const __u16 *words = bytes;

#pragma clang loop unroll(full)
	for (int i = 0; i < count / 2; i++)
		sum += words[i];
	return sum;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Not static, see baton_generation_of(); the verifier does not know that both are there. */
__noinline __be64 baton_tag_of(const struct tagged *t, const struct key_slot *slot)
{
	if (!t || !slot)
		return 0;
	return bpf_cpu_to_be64(siphash_2_4((const __u64 *)t, TAGGED_WORDS, slot->key));
}

/* `t` and `m` are the message that came; both are the Answer afterwards. */
static __always_inline void make_answer(struct message *m, struct tagged *t, __u32 reason,
					__be32 detail, __be64 namespace, const struct key_slot *slot)
{
	__u8 from[16];

	__builtin_memcpy(from, t->saddr, 16);
	__builtin_memcpy(t->saddr, t->daddr, 16);
	__builtin_memcpy(t->daddr, from, 16);
	t->source = m->dest;
	t->dest = m->source;
	t->seq = m->ack;
	t->ack = m->seq;
	/*
	 * As a kernel answers a SYN, so that connection trackers on the way take it for that; and
	 * the number that a Release or Transfer is about is the next one.
	 */
	if (m->exid == bpf_htons(EXID_FORGET) || m->exid == bpf_htons(EXID_RELEASE) ||
	    m->exid == bpf_htons(EXID_TRANSFER))
		t->ack = bpf_htonl(bpf_ntohl(m->seq) + 1);
	t->exid = bpf_htons(EXID_ANSWER);
	t->mss = bpf_htons(reason);
	t->scales = 0;
	t->flags = m->flags & 0xf0;
	t->window = 0;
	t->server_timestamp = detail;
	t->namespace = namespace;

	m->source = t->source;
	m->dest = t->dest;
	m->seq = t->seq;
	m->ack = t->ack;
	m->tcp_flags = TCP_RST_ACK;
	m->window = 0;
	m->exid = t->exid;
	m->mss = t->mss;
	m->scales = 0;
	m->flags = t->flags;
	m->server_timestamp = t->server_timestamp;
	m->namespace = namespace;
	m->tag = baton_tag_of(t, slot);
}

/*
 * Writes the Answer over the message and sends it out of the interface that it came in by. The
 * checksum field must hold what the skb promises: a message from a neighbour on the same machine
 * may still be CHECKSUM_PARTIAL, then the device adds the sum of the segment to the
 * pseudo-header's; else the field is complete. Returns a tc action, or -1 when memory for the write
 * is missing. Not inlined, see adopt().
 */
static __noinline int send_answer(struct __sk_buff *skb, __u32 tcp_at, struct message *m, const struct tagged *t)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);
	__u8 macs[2 * ETH_ALEN];
	__u8 ttl = ANSWER_TTL;
	long bad = 0;
	/*
	 * The pseudo-header's sum is the same for both versions: mapped prefixes are not part of
	 * it.
	 */
	__u32 pseudo = bpf_htons(IPPROTO_TCP) + bpf_htons(MESSAGE_BYTES);

	if (tcp_at == ETH_HLEN + IPV4_BYTES) {
		__u8 ip[IPV4_BYTES] __attribute__((aligned(4)));
		__u16 sum;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return -1;
		__builtin_memcpy(ip + IPV4_ADDRESSES_AT, t->saddr + 12, 4);
		__builtin_memcpy(ip + IPV4_ADDRESSES_AT + 4, t->daddr + 12, 4);
		ip[IPV4_TTL_AT] = ttl;
		ip[IPV4_CHECKSUM_AT] = 0;
		ip[IPV4_CHECKSUM_AT + 1] = 0;
		sum = ~fold(sum_words(ip, sizeof(ip), 0));
		__builtin_memcpy(ip + IPV4_CHECKSUM_AT, &sum, 2);
		pseudo = sum_words(ip + IPV4_ADDRESSES_AT, 8, pseudo);
		bad |= bpf_skb_store_bytes(skb, ETH_HLEN, ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
	} else {
		pseudo = sum_words(t->saddr, 32, pseudo);
		bad |= bpf_skb_store_bytes(skb, ETH_HLEN + IPV6_ADDRESSES_AT, t->saddr, 32, BPF_F_RECOMPUTE_CSUM);
		bad |= bpf_skb_store_bytes(skb, ETH_HLEN + IPV6_HOP_LIMIT_AT, &ttl, 1, BPF_F_RECOMPUTE_CSUM);
	}

	m->checksum = 0;
	if (BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed) == CHECKSUM_PARTIAL)
		m->checksum = fold(pseudo);
	else
		m->checksum = ~fold(sum_words(m, MESSAGE_BYTES, pseudo));
	bad |= bpf_skb_store_bytes(skb, tcp_at, m, MESSAGE_BYTES, BPF_F_RECOMPUTE_CSUM);

	/* The other way round. */
	bad |= bpf_skb_load_bytes(skb, 0, macs + ETH_ALEN, ETH_ALEN);
	bad |= bpf_skb_load_bytes(skb, ETH_ALEN, macs, ETH_ALEN);
	bad |= bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
	return bad ? -1 : bpf_redirect(skb->ifindex, 0);
}

#endif
