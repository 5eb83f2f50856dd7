/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The client's end in place of the dataplane's, packet by packet (docs/adoption-wire.md, The client
 * block): reads the block of a SYN, and writes the end that restore.h chose into what enters and
 * leaves the pod, ICMP errors included. Owns which packets these are; never the choice, nor the
 * messages (adopter.bpf.c).
 */
#ifndef BATON_CLIENT_H
#define BATON_CLIENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "kernel.h"
#include "readdress.h"
#include "restore.h"
#include "rules.h"
#include "tables.h"
#include "wire.h"

/* linux/icmp.h and linux/icmpv6.h: errors, which quote a packet. */
#define ICMP_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_BAD_HEADER 12
#define ICMPV6_ERRORS_END 5	/* 1 to 4 */
#define ICMP_BYTES 8
#define ICMP_CHECKSUM_AT 2

/* The extensions of IPv6 that may be in front of a segment; the kernel takes any number. */
#define EXTENSIONS_MAX 8
#define EXT_HOP_BY_HOP 0
#define EXT_ROUTING 43
#define EXT_FRAGMENT 44
#define EXT_AUTHENTICATION 51
#define EXT_DESTINATION 60

#define FRAGMENT_OFFSET 0x1fff
#define MORE_FRAGMENTS 0x2000

/*
 * Where a packet's transport header is, and of which protocol; 0 if there is none. One is on the
 * stack of each program's first function, and what that calls has a pointer to it. Linux 7.2
 * computes which slots of its callers' stacks a function reads (`kernel/bpf/liveness.c`), counting
 * calls from the outermost function that hands on such a pointer. Where that was greet() or
 * handle(), whose own callees came to choose() by one call and by two, it took the one chain's
 * slots for the other's, and refused the program ("slot poisoned by dead code elimination").
 */
struct transport {
	__u16 at;
	__u8 protocol;
	__u8 fragment;
};

/*
 * Where the packet's transport header is, and of what. Nonzero: behind too many extensions, or
 * tags.
 */
static __noinline int transport_of(struct __sk_buff *skb, struct transport *of)
{
	__u8 head[2];
	__u32 at;

	if (!of)
		return 0;
	of->protocol = 0;
	of->fragment = 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u8 ip[IPV4_PROTOCOL_AT + 1];
		__u16 fragment;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return 0;
		fragment = ip[6] << 8 | ip[7];
		if (fragment & FRAGMENT_OFFSET)
			return 0;
		of->fragment = !!(fragment & MORE_FRAGMENTS);
		of->at = ETH_HLEN + (ip[0] & 0x0f) * 4;
		of->protocol = ip[IPV4_PROTOCOL_AT];
		return 0;
	}
	/* Behind a tag of VLAN 0: the kernel takes out both, this one behind these programs. */
	if (skb->protocol == bpf_htons(ETH_P_8021Q) || skb->protocol == bpf_htons(ETH_P_8021AD))
		return 1;
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_NEXT_HEADER_AT, head, 1))
		return 0;
	at = ETH_HLEN + IPV6_BYTES;
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 next = head[0];
		__be16 fragment;

		if (next != EXT_HOP_BY_HOP && next != EXT_ROUTING && next != EXT_FRAGMENT && next != EXT_AUTHENTICATION &&
		    next != EXT_DESTINATION) {
			of->at = at;
			of->protocol = next;
			return 0;
		}
		if (bpf_skb_load_bytes(skb, at, head, sizeof(head)))
			return 0;
		if (next == EXT_FRAGMENT) {
			if (bpf_skb_load_bytes(skb, at + 2, &fragment, sizeof(fragment)) || fragment & bpf_htons(0xfff8))
				return 0;
			of->fragment |= !!(fragment & bpf_htons(1));
			at += 8;
		} else if (next == EXT_AUTHENTICATION) {
			at += (head[1] + 2) * 4;
		} else {
			at += (head[1] + 1) * 8;
		}
	}
	return -1;
}

/* The ends of a packet of the pod's namespace; 0 if they are not there. */
static __always_inline int ends_of(struct __sk_buff *skb, __u32 at, struct restored_key *key, enum side remote)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);
	__be16 ports[2];

	if (bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return 0;
	key->remote_port = ports[remote];
	key->local_port = ports[!remote];
	key->netns = kernel_skb->dev->nd_net.net->net_cookie;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u32 addresses[2];

		if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV4_ADDRESSES_AT, addresses, sizeof(addresses)))
			return 0;
		key->remote[10] = key->remote[11] = key->local[10] = key->local[11] = 0xff;
		__builtin_memcpy(key->remote + 12, &addresses[remote], 4);
		__builtin_memcpy(key->local + 12, &addresses[!remote], 4);
		return 1;
	}
	return !bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_ADDRESSES_AT + 16 * remote, key->remote, 16) &&
	       !bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_ADDRESSES_AT + 16 * !remote, key->local, 16);
}

/*
 * Reads the block behind a header, whose addresses, ports and sequence number are in `t`, which is
 * of no use afterwards. 0: it is to be dropped.
 */
static __noinline int client_of(struct __sk_buff *skb, __u32 block_at, struct tagged *t, __u64 netns, struct end *client)
{
	const struct namespace *here;
	struct client_block block;
	struct key_slot *slot;
	__u32 epoch;

	if (!t || !client || bpf_skb_load_bytes(skb, block_at, &block, sizeof(block)))
		return 0;
	epoch = block.epoch >> 4;
	if (block.exid != bpf_htons(EXID_CLIENT) || block.zero || block.epoch & 0x0f || block.zeroes ||
	    !is_mapped(block.address) != !is_mapped(t->daddr))
		return 0;
	slot = bpf_map_lookup_elem(&keys, &epoch);
	here = bpf_map_lookup_elem(&namespaces, &netns);
	if (!slot || !slot->live || !here || block.namespace != here->number)
		return 0;
	t->exid = block.exid;
	t->mss = block.port;
	t->scales = 0;
	t->flags = block.epoch;
	t->window = 0;
	t->namespace = block.namespace;
	__builtin_memcpy(&t->ack, block.address, 4);
	__builtin_memcpy(&t->server_timestamp, block.address + 4, 4);
	__builtin_memcpy(&t->tsval, block.address + 8, 4);
	__builtin_memcpy(&t->tsecr, block.address + 12, 4);
	__builtin_memcpy(client->address, block.address, 16);
	client->port = block.port;
	return baton_tag_of(t, slot) == block.tag;
}

static __always_inline __u32 header_bytes_of(struct __sk_buff *skb, __u32 tcp_at)
{
	__u8 data_offset;

	return bpf_skb_load_bytes(skb, tcp_at + TCP_DATA_OFFSET_AT, &data_offset, 1) ? 0 : (data_offset >> 4) * 4;
}

/* A SYN with a client block for its payload: 0 if it is none. */
static __noinline int has_block(struct __sk_buff *skb, __u32 tcp_at)
{
	__u32 header_bytes = header_bytes_of(skb, tcp_at);
	__be16 length, exid;

	if (header_bytes < TCP_HEADER_MIN)
		return 0;
	if (tcp_at == ETH_HLEN + IPV4_BYTES) {
		__be16 ip[5];

		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return 0;
		/* A whole datagram without options. */
		if ((bpf_ntohs(ip[0]) >> 8) != IPV4_NO_OPTIONS || ip[3] & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET) ||
		    (bpf_ntohs(ip[4]) & 0xff) != IPPROTO_TCP)
			return 0;
		length = ip[IPV4_LENGTH_WORD];
		header_bytes += IPV4_BYTES;
	} else {
		__u8 next;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_NEXT_HEADER_AT, &next, 1) || next != IPPROTO_TCP ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_LENGTH_AT, &length, sizeof(length)))
			return 0;
	}
	if (length != bpf_htons(header_bytes + CLIENT_BLOCK_BYTES))
		return 0;
	if (tcp_at == ETH_HLEN + IPV4_BYTES)
		header_bytes -= IPV4_BYTES;
	return !bpf_skb_load_bytes(skb, tcp_at + header_bytes, &exid, sizeof(exid)) && exid == bpf_htons(EXID_CLIENT);
}

/* What `struct tagged` begins with. */
static __noinline int begin_tagged(struct __sk_buff *skb, __u32 tcp_at, struct tagged *t)
{
	struct restored_key key = {};

	if (!t || !ends_of(skb, tcp_at, &key, SOURCE))
		return 0;
	__builtin_memcpy(t, &key, ENDS_BYTES);
	return !bpf_skb_load_bytes(skb, tcp_at + 4, &t->seq, sizeof(t->seq));
}

/* A SYN that has_block(). */
static __noinline int greet(struct __sk_buff *skb, __u32 tcp_at, const struct transport *of)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);
	__u64 netns = kernel_skb->dev->nd_net.net->net_cookie;
	struct tagged t = {};
	struct end client = {};
	enum choice choice;
	__u32 header_bytes = header_bytes_of(skb, tcp_at);
	int sum, block;

	if (!of || header_bytes < TCP_HEADER_MIN || header_bytes > MESSAGE_BYTES || !begin_tagged(skb, tcp_at, &t))
		return TC_ACT_SHOT;
	sum = sum_of(skb, tcp_at, header_bytes + CLIENT_BLOCK_BYTES);
	block = sum_of(skb, tcp_at + header_bytes, CLIENT_BLOCK_BYTES);
	if (sum < 0 || block < 0)
		return TC_ACT_SHOT;
	if (!is_verified(kernel_skb)) {
		/* The mapped prefixes of IPv4 addresses are 0xffff, nothing in this arithmetic. */
		sum = sum_words(t.saddr, 32, sum + bpf_htons(IPPROTO_TCP) + bpf_htons(header_bytes + CLIENT_BLOCK_BYTES));
		if (fold(sum) != 0xffff) {
			count(netns, BAD_CHECKSUM);
			return TC_ACT_SHOT;
		}
	}
	if (!client_of(skb, tcp_at + header_bytes, &t, netns, &client)) {
		count(netns, CLIENT_BAD);
		return TC_ACT_SHOT;
	}
	choice = choose(skb, (const struct ends *)&t, &client, 0, &client);
	if (choice == REFUSED)
		return TC_ACT_SHOT;
	if (take_off(skb, tcp_at, header_bytes, block) ||
	    (choice == SHOWN && readdress_source(skb, tcp_at, &client))) {
		count(netns, ANSWER_LOST);
		return TC_ACT_SHOT;
	}
	return PASS_ON;
}

/* An ICMP error about a packet that the pod sent to a leg: about one to the client, then. */
static __noinline int quote(struct __sk_buff *skb, __u32 at, struct restored_key *key)
{
	const struct restored *found;
	__u32 quoted = at + ICMP_BYTES, tcp_at, delta;
	__be16 ports[2];
	__u16 checksum;
	__u8 type;

	if (!key || bpf_skb_load_bytes(skb, at, &type, 1) ||
	    bpf_skb_load_bytes(skb, at + ICMP_CHECKSUM_AT, &checksum, sizeof(checksum)))
		return PASS_ON;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u8 ip[IPV4_BYTES] __attribute__((aligned(4)));

		if (type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_BAD_HEADER)
			return PASS_ON;
		if (bpf_skb_load_bytes(skb, quoted, ip, sizeof(ip)) || ip[IPV4_PROTOCOL_AT] != IPPROTO_TCP ||
		    (ip[6] & 0x1f) || ip[7])
			return PASS_ON;
		key->remote[10] = key->remote[11] = key->local[10] = key->local[11] = 0xff;
		__builtin_memcpy(key->local + 12, ip + IPV4_ADDRESSES_AT, 4);
		__builtin_memcpy(key->remote + 12, ip + IPV4_ADDRESSES_AT + 4, 4);
		tcp_at = quoted + (ip[0] & 0x0f) * 4;
	} else {
		__u8 next;

		if (!type || type >= ICMPV6_ERRORS_END || bpf_skb_load_bytes(skb, quoted + IPV6_NEXT_HEADER_AT, &next, 1) ||
		    next != IPPROTO_TCP || bpf_skb_load_bytes(skb, quoted + IPV6_ADDRESSES_AT, key->local, 16) ||
		    bpf_skb_load_bytes(skb, quoted + IPV6_ADDRESSES_AT + 16, key->remote, 16))
			return PASS_ON;
		tcp_at = quoted + IPV6_BYTES;
	}
	if (bpf_skb_load_bytes(skb, tcp_at, ports, sizeof(ports)))
		return PASS_ON;
	key->local_port = ports[0];
	key->remote_port = ports[1];
	key->by = BY_CLIENT;
	if (bpf_map_lookup_elem(&restored, key)) {
		count(key->netns, CLIENT_SPOOFED);
		return TC_ACT_SHOT;
	}
	key->by = BY_LEG;
	found = bpf_map_lookup_elem(&restored, key);
	if (!found)
		return PASS_ON;
	struct end shown = found->other;

	delta = change(&key->remote_port, &shown.port, 2);
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u16 before, after;
		__u32 address = change(key->remote + 12, shown.address + 12, 4);

		if (bpf_skb_load_bytes(skb, quoted + IPV4_CHECKSUM_AT, &before, sizeof(before)))
			return TC_ACT_SHOT;
		after = adjusted(before, address, 0, 0);
		delta += address + change(&before, &after, 2);
		if (put(skb, quoted + IPV4_CHECKSUM_AT, &after, sizeof(after)) ||
		    put(skb, quoted + IPV4_ADDRESSES_AT + 4, shown.address + 12, 4))
			return TC_ACT_SHOT;
	} else {
		delta += change(key->remote, shown.address, 16);
		if (put(skb, quoted + IPV6_ADDRESSES_AT + 16, shown.address, 16))
			return TC_ACT_SHOT;
	}
	/* A device that is to complete it sums all that is behind its start: nothing to do then. */
	checksum = adjusted(checksum, 0, delta, is_partial(skb));
	if (put(skb, tcp_at + 2, &shown.port, 2) || put(skb, at + ICMP_CHECKSUM_AT, &checksum, sizeof(checksum)))
		return TC_ACT_SHOT;
	return PASS_ON;
}

/* Whatever enters a pod that is no message and has no block, once any leg is remembered. */
static __noinline int arrive(struct __sk_buff *skb, struct transport *of)
{
	struct restored_key key = {};
	const struct restored *found;
	struct end shown = {};
	__u8 flags;

	if (!of || is_of_vlan(skb) || skb->pkt_type != 0)
		return PASS_ON;
	if (transport_of(skb, of)) {
		/* Nobody sends such a thing, but to get past this. */
		const struct sk_buff *kernel_skb = kernel_of(skb);

		count(kernel_skb->dev->nd_net.net->net_cookie, CLIENT_SPOOFED);
		return TC_ACT_SHOT;
	}
	if (of->protocol == IPPROTO_ICMP || of->protocol == IPPROTO_ICMPV6) {
		const struct sk_buff *kernel_skb = kernel_of(skb);

		key.netns = kernel_skb->dev->nd_net.net->net_cookie;
		return of->fragment ? PASS_ON : quote(skb, of->at, &key);
	}
	if (of->protocol != IPPROTO_TCP || !ends_of(skb, of->at, &key, SOURCE))
		return PASS_ON;
	key.by = BY_LEG;
	found = bpf_map_lookup_elem(&restored, &key);
	if (!found) {
		key.by = BY_CLIENT;
		if (!bpf_map_lookup_elem(&restored, &key))
			return PASS_ON;
		/* The client itself, past the dataplane, on a pair whose leg has ended. */
		if (!of->fragment && !bpf_skb_load_bytes(skb, of->at + TCP_FLAGS_AT, &flags, 1) &&
		    (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
			int free = is_free(&key, (const struct ends *)&key, on_pair(skb, &key), 1);

			if (free & GAVE_WAY)
				has_more(key.netns, -1);
			if (free & FREE)
				return PASS_ON;
		}
		count(key.netns, CLIENT_SPOOFED);
		return TC_ACT_SHOT;
	}
	/* No dataplane sends these; a part without its ports would not be led on. */
	if (of->fragment || bpf_skb_load_bytes(skb, of->at + TCP_FLAGS_AT, &flags, 1))
		return PASS_ON;
	shown = found->other;
	if ((flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
		switch (choose(skb, (const struct ends *)&key, NULL, 0, &shown)) {
		case HIDDEN:
			return PASS_ON;
		case REFUSED:
			return TC_ACT_SHOT;
		default:
			break;
		}
	}
	return readdress_source(skb, of->at, &shown) ? TC_ACT_SHOT : PASS_ON;
}

/*
 * Whatever leaves a pod, once any leg is remembered: what is for a client's pair goes to its leg.
 * The next hop is the leg's, not the client's, which may be a neighbour. It passes here again, with
 * the leg's address, which is no client's.
 */
static __noinline int depart(struct __sk_buff *skb, struct transport *of)
{
	struct restored_key key = { .by = BY_CLIENT };
	const struct restored *found;
	struct end leg;

	if (!of || transport_of(skb, of) || of->protocol != IPPROTO_TCP || of->fragment || !ends_of(skb, of->at, &key, DESTINATION))
		return PASS_ON;
	found = bpf_map_lookup_elem(&restored, &key);
	if (!found)
		return PASS_ON;
	leg = found->other;
	if (readdress_destination(skb, of->at, &leg))
		return TC_ACT_SHOT;
	return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
}

/* The leg of a socket's pair, where one stands for it. */
static __noinline int lead_back(struct adoption *name)
{
	struct restored_key key = { .by = BY_CLIENT };
	const struct restored *found;

	if (!name || !is_restoring())
		return 0;
	__builtin_memcpy(&key, name, ENDS_BYTES);
	key.netns = name->netns;
	found = bpf_map_lookup_elem(&restored, &key);
	if (found) {
		__builtin_memcpy(name->saddr, found->other.address, 16);
		name->source = found->other.port;
	}
	return 0;
}

/*
 * What the pod sees of the leg of an Adopt, with a right block, which is off already, of that
 * client or (NULL) without one: into the packet and into `shown`, which may be the same. Nonzero:
 * it is to be dropped.
 */
static __noinline int adopt_as(struct __sk_buff *skb, __u32 tcp_at, const struct tagged *t, const struct end *client,
			       struct end *shown)
{
	enum choice choice = HIDDEN;

	if (!t || !shown)
		return 1;
	if (client || is_restoring())
		choice = choose(skb, (const struct ends *)t, client, 1, shown);
	if (choice == REFUSED)
		return 1;
	if (choice == SHOWN) {
		const struct sk_buff *kernel_skb = kernel_of(skb);

		if (!readdress_source(skb, tcp_at, shown))
			return 0;
		count(kernel_skb->dev->nd_net.net->net_cookie, ANSWER_LOST);
		return 1;
	}
	__builtin_memcpy(shown->address, t->saddr, 16);
	shown->port = t->source;
	return 0;
}

/* A Forget was answered. */
static __noinline int forget_leg_of(const struct tagged *t, __u64 netns, const struct end *shown)
{
	struct restored_key leg = { .netns = netns };

	if (!t)
		return 0;
	__builtin_memcpy(&leg, t, ENDS_BYTES);
	return forget_leg(&leg, shown);
}

/* Whether the leg that a message is about is remembered. */
static __noinline int is_leg(const struct tagged *t, __u64 netns)
{
	struct restored_key key = { .by = BY_LEG, .netns = netns };

	if (!t || !is_restoring())
		return 0;
	__builtin_memcpy(&key, t, ENDS_BYTES);
	return bpf_map_lookup_elem(&restored, &key) != NULL;
}

/* What the pod sees of a leg that a message is about; the leg's own end if it is not remembered. */
static __noinline int look_up_leg(const struct tagged *t, __u64 netns, struct end *shown)
{
	struct restored_key key = { .by = BY_LEG, .netns = netns };
	const struct restored *found;

	if (!t || !shown)
		return 0;
	__builtin_memcpy(&key, t, ENDS_BYTES);
	found = is_restoring() ? bpf_map_lookup_elem(&restored, &key) : NULL;
	if (found) {
		*shown = found->other;
		return 1;
	}
	__builtin_memcpy(shown->address, t->saddr, 16);
	shown->port = t->source;
	return 0;
}

#endif
