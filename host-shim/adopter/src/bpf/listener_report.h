/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The listener report, in the answer to a Probe: processes that share a listener let go of it one
 * by one before they close what they accepted, and the next process has another one. Owns the
 * counting of descriptors, and the look at the accept queues of a port; what follows from the
 * former is the engine's.
 */
#ifndef BATON_LISTENER_REPORT_H
#define BATON_LISTENER_REPORT_H

#include "kernel.h"
#include "load_report.h"
#include "transfer.h"
#include "wire.h"

/*
 * Listeners on one port (SO_REUSEPORT) that are counted: servers have one for each CPU at most.
 * More: PROBE_TOO_MANY_LISTENERS.
 */
#define LISTENERS_MAX 128

struct held {
	__u32 holders;
	__u32 inodes;		/* the sum of their numbers */
	struct waiting waiting;
};

/* Adds a listener; its holders unless it is being released, when nobody holds it any more. */
static __always_inline void count_holders(const struct sock *sk, struct held *held)
{
	const struct file *file;
	__s64 count;

	count_waiting(sk, &held->waiting);
	if (!sk->sk_socket || !sk->sk_socket->file)
		return;
	file = sk->sk_socket->file;
	if (bpf_core_field_exists(file->f_ref))
		count = file->f_ref.refcnt.counter + 1;
	else
		count = ((const struct file___until_6_12 *)file)->f_count.counter;
	if (count <= 0 || !file->f_inode)
		return;
	held->holders += count < HOLDERS_MAX ? count : HOLDERS_MAX;
	held->inodes += file->f_inode->i_ino;
}

/*
 * One socket of a group. The verifier knows no pointers in a flexible array, so this one is read as
 * the first pointer of a list node, of which it knows. (Reads through such casts fault to 0, as
 * those of bpf_probe_read_kernel() do, and need no helper that a locked down kernel refuses.)
 */
static __always_inline const struct sock *socket_of(const struct sock_reuseport *sockets, __u32 i)
{
	const void *at = (const void *)sockets + bpf_core_field_offset(sockets->socks) + i * sizeof(void *);
	const struct hlist_node *element = bpf_rdonly_cast(at, bpf_core_type_id_kernel(struct hlist_node));

	return bpf_rdonly_cast(element->next, bpf_core_type_id_kernel(struct sock));
}

struct group {
	const struct sock_reuseport *sockets;
	struct held held;
};

static long count_socket(__u32 i, struct group *group)
{
	count_holders(socket_of(group->sockets, i), &group->held);
	return 0;
}

/* How many there are on its port. */
static __always_inline __u32 listeners_of(struct tcp_sock *tcp)
{
	const struct sock_reuseport *sockets = plain_sock(tcp)->sk_reuseport_cb;

	return sockets ? sockets->num_socks : 1;
}

struct queues {
	const struct sock_reuseport *sockets;
	int full;
};

/* The kernel's own test, sk_acceptq_is_full(): it would drop the segment without a word. */
static __always_inline int queue_is_full(const struct sock *sk)
{
	return sk->sk_ack_backlog > sk->sk_max_ack_backlog;
}

static long look_at_queue(__u32 i, struct queues *queues)
{
	queues->full = queue_is_full(socket_of(queues->sockets, i));
	return queues->full;
}

/*
 * Whether the listener may have no room, one of several if any of the first LISTENERS_MAX has none:
 * for those of all addresses the kernel chooses once more, by a hash of the pod's address
 * (inet_steal_sock()), where a look-up takes that of the wildcard (inet_lhash2_lookup(), Linux
 * 6.18).
 */
static __always_inline int has_full_queue(struct tcp_sock *tcp)
{
	struct queues queues = { .sockets = plain_sock(tcp)->sk_reuseport_cb };
	__u32 sockets = listeners_of(tcp);

	if (sockets <= 1)
		return queue_is_full(plain_sock(tcp));
	bpf_loop(sockets < LISTENERS_MAX ? sockets : LISTENERS_MAX, look_at_queue, &queues, 0);
	return queues.full;
}

/* `queue`: the load report's first half, if the sockets are counted. */
static __always_inline __u32 listener_report(struct tcp_sock *tcp, __u64 netns, __u32 *queue)
{
	const struct sock *sk = plain_sock(tcp);
	struct group group = { .sockets = sk->sk_reuseport_cb };
	__u32 sockets = listeners_of(tcp);
	__u32 always = MARKS_EXITS | FORGETS | RESTORES | transfers_at(netns, sk->__sk_common.skc_num);

	if (sockets > LISTENERS_MAX)
		return always;
	if (sockets > 1)
		bpf_loop(sockets, count_socket, &group, 0);
	else
		count_holders(sk, &group.held);
	*queue = queue_field(&group.held.waiting);
	if (!group.held.holders)
		return always;
	if (group.held.holders > HOLDERS_MAX)
		group.held.holders = HOLDERS_MAX;
	return group.held.inodes << LISTENER_SHIFT | group.held.holders << HOLDERS_SHIFT | always |
	       (sockets > 1 ? SEVERAL_LISTENERS : 0);
}

#endif
