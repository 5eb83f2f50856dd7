/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Pods in which packet rules redirect connections. The adopter acts before such rules: where there
 * are any, an adoption would reach a listener that no client's SYN reaches. Owns the verdict on
 * each pod, which user space reads rules for (src/rules), and of which generation of the rules it
 * is: the program adopts nothing under rules that nobody has read.
 *
 * Decisions:
 * - Where a pod's packet rules redirect connections nothing is adopted
 *   (`host-shim/adopter/src/rules`, `src/bpf/rules.h`). tc comes before netfilter: the adopter
 *   would find the application behind a sidecar, or behind a rule that drops SYNs. host-shim reads
 *   nftables and both x_tables, before it attaches and every 500 ms. Its verdict is on one
 *   generation of the rules: a number that the program itself makes of what is there, and makes
 *   again for each adoption. Under any other one it refuses, whatever a dataplane believes, until
 *   host-shim has read again. The number is of nftables' count of commits (`net->nft.base_seq`,
 *   Linux 6.17; before, its last bit), of the functions at netfilter's hooks on the way to a
 *   socket, and of every rule in tables of x_tables. host-shim asks for it by running a second
 *   program in the pod's namespace (`BPF_PROG_TEST_RUN`), before and after it reads. Measured: 799
 *   ns for a probe and 1,341 ns for an adoption, without it 756 and 1,351
 *   (`cargo bench -p baton-adopter`). Before, adoptions passed for up to half a second under new
 *   rules and reached the application (Linux 6.18): with TPROXY, rules that write ports and rules
 *   that drop SYNs over both families, with NAT over IPv4; over IPv6 NAT drew resets. Rejected: the
 *   address of a table's rules as their number (in 23 of 100 tries the second of two new tables was
 *   where the first one's predecessor had been), and a netlink socket, which would keep the pod's
 *   namespace alive after its end. NAT for what the pod sends counts too, and a chain of NAT
 *   without rules where others have connections tracked: its hook compares the ports of a request
 *   that are not set yet (`nf_nat_ipv4_local_in`) and may take it off the segment. Reading names
 *   the rule; answers of the dataplane's own SYNs say nothing of rules that are new. NoListener
 *   alone is no death: a SYN is sent, too.
 */
#ifndef BATON_RULES_H
#define BATON_RULES_H

#include <linux/bpf.h>
#include <linux/netfilter.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"

/* Functions at one hook that are told apart. A pod has five; the kernel allows 1,024. */
#define HOOK_FUNCTIONS_MAX 64
/* Of one table of x_tables: some 200 rules. */
#define TABLE_BYTES_MAX 32768
/* What no generation is: there are more. */
#define UNKNOWN_GENERATION 0
/*
 * Where struct xt_table has its rules, family and name, and struct xt_table_info its rules (64
 * bits; their size is in front). These types are of modules, which may come later.
 */
#define TABLE_INFO_AT 24
#define TABLE_FAMILY_AT 48
#define TABLE_NAME_AT 56
#define INFO_RULES_AT 64
/*
 * Where struct ipt_entry and ip6t_entry have the word with their length, and their counters (16
 * bytes), which go on counting.
 */
#define RULE4_LENGTH_AT 88
#define RULE6_LENGTH_AT 136
#define RULE4_COUNTERS_AT 96
#define RULE6_COUNTERS_AT 152

/*
 * The rules were read, and none redirects. Anything else, and no entry, means that nothing is
 * adopted.
 */
#define RULES_HARMLESS 1

struct verdict {
	__u64 generation;
	__u64 harmless;
};

/*
 * By network namespace cookie, as many as netns_counters. One that does not fit in is refused when
 * it is attached.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct verdict);
} rules SEC(".maps");

struct walk {
	const struct nf_hook_entries *functions;
	__u64 sum;
	__u64 rule;
	__u32 left;	/* bytes of rules */
	__u16 v6;
	__u16 too_long;
};

static __always_inline __u64 mix(__u64 sum, __u64 word)
{
	sum = (sum ^ word) * 0x9e3779b97f4a7c15;
	return sum ^ sum >> 32;
}

/*
 * The word at an address, 0 if there is none, read as the first field of something that has a
 * number there (see count_socket()).
 */
static __always_inline __u64 word_at(__u64 address)
{
	const struct timespec64 *word = bpf_rdonly_cast((const void *)address, bpf_core_type_id_kernel(struct timespec64));

	return word->tv_sec;
}

/* What is in front in it, in either byte order. */
union word {
	__u64 all;
	__u32 number;
	__u16 halves[4];
	__u8 byte;
};

static long mix_word(__u32 i, struct walk *walk)
{
	__u32 counters = (walk->v6 ? RULE6_COUNTERS_AT : RULE4_COUNTERS_AT) / 8;

	if (i != counters && i != counters + 1)
		walk->sum = mix(walk->sum, word_at(walk->rule + i * 8ULL));
	return 0;
}

static long mix_rule(__u32 i __attribute__((unused)), struct walk *walk)
{
	union word word = { .all = word_at(walk->rule + (walk->v6 ? RULE6_LENGTH_AT : RULE4_LENGTH_AT)) };
	__u32 length = walk->v6 ? word.halves[3] : word.halves[1];

	if (!length || length > walk->left)
		return 1;
	bpf_loop(length / 8, mix_word, walk, 0);
	walk->rule += length;
	walk->left -= length;
	return !walk->left;
}

static __always_inline int is_table(__u64 name)
{
	__u64 names[4];

	__builtin_memcpy(names, "filter\0\0mangle\0\0raw\0\0\0\0\0security", sizeof(names));
	return name == names[0] || name == names[1] || name == names[2] || name == names[3];
}

/*
 * One function at a hook, and what it is called with. Where that is a table of x_tables, its rules
 * are replaced as a whole, often by others in the same place: these are looked at word by word.
 * What else it may be does not change, or is nftables'.
 */
static long mix_function(__u32 i, struct walk *walk)
{
	__u64 at = (__u64)walk->functions + bpf_core_field_offset(walk->functions->hooks) + i * sizeof(struct nf_hook_entry);
	__u64 argument = word_at(at + sizeof(void *)), info;
	union word family = { .all = word_at(argument + TABLE_FAMILY_AT) }, size;

	walk->sum = mix(mix(walk->sum, word_at(at)), argument);
	if (family.byte != (walk->v6 ? NFPROTO_IPV6 : NFPROTO_IPV4) || !is_table(word_at(argument + TABLE_NAME_AT)))
		return 0;
	info = word_at(argument + TABLE_INFO_AT);
	size.all = word_at(info);
	walk->left = size.number;
	if (walk->left > TABLE_BYTES_MAX) {
		walk->too_long = 1;
		return 1;
	}
	walk->rule = info + INFO_RULES_AT;
	bpf_loop(TABLE_BYTES_MAX / RULE4_COUNTERS_AT, mix_rule, walk, 0);
	return 0;
}

/*
 * A number for what is at the hooks of the packet's namespace before a segment reaches a socket.
 * Not static, so that the verifier looks at it once, and not each time that something comes to it:
 * it was half of all that it looked at.
 */
__noinline __u64 baton_generation_of(struct __sk_buff *skb)
{
	const struct net *net = kernel_of(skb)->dev->nd_net.net;
	struct walk walk = {};

	if (bpf_core_field_exists(net->nft.base_seq))
		walk.sum = net->nft.base_seq;
	else if (bpf_core_field_exists(net->nft.gencursor))
		walk.sum = net->nft.gencursor;
	if (!bpf_core_field_exists(net->nf))
		return 1;
#pragma clang loop unroll(full)
	for (int i = 0; i < 4; i++) {
		const struct nf_hook_entries *functions = i & 1 ? net->nf.hooks_ipv6[i / 2] : net->nf.hooks_ipv4[i / 2];
		__u32 count;

		walk.sum = mix(walk.sum, i);
		if (!functions)
			continue;
		count = functions->num_hook_entries;
		if (count > HOOK_FUNCTIONS_MAX)
			return UNKNOWN_GENERATION;
		walk.functions = functions;
		walk.v6 = i & 1;
		bpf_loop(count, mix_function, &walk, 0);
	}
	return walk.too_long ? UNKNOWN_GENERATION : walk.sum | 1;
}

/* Whether rules redirect connections, or are others than those that were read. */
static __always_inline int redirects(struct __sk_buff *skb, __u64 netns)
{
	const struct verdict *found = bpf_map_lookup_elem(&rules, &netns);

	return !found || found->harmless != RULES_HARMLESS || found->generation != baton_generation_of(skb);
}

/* For user space, which runs it in the namespace: writes the generation over the packet's front. */
SEC("tc")
int baton_generation(struct __sk_buff *skb)
{
	__u64 generation = baton_generation_of(skb);

	return bpf_skb_store_bytes(skb, 0, &generation, sizeof(generation), 0);
}

#endif
