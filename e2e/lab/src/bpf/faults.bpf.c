/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The fault program of the tests: at the node's end of a veth it loses, doubles, diverts or passes
 * TCP packets.
 *
 * One packet, one fate, drawn from the seed and the packet's number on its path (an interface and a
 * direction), so that the n-th packet of a path fares alike in every run of the same seed. What
 * shall be held back or corrupted is sent through a tap device to user space (src/fault_hold.rs)
 * with its path in a VLAN tag, and comes back here, to where it was. It never changes a byte of a
 * packet and never touches anything but TCP.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* "Nothing to say": the stack goes on with the packet. */
#define PASS_ON TC_ACT_UNSPEC
/*
 * Two paths for each interface; src/fault_program.rs and src/fault_hold.rs have the same numbers.
 */
#define PATHS 64
#define INTERFACES (PATHS / 2)
#define WAY_FROM 0
#define WAY_TO 1
/* In the VLAN id beside path + 1: one bit shall be flipped. */
#define TICKET_CORRUPT 0x800
#define TICKET_PATH 0x7ff
/* On packets that had their fate already. */
#define MARK_DONE 0xba70fau
#define PER_MILLE 1000

#define IPV4_PROTOCOL_AT 9
#define IPV4_ADDRESSES_AT 12
#define IPV4_BYTES 20
#define IPV6_NEXT_HEADER_AT 6
#define IPV6_ADDRESSES_AT 8
#define IPV6_BYTES 40

/* Of 1,000 packets so many, one after the other: together at most 1,000. */
struct rates {
	__u64 seed;
	__u32 lost;
	__u32 corrupted;
	__u32 held;
	__u32 doubled;
};

struct counts {
	__u64 seen;
	__u64 lost;
	__u64 corrupted;	/* sent to be corrupted */
	__u64 held;		/* sent to be held back */
	__u64 doubled;
	__u64 doubled_late;	/* those of which the second came through the tap */
	__u64 overtaken;	/* packets that passed an earlier one of their connection that was held back */
};

struct flow {
	__u8 addresses[32];
	__be32 ports;
	__u32 path;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PATHS);
	__type(key, __u32);
	__type(value, struct rates);
} rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PATHS);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* The number of an interface, and the interface of a number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

/* The tap's index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tap SEC(".maps");

/* Connections of which a packet is held back. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow);
	__type(value, __u8);
} holding SEC(".maps");

/* splitmix64: every number of the sequence by itself. */
static __always_inline __u64 draw(__u64 seed, __u64 number)
{
	__u64 z = seed + (number + 1) * 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* The connection of a TCP packet; 0 if it is none. */
static __always_inline int flow_of(struct __sk_buff *skb, struct flow *flow)
{
	__u8 protocol = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV4_PROTOCOL_AT, &protocol, 1) || protocol != IPPROTO_TCP ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + IPV4_ADDRESSES_AT, flow->addresses, 8) ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + IPV4_BYTES, &flow->ports, 4))
			return 0;
		return 1;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_NEXT_HEADER_AT, &protocol, 1) || protocol != IPPROTO_TCP ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_ADDRESSES_AT, flow->addresses, 32) ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + IPV6_BYTES, &flow->ports, 4))
			return 0;
		return 1;
	}
	return 0;
}

static __always_inline int divert(struct __sk_buff *skb, __u32 ticket)
{
	__u32 zero = 0, *out = bpf_map_lookup_elem(&tap, &zero);

	if (!out || bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), ticket))
		return TC_ACT_SHOT;
	return bpf_redirect(*out, 0);
}

/* A second one now, behind or in front of the first, or late through the tap. */
static __always_inline void repeat(struct __sk_buff *skb, __u32 ticket, __u32 way, int late, struct counts *count)
{
	__u32 zero = 0, *out = bpf_map_lookup_elem(&tap, &zero);
	int sent;

	if (!out)
		return;
	if (late) {
		if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), ticket))
			return;
		sent = !bpf_clone_redirect(skb, *out, 0);
		bpf_skb_vlan_pop(skb);
	} else {
		skb->mark = MARK_DONE;
		sent = !bpf_clone_redirect(skb, skb->ifindex, way == WAY_FROM ? BPF_F_INGRESS : 0);
		skb->mark = 0;
	}
	if (!sent)
		return;
	__sync_fetch_and_add(&count->doubled, 1);
	if (late)
		__sync_fetch_and_add(&count->doubled_late, 1);
}

static __always_inline int fate(struct __sk_buff *skb, __u32 way)
{
	__u32 ifindex = skb->ifindex, *slot, path;
	struct flow flow = {};
	struct counts *count;
	struct rates *rate;
	__u64 drawn;
	__u32 x;
	__u8 one = 1;

	if (skb->mark == MARK_DONE) {
		skb->mark = 0;
		return PASS_ON;
	}
	slot = bpf_map_lookup_elem(&slots, &ifindex);
	if (!slot)
		return PASS_ON;
	path = *slot * 2 + way;
	rate = bpf_map_lookup_elem(&rates, &path);
	count = bpf_map_lookup_elem(&counts, &path);
	if (!rate || !count || !(rate->lost | rate->corrupted | rate->held | rate->doubled) || !flow_of(skb, &flow))
		return PASS_ON;
	flow.path = path;
	drawn = draw(rate->seed, __sync_fetch_and_add(&count->seen, 1));
	x = (drawn >> 32) % PER_MILLE;

	if (x < rate->lost) {
		__sync_fetch_and_add(&count->lost, 1);
		return TC_ACT_SHOT;
	}
	x -= rate->lost;
	if (x < rate->corrupted) {
		__sync_fetch_and_add(&count->corrupted, 1);
		return divert(skb, (path + 1) | TICKET_CORRUPT);
	}
	x -= rate->corrupted;
	if (x < rate->held) {
		__sync_fetch_and_add(&count->held, 1);
		bpf_map_update_elem(&holding, &flow, &one, BPF_ANY);
		return divert(skb, path + 1);
	}
	x -= rate->held;
	if (x < rate->doubled)
		repeat(skb, path + 1, way, drawn & 1, count);
	if (rate->held && bpf_map_lookup_elem(&holding, &flow))
		__sync_fetch_and_add(&count->overtaken, 1);
	return PASS_ON;
}

/* At the node's ingress: what comes from there. */
SEC("tc")
int faults_from(struct __sk_buff *skb)
{
	return fate(skb, WAY_FROM);
}

/* At the node's egress: what goes there. */
SEC("tc")
int faults_to(struct __sk_buff *skb)
{
	return fate(skb, WAY_TO);
}

/* At the tap's ingress: what was held back goes on. */
SEC("tc")
int faults_back(struct __sk_buff *skb)
{
	__u32 path, slot, *interface;
	struct flow flow = {};

	if (!skb->vlan_present)
		return TC_ACT_SHOT;
	path = (skb->vlan_tci & TICKET_PATH) - 1;
	slot = path / 2;
	interface = bpf_map_lookup_elem(&interfaces, &slot);
	if (!interface || bpf_skb_vlan_pop(skb))
		return TC_ACT_SHOT;
	if (flow_of(skb, &flow)) {
		flow.path = path;
		bpf_map_delete_elem(&holding, &flow);
	}
	skb->mark = MARK_DONE;
	return bpf_redirect(*interface, path % 2 == WAY_FROM ? BPF_F_INGRESS : 0);
}

char LICENSE[] SEC("license") = "Apache-2.0";
