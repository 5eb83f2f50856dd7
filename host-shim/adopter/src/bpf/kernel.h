/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The few kernel types and functions that the adopter uses and that stable headers lack. Owns
 * declarations only. Offsets are relocated at load time (CO-RE), so only the names and kinds of
 * these members matter.
 */
#ifndef BATON_KERNEL_H
#define BATON_KERNEL_H

#include <linux/in6.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct netns_ipv4 {
	__u8 sysctl_tcp_syncookies;
};

struct nf_hook_entry {
	void *hook;
	void *priv;
};

struct nf_hook_entries {
	__u16 num_hook_entries;
	struct nf_hook_entry hooks[];
};

/* By hook: NF_INET_PRE_ROUTING and NF_INET_LOCAL_IN, on the way to a socket, are the first. */
struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[5];
	struct nf_hook_entries *hooks_ipv6[5];
};

struct netns_nftables {
	unsigned int base_seq;	/* Linux 6.17: counts what was committed */
	__u8 gencursor;		/* its last bit */
};

struct net {
	__u64 net_cookie;	/* Linux 5.12; never used twice while the machine runs */
	struct netns_ipv4 ipv4;
	struct netns_nf nf;	/* CONFIG_NETFILTER */
	struct netns_nftables nft;	/* CONFIG_NF_TABLES */
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
};

struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
	__u8 ip_summed:2;
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;		/* the local port */
	unsigned short skc_family;
	unsigned long skc_flags;
	struct in6_addr skc_v6_daddr;	/* CONFIG_IPV6; IPv4 mapped */
	struct in6_addr skc_v6_rcv_saddr;
	volatile __u8 skc_state;
	possible_net_t skc_net;
	__u32 skc_tw_rcv_nxt;
};

struct hlist_node {
	struct hlist_node *next;
};

struct timespec64 {
	__s64 tv_sec;
};

struct sock_reuseport {
	__u16 num_socks;
	struct sock *socks[];
};

struct inode {
	unsigned long i_ino;
};

typedef struct {
	__s64 counter;
} counter_t;

typedef struct {
	counter_t refcnt;
} file_ref_t;

struct file_operations;

struct file {
	file_ref_t f_ref;	/* Linux 6.13; one less than the references */
	const struct file_operations *f_op;
	void *private_data;
	struct inode *f_inode;
};

struct file___until_6_12 {
	counter_t f_count;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

typedef struct {
	int owned;
} socket_lock_t;

typedef struct {
	int counter;
} atomic_t;

struct psi_group {
	_Bool enabled;		/* Linux 6.1: cgroup.pressure */
	__u64 total[2][6];	/* by aggregator, the first is PSI_AVGS; ns */
};

/* The same array, as the BTF of most kernels until 6.18 has it: flat. */
struct psi_group___flat {
	__u64 total[12];
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct cgroup_subsys_state *subsys[1];	/* by controller */
	struct psi_group *psi;	/* CONFIG_PSI, Linux 6.1 */
};

enum cgroup_subsys_id {
	cpu_cgrp_id = 1,	/* CONFIG_CGROUP_SCHED; relocated */
};

struct list_head {
	struct list_head *next;
};

struct cfs_bandwidth {
	__s64 period;		/* ns */
	__u64 quota;		/* ns, or RUNTIME_INF */
	struct list_head throttled_cfs_rq;
	int nr_throttled;
};

struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_bandwidth cfs_bandwidth;	/* CONFIG_CFS_BANDWIDTH */
};

struct sock_cgroup_data {
	struct cgroup *cgroup;	/* of version 2, CONFIG_SOCK_CGROUP_DATA */
};

struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
	struct sock_cgroup_data sk_cgrp_data;
	atomic_t sk_drops;
	int sk_peek_off;	/* SO_PEEK_OFF */
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
	struct socket *sk_socket;
	void *sk_user_data;
};

struct inet_connection_sock {
	const void *icsk_ulp_ops;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 write_seq;
	__u32 snd_una;
	__u16 urg_data;
	__u8 repair:1;
	__u8 is_mptcp:1;	/* CONFIG_MPTCP */
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	unsigned int flags;
	struct files_struct *files;
};

struct tcp_request_sock {
	__u32 rcv_nxt;
};

struct bpf_iter_meta;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

/* include/linux/sched.h: the task is on its way out (do_exit), its files are being closed. */
#define PF_EXITING 0x00000004
/* include/linux/skbuff.h: a device, or GRO, has verified the checksum. */
#define CHECKSUM_UNNECESSARY 1
/* The checksum field holds the pseudo-header's sum and the device completes it. */
#define CHECKSUM_PARTIAL 3

/* include/net/tcp.h, Linux 6.9. Its size is part of the call, so it is not relocated. */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

/* Linux 6.9. Makes a request of `sk`, a listener, that the ACK in `skb` completes. */
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk,
				   struct bpf_tcp_req_attrs *attrs, int attrs__sz) __ksym;
/* Linux 6.2. Reads an address as that type; what is not there reads as 0. */
extern void *bpf_rdonly_cast(const void *address, __u32 type) __ksym;
/* Linux 6.5. Ends a socket whose lock is held, with a RST, and its descriptor by ECONNABORTED. */
extern int bpf_sock_destroy(struct sock_common *sk) __ksym;
/* Linux 6.2. The kernel's own view of the context. */
extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

/*
 * That view as a plain address. Through a pointer that the verifier trusts it looks up, at each
 * step to another pointer and each time it comes by, whether that one is trusted too: a search
 * through the names of all types (`btf_nested_type_is_trusted`), a third of the time that loading
 * took.
 */
static __always_inline const struct sk_buff *kernel_of(struct __sk_buff *skb)
{
	return bpf_rdonly_cast(bpf_cast_to_kern_ctx(skb), bpf_core_type_id_kernel(struct sk_buff));
}

/* The same of a socket. */
static __always_inline const struct sock *plain_sock(const void *sk)
{
	return bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
}

#endif
