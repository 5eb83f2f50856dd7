/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Who closes: whether the process that sends a connection's last segment has the listener of its
 * port. Such a process goes on; one that shuts down lets go of the listener first. Owns the look at
 * that process's descriptors; what follows from it is the engine's.
 *
 * Decisions:
 * - A process that closes a connection and listens goes on: servers let go of the listener before
 *   they close what they accepted. The same program at egress looks for the listener among the
 *   closing process's first 1,024 descriptors and marks the FIN or RST; such an end stands with the
 *   first answer to a liveness probe, whatever the pod has lost in the last second, and a pod's
 *   listener that is gone by then says otherwise. The kernel's repetitions of a lost FIN have its
 *   mark, whoever listens by then. The engine's `liveness` judges ends without that mark: of pods
 *   without adopter, of processes that serve but never listen (workers that are handed their
 *   connections), of a worker that shuts down.
 */
#ifndef BATON_CLOSER_H
#define BATON_CLOSER_H

#include <bpf/bpf_endian.h>

#include "kernel.h"
#include "tables.h"

/*
 * Descriptors looked at, from 0 on, so that a close takes a bounded time. Servers open their
 * listeners before they accept anything, but after what their runtime needs (a JVM has its archives
 * open, some hundreds). More: TOO_MANY_DESCRIPTORS.
 */
#define DESCRIPTORS_MAX 1024

/* include/net/tcp_states.h: these are no whole sockets, or listeners. */
#define STATE_TIME_WAIT 6
#define STATE_LISTEN 10
#define STATE_NEW_SYN_RECV 12

struct search {
	__u64 descriptors;
	__u64 socket_operations;
	__u64 net;
	__u16 port;
	__u16 found;
};

/* One descriptor. See socket_of() in listener_report.h for the reads. */
static long look_at(__u32 i, struct search *search)
{
	const void *at = (const void *)search->descriptors + i * sizeof(void *);
	const struct hlist_node *slot = bpf_rdonly_cast(at, bpf_core_type_id_kernel(struct hlist_node));
	const struct file *file = bpf_rdonly_cast(slot->next, bpf_core_type_id_kernel(struct file));
	const struct socket *socket;
	const struct sock *sk;

	/* Not open, or no socket. */
	if ((__u64)file->f_op != search->socket_operations)
		return 0;
	socket = bpf_rdonly_cast(file->private_data, bpf_core_type_id_kernel(struct socket));
	sk = socket->sk;
	search->found = sk->__sk_common.skc_state == STATE_LISTEN && sk->__sk_common.skc_num == search->port &&
			(__u64)sk->__sk_common.skc_net.net == search->net;
	return search->found;
}

/*
 * Whether the running process sends from `sk`, which it has: it holds the socket's lock. What the
 * kernel sends on its own (resets from the sockets that each CPU has for that, what waited behind
 * data, what another pod is answered), it sends while anybody runs.
 */
static __always_inline int is_own(const struct sock *sk)
{
	return sk && sk->__sk_common.skc_state != STATE_TIME_WAIT && sk->__sk_common.skc_state != STATE_NEW_SYN_RECV &&
	       sk->sk_lock.owned && sk->sk_socket && sk->sk_socket->file;
}

/* `sk`, which is the process's own, sends its last segment. */
static __always_inline int closer_listens(const struct sock *sk, __be16 port, struct task_struct *task, __u64 netns)
{
	struct search search = {};
	const struct fdtable *table;
	__u32 fds;

	if (!sk->sk_socket || !task->files)
		return 0;
	table = task->files->fdt;
	search.descriptors = (__u64)table->fd;
	search.socket_operations = (__u64)sk->sk_socket->file->f_op;
	search.net = (__u64)sk->__sk_common.skc_net.net;
	/* The socket itself has forgotten it when it resets. */
	search.port = bpf_ntohs(port);
	fds = table->max_fds;
	bpf_loop(fds < DESCRIPTORS_MAX ? fds : DESCRIPTORS_MAX, look_at, &search, 0);
	if (!search.found && fds > DESCRIPTORS_MAX)
		count(netns, TOO_MANY_DESCRIPTORS);
	return search.found;
}

#endif
