/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Writes another end into a packet, and takes the client block off one. Owns the bytes and their
 * checksums; never which end it shall be (restore.h).
 *
 * Decisions:
 * - Checksums are computed here and stored as bytes, not by bpf_l4_csum_replace(): where a device
 *   has summed the packet (CHECKSUM_COMPLETE) that helper is wrong about the pseudo-header of IPv6
 *   before Linux 6.16, and needs a flag after it. bpf_skb_store_bytes() keeps the device's sum
 *   right whatever the bytes are.
 */
#ifndef BATON_READDRESS_H
#define BATON_READDRESS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "kernel.h"
#include "wire.h"

/* A TCP header and a client block behind it. */
#define SEGMENT_BYTES_MAX (MESSAGE_BYTES + CLIENT_BLOCK_BYTES)
#define TCP_HEADER_MIN 20
/* Of a TCP header, as far as the checksum; in words of 16 bits. */
#define TCP_FRONT_WORDS 9
#define TCP_CHECKSUM_WORD 8
/* In words of an IPv4 header. */
#define IPV4_LENGTH_WORD 1
#define IPV4_CHECKSUM_WORD 5

enum side {
	SOURCE = 0,
	DESTINATION = 1,
};

/* One end of a connection. IPv4 addresses are mapped. */
struct end {
	__u8 address[16];
	__be16 port;
} __attribute__((aligned(8)));

/* What a sum of words changes by when these bytes are replaced. */
static __always_inline __u32 change(const void *from, const void *to, int bytes)
{
	const __u16 *old = from, *new = to;
	__u32 sum = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < bytes / 2; i++)
		sum += (__u16)~old[i] + new[i];
	return sum;
}

/*
 * A checksum field after its pseudo-header and what else it covers have changed by so much. In
 * front of a device that completes it, it holds the pseudo-header's sum as it is.
 */
static __always_inline __u16 adjusted(__u16 field, __u32 pseudo, __u32 rest, int partial)
{
	if (partial)
		return fold(field + pseudo);
	return ~fold((__u16)~field + pseudo + rest);
}

static __always_inline int is_partial(struct __sk_buff *skb)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);

	return BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed) == CHECKSUM_PARTIAL;
}

/* The stack takes its checksum for right, as a sender on the same machine or a device said so. */
static __always_inline int is_verified(const struct sk_buff *kernel_skb)
{
	__u32 summed = BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed);

	return summed == CHECKSUM_PARTIAL || summed == CHECKSUM_UNNECESSARY;
}

static __always_inline int put(struct __sk_buff *skb, __u32 at, const void *bytes, __u32 count)
{
	return bpf_skb_store_bytes(skb, at, bytes, count, BPF_F_RECOMPUTE_CSUM);
}

/* The sum of so many bytes; negative if they are not there. */
static __noinline int sum_of(struct __sk_buff *skb, __u32 at, __u32 count)
{
	__u16 words[SEGMENT_BYTES_MAX / 2] = {};

	if (count < TCP_HEADER_MIN || count > SEGMENT_BYTES_MAX)
		return -1;
	if (bpf_skb_load_bytes(skb, at, words, count))
		return -1;
	return fold(sum_words(words, sizeof(words), 0));
}

static __always_inline int readdress(struct __sk_buff *skb, __u32 tcp_at, enum side side, const struct end *to)
{
	__u16 tcp[TCP_FRONT_WORDS];
	__u32 pseudo;

	if (bpf_skb_load_bytes(skb, tcp_at, tcp, sizeof(tcp)))
		return -1;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		/* The header's checksum and both addresses. */
		__u16 ip[5];
		__u16 *address = ip + 1 + 2 * side;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV4_CHECKSUM_AT, ip, sizeof(ip)))
			return -1;
		pseudo = change(address, to->address + 12, 4);
		ip[0] = adjusted(ip[0], pseudo, 0, 0);
		__builtin_memcpy(address, to->address + 12, 4);
		if (put(skb, ETH_HLEN + IPV4_CHECKSUM_AT, ip, sizeof(ip)))
			return -1;
	} else {
		__u32 at = ETH_HLEN + IPV6_ADDRESSES_AT + 16 * side;
		__u16 address[8];

		if (bpf_skb_load_bytes(skb, at, address, sizeof(address)))
			return -1;
		pseudo = change(address, to->address, 16);
		if (put(skb, at, to->address, 16))
			return -1;
	}
	tcp[TCP_CHECKSUM_WORD] = adjusted(tcp[TCP_CHECKSUM_WORD], pseudo, change(&tcp[side], &to->port, 2), is_partial(skb));
	tcp[side] = to->port;
	return put(skb, tcp_at, tcp, sizeof(tcp)) ? -1 : 0;
}

/* -1: no memory. Part of it may be done: the packet is to be dropped. */
static __noinline int readdress_source(struct __sk_buff *skb, __u32 tcp_at, const struct end *to)
{
	return to ? readdress(skb, tcp_at, SOURCE, to) : -1;
}

/* As readdress_source(). */
static __noinline int readdress_destination(struct __sk_buff *skb, __u32 tcp_at, const struct end *to)
{
	return to ? readdress(skb, tcp_at, DESTINATION, to) : -1;
}

/*
 * Takes the client block, of the sum `block`, off a segment whose payload it is. Its IP header has
 * no options and no extensions. As readdress_source().
 */
static __noinline int take_off(struct __sk_buff *skb, __u32 tcp_at, __u32 header_bytes, __u32 block)
{
	__be16 before = bpf_htons(header_bytes + CLIENT_BLOCK_BYTES), after = bpf_htons(header_bytes);
	__u16 checksum;

	if (bpf_skb_change_tail(skb, tcp_at + header_bytes, 0))
		return -1;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u16 ip[IPV4_CHECKSUM_WORD + 1];
		__be16 length = bpf_htons(IPV4_BYTES + header_bytes);

		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return -1;
		ip[IPV4_CHECKSUM_WORD] = adjusted(ip[IPV4_CHECKSUM_WORD], change(&ip[IPV4_LENGTH_WORD], &length, 2), 0, 0);
		ip[IPV4_LENGTH_WORD] = length;
		if (put(skb, ETH_HLEN, ip, sizeof(ip)))
			return -1;
	} else if (put(skb, ETH_HLEN + IPV6_LENGTH_AT, &after, sizeof(after))) {
		return -1;
	}
	if (bpf_skb_load_bytes(skb, tcp_at + 2 * TCP_CHECKSUM_WORD, &checksum, sizeof(checksum)))
		return -1;
	checksum = adjusted(checksum, change(&before, &after, 2), (__u16)~block, is_partial(skb));
	return put(skb, tcp_at + 2 * TCP_CHECKSUM_WORD, &checksum, sizeof(checksum)) ? -1 : 0;
}

#endif
