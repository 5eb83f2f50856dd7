/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What belongs to the dataplane. Shared by all programs, so that they can never disagree. Reads
 * packets and maps; changes neither.
 */
#ifndef BATON_MATCH_H
#define BATON_MATCH_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* As many frontends as 1,024 policies with 16 each; each may have an address of its own. */
#define FRONTENDS_MAX 16384
#define OWN_ADDRESSES_MAX 1024
/* As many as a dataplane may be configured for (`limits.backends`). */
#define BACKENDS_MAX 4096
/* A change adds the new before it removes the old, so both must fit for a moment. */
#define ENTRIES_MAX (2 * (FRONTENDS_MAX + OWN_ADDRESSES_MAX))

/* The dataplane's own address: the leg port range applies. */
#define ADDRESS_OWN 1u
/* At least one frontend has this address. */
#define ADDRESS_FRONTEND 2u

/* Extension headers followed in one IPv6 packet; RFC 8200 names four that may precede TCP. */
#define EXTENSION_HEADERS_MAX 4
/*
 * Offsets beyond this are not followed: 14 + 40 + 4 extension headers of at most 2,048 bytes fit.
 */
#define OFFSET_MASK 0x3fff

#define ICMP4_UNREACHABLE 3
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_PARAMETER 12
#define ICMP6_UNREACHABLE 1
#define ICMP6_PARAMETER 4
#define ICMP_HEADER_BYTES 8

/* Indices of `counters`; src/steer.rs has the same order. */
enum counter {
	COUNT_TAKEN,      /* redirected into a socket, or silenced in packet mode */
	COUNT_PASSED,     /* not ours */
	COUNT_FRAGMENTS,  /* fragments for our addresses: passed, but for the first of our segments */
	COUNT_OVERSIZE,   /* ours, larger than a buffer, dropped */
	COUNT_NO_SOCKET,  /* ours, but no socket on that queue: passed */
	COUNTERS,
};

/*
 * The kernel would put the fragments of a segment together and reset the connection, which it does
 * not know: without the first one it cannot, and the others are nobody's.
 */
enum verdict { NOT_OURS, OURS, OUR_FRAGMENT, OUR_FIRST_FRAGMENT };

/* What an address and port are to the dataplane. The last two are values of `frontends`. */
enum end { END_NONE, END_LEG, END_FRONTEND, END_FRONTEND_BY_ADDRESS };

/* SOURCE_NET: offsets are from the network header on. */
enum source_kind { SOURCE_XDP, SOURCE_SKB, SOURCE_NET };

/* A packet to read from. `data` and `data_end` are for XDP only. */
struct source {
	void *ctx;
	void *data;
	void *data_end;
	enum source_kind kind;
};

/* IPv4 addresses are written ::ffff:a.b.c.d. */
struct address {
	__be32 word[4];
};

struct endpoint {
	struct address address;
	__be16 port;
	__u16 zero;
};

struct settings {
	/*
	 * Lowest leg port in the upper half, highest in the lower: one word, so that a change is
	 * never seen half done.
	 */
	__u32 ports;
	/* Frames larger than this do not fit a buffer. */
	__u32 frame_bytes_max;
	/* Not 0: only what comes from `backends` is a leg's. */
	__u32 known_backends;
	/* Threads that share the frames; at least 1. */
	__u32 workers;
	/* Leg ports of each of them, the last one's remainder included; at least 1. */
	__u32 ports_per_worker;
	/* Secret: or a client could choose its worker. */
	__u32 hash_seed;
	/* The interface's. */
	__u8 mac[ETH_ALEN];
	__u16 zero;
};

/* Which of our ends a packet belongs to, and to which peer. */
struct found {
	enum end end;
	struct address peer;
	__be16 peer_port;
	__be16 port;
};

struct layer3 {
	struct address source;
	struct address destination;
	__u32 payload;
	__u8 protocol;
	__u8 fragment;
	/* The one that has the ports. */
	__u8 is_first;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ENTRIES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint);
	__type(value, __u8);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ENTRIES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * BACKENDS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint);
	__type(value, __u8);
} backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		*value += 1;
}

static __always_inline int load(const struct source *from, __u32 offset, void *to, const __u32 bytes)
{
	if (from->kind == SOURCE_XDP) {
		void *start;

		/* The verifier must see the bound on the very register that is added. */
		asm volatile("%0 &= %1" : "+r"(offset) : "i"(OFFSET_MASK));
		start = from->data + offset;
		if (start + bytes > from->data_end)
			return -1;
		__builtin_memcpy(to, start, bytes);
		return 0;
	}
	if (from->kind == SOURCE_NET)
		return bpf_skb_load_bytes_relative(from->ctx, offset, to, bytes, BPF_HDR_START_NET);
	return bpf_skb_load_bytes(from->ctx, offset, to, bytes);
}

static __always_inline __u32 address_flags(const struct address *address)
{
	__u32 *flags = bpf_map_lookup_elem(&addresses, address);

	return flags ? *flags : 0;
}

/* The other end of a connection with this one. */
static __always_inline int is_backend(const struct settings *settings, const struct address *address, __be16 port)
{
	struct endpoint key = { .address = *address, .port = port };

	return !settings->known_backends || bpf_map_lookup_elem(&backends, &key);
}

/* `ports`: the peer's and ours. */
static __always_inline enum end end_at(const struct address *address, const struct address *peer, const __be16 ports[2])
{
	__be16 port = ports[1];
	__u32 flags = address_flags(address);

	if (flags & ADDRESS_OWN) {
		__u32 zero = 0;
		struct settings *s = bpf_map_lookup_elem(&settings, &zero);

		if (s) {
			__u32 range = *(volatile __u32 *)&s->ports;
			__u32 host = bpf_ntohs(port);

			if (host >= range >> 16 && host <= (range & 0xffff) && is_backend(s, peer, ports[0]))
				return END_LEG;
		}
	}
	if (flags & ADDRESS_FRONTEND) {
		struct endpoint key = { .address = *address, .port = port };
		__u8 *how = bpf_map_lookup_elem(&frontends, &key);

		if (how)
			return *how == END_FRONTEND_BY_ADDRESS ? END_FRONTEND_BY_ADDRESS : END_FRONTEND;
	}
	return END_NONE;
}

static __always_inline enum verdict find(const struct address *address, const struct address *peer, const __be16 ports[2],
					 struct found *found)
{
	found->end = end_at(address, peer, ports);
	found->peer = *peer;
	found->peer_port = ports[0];
	found->port = ports[1];
	return found->end == END_NONE ? NOT_OURS : OURS;
}

/* The thread that has all packets of a flow's client, or of its leg. */
static __always_inline __u32 worker_of(const struct settings *settings, const struct found *found)
{
	__u32 workers = settings->workers, hash = settings->hash_seed;

	if (workers <= 1 || !settings->ports_per_worker)
		return 0;
	if (found->end == END_LEG) {
		__u32 low = *(volatile __u32 *)&settings->ports >> 16;
		__u32 worker = (bpf_ntohs(found->port) - low) / settings->ports_per_worker;

		return worker < workers ? worker : workers - 1;
	}
	for (int i = 0; i < 4; i++)
		hash = (hash ^ found->peer.word[i]) * 0x9e3779b1u ^ hash >> 15;
	if (found->end != END_FRONTEND_BY_ADDRESS)
		hash = (hash ^ found->peer_port) * 0x9e3779b1u ^ hash >> 15;
	/* The finalizer of MurmurHash3. */
	hash = (hash ^ hash >> 16) * 0x85ebca6bu;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
	hash ^= hash >> 16;
	return (__u64)hash * workers >> 32;
}

static __always_inline int parse_v4(const struct source *from, __u32 offset, struct layer3 *to)
{
	__u8 header[20];
	__u32 header_bytes;

	if (load(from, offset, header, sizeof(header)))
		return -1;
	header_bytes = (header[0] & 15) * 4;
	if (header[0] >> 4 != 4 || header_bytes < sizeof(header))
		return -1;
	to->source.word[0] = to->source.word[1] = 0;
	to->source.word[2] = bpf_htonl(0xffff);
	__builtin_memcpy(&to->source.word[3], header + 12, 4);
	to->destination.word[0] = to->destination.word[1] = 0;
	to->destination.word[2] = bpf_htonl(0xffff);
	__builtin_memcpy(&to->destination.word[3], header + 16, 4);
	to->payload = offset + header_bytes;
	to->protocol = header[9];
	/* More-fragments bit and the 13 bits of the offset. */
	to->fragment = (header[6] & 0x3f) || header[7];
	to->is_first = !(header[6] & 0x1f) && !header[7];
	return 0;
}

static __always_inline int parse_v6(const struct source *from, __u32 offset, struct layer3 *to)
{
	__u8 header[40];
	__u8 next;

	if (load(from, offset, header, sizeof(header)))
		return -1;
	if (header[0] >> 4 != 6)
		return -1;
	__builtin_memcpy(&to->source, header + 8, 16);
	__builtin_memcpy(&to->destination, header + 24, 16);
	next = header[6];
	offset += sizeof(header);
	to->fragment = to->is_first = 0;
#pragma unroll
	for (int i = 0; i < EXTENSION_HEADERS_MAX; i++) {
		__u8 extension[2];

		if (next == IPPROTO_FRAGMENT) {
			__u8 part[4];

			if (load(from, offset, part, sizeof(part)))
				return -1;
			to->fragment = 1;
			to->is_first = !part[2] && !(part[3] & 0xf8);
			next = part[0];
			offset += 8;
			break;
		}
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS && next != IPPROTO_AH)
			break;
		if (load(from, offset, extension, sizeof(extension)))
			return -1;
		/*
		 * The authentication header counts in words of 4 bytes, the others in units of 8.
		 */
		offset += next == IPPROTO_AH ? (extension[1] + 2) * 4 : (extension[1] + 1) * 8;
		next = extension[0];
	}
	to->payload = offset;
	to->protocol = next;
	return 0;
}

/* An ICMP error is ours if the packet that it quotes was sent by us. */
static __always_inline enum verdict match_quote(const struct source *from, __u32 offset, int version, struct found *found)
{
	struct layer3 inner;
	__be16 sent[2], ports[2];

	if (version == 4 ? parse_v4(from, offset, &inner) : parse_v6(from, offset, &inner))
		return NOT_OURS;
	if (inner.protocol != IPPROTO_TCP || inner.fragment)
		return NOT_OURS;
	if (load(from, inner.payload, sent, sizeof(sent)))
		return NOT_OURS;
	ports[0] = sent[1];
	ports[1] = sent[0];
	return find(&inner.source, &inner.destination, ports, found);
}

static __always_inline enum verdict match_layer4(const struct source *from, const struct layer3 *outer, int version,
						 struct found *found)
{
	__be16 ports[2];
	__u8 type;

	if (outer->fragment) {
		if (!address_flags(&outer->destination))
			return NOT_OURS;
		if (!outer->is_first || outer->protocol != IPPROTO_TCP ||
		    load(from, outer->payload, ports, sizeof(ports)) ||
		    find(&outer->destination, &outer->source, ports, found) != OURS)
			return OUR_FRAGMENT;
		return OUR_FIRST_FRAGMENT;
	}
	if (outer->protocol == IPPROTO_TCP) {
		if (load(from, outer->payload, ports, sizeof(ports)))
			return NOT_OURS;
		return find(&outer->destination, &outer->source, ports, found);
	}
	if (outer->protocol != (version == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return NOT_OURS;
	if (load(from, outer->payload, &type, sizeof(type)))
		return NOT_OURS;
	if (version == 4) {
		if (type != ICMP4_UNREACHABLE && type != ICMP4_TIME_EXCEEDED && type != ICMP4_PARAMETER)
			return NOT_OURS;
	} else if (type < ICMP6_UNREACHABLE || type > ICMP6_PARAMETER) {
		return NOT_OURS;
	}
	return match_quote(from, outer->payload + ICMP_HEADER_BYTES, version, found);
}

/* `found` holds something only if it is ours. */
static __always_inline enum verdict match(const struct source *from, struct found *found)
{
	struct layer3 outer;
	__be16 protocol;

	if (load(from, 12, &protocol, sizeof(protocol)))
		return NOT_OURS;
	/* A VLAN tag is another protocol number, so frames that have one are not ours. */
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (parse_v4(from, ETH_HLEN, &outer))
			return NOT_OURS;
		return match_layer4(from, &outer, 4, found);
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (parse_v6(from, ETH_HLEN, &outer))
			return NOT_OURS;
		return match_layer4(from, &outer, 6, found);
	}
	return NOT_OURS;
}

#endif
