/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A congestion control whose begin is all that it does: it gives a socket the congestion window
 * that the connection had in another socket. Owns that; the algorithm that the connection is under
 * is set behind it, and goes on from there (tcp_init_congestion_control() leaves the window).
 *
 * No system call sets a congestion window, and TCP_BPF_IW needs a control group of its own.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
	int __unused;
};

struct tcp_sock {
	__u32 snd_ssthresh;
	__u32 snd_cwnd;
};

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*init)(struct sock *sk);
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
};

#pragma clang attribute pop

/* In segments. As src/warm.rs has it. */
struct window {
	__u32 congestion;
	__u32 threshold;
};

/* By socket. Written by user space through the socket's descriptor. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct window);
} windows SEC(".maps");

/* Each program's context is its arguments; the first one is the socket. */
SEC("struct_ops")
int warm_init(__u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	const struct window *window = bpf_sk_storage_get(&windows, tp, (void *)0, 0);

	if (window) {
		tp->snd_cwnd = window->congestion;
		tp->snd_ssthresh = window->threshold;
	}
	return 0;
}

SEC("struct_ops")
int warm_ssthresh(__u64 *ctx)
{
	return ((struct tcp_sock *)ctx[0])->snd_ssthresh;
}

SEC("struct_ops")
int warm_cong_avoid(__u64 *ctx)
{
	(void)ctx;
	return 0;
}

SEC("struct_ops")
int warm_undo_cwnd(__u64 *ctx)
{
	return ((struct tcp_sock *)ctx[0])->snd_cwnd;
}

/* User space gives it a name that no other one of this kernel has. */
SEC(".struct_ops.link")
struct tcp_congestion_ops warm = {
	.init = (void *)warm_init,
	.ssthresh = (void *)warm_ssthresh,
	.cong_avoid = (void *)warm_cong_avoid,
	.undo_cwnd = (void *)warm_undo_cwnd,
	.name = "baton",
};

char _license[] SEC("license") = "GPL";
