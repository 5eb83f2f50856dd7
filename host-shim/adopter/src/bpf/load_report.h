/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The load report, in the answer to a Probe: what the kernel knows at that moment of how long a new
 * connection would wait. Owns what is read and its layout; what follows from it is the engine's. It
 * never counts by itself, and nothing is read while nobody probes.
 *
 * Decisions:
 * - The program reads the kernel's own counters: of the listener, and of the control group (version
 *   2) that the listener was made in. A pod that nobody probes costs nothing, whatever its state,
 *   and no process has to find groups, hold descriptors and wake up. Rejected: a PSI trigger per
 *   pod (`cpu.pressure`, `memory.pressure`). Windows below 2 s need CAP_SYS_RESOURCE, and the
 *   kernel runs a thread for each group with such a trigger, which looks 20 times a second
 *   (`psi_rtpoll_worker`, a tenth of the smallest window) while tasks of it wait for a CPU at all:
 *   on a busy node, that is all groups.
 * - Unread bytes are left out: they are in no sum that the kernel keeps, so that each connection
 *   of the pod had to be looked at with its lock held. What is unread in a pod that stands still
 *   is found when a Release asks for it (release.h).
 * - Totals are sent, not rates: every dataplane sees what happened since its own last probe.
 * - Throttling counts by periods, as `nr_throttled` in `cpu.stat` does. `throttled_time` adds up
 *   over CPUs, and so can grow by a minute in a second.
 * - Memory stalls count by "some", CPU stalls by "full": a busy server's threads wait for each
 *   other's CPU as a rule, but none of them runs only where there is too little for the pod.
 */
#ifndef BATON_LOAD_REPORT_H
#define BATON_LOAD_REPORT_H

#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"
#include "wire.h"

/* From a container's group to the root: five in a Pod of Kubernetes, seven in a node in a Pod. */
#define GROUP_LEVELS_MAX 8
/* kernel/sched/sched.h, RUNTIME_INF: no quota. */
#define NO_QUOTA (~0ULL)
/*
 * include/linux/psi_types.h. The kernel brings the totals up to date every 2 s (PSI_FREQ), while
 * anything of the group runs.
 */
#define PSI_MEM_SOME 2
#define PSI_CPU_FULL 5

/* The listeners of a port together. */
struct waiting {
	__u32 length;		/* connections that nobody accepted yet */
	__u32 room;		/* that there can be */
	__u32 drops;
};

/* The kernel takes a connection while there are no more than the maximum. */
static __always_inline void count_waiting(const struct sock *sk, struct waiting *waiting)
{
	waiting->length += sk->sk_ack_backlog;
	waiting->room += sk->sk_max_ack_backlog + 1;
	if (bpf_core_field_exists(sk->sk_drops))
		waiting->drops += sk->sk_drops.counter;
}

static __always_inline __u32 queue_field(const struct waiting *waiting)
{
	__u32 length = waiting->length < QUEUE_MAX ? waiting->length : QUEUE_MAX;
	__u32 room = waiting->room < QUEUE_MAX ? waiting->room : QUEUE_MAX;

	return waiting->drops << DROPS_SHIFT | room << ROOM_SHIFT | length;
}

static __always_inline __u32 stall_units(__u64 ns)
{
	return ns >> STALL_UNIT_SHIFT & STALL_MASK;
}

/*
 * What a group's CPU quota did. Its controllers are read as the first pointer of a list node, as
 * socket_of() does.
 */
static __always_inline void add_quota(const struct cgroup *group, __u64 *throttled_ns, __u32 *flags)
{
	const void *at = (const void *)group + bpf_core_field_offset(group->subsys) +
			 bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id) * sizeof(void *);
	const struct hlist_node *slot = bpf_rdonly_cast(at, bpf_core_type_id_kernel(struct hlist_node));
	const struct task_group *tasks;
	const struct cfs_bandwidth *quota;

	if (!slot->next)
		return;
	/* The controller's part begins with what the group knows of it. */
	tasks = bpf_rdonly_cast(slot->next, bpf_core_type_id_kernel(struct task_group));
	quota = &tasks->cfs_bandwidth;
	*flags |= QUOTA_KNOWN;
	if (quota->quota == NO_QUOTA)
		return;
	*throttled_ns += (__u64)(__u32)quota->nr_throttled * quota->period;
	if (quota->throttled_cfs_rq.next != &quota->throttled_cfs_rq)
		*flags |= THROTTLED_NOW;
}

/* Of PSI_AVGS. Which of the two it is depends on what the kernel was built with (kernel.h). */
#define PSI_TOTAL(group, state)                                                        \
	(bpf_core_field_exists((group)->total) ?                                       \
		 (group)->total[0][state] :                                            \
		 ((const struct psi_group___flat *)(group))->total[state])

/* Not inlined, see adopt(). A kernel without one of the types is as one where nothing is known. */
static __noinline __u32 stalls_field(struct tcp_sock *listener)
{
	const struct cgroup *group;
	const struct psi_group *pressure;
	__u64 throttled_ns = 0;
	__u32 flags = 0, field = 0;

	if (!listener || !bpf_core_field_exists(((struct sock *)0)->sk_cgrp_data))
		return 0;
	group = plain_sock(listener)->sk_cgrp_data.cgroup;
	/* The root's pressure is the whole node's: whoever is in no group of its own has none. */
	if (!group || !group->self.parent)
		return 0;
	if (bpf_core_field_exists(group->psi)) {
		pressure = group->psi;
		if (pressure && pressure->enabled)
			field = PRESSURE_KNOWN | stall_units(PSI_TOTAL(pressure, PSI_CPU_FULL)) << CPU_SHIFT |
				stall_units(PSI_TOTAL(pressure, PSI_MEM_SOME)) << MEMORY_SHIFT;
	}
	if (bpf_core_type_exists(struct task_group) &&
	    bpf_core_field_exists(((struct task_group *)0)->cfs_bandwidth)) {
		for (int level = 0; level < GROUP_LEVELS_MAX && group && group->self.parent; level++) {
			add_quota(group, &throttled_ns, &flags);
			group = group->self.parent->cgroup;
		}
	}
	return field | flags | stall_units(throttled_ns) << THROTTLED_SHIFT;
}

#endif
