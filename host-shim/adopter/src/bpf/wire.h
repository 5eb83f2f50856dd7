/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The bytes of docs/adoption-wire.md. Owns layouts and codes; never behaviour. All fields are
 * big-endian.
 */
#ifndef BATON_WIRE_H
#define BATON_WIRE_H

#include <linux/pkt_cls.h>
#include <linux/types.h>

/* "Nothing to say": the next program on the interface decides, then the stack. */
#define PASS_ON TC_ACT_UNSPEC

#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define IPV4_NO_OPTIONS 0x45
#define IPV4_PROTOCOL_AT 9
#define IPV6_LENGTH_AT 4
#define IPV6_NEXT_HEADER_AT 6
#define TCP_SEQ_AT 4
#define TCP_DATA_OFFSET_AT 12
#define TCP_FLAGS_AT 13
#define TCP_CHECKSUM_AT 16

#define OPTION_KIND 253
#define OPTION_LENGTH 28
#define OPTION_AT 20		/* offset of the option in the TCP header */

#define EXID_ADOPT 0xBA70
#define EXID_PROBE 0xBA71
#define EXID_ANSWER 0xBA72
#define EXID_FORGET 0xBA73
#define EXID_RELEASE 0xBA74
#define EXID_TRANSFER 0xBA75
/* kind, length and experiment id as one number; that of a Transfer is the last one. */
#define OPTION_HEAD (((__u32)OPTION_KIND << 24) | (OPTION_LENGTH << 16) | EXID_ADOPT)
#define OPTION_HEADS (EXID_TRANSFER - EXID_ADOPT + 1)

/* In front of a client block, which has no option: it is a payload. */
#define EXID_CLIENT 0xBA76

#define FLAG_WINDOW_SCALING 0x01
#define FLAG_SACK 0x02
#define FLAG_TIMESTAMPS 0x04
#define FLAG_ECN 0x08
/* In a Transfer: the timestamps are a part of the other pod's address, not a number. */
#define FLAG_ADDRESS 0x01
/* In a Forget: in front of an adoption that met silence twice. It is answered in use, too. */
#define FLAG_IN_FRONT 0x01

/* In the urgent pointer of a FIN or RST without URG: its process was exiting. */
#define EXIT_MARK 0xBA7E
/* The same: its process has the listener of the port. */
#define LISTENER_MARK 0xBA7F
#define UNREAD_MARK 0xBA81
/* The same: the socket was ended by a Release, and nobody read what it asked about. */
#define RELEASE_MARK 0xBA80

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_URG 0x20
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80
#define TCP_RST_ACK 0x14

/* Reasons of an Answer. */
enum reason {
	READY_TO_ADOPT = 0,	/* never sent: go on; in `recent`: taken */
	NO_LISTENER = 1,
	ACCEPT_QUEUE_FULL = 2,
	KERNEL_REFUSED = 3,
	TUPLE_IN_USE = 4,
	ALREADY_ADOPTED = 5,
	READY = 6,
	SYNCOOKIES_OFF = 7,
	FORGOTTEN = 8,
	RENEW = 9,
	PACKET_RULES = 10,
	RELEASED = 11,
	KEPT = 12,
	MOVED = 13,
	UNDECIDED = 0xffff,	/* never sent: say nothing, the next copy is told */
};

/*
 * The server timestamp of an Answer to a Probe that found a listener: that ends of exiting
 * processes are marked, and of the listener how many descriptors of all processes refer to it (0:
 * unknown), and which one it is; of several, the sums.
 */
#define MARKS_EXITS 1
#define SEVERAL_LISTENERS 2
/* A Forget is answered. */
#define FORGETS 4
/* Its application is connected to host-shim, hands connections out and takes them. */
#define TRANSFERS 8
/* With TRANSFERS: to and from pods of other nodes too. */
#define BETWEEN_NODES 16
/* Client blocks are taken. */
#define RESTORES 32
#define HOLDERS_SHIFT 8
#define HOLDERS_MAX 0xff
#define LISTENER_SHIFT 16

/*
 * The TSval of that Answer: of the listeners of the port the accept queue's length and room, and
 * what they dropped. All 0: no load report.
 */
#define QUEUE_MAX 0x7ff		/* that many or more */
#define ROOM_SHIFT 11
#define DROPS_SHIFT 22
/*
 * Its TSecr: for how long the pod's group was throttled and stalled, in units of 2^23 ns, modulo
 * 2^9, and what is known.
 */
#define STALL_UNIT_SHIFT 23
#define STALL_MASK 0x1ff
#define THROTTLED_SHIFT 0
#define CPU_SHIFT 9
#define MEMORY_SHIFT 18
#define THROTTLED_NOW (1U << 27)
#define PRESSURE_KNOWN (1U << 28)
#define QUOTA_KNOWN (1U << 29)

/*
 * The whole TCP header of a message: 60 bytes, as many as there can be. Timestamps are not aligned,
 * hence packed.
 */
struct message {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	__u8 data_offset;	/* in words, high nibble */
	__u8 tcp_flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
	/* option 253 */
	__u8 kind;
	__u8 length;
	__be16 exid;
	__be16 mss;		/* reason in an Answer */
	__u8 scales;
	__u8 flags;
	__be32 server_timestamp;
	__be64 tag;
	__be64 namespace;	/* whom it is for; in an Answer whom it is from; 0 in a Probe */
	/* NOP NOP, timestamps */
	__u8 nops[2];
	__u8 ts_kind;
	__u8 ts_length;
	__be32 tsval;
	__be32 tsecr;
} __attribute__((packed));

#define MESSAGE_BYTES 60
_Static_assert(sizeof(struct message) == MESSAGE_BYTES, "a message's TCP header has 60 bytes");

/* The payload of a SYN or Adopt that says which client the connection is for. */
struct client_block {
	__be16 exid;
	__u8 zero;
	__u8 epoch;		/* high nibble */
	__be16 port;
	__be16 zeroes;
	__u8 address[16];	/* IPv4 mapped */
	__be64 namespace;
	__be64 tag;
};

#define CLIENT_BLOCK_BYTES 40
_Static_assert(sizeof(struct client_block) == CLIENT_BLOCK_BYTES, "a client block has 40 bytes");

/* What the tag covers: 72 bytes, nine SipHash blocks. */
struct tagged {
	__u8 saddr[16];
	__u8 daddr[16];
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	__be16 exid;
	__be16 mss;
	__u8 scales;
	__u8 flags;
	__be16 window;
	__be32 server_timestamp;
	__be32 tsval;
	__be32 tsecr;
	__be64 namespace;
} __attribute__((aligned(8)));

#define TAGGED_WORDS 9
_Static_assert(sizeof(struct tagged) == TAGGED_WORDS * 8, "the tag covers 72 bytes");

/*
 * A tag of VLAN 0 says a priority alone (IEEE 802.1Q): the kernel, which takes tags out of frames
 * in front of these programs, takes such a frame as one without.
 */
static __always_inline int is_of_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0x0fff;
}

#endif
