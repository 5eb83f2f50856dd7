/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The adopter: at the ingress of a pod's interface it turns an authenticated adoption segment into
 * an accepted connection of the pod's own listener, or answers why it cannot
 * (docs/adoption-wire.md). Needs Linux 6.9. It never touches any other packet, but for the client's
 * end that it writes into those of a leg that is remembered (client.h). The second program, at
 * egress, is in exit_mark.h.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "client.h"
#include "exit_mark.h"
#include "kernel.h"
#include "peers.h"
#include "rules.h"
#include "segment.h"
#include "siphash.h"
#include "tables.h"
#include "listener_report.h"
#include "load_report.h"
#include "release.h"
#include "transfer.h"
#include "wire.h"

#define IPV4_FRAGMENT_AT 6
/* Header words that a segment with the option has at least: 20 fixed bytes and 28 of the option. */
#define TCP_WORDS_MIN 12
#define HEAD_BYTES (OPTION_AT + OPTION_LENGTH)

/* What an adoption's identity and the tagged bytes begin with. */
#define ADOPTION_TAGGED_BYTES __builtin_offsetof(struct adoption, zero)
_Static_assert(ADOPTION_TAGGED_BYTES == __builtin_offsetof(struct tagged, exid), "the same fields");

/* What a refusal is counted as. */
static __always_inline __u32 outcome_of(__u32 reason)
{
	switch (reason) {
	case NO_LISTENER:
		return ANSWERED_NO_LISTENER;
	case ACCEPT_QUEUE_FULL:
		return ANSWERED_ACCEPT_QUEUE_FULL;
	case TUPLE_IN_USE:
		return ANSWERED_TUPLE_IN_USE;
	case ALREADY_ADOPTED:
		return ANSWERED_ALREADY_ADOPTED;
	case SYNCOOKIES_OFF:
		return ANSWERED_SYNCOOKIES_OFF;
	case FORGOTTEN:
		return ANSWERED_FORGOTTEN;
	case RENEW:
		return ANSWERED_RENEW;
	case PACKET_RULES:
		return ANSWERED_PACKET_RULES;
	case RELEASED:
		return ANSWERED_RELEASED;
	case KEPT:
		return ANSWERED_KEPT;
	case MOVED:
		return ANSWERED_MOVED;
	default:
		return ANSWERED_KERNEL_REFUSED;
	}
}

/* Why a listener cannot take one more connection by adoption, or READY_TO_ADOPT. */
static __always_inline __u32 obstacle(struct tcp_sock *tcp, const struct net *net)
{
	/* The kernel ignores the assigned request without a word when syncookies are off. */
	if (!net->ipv4.sysctl_tcp_syncookies)
		return SYNCOOKIES_OFF;
	if (has_full_queue(tcp))
		return ACCEPT_QUEUE_FULL;
	/* bpf_sk_assign_tcp_reqsk() refuses them; said here so that a Probe finds it out. */
	if (bpf_core_field_exists(tcp->is_mptcp) && BPF_CORE_READ_BITFIELD(tcp, is_mptcp))
		return KERNEL_REFUSED;
	return READY_TO_ADOPT;
}

/*
 * The next sequence number that the socket in the way expects, so that it can be reset; 0 if
 * unknown.
 */
static __always_inline __be32 rcv_nxt_of(struct bpf_sock *sk)
{
	struct tcp_sock *full = bpf_skc_to_tcp_sock(sk);
	struct tcp_request_sock *request;
	void *waiting;

	if (full)
		return bpf_htonl(full->rcv_nxt);
	waiting = bpf_skc_to_tcp_timewait_sock(sk);
	if (waiting)
		return bpf_htonl(((struct sock *)waiting)->__sk_common.skc_tw_rcv_nxt);
	request = bpf_skc_to_tcp_request_sock(sk);
	return request ? bpf_htonl(request->rcv_nxt) : 0;
}

/* What is besides a message, and what is said of it besides the reason. */
struct judged {
	const struct net *net;
	__u64 netns;
	__u32 outcome;
	__be32 detail;
	/* Of a Probe: the load report. */
	__be32 queue;
	__be32 stalls;
};

/* A Probe asks for the listener, whatever socket its own tuple may name. */
static __always_inline __u32 probe(struct __sk_buff *skb, struct bpf_sock *sk, struct judged *j)
{
	__u32 reason = NO_LISTENER, queue = 0;
	struct tcp_sock *listener;

	if (redirects(skb, j->netns)) {
		/* The listener that is found, if any, is not who closes clients' connections. */
		j->detail = bpf_htonl(MARKS_EXITS | FORGETS);
		return PACKET_RULES;
	}
	if (!sk)
		return NO_LISTENER;
	listener = sk->state == BPF_TCP_LISTEN ? bpf_skc_to_tcp_sock(sk) : NULL;
	if (listener) {
		reason = obstacle(listener, j->net);
		if (reason == READY_TO_ADOPT) {
			reason = READY;
			j->outcome = listeners_of(listener) > LISTENERS_MAX ? PROBE_TOO_MANY_LISTENERS : PROBE_READY;
		}
		/* Whatever is in the way: who closes connections meanwhile is the same question. */
		j->detail = bpf_htonl(listener_report(listener, j->netns, &queue));
		j->queue = bpf_htonl(queue);
		if (queue)
			j->stalls = bpf_htonl(stalls_field(listener));
	}
	return reason;
}

/*
 * A Forget creates nothing, and says whether its pair is free here. A live socket is another use of
 * the pair, which this one is too late for: an Answer would look like that connection's RST on the
 * way. But where it is in front of an adoption that met silence, trackers may have let go of the
 * connection (its request overtook the first copy, and our RST was all that they saw), and taken
 * the Forget for a new one's begin, which only an Answer ends.
 */
static __always_inline __u32 forget(struct bpf_sock *sk, __u8 flags)
{
	if (!sk || sk->state == BPF_TCP_LISTEN)
		return FORGOTTEN;
	return sk->state == BPF_TCP_TIME_WAIT || flags & FLAG_IN_FRONT ? TUPLE_IN_USE : UNDECIDED;
}

/*
 * For how many milliseconds the namespace has had its number, rounded down: an adoption that was
 * sent before that may have been taken by whoever was here then.
 */
static __always_inline __be32 age_of(const struct namespace *here)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 ms = now > here->since_ns ? (now - here->since_ns) / 1000000 : 0;

	return bpf_htonl(ms < 0xffffffff ? ms : 0xffffffff);
}

static __always_inline __u32 assign(struct __sk_buff *skb, struct tcp_sock *listener, const struct tagged *t)
{
	struct bpf_tcp_req_attrs attrs = {
		.rcv_tsval = bpf_ntohl(t->tsval),
		.rcv_tsecr = bpf_ntohl(t->server_timestamp),
		.mss = bpf_ntohs(t->mss),
		.rcv_wscale = t->scales >> 4,
		.snd_wscale = t->scales & 0x0f,
		.ecn_ok = !!(t->flags & FLAG_ECN),
		.wscale_ok = !!(t->flags & FLAG_WINDOW_SCALING),
		.sack_ok = !!(t->flags & FLAG_SACK),
		.tstamp_ok = !!(t->flags & FLAG_TIMESTAMPS),
	};

	return bpf_sk_assign_tcp_reqsk(skb, (struct sock *)listener, &attrs, sizeof(attrs)) ? KERNEL_REFUSED
											     : READY_TO_ADOPT;
}

/*
 * What a copy of an adoption that was decided before comes to: what the first one came to, whoever
 * listens now.
 */
static __always_inline __u32 again(const struct fate *fate, struct bpf_sock *sk, __u32 *outcome, __be32 *in_the_way)
{
	int in_use = sk && sk->state != BPF_TCP_LISTEN;

	if (fate->of == READY_TO_ADOPT) {
		/*
		 * Its socket answers. Without one, whether anybody listens or not, the application
		 * may have had all.
		 */
		*outcome = REPEATED;
		if (in_use)
			return READY_TO_ADOPT;
		return bpf_ktime_get_ns() - fate->decided_ns < SETTLING_NS ? UNDECIDED : ALREADY_ADOPTED;
	}
	if (fate->of == TUPLE_IN_USE && in_use)
		*in_the_way = rcv_nxt_of(sk);
	return fate->of;
}

/*
 * The first copy of an adoption decides for all. The decision is remembered before it is acted
 * upon, and what cannot be remembered is not done: neither a socket nor an Answer may be at odds
 * with what a later copy is told.
 */
static __always_inline __u32 decide(struct __sk_buff *skb, const struct tagged *t, const struct net *net,
				    const struct adoption *this, struct bpf_sock *sk, __be32 *in_the_way)
{
	struct tcp_sock *listener = NULL;
	struct fate fate = { .of = KERNEL_REFUSED, .decided_ns = bpf_ktime_get_ns() };

	if (redirects(skb, this->netns)) {
		fate.of = PACKET_RULES;
	} else if (!sk) {
		fate.of = NO_LISTENER;
	} else if (sk->state != BPF_TCP_LISTEN) {
		*in_the_way = rcv_nxt_of(sk);
		fate.of = TUPLE_IN_USE;
	} else {
		listener = bpf_skc_to_tcp_sock(sk);
		if (listener)
			fate.of = obstacle(listener, net);
	}
	/* Fails if another CPU decides a copy at this moment, and for want of memory. */
	if (bpf_map_update_elem(&recent, this, &fate, BPF_NOEXIST))
		return UNDECIDED;
	if (fate.of != READY_TO_ADOPT || !listener)
		return fate.of;
	fate.of = assign(skb, listener, t);
	if (fate.of != READY_TO_ADOPT && bpf_map_update_elem(&recent, this, &fate, BPF_ANY))
		return UNDECIDED;
	return fate.of;
}

/*
 * READY_TO_ADOPT: pass it on, the outcome says why; UNDECIDED: drop it; else the reason of the
 * Answer. Not inlined, as little as send_answer(), baton_tag_of() and count(): all frames of a
 * program have 512 bytes together, and only one of these has its at a time.
 */
static __noinline __u32 adopt(struct __sk_buff *skb, const struct tagged *t, struct judged *j, struct bpf_sock *sk)
{
	struct adoption this = { .netns = j->netns };
	struct fate *fate;

	__builtin_memcpy(&this, t, ADOPTION_TAGGED_BYTES);
	fate = bpf_map_lookup_elem(&recent, &this);
	return fate ? again(fate, sk, &j->outcome, &j->detail) : decide(skb, t, j->net, &this, sk, &j->detail);
}

/*
 * A segment with the option: everything from here on is rare, and never inlined into the fast path.
 */
static __noinline int handle(struct __sk_buff *skb, __u32 tcp_at, const struct transport *of)
{
	const struct sk_buff *kernel_skb = kernel_of(skb);
	struct net *net = kernel_skb->dev->nd_net.net;
	struct tagged t __attribute__((aligned(8))) = {};
	struct judged j = { .net = net, .netns = net->net_cookie, .outcome = ADOPTED };
	__u32 reason, epoch;
	struct key_slot *slot;
	const struct namespace *here;
	struct end shown = {};
	struct message m;
	int action, forgets, elsewhere, payload, block, known = 0;
	struct bpf_sock *sk;

	/* Another host's, or a VLAN's: not for a socket behind this interface. */
	if (!of || is_of_vlan(skb) || skb->pkt_type != 0)
		return PASS_ON;
	payload = bpf_skb_load_bytes(skb, tcp_at, &m, sizeof(m)) ? -1 : addresses(skb, tcp_at, &t);
	if (payload < 0) {
		count(j.netns, BAD_LAYOUT);
		return TC_ACT_SHOT;
	}
	block = payload ? sum_of(skb, tcp_at + MESSAGE_BYTES, CLIENT_BLOCK_BYTES) : 0;
	if (!sum_is_right(kernel_skb, &m, &t, block, payload)) {
		count(j.netns, BAD_CHECKSUM);
		return TC_ACT_SHOT;
	}
	if (m.exid == bpf_htons(EXID_ANSWER)) {
		count(j.netns, STRAY_ANSWER);
		return TC_ACT_SHOT;
	}
	forgets = m.exid == bpf_htons(EXID_FORGET);
	/* A Transfer without a port for the peer has a block that says its end. */
	if ((m.exid == bpf_htons(EXID_TRANSFER) ? !payload != !!m.window : payload && m.exid != bpf_htons(EXID_ADOPT)) ||
	    m.data_offset != (MESSAGE_BYTES / 4) << 4 || m.tcp_flags != (forgets ? TCP_SYN : TCP_ACK) ||
	    m.urgent || m.nops[0] != 1 || m.nops[1] != 1 || m.ts_kind != 8 || m.ts_length != 10) {
		count(j.netns, BAD_LAYOUT);
		return TC_ACT_SHOT;
	}

	fill(&t, &m);
	epoch = m.flags >> 4;
	slot = bpf_map_lookup_elem(&keys, &epoch);
	if (!slot || !slot->live) {
		count(j.netns, UNKNOWN_EPOCH);
		return TC_ACT_SHOT;
	}
	if (baton_tag_of(&t, slot) != m.tag) {
		count(j.netns, BAD_TAG);
		return TC_ACT_SHOT;
	}
	remember_peer(t.saddr, j.netns);

	/* The loader writes it before it attaches. */
	here = bpf_map_lookup_elem(&namespaces, &j.netns);
	if (!here) {
		count(j.netns, ANSWER_LOST);
		return TC_ACT_SHOT;
	}
	elsewhere = m.exid != bpf_htons(EXID_PROBE) && m.namespace != here->number;
	if (payload) {
		if (!elsewhere && !client_of(skb, tcp_at + MESSAGE_BYTES, &t, j.netns, &shown)) {
			count(j.netns, CLIENT_BAD);
			return TC_ACT_SHOT;
		}
		/* Neither the pod nor the dataplane, in an Answer, gets to see it. */
		if (take_off(skb, tcp_at, MESSAGE_BYTES, block) || begin_behind(skb, tcp_at, m.seq)) {
			count(j.netns, ANSWER_LOST);
			return TC_ACT_SHOT;
		}
		m.seq = behind_block(m.seq);
		fill(&t, &m);
	}
	/* Its Answer would look like the end of whatever is on the pair now. */
	if (elsewhere && forgets) {
		count(j.netns, ANSWERED_RENEW);
		return TC_ACT_SHOT;
	}
	if (elsewhere) {
		reason = RENEW;
		j.detail = age_of(here);
		goto answer;
	}

	if (m.exid == bpf_htons(EXID_RELEASE) || m.exid == bpf_htons(EXID_TRANSFER)) {
		/* On the wire it is the one before, which a kernel without this program has had. */
		t.seq = bpf_htonl(bpf_ntohl(m.seq) + 1);
		if (m.exid == bpf_htons(EXID_RELEASE)) {
			reason = release(&t, j.netns, &j.outcome);
		} else {
			if (!payload) {
				__builtin_memcpy(shown.address, t.saddr, sizeof(shown.address));
				shown.port = t.window;
			}
			/* Another pod would have to be told of the client as well. */
			reason = is_leg(&t, j.netns) ? KEPT : transfer(&t, &shown, j.netns, &j.outcome);
			/* Which of several Transfers with these numbers it answers. */
			j.detail = bpf_htonl(bpf_ntohs(shown.port));
		}
		if (reason != UNDECIDED)
			goto answer;
		count(j.netns, j.outcome);
		return TC_ACT_SHOT;
	}

	if (m.exid == bpf_htons(EXID_ADOPT)) {
		if (adopt_as(skb, tcp_at, &t, payload ? &shown : NULL, &shown))
			return TC_ACT_SHOT;
	} else {
		known = look_up_leg(&t, j.netns, &shown);
	}
	/* Port 0 is on no connection: the listener. */
	sk = find(skb, &t, &shown, m.exid == bpf_htons(EXID_PROBE) ? 0 : shown.port, tcp_at);
	if (m.exid == bpf_htons(EXID_PROBE))
		reason = probe(skb, sk, &j);
	else if (forgets)
		reason = forget(sk, m.flags);
	else
		reason = adopt(skb, &t, &j, sk);
	if (sk)
		bpf_sk_release(sk);
	if (forgets && reason == UNDECIDED) {
		count(j.netns, FORGET_IN_USE);
		return TC_ACT_SHOT;
	}
	if (reason == FORGOTTEN && known)
		forget_leg_of(&t, j.netns, &shown);
	if (reason == FORGOTTEN || (reason == READY_TO_ADOPT && j.outcome == ADOPTED))
		forget_moved(&t, j.netns);
	if (reason == READY_TO_ADOPT) {
		count(j.netns, j.outcome);
		return PASS_ON;
	}
answer:
	action = -1;
	if (m.exid == bpf_htons(EXID_PROBE)) {
		m.tsval = t.tsval = j.queue;
		m.tsecr = t.tsecr = j.stalls;
	}
	if (reason != UNDECIDED) {
		make_answer(&m, &t, reason, j.detail, here->number, slot);
		action = send_answer(skb, tcp_at, &m, &t);
	}
	if (action < 0) {
		count(j.netns, ANSWER_LOST);
		return TC_ACT_SHOT;
	}
	count(j.netns, reason == READY ? j.outcome : outcome_of(reason));
	return action;
}

/*
 * Every packet that enters the pod passes here: a few comparisons and one look whether any leg is
 * remembered. No call but for SYNs.
 */
SEC("tc")
int baton_adopter(struct __sk_buff *skb)
{
	__u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct transport of;
	__u32 tcp_at, head, words;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		tcp_at = ETH_HLEN + IPV4_BYTES;
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		tcp_at = ETH_HLEN + IPV6_BYTES;
	else
		goto no_message;

	if (data + tcp_at + HEAD_BYTES > end) {
		/* Too short to be a message, or its headers are not in the linear part yet. */
		if (skb->len < tcp_at + HEAD_BYTES || bpf_skb_pull_data(skb, tcp_at + HEAD_BYTES))
			goto no_message;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + tcp_at + HEAD_BYTES > end)
			goto no_message;
	}

	/* A SYN, which may have a client block behind it; or what is no TCP at all. */
	if ((data[tcp_at + TCP_FLAGS_AT] & ~(TCP_ECE | TCP_CWR)) == TCP_SYN && has_block(skb, tcp_at))
		return greet(skb, tcp_at, &of);
	words = data[tcp_at + TCP_DATA_OFFSET_AT] >> 4;
	if (words < TCP_WORDS_MIN)
		goto no_message;
	head = bpf_ntohl(*(__be32 *)(data + tcp_at + OPTION_AT));
	if (head - OPTION_HEAD >= OPTION_HEADS)
		goto no_message;
	if (tcp_at == ETH_HLEN + IPV4_BYTES) {
		/*
		 * More fragments to come, or not the first one: only a whole datagram is a message.
		 */
		if (data[ETH_HLEN] != IPV4_NO_OPTIONS || data[ETH_HLEN + IPV4_PROTOCOL_AT] != IPPROTO_TCP ||
		    (*(__be16 *)(data + ETH_HLEN + IPV4_FRAGMENT_AT) & bpf_htons(0x3fff)))
			goto no_message;
	} else if (data[ETH_HLEN + IPV6_NEXT_HEADER_AT] != IPPROTO_TCP) {
		goto no_message;
	}
	return handle(skb, tcp_at, &of);
no_message:
	return is_restoring() ? arrive(skb, &of) : PASS_ON;
}

/* The helpers and kernel functions that it calls are for GPL-compatible programs only. */
char _license[] SEC("license") = "GPL";
