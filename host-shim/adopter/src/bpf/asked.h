/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What only user space can decide (Releases, Transfers): the first copy is remembered and told of,
 * copies are dropped until there is a decision, and answered with it from then on. Owns that rule;
 * what is asked and who decides is release.h's and transfer.h's.
 */
#ifndef BATON_ASKED_H
#define BATON_ASKED_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "tables.h"
#include "wire.h"

/*
 * An entry that is undecided for longer than this is told of again by the next copy: user space was
 * replaced, or has never read of it. A pass over a node's sockets takes a few milliseconds.
 */
#define TELL_AGAIN_NS 100000000
/*
 * An entry that was told of longer ago than this is not acted upon: who asked may have given up,
 * and have passed on what its client sent since (`release.rs` of the engine waits for 300 ms after
 * its last copy). The next copy tells of it again. As src/asked.rs has it.
 */
#define LEASE_NS 200000000
/* What user space has not read yet. Copies of those that do not fit come back. */
#define ASKS_BYTES 524288

/* As src/asked.rs has them. */
enum asked_state {
	IS_ASKED = 1,
	IS_DONE = 2,
	IS_KEPT = 3,
};

/* Never changed in place but for the time: the entry at that address may be another's by then. */
struct asked {
	__u32 state;
	__u32 zero;
	__u64 told_ns;		/* CLOCK_MONOTONIC */
};

/* The first copy: remembered and told of, or forgotten. */
static __always_inline __u32 ask_first(void *fates, void *ring, void *can, const void *this, __u64 bytes,
				       __u32 *outcome)
{
	struct asked first = { .state = IS_ASKED, .told_ns = bpf_ktime_get_ns() };
	__u32 zero = 0;
	const __u64 *able = bpf_map_lookup_elem(can, &zero);

	if (!able || !*able)
		first.state = IS_KEPT;
	/* Fails if another CPU asks the same at this moment, and for want of memory. */
	if (bpf_map_update_elem(fates, this, &first, BPF_NOEXIST)) {
		*outcome = ANSWER_LOST;
		return UNDECIDED;
	}
	if (first.state == IS_KEPT)
		return KEPT;
	if (bpf_ringbuf_output(ring, (void *)this, bytes, 0)) {
		bpf_map_delete_elem(fates, this);
		*outcome = ANSWER_LOST;
	}
	return UNDECIDED;
}

/*
 * The reason of the Answer to `this`, the key in `fates`, `bytes` long; UNDECIDED: drop it, the
 * outcome says why. `can` says whether user space decides at all: if not, all is kept at once.
 */
static __always_inline __u32 ask(void *fates, void *ring, void *can, const void *this, __u64 bytes, __u32 done,
				 __u32 *outcome)
{
	struct asked *found = bpf_map_lookup_elem(fates, this);
	__u64 now;

	if (!found)
		return ask_first(fates, ring, can, this, bytes, outcome);
	if (found->state == IS_DONE)
		return done;
	if (found->state == IS_KEPT)
		return KEPT;
	now = bpf_ktime_get_ns();
	if (now - found->told_ns > TELL_AGAIN_NS) {
		found->told_ns = now;
		if (bpf_ringbuf_output(ring, (void *)this, bytes, 0))
			*outcome = ANSWER_LOST;
	}
	return UNDECIDED;
}

#endif
