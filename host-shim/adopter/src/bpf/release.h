/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Releases: a request that lies in a socket whose application does not get to it is taken from it,
 * so that another pod can answer it (docs/adoption-wire.md, Releases). Owns the fate of each
 * Release, the look at the sockets that it asks about, and their end. User space runs that look
 * (src/releases.rs) and decides what it left undecided.
 *
 * Decisions:
 * - A socket is judged and ended in one hold of its lock. The iterator `tcp` shows each socket with
 *   its lock held (bpf_iter_tcp_seq_show(): lock_sock()), which tcp_recvmsg(), tcp_sendmsg() and
 *   tcp_splice_read() take as well: `copied_seq` and `write_seq` stay what they are until the
 *   socket has ended. A task that is frozen or stopped does not hold that lock: who waits for data
 *   or memory has let go of it (sk_wait_data(), sk_stream_wait_memory()).
 * - The unread bytes are dropped before the socket is ended. bpf_sock_destroy() alone leaves them
 *   readable: tcp_done() keeps the receive queue, and tcp_recvmsg_locked() looks there before it
 *   looks at `sk_err` (Linux 6.18; `release::unread_bytes_are_gone` fails without this). Nothing
 *   that a program may call empties the queue but a verdict of sockmap: under the same lock the
 *   socket is put into one whose verdict on each buffer is SK_DROP, and SO_RCVLOWAT makes the
 *   kernel look for data (tcp_set_rcvlowat(), tcp_data_ready(), sk_psock_verdict_data_ready(),
 *   tcp_read_skb()), which takes all of it out of the queue. tcp_done() takes the socket out of
 *   the sockmap again (sock_map_unhash()). Rejected: TCP_REPAIR on a copy of the descriptor, which
 *   needs ptrace rights and a search in all processes, and has every other read fail meanwhile.
 * - A connection that nobody has accepted and that has unread bytes is kept: it has no
 *   `struct socket`, without which no verdict is run, and who accepts it later could read them.
 */
#ifndef BATON_RELEASE_H
#define BATON_RELEASE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "asked.h"
#include "client.h"
#include "kernel.h"
#include "tables.h"
#include "wire.h"

#define ADDRESS_FAMILY_4 2	/* AF_INET */
#define MAPPED 0xffff		/* in front of an IPv4 address */
#define STATE_ESTABLISHED 1
#define FLAG_DEAD 1		/* 1 << SOCK_DEAD: nobody's any more */
#define LEVEL_SOCKET 1		/* SOL_SOCKET */
#define OPTION_LOW_WATER 18	/* SO_RCVLOWAT */

/*
 * What became of a Release, by what it asks about. Written by the program at ingress (asked), by
 * the iterator (asked to done), and by user space after the iterator has run (asked to kept); the
 * last two never run at the same time for one namespace.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct adoption);
	__type(value, struct asked);
} releases SEC(".maps");

/*
 * What was asked, for user space: a `struct adoption` each. 8,192 events of 56 bytes with their
 * heads of 8, more than the connections that one process has at a time as a rule.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, ASKS_BYTES);
} asks SEC(".maps");

/* Whether user space could load the iterator; 0: whatever is asked is kept at once. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} can_release SEC(".maps");

/*
 * Where a socket is while its bytes are dropped: one of each namespace at a time, by its cookie, as
 * a pass goes through one namespace. There are at most as many at a time as passes run.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} draining SEC(".maps");

/*
 * The reason of the Answer; UNDECIDED: drop it, the outcome says why. Not inlined, see adopt() in
 * adopter.bpf.c.
 */
static __noinline __u32 release(const struct tagged *t, __u64 netns, __u32 *outcome)
{
	struct adoption this = { .netns = netns };

	if (!t || !outcome)
		return UNDECIDED;
	*outcome = RELEASE_ASKED;
	__builtin_memcpy(&this, t, __builtin_offsetof(struct adoption, zero));
	return ask(&releases, &asks, &can_release, &this, sizeof(this), RELEASED, outcome);
}

/* What a Release of this socket, as it is now, would say. */
static __always_inline void name_of(struct sock_common *sk, const struct tcp_sock *tcp,
				    struct adoption *name)
{
	__u32 *remote = (__u32 *)name->saddr, *own = (__u32 *)name->daddr;

	if (sk->skc_family == ADDRESS_FAMILY_4) {
		remote[2] = own[2] = bpf_htonl(MAPPED);
		remote[3] = sk->skc_daddr;
		own[3] = sk->skc_rcv_saddr;
	} else if (bpf_core_field_exists(sk->skc_v6_daddr)) {
#pragma clang loop unroll(full)
		for (int i = 0; i < 4; i++) {
			remote[i] = sk->skc_v6_daddr.in6_u.u6_addr32[i];
			own[i] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
		}
	}
	name->source = sk->skc_dport;
	name->dest = bpf_htons(sk->skc_num);
	name->seq = bpf_htonl(tcp->copied_seq);
	name->ack = bpf_htonl(tcp->write_seq);
	name->netns = sk->skc_net.net->net_cookie;
}

/*
 * Whether nothing but its numbers says what its application has read and written. Whether all of
 * the latter has reached the client is not asked: who asks knows of each byte up to `write_seq`,
 * also where the acknowledgement was lost on its way to this socket.
 */
static __always_inline int is_plain(struct tcp_sock *tcp)
{
	const struct sock *sk = (const struct sock *)tcp;

	if (sk->__sk_common.skc_flags & FLAG_DEAD)
		return 0;
	if (((const struct inet_connection_sock *)tcp)->icsk_ulp_ops)
		return 0;
	/* A sockmap or another user in the kernel, which reads in its own way. */
	if (sk->sk_user_data)
		return 0;
	/* Its application reads ahead by an offset of the kernel's, and may act on that. */
	if (bpf_core_field_exists(sk->sk_peek_off) && sk->sk_peek_off >= 0)
		return 0;
	/* A byte that is read out of band does not move copied_seq. */
	if (tcp->urg_data || BPF_CORE_READ_BITFIELD(tcp, repair))
		return 0;
	return !bpf_core_field_exists(tcp->is_mptcp) || !BPF_CORE_READ_BITFIELD(tcp, is_mptcp);
}

/* The verdict on each buffer of a socket in `draining`. */
SEC("sk_skb/verdict")
int baton_drop(struct __sk_buff *skb __attribute__((unused)))
{
	return SK_DROP;
}

/* Takes the unread bytes out of a socket. Returns whether none is left. */
static __always_inline int drain(struct sock_common *sk, const struct tcp_sock *tcp, __u64 netns)
{
	int one = 1;

	if (tcp->rcv_nxt == tcp->copied_seq)
		return 1;
	if (!((const struct sock *)tcp)->sk_socket)
		return 0;
	if (bpf_map_update_elem(&draining, &netns, sk, BPF_ANY))
		return 0;
	bpf_setsockopt(sk, LEVEL_SOCKET, OPTION_LOW_WATER, &one, sizeof(one));
	return tcp->rcv_nxt == tcp->copied_seq;
}

/* For each TCP socket of a namespace, with the socket's lock held. */
SEC("iter/tcp")
int baton_release(struct bpf_iter__tcp *ctx)
{
	struct asked done = { .state = IS_DONE };
	struct sock_common *sk = ctx->sk_common;
	struct adoption name = {};
	const struct asked *found;
	__u8 how = ENDED_BY_RELEASE;
	struct tcp_sock *tcp;
	__u64 cookie;

	if (!sk || sk->skc_state != STATE_ESTABLISHED)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	name_of(sk, tcp, &name);
	lead_back(&name);
	found = bpf_map_lookup_elem(&releases, &name);
	if (!found || found->state != IS_ASKED || bpf_ktime_get_ns() - found->told_ns > LEASE_NS)
		return 0;
	if (!is_plain(tcp))
		return 0;
	if (!drain(sk, tcp, name.netns)) {
		bpf_map_delete_elem(&draining, &name.netns);
		/* Nothing is taken out of a stream that goes on. */
		if (name.seq != bpf_htonl(tcp->copied_seq))
			bpf_sock_destroy(sk);
		return 0;
	}
	done.told_ns = bpf_ktime_get_ns();
	/* Also if the entry had to make room meanwhile: nobody can read the bytes any more. */
	bpf_map_update_elem(&releases, &name, &done, BPF_ANY);
	cookie = bpf_get_socket_cookie(sk);
	bpf_map_update_elem(&ended, &cookie, &how, BPF_ANY);
	bpf_sock_destroy(sk);
	return 0;
}

#endif
