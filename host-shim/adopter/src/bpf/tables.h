/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The adopter's maps. Owns their layout and the counting; user space pins and reuses them by name,
 * so that a new program goes on with the keys, counters and adoptions of the one before.
 *
 * Decisions:
 * - An adoption is for one network namespace (`docs/adoption-wire.md`, number of the namespace):
 *   Ready says the pod's random number, which each later tag covers, so that what was recorded on
 *   the way to one pod opens nothing in the next one at its address, nor after its node started
 *   again; and a repeated adoption never meets a pod that does not know what the one before took. A
 *   pod that was replaced answers Renew, with the age of its number: if that is older than the
 *   request, nobody had it; else its fate is unknown. Rejected: taking another namespace's adoption
 *   for a bad tag. Silence would cost 45 ms at least, and a request that may not be executed twice
 *   its connection.
 */
#ifndef BATON_TABLES_H
#define BATON_TABLES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The order is the order of Outcome in src/outcome.rs. */
enum outcome {
	ADOPTED,
	REPEATED,
	PROBE_READY,
	ANSWERED_NO_LISTENER,
	ANSWERED_ACCEPT_QUEUE_FULL,
	ANSWERED_KERNEL_REFUSED,
	ANSWERED_TUPLE_IN_USE,
	ANSWERED_ALREADY_ADOPTED,
	ANSWERED_SYNCOOKIES_OFF,
	BAD_CHECKSUM,
	BAD_TAG,
	UNKNOWN_EPOCH,
	BAD_LAYOUT,
	STRAY_ANSWER,
	ANSWER_LOST,
	EXIT_MARKED,
	PROBE_TOO_MANY_LISTENERS,
	LISTENER_MARKED,
	TOO_MANY_DESCRIPTORS,
	ANSWERED_FORGOTTEN,
	FORGET_IN_USE,
	ANSWERED_RENEW,
	ANSWERED_PACKET_RULES,
	RELEASE_ASKED,
	ANSWERED_RELEASED,
	ANSWERED_KEPT,
	RELEASE_MARKED,
	TRANSFER_ASKED,
	ANSWERED_MOVED,
	MOVED_RESET,
	CLIENT_RESTORED,
	CLIENT_BAD,
	CLIENT_IN_USE,
	CLIENT_HIDDEN,
	CLIENT_SPOOFED,
	OUTCOMES,
};

/*
 * A socket can be found a little after its adoption or SYN was decided upon: the kernel makes it
 * further up the stack, and a copy on another CPU may look meanwhile. So long nothing can be said
 * about it.
 */
#define SETTLING_NS 1000000

/* Key epochs modulo this many can be live at once; the epoch has four bits on the wire. */
#define EPOCHS 16

struct key_slot {
	__u64 key[2];
	__u64 live;		/* 0: no key of this epoch */
};

struct counts {
	__u64 of[OUTCOMES];
};

/*
 * One adoption, however many copies of it arrive: a connection in one network namespace (IPv4
 * addresses are mapped), and the place in its streams. Begins as `struct tagged` does.
 */
struct adoption {
	__u8 saddr[16];
	__u8 daddr[16];
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	__u32 zero;
	__u64 netns;
};

/*
 * The number that adoptions for a network namespace must name, and since when it is so
 * (CLOCK_MONOTONIC).
 */
struct namespace {
	__be64 number;
	__u64 since_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EPOCHS);
	__type(key, __u32);
	__type(value, struct key_slot);
} keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counters SEC(".maps");

/*
 * By network namespace cookie. 4,096 is far above the pods of one node (110 by default, 500 at most
 * recommended).
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct counts);
} netns_counters SEC(".maps");

/*
 * By network namespace cookie, like the counters. The loader draws the numbers, before it attaches,
 * from the system's randomness: a namespace that is new, also after the machine started again, has
 * another one than that at its address before it, so that what was recorded for that one opens
 * nothing here.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct namespace);
} namespaces SEC(".maps");

/*
 * What became of an adoption: READY_TO_ADOPT if it was taken, else the reason why not. Written
 * once, by the copy that is decided first (BPF_NOEXIST), so that no two copies can have different
 * fates. Probes are not in it. An entry lives until 65,536 later adoptions, taken or refused, push
 * it out: two seconds of the highest rate measured on one node. The dataplane repeats an adoption
 * for 1.4 s (ADOPTION_TRIES_MAX). A copy that is later still is decided anew, and TUPLE_IN_USE if
 * its socket lives.
 */
struct fate {
	__u32 of;
	__u32 zero;
	/* When it was decided, for ALREADY_ADOPTED (see SETTLING_NS). */
	__u64 decided_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct adoption);
	__type(value, struct fate);
} recent SEC(".maps");

/*
 * Sockets (by cookie) whose last segment was marked, and how, for its repetitions, which the kernel
 * sends in nobody's name. Four times the connections that a large pod has; one that was pushed out
 * is repeated without a mark.
 */
enum ending {
	ENDED_BY_EXIT = 1,
	ENDED_BY_LISTENER = 2,
	ENDED_BY_RELEASE = 3,	/* written before its last segment is sent */
	ENDED_UNREAD = 4,
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u8);
} ended SEC(".maps");

/* Not inlined, and begins with zeroes that are not on the stack, of which they would be half. */
static __noinline void count(__u64 netns, __u32 outcome)
{
	__u32 zero = 0;
	struct counts *all = bpf_map_lookup_elem(&counters, &zero);
	struct counts *here = bpf_map_lookup_elem(&netns_counters, &netns);

	if (!here) {
		static const struct counts none = {};

		bpf_map_update_elem(&netns_counters, &netns, (void *)&none, BPF_NOEXIST);
		here = bpf_map_lookup_elem(&netns_counters, &netns);
	}
	if (outcome >= OUTCOMES)
		return;
	if (all)
		all->of[outcome]++;
	if (here)
		here->of[outcome]++;
}

#endif
