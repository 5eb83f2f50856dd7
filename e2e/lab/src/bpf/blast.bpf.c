/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The packet generator of `baton-demo pps`: a response's segment and the client's acknowledgement
 * of the one before it, by turns over several connections, each with new numbers and a right
 * checksum.
 *
 * `blast` runs on live frames (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18), which are sent out of the
 * interface that it is run for. `sink`, at the same interface, counts what comes back and drops it.
 * Headers are src/blast.rs's.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FLOWS 256
/* Ethernet, IPv4, TCP with timestamps. */
#define HEAD 66
#define SEQ_AT 38
#define ACK_AT 42
#define CHECKSUM_AT 50

struct flow {
	__u8 segment[HEAD];
	__u8 ack[HEAD];
	__u32 next;	/* the segment's number */
	/* Of all that is summed but the number that changes and the checksum. */
	__u32 segment_sum;
	__u32 ack_sum;
};

struct run {
	__u32 flows;
	__u32 length;	/* of a segment's data */
	__u64 sent;
	__u64 back;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FLOWS);
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct run);
} run SEC(".maps");

static __always_inline struct run *the_run(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&run, &zero);
}

static __always_inline __u16 checksum(__u32 sum, __be32 number)
{
	sum += (number & 0xffff) + (number >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

SEC("xdp")
int blast(struct xdp_md *ctx)
{
	struct run *r = the_run();

	if (!r || !r->flows)
		return XDP_ABORTED;
	__u64 n = r->sent++;
	__u32 slot = (n >> 1) % r->flows;
	struct flow *f = bpf_map_lookup_elem(&flows, &slot);

	if (!f)
		return XDP_ABORTED;
	int is_ack = n & 1;

	if (is_ack && r->length && bpf_xdp_adjust_tail(ctx, -(int)r->length))
		return XDP_ABORTED;
	__u8 *frame = (void *)(long)ctx->data;

	if (frame + HEAD > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	__be32 number;

	if (is_ack) {
		__builtin_memcpy(frame, f->ack, HEAD);
		number = bpf_htonl(f->next - r->length);
		*(__be32 *)(frame + ACK_AT) = number;
		*(__u16 *)(frame + CHECKSUM_AT) = checksum(f->ack_sum, number);
	} else {
		__builtin_memcpy(frame, f->segment, HEAD);
		number = bpf_htonl(f->next);
		*(__be32 *)(frame + SEQ_AT) = number;
		*(__u16 *)(frame + CHECKSUM_AT) = checksum(f->segment_sum, number);
		f->next += r->length;
	}
	return XDP_TX;
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	struct ethhdr *frame = (void *)(long)ctx->data;
	struct run *r = the_run();

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end || frame->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	if (r)
		__sync_fetch_and_add(&r->back, 1);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Apache-2.0";
