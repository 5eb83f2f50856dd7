/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The end marks: at the egress of a pod's interface, a FIN or RST that a process sends while it
 * exits is marked (docs/adoption-wire.md), so that a server that dies is told from one that closes
 * a connection; and, with another mark, one that a process sends that listens, so that a server
 * that goes on is told from one that shuts down. Owns that one field; touches no other segment, and
 * none to an address that never sent this pod a valid message. It works because the kernel closes
 * the sockets of a process, and sends their last segments, in the context of that process (do_exit,
 * exit_files, tcp_close), which holds the socket's lock. The kernel's repetitions of such a FIN are
 * marked as it was, whoever runs then and whatever became of the listener. What waits behind unsent
 * data leaves later and unmarked, and so do resets of connections that were never accepted. The RST
 * of a socket that a Release ended has a third mark: release.h notes the socket before it sends. A
 * fourth one is in place of the listener's on the FIN of a side that is shut down (shutdown())
 * while bytes of the client's are unread: the segment acknowledges them all the same.
 * What the kernel says of a connection that a Transfer took to another pod is dropped (transfer.h).
 *
 * Decisions:
 * - A process that exits says so in its last segment (`host-shim/adopter/src/bpf/exit_mark.h`,
 *   `lb-dataplane/packet/src/end_mark.rs`). From outside a FIN of a server that dies looks like one
 *   of a server that closes an idle connection, and any rule that tells them apart by time fails on
 *   a machine that is busy enough: the master of a killed nginx lived on for longer than 3 ms, and
 *   the first ends of its workers were believed: `rescue::pods_are_killed_and_restarted_in_turn`
 *   failed in CI, and in 1 of 3 runs beside three busy loops; with the mark it passed 4 of 4.
 *   (Beside six 1 of 2 failed, 3 errors in 164,585 requests, with frames lost on the way: since
 *   repetitions are marked too, it passed 2 of 2 there.) The kernel closes a process's sockets in
 *   that process's context, so a program at the pod's tc egress sees `PF_EXITING`; it writes a mark
 *   into the urgent pointer of the FIN or RST, which means nothing without URG. Marked ends are
 *   rescued at once, whoever listens, from each process that exits; a worker that crashes costs no
 *   connection either. The pod is given nothing for 50 ms, although it looks idle and its kernel
 *   says Ready; the requests that it left eject nobody. The price: a server that ends one process
 *   per connection (inetd) has its idle timeouts taken for deaths, and such a connection lives on
 *   elsewhere.
 * - End marks are set in the closing process's own context only, with the socket's lock held and a
 *   file on it, and only towards addresses that sent a message with a right tag. The kernel answers
 *   with resets on the back of any process, from one socket per CPU for all namespaces.
 */
#ifndef BATON_EXIT_MARK_H
#define BATON_EXIT_MARK_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "closer.h"
#include "kernel.h"
#include "peers.h"
#include "tables.h"
#include "transfer.h"
#include "wire.h"

#define IPV4_DESTINATION_AT 16
#define IPV6_DESTINATION_AT 24
#define TCP_BYTES 20
#define TCP_URGENT_AT 18
#define FLAG_DONE 2	/* 1 << SOCK_DONE: the peer's FIN has come */

/*
 * The client's bytes that nobody has read, where only the own side is shut down: close() resets.
 * The client's FIN has a number of its own, and is no byte of a request.
 */
static __always_inline int has_unread(const struct sock *sk)
{
	const struct tcp_sock *tcp = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));

	return tcp->rcv_nxt - tcp->copied_seq > !!(sk->__sk_common.skc_flags & FLAG_DONE);
}

SEC("tc")
int baton_exit_mark(struct __sk_buff *skb)
{
	__u8 *data, *end;
	const struct sk_buff *kernel_skb = kernel_of(skb);
	const struct sock *sk = kernel_skb->sk;
	struct task_struct *task;
	struct pair pair = {};
	struct peer peer = {};
	__u64 socket;
	__u8 flags, *before, how;
	__be16 mark = bpf_htons(EXIT_MARK), port;
	__u32 outcome = EXIT_MARKED;
	__u32 tcp_at;
	int own;

	if (is_restoring()) {
		struct transport of;
		int led = depart(skb, &of);

		/* It passes here again, towards its leg. */
		if (led != PASS_ON)
			return led;
	}
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		tcp_at = ETH_HLEN + IPV4_BYTES;
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		tcp_at = ETH_HLEN + IPV6_BYTES;
	else
		return PASS_ON;
	/* The kernel's own segments have their headers in the linear part. */
	if (data + tcp_at + TCP_BYTES > end)
		return PASS_ON;
	flags = data[tcp_at + TCP_FLAGS_AT];
	if (!(flags & (TCP_FIN | TCP_RST)) || (flags & (TCP_SYN | TCP_URG)))
		return PASS_ON;
	if (tcp_at == ETH_HLEN + IPV4_BYTES) {
		if (data[ETH_HLEN] != IPV4_NO_OPTIONS || data[ETH_HLEN + IPV4_PROTOCOL_AT] != IPPROTO_TCP)
			return PASS_ON;
		peer.address[10] = peer.address[11] = 0xff;
		__builtin_memcpy(peer.address + 12, data + ETH_HLEN + IPV4_DESTINATION_AT, 4);
	} else if (data[ETH_HLEN + IPV6_NEXT_HEADER_AT] != IPPROTO_TCP) {
		return PASS_ON;
	} else {
		__builtin_memcpy(peer.address, data + ETH_HLEN + IPV6_DESTINATION_AT, 16);
	}
	if (*(__be16 *)(data + tcp_at + TCP_URGENT_AT))
		return PASS_ON;
	peer.netns = kernel_skb->dev->nd_net.net->net_cookie;
	port = *(__be16 *)(data + tcp_at);
	if ((flags & TCP_RST_ACK) == TCP_RST) {
		if (tcp_at == ETH_HLEN + IPV4_BYTES) {
			pair.local[10] = pair.local[11] = 0xff;
			__builtin_memcpy(pair.local + 12, data + ETH_HLEN + IPV4_ADDRESSES_AT, 4);
		} else {
			__builtin_memcpy(pair.local, data + ETH_HLEN + IPV6_ADDRESSES_AT, 16);
		}
		__builtin_memcpy(pair.remote, peer.address, 16);
		pair.remote_port = *(__be16 *)(data + tcp_at + 2);
		pair.local_port = port;
		pair.netns = peer.netns;
		if (is_moved(&pair, *(__be32 *)(data + tcp_at + 4))) {
			count(peer.netns, MOVED_RESET);
			return TC_ACT_SHOT;
		}
	}
	if (!is_known(&peer))
		return PASS_ON;
	own = is_own(sk);
	task = bpf_get_current_task_btf();
	socket = bpf_get_socket_cookie(skb);
	before = socket ? bpf_map_lookup_elem(&ended, &socket) : 0;
	/* Of a socket that was ended by a Release, its process knows nothing. */
	if (before && *before == ENDED_BY_RELEASE)
		how = ENDED_BY_RELEASE;
	else if (own && task->flags & PF_EXITING)
		how = ENDED_BY_EXIT;
	else if (before)
		how = *before;
	else if (own && closer_listens(sk, port, task, peer.netns))
		how = flags & TCP_FIN && has_unread(sk) ? ENDED_UNREAD : ENDED_BY_LISTENER;
	else
		return PASS_ON;
	/* Never a socket that is nobody's. Without memory a repetition will not be marked. */
	if (own && socket && (!before || *before != how))
		bpf_map_update_elem(&ended, &socket, &how, BPF_ANY);
	if (how == ENDED_BY_LISTENER) {
		mark = bpf_htons(LISTENER_MARK);
		outcome = LISTENER_MARKED;
	} else if (how == ENDED_UNREAD) {
		mark = bpf_htons(UNREAD_MARK);
		outcome = LISTENER_MARKED;
	} else if (how == ENDED_BY_RELEASE) {
		mark = bpf_htons(RELEASE_MARK);
		outcome = RELEASE_MARKED;
	}

	/* Leaves a checksum that the device completes (CHECKSUM_PARTIAL) alone. */
	if (bpf_l4_csum_replace(skb, tcp_at + TCP_CHECKSUM_AT, 0, mark, sizeof(mark)) ||
	    bpf_skb_store_bytes(skb, tcp_at + TCP_URGENT_AT, &mark, sizeof(mark), 0))
		return PASS_ON;
	count(peer.netns, outcome);
	return PASS_ON;
}

#endif
