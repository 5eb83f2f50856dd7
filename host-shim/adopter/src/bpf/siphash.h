/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012) of whole 64-bit words. Owns the hash; never knows what
 * is hashed.
 */
#ifndef BATON_SIPHASH_H
#define BATON_SIPHASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FROM_LE64(x) (x)
#else
#define FROM_LE64(x) __builtin_bswap64(x)
#endif

#define ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

#define SIP_ROUND(v0, v1, v2, v3)	\
	do {				\
		v0 += v1;		\
		v1 = ROTATE(v1, 13);	\
		v1 ^= v0;		\
		v0 = ROTATE(v0, 32);	\
		v2 += v3;		\
		v3 = ROTATE(v3, 16);	\
		v3 ^= v2;		\
		v0 += v3;		\
		v3 = ROTATE(v3, 21);	\
		v3 ^= v0;		\
		v2 += v1;		\
		v1 = ROTATE(v1, 17);	\
		v1 ^= v2;		\
		v2 = ROTATE(v2, 32);	\
	} while (0)

/* `words` and `key` hold bytes in wire order, which SipHash reads as little-endian numbers. */
static __always_inline __u64 siphash_2_4(const __u64 *words, int count, const __u64 *key)
{
	__u64 k0 = FROM_LE64(key[0]), k1 = FROM_LE64(key[1]);
	/* "somepseudorandomlygeneratedbytes", the constants of the paper. */
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;

#pragma clang loop unroll(full)
	for (int i = 0; i < count; i++) {
		__u64 m = FROM_LE64(words[i]);

		v3 ^= m;
		SIP_ROUND(v0, v1, v2, v3);
		SIP_ROUND(v0, v1, v2, v3);
		v0 ^= m;
	}
	/* The last block holds only the length modulo 256 in its top byte. */
	__u64 last = (__u64)(count * 8) << 56;

	v3 ^= last;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	v0 ^= last;
	v2 ^= 0xff;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}

#endif
