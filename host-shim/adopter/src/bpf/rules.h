/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Pods in which packet rules redirect connections. The adopter acts before such rules: where there are any, an adoption would reach a
 * listener that no client's SYN reaches. Owns the flag of each pod, which user space sets and reads rules for (src/rules).
 */
#ifndef BATON_RULES_H
#define BATON_RULES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The rules were read, and none redirects. Anything else, and no entry, means that nothing is adopted. */
#define RULES_HARMLESS 1

/* By network namespace cookie, as many as netns_counters. One that does not fit in is refused when it is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} rules SEC(".maps");

static __always_inline int redirects(__u64 netns)
{
	const __u32 *found = bpf_map_lookup_elem(&rules, &netns);

	return !found || *found != RULES_HARMLESS;
}

#endif
