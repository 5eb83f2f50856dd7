/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Which client stands for which leg (docs/adoption-wire.md, The client block). Owns the table of
 * both directions, the choice of the port that a pod sees, and the end of legs that nobody uses.
 * Never writes to a packet (readdress.h), and never looks for a leg in one (client.h).
 *
 * Decisions:
 * - One table has both directions, so that one look says what a packet is: its source is a leg, or
 *   a client's pair. A pair is never both (choose()): what leaves the pod is led back once.
 * - A leg is forgotten by exact evidence. User space asks for each leg whether a socket is on the
 *   client's pair (baton_unused_leg, which looks as the stack does), and the leg goes when none was
 *   found for a minute. An iterator over the pod's sockets would say the same at the price of a
 *   pass over all of them, and another program.
 * - Who forgets a leg and who uses it again may meet: `gone_ns` changes by compare-and-swap only,
 *   and DYING is its last value.
 */
#ifndef BATON_RESTORE_H
#define BATON_RESTORE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "closer.h"
#include "kernel.h"
#include "readdress.h"
#include "rules.h"
#include "tables.h"
#include "wire.h"

/* Twice what one dataplane has of a node's pods as a rule. Two entries for each. */
#define LEGS_MAX 65536
#define RESTORED_MAX (2 * LEGS_MAX)
/*
 * A namespace has no more of them than so many times as many as are free, and so three quarters of
 * all: one pod's short connections leave those of others their addresses.
 */
#define TIMES_FREE 3
/* In `gone_ns`: the entry is being deleted. */
#define DYING (~0ULL)
#define EXISTS -17	/* -EEXIST */

enum by {
	BY_LEG = 1,	/* remote: what is on the wire; the other end: what the pod sees */
	BY_CLIENT = 2,	/* the other way round */
};

/* A pair of ends of a pod. As src/restored.rs has it. */
struct restored_key {
	__u8 remote[16];
	__u8 local[16];
	__be16 remote_port;
	__be16 local_port;
	__u32 by;
	__u64 netns;
};

/* What a key begins with, and `struct tagged`, of which the remote end is the dataplane's. */
struct ends {
	__u8 remote[16];
	__u8 local[16];
	__be16 remote_port;
	__be16 local_port;
} __attribute__((aligned(8)));

#define ENDS_BYTES __builtin_offsetof(struct restored_key, by)
_Static_assert(ENDS_BYTES == __builtin_offsetof(struct tagged, seq), "the same fields");

/* As src/restored.rs has it. */
struct restored {
	struct end other;
	__be16 asked_port;	/* BY_LEG: that the client has; the pod may see another */
	__u16 zero;
	__u32 ifindex;		/* that the leg came in by: a socket may be bound to it */
	__u32 made_us;		/* the low half: once in 71 minutes an old one looks new for a while */
	__u64 gone_ns;		/* BY_LEG: since when no socket was found (CLOCK_MONOTONIC), or 0 */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, RESTORED_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct restored_key);
	__type(value, struct restored);
} restored SEC(".maps");

/*
 * How many legs a namespace has, and under 0 how many all have: as user space found them last, and
 * what has changed since but for few. It may be less than nothing where both meet.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __s64);
} legs_of SEC(".maps");

/* 1 from the first entry on: before, no packet is looked up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} restoring SEC(".maps");

static __always_inline __u32 now_us(void)
{
	return bpf_ktime_get_ns() / 1000;
}

static __always_inline int is_restoring(void)
{
	__u32 zero = 0;
	const __u64 *on = bpf_map_lookup_elem(&restoring, &zero);

	return on && *on;
}

static __always_inline void set_remote(struct restored_key *key, const struct end *end)
{
	__builtin_memcpy(key->remote, end->address, sizeof(key->remote));
	key->remote_port = end->port;
}

static __always_inline int is_same(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1];
}

static __always_inline int is_mapped(const __u8 *address)
{
	const __u32 *words = (const __u32 *)address;

	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

/* What is on a pair: no socket but a listener, one that waits for its end, or one that lives. */
enum on_pair {
	NOTHING,
	WAITING,
	LIVE,
};

static __noinline enum on_pair on_pair(struct __sk_buff *skb, const struct restored_key *key)
{
	struct bpf_sock_tuple tuple = {};
	enum on_pair found = NOTHING;
	struct bpf_sock *sk;

	if (!key)
		return NOTHING;
	if (is_mapped(key->local)) {
		__builtin_memcpy(&tuple.ipv4.saddr, key->remote + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, key->local + 12, 4);
		tuple.ipv4.sport = key->remote_port;
		tuple.ipv4.dport = key->local_port;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, key->remote, 16);
		__builtin_memcpy(tuple.ipv6.daddr, key->local, 16);
		tuple.ipv6.sport = key->remote_port;
		tuple.ipv6.dport = key->local_port;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return NOTHING;
	if (sk->state == BPF_TCP_TIME_WAIT)
		found = WAITING;
	else if (sk->state != BPF_TCP_LISTEN)
		found = LIVE;
	bpf_sk_release(sk);
	return found;
}

/* No end that a pod can have a connection with, or its own. */
static __always_inline int is_unfit(const struct end *client, const __u8 *own)
{
	const __u32 *words = (const __u32 *)client->address;
	__u8 first = client->address[12];

	if (!client->port || is_same(client->address, own))
		return 1;
	if (is_mapped(client->address))
		return first == 0 || first == 127 || first >= 224;
	if (client->address[0] == 0xff)
		return 1;
	return !words[0] && !words[1] && !words[2] && bpf_ntohl(words[3]) <= 1;
}

/* The leg has been used: whoever would have forgotten it begins anew. 0: it is being forgotten. */
static __always_inline int renew(struct restored *leg)
{
	__u64 since = leg->gone_ns;

	if (since == DYING)
		return 0;
	return !since || __sync_val_compare_and_swap(&leg->gone_ns, since, 0) != DYING;
}

/* Whether the namespace may have one more leg. */
static __noinline int has_part(__u64 netns)
{
	const __s64 *own = bpf_map_lookup_elem(&legs_of, &netns), *all;

	netns = 0;
	all = bpf_map_lookup_elem(&legs_of, &netns);
	return !own || !all || *own < TIMES_FREE * (LEGS_MAX - *all);
}

/* The namespace has so many more. */
static __noinline int has_more(__u64 netns, __s64 more)
{
	__s64 *legs = bpf_map_lookup_elem(&legs_of, &netns);

	if (legs)
		__sync_fetch_and_add(legs, more);
	else
		bpf_map_update_elem(&legs_of, &netns, &more, BPF_NOEXIST);
	netns = 0;
	legs = bpf_map_lookup_elem(&legs_of, &netns);
	if (legs)
		__sync_fetch_and_add(legs, more);
	else
		bpf_map_update_elem(&legs_of, &netns, &more, BPF_NOEXIST);
	return 0;
}

static __noinline int forget_leg(struct restored_key *leg, const struct end *shown)
{
	struct restored_key pair;

	if (!leg || !shown)
		return 0;
	leg->by = BY_LEG;
	pair = *leg;
	pair.by = BY_CLIENT;
	set_remote(&pair, shown);
	if (!bpf_map_delete_elem(&restored, leg))
		has_more(pair.netns, -1);
	bpf_map_delete_elem(&restored, &pair);
	return 0;
}

static __always_inline int is_legs(const struct restored *entry, const struct ends *leg)
{
	return is_same(entry->other.address, leg->remote) && entry->other.port == leg->remote_port;
}

/* What is_free() says. */
#define FREE 1
#define GAVE_WAY 2

/*
 * Whether `leg` can have the pair, whose key it is afterwards, and on which was `found`. Another
 * leg gives way, and is forgotten, that has no socket there and has had the time to get one. Calls
 * nothing: choose() has looked, with the same room.
 */
static __noinline int is_free(struct restored_key *pair, const struct ends *leg, enum on_pair found, int after_waiting)
{
	const struct restored *other;
	struct end shown;
	int gave_way = 0;

	if (!pair || !leg)
		return 0;
	pair->by = BY_LEG;
	if (bpf_map_lookup_elem(&restored, pair))
		return 0;
	pair->by = BY_CLIENT;
	if (found == LIVE)
		return 0;
	other = bpf_map_lookup_elem(&restored, pair);
	if (other && !is_legs(other, leg)) {
		if (now_us() - other->made_us < SETTLING_NS / 1000)
			return 0;
		__builtin_memcpy(shown.address, pair->remote, sizeof(shown.address));
		shown.port = pair->remote_port;
		set_remote(pair, &other->other);
		pair->by = BY_LEG;
		if (!bpf_map_delete_elem(&restored, pair))
			gave_way = GAVE_WAY;
		set_remote(pair, &shown);
		pair->by = BY_CLIENT;
		bpf_map_delete_elem(&restored, pair);
	}
	return (found == NOTHING || after_waiting ? FREE : 0) | gave_way;
}

/* What a pod sees of a leg. */
enum choice {
	HIDDEN,		/* what is on the wire */
	SHOWN,
	REFUSED,	/* the segment is dropped */
};

/* Enters both directions, or none. `key` is the client's pair's. */
static __noinline enum choice enter(struct __sk_buff *skb, struct restored_key *key, const struct ends *leg,
				    __be16 asked_port)
{
	struct restored entry = { .asked_port = asked_port, .made_us = now_us() };
	__u32 zero = 0;
	__u64 *on;
	long failed;

	if (!key || !leg)
		return REFUSED;
	entry.ifindex = skb->ifindex;
	__builtin_memcpy(entry.other.address, leg->remote, 16);
	entry.other.port = leg->remote_port;
	on = bpf_map_lookup_elem(&restoring, &zero);
	if (on && !*on)
		*on = 1;
	failed = bpf_map_update_elem(&restored, key, &entry, BPF_NOEXIST);
	if (failed == EXISTS) {
		const struct restored *other = bpf_map_lookup_elem(&restored, key);

		/* Another leg was faster, on another CPU. The next copy sees it. */
		if (!other || !is_legs(other, leg))
			return REFUSED;
		failed = 0;
	}
	if (!failed) {
		__builtin_memcpy(entry.other.address, key->remote, 16);
		entry.other.port = key->remote_port;
		__builtin_memcpy(key, leg, ENDS_BYTES);
		key->by = BY_LEG;
		failed = bpf_map_update_elem(&restored, key, &entry, BPF_ANY);
		if (failed) {
			set_remote(key, &entry.other);
			key->by = BY_CLIENT;
			bpf_map_delete_elem(&restored, key);
		}
	}
	return failed ? HIDDEN : SHOWN;
}

/*
 * Decides which end the pod sees of a leg, into `shown` if it is not the leg's own. `client`: of a
 * right block (it may be `shown`), or NULL without one. After a refusal the segment is dropped,
 * which is counted. Few frames have room beside handle()'s: hence one key for both directions.
 */
static __noinline enum choice choose(struct __sk_buff *skb, const struct ends *leg, const struct end *client, int adopts,
				     struct end *shown)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);
	struct restored_key key = { .netns = kernel_skb->dev->nd_net.net->net_cookie };
	struct restored *known;
	enum choice choice;
	__be16 asked_port;
	int free;

	if (!leg || !shown)
		return REFUSED;
	__builtin_memcpy(&key, leg, ENDS_BYTES);
	key.by = BY_CLIENT;
	if (bpf_map_lookup_elem(&restored, &key)) {
		count(key.netns, CLIENT_SPOOFED);
		return REFUSED;
	}
	key.by = BY_LEG;
	known = bpf_map_lookup_elem(&restored, &key);
	if (known) {
		if (!renew(known)) {
			/* The next copy finds it gone. */
			count(key.netns, ANSWER_LOST);
			return REFUSED;
		}
		asked_port = known->asked_port;
		set_remote(&key, &known->other);
		if ((client && is_same(client->address, key.remote) && client->port == asked_port) ||
		    on_pair(skb, &key) == LIVE) {
			__builtin_memcpy(shown->address, key.remote, 16);
			shown->port = key.remote_port;
			return SHOWN;
		}
		key.by = BY_CLIENT;
		bpf_map_delete_elem(&restored, &key);
		__builtin_memcpy(&key, leg, ENDS_BYTES);
		key.by = BY_LEG;
		if (!bpf_map_delete_elem(&restored, &key))
			has_more(key.netns, -1);
	}
	if (!client)
		return HIDDEN;
	/*
	 * Where rules redirect connections the socket is on another pair, and nothing could say
	 * whether the leg is in use.
	 */
	if (is_unfit(client, leg->local) || !has_part(key.netns) || redirects(skb, key.netns)) {
		count(key.netns, CLIENT_HIDDEN);
		return HIDDEN;
	}
	asked_port = client->port;
	set_remote(&key, client);
	/* A client at the dataplane's own address, and port. */
	if (is_same(key.remote, leg->remote) && key.remote_port == leg->remote_port)
		return HIDDEN;
	free = is_free(&key, leg, on_pair(skb, &key), !adopts);
	if (free & GAVE_WAY)
		has_more(key.netns, -1);
	if (!(free & FREE)) {
		key.remote_port = leg->remote_port;
		if (is_same(key.remote, leg->remote))
			return HIDDEN;
		free = is_free(&key, leg, on_pair(skb, &key), 1);
		if (free & GAVE_WAY)
			has_more(key.netns, -1);
		if (!(free & FREE)) {
			count(key.netns, CLIENT_IN_USE);
			return REFUSED;
		}
	}
	__builtin_memcpy(shown->address, key.remote, 16);
	shown->port = key.remote_port;
	choice = enter(skb, &key, leg, asked_port);
	if (choice == SHOWN)
		has_more(key.netns, 1);
	/* Here, and not there: the deepest of all calls has no room for one more. */
	count(key.netns, choice == SHOWN ? CLIENT_RESTORED : choice == HIDDEN ? CLIENT_HIDDEN : ANSWER_LOST);
	return choice;
}

/* What user space asks about one leg, behind an Ethernet header. As src/restored.rs has it. */
struct unused_ask {
	__u8 ethernet[16];
	struct restored_key leg;
	__u64 patience_ns;
};

/*
 * For user space, which runs it in the leg's namespace, on the interface that the leg came in by:
 * returns 1 if the leg is forgotten, as no socket was found on the client's pair for so long.
 */
SEC("tc")
int baton_unused_leg(struct __sk_buff *skb)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);
	__u64 since, now = bpf_ktime_get_ns();
	struct unused_ask ask;
	struct restored_key pair;
	struct restored *known;
	struct end shown;

	if (bpf_skb_load_bytes(skb, 0, &ask, sizeof(ask)))
		return 0;
	if (ask.leg.netns != kernel_skb->dev->nd_net.net->net_cookie || ask.leg.by != BY_LEG)
		return 0;
	known = bpf_map_lookup_elem(&restored, &ask.leg);
	if (!known)
		return 0;
	shown = known->other;
	pair = ask.leg;
	pair.by = BY_CLIENT;
	set_remote(&pair, &shown);
	since = known->gone_ns;
	if (on_pair(skb, &pair) != NOTHING) {
		renew(known);
		return 0;
	}
	if (!since) {
		__sync_val_compare_and_swap(&known->gone_ns, 0, now);
		return 0;
	}
	if (since == DYING || now - since < ask.patience_ns ||
	    __sync_val_compare_and_swap(&known->gone_ns, since, DYING) != since)
		return 0;
	forget_leg(&ask.leg, &shown);
	return 1;
}

#endif
