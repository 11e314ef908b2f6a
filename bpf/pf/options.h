/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Changes to fields and options of TCP, with the checksum. */
#pragma once

#include "normalize.h"

#define TCP_HEADER 20
#define TCP_SEQ 4 /* places of fields in the header */
#define TCP_ACK_SEQ 8
#define TCP_CHECK 16

enum {
	TCP_OPT_END = 0,
	TCP_OPT_NOP = 1,
	TCP_OPT_MSS = 2,
	TCP_OPT_SACK = 5,
};

/* The first word of TCP's options if they are only timestamps, as in most packets (RFC 7323, A). */
#define TCP_OPT_TIMESTAMPS 0x0101080a

#define TCP_OPTION_BYTES 40 /* at most */
#define TCP_SACK_EDGES 8 /* two for each block; there is room for four */

/* A walk over TCP's options. */
struct pf_options {
	struct __sk_buff *skb;
	u32 at; /* place of the next option */
	u32 end; /* end of the header */
	u32 check; /* place of its checksum */
	u32 diff; /* subtracted from the numbers of SACK */
	u32 mss; /* found: the MSS */
	u32 most; /* largest MSS that may stay, 0 for any */
};

/*
 * Changes a number of a TCP header or of the bytes that its checksum covers, and the checksum with
 * it. A number may begin in the middle of a word of the checksum. Then it counts there as if its
 * bytes were moved on by one.
 */
static __always_inline void pf_patch(struct __sk_buff *skb, u32 at, u32 check, u32 was, u32 is)
{
	u32 odd = (at ^ check) & 1;

	was = bpf_htonl(was);
	is = bpf_htonl(is);
	if (was == is)
		return;
	/* without BPF_F_PSEUDO_HDR: an unfinished checksum does not change */
	bpf_l4_csum_replace(skb, check, odd ? was >> 8 | was << 24 : was,
			    odd ? is >> 8 | is << 24 : is, sizeof(is));
	bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* Subtracts `diff` from a number of the header. Returns false if there is none. */
__noinline u32 pf_patch_edge(struct __sk_buff *skb, u32 at, u32 check, u32 diff)
{
	u32 number = 0;

	if (bpf_skb_load_bytes(skb, at, &number, sizeof(number)))
		return false;
	number = bpf_ntohl(number);
	pf_patch(skb, at, check, number, number - diff);
	return true;
}

/*
 * Changes the edges of SACK's blocks (RFC 2018, 3): these are sequence numbers of the other side.
 */
static __always_inline void pf_patch_sack(const struct pf_options *o, u32 len)
{
	u32 edges = (len - 2) / 8 * 2;

#pragma clang loop unroll(disable)
	for (u32 n = 0; n < TCP_SACK_EDGES; n++) {
		if (n >= edges || !pf_patch_edge(o->skb, o->at + 2 + 4 * n, o->check, o->diff))
			return;
	}
}

static long pf_option(u32 n, struct pf_options *o)
{
	u8 option[4] = {}; /* kind, length, value */

	/* an option in the last byte, with nothing behind it, has no meaning */
	if (o->at + 2 > o->end || bpf_skb_load_bytes(o->skb, o->at, option, 2))
		return 1;
	switch (option[0]) {
	case TCP_OPT_END:
		return 1;
	case TCP_OPT_NOP:
		o->at++;
		return 0;
	}
	if (option[1] < 2 || o->at + option[1] > o->end)
		return 1;
	if (option[0] == TCP_OPT_MSS && option[1] == 4 &&
	    !bpf_skb_load_bytes(o->skb, o->at, option, sizeof(option))) {
		o->mss = option[2] << 8 | option[3];
		if (o->most && o->mss > o->most)
			pf_patch_word(o->skb, o->at + 2, o->check, bpf_htons(o->mss),
				      bpf_htons(o->most));
	}
	if (option[0] == TCP_OPT_SACK && o->diff)
		pf_patch_sack(o, option[1]);
	o->at += option[1];
	return 0;
}

/*
 * Walks over the options of this CPU's packet. Returns its MSS, 0 for none. An MSS above `most`
 * becomes `most`. `diff` is subtracted from the numbers of SACK.
 */
__noinline u32 pf_walk_options(struct __sk_buff *skb, u32 diff, u32 most)
{
	struct pf_packet *p = pf_packet();
	struct pf_options o = {.skb = skb, .diff = diff, .most = most};

	if (!on(FEATURE_PF_REWRITE | FEATURE_PF_SCRUB) || !p)
		return 0;
	o.check = p->l4 + TCP_CHECK;
	o.at = p->l4 + TCP_HEADER;
	o.end = o.at + p->options * 4;
	if (!skb_own(skb, o.end))
		return 0;
	bpf_loop(TCP_OPTION_BYTES, pf_option, &o, 0);
	return o.mss;
}

/* Does the packet have TCP options other than timestamps? */
static __always_inline bool pf_has_options(struct __sk_buff *skb, const struct pf_packet *p)
{
	u32 first = 0;

	if (!p->options)
		return false;
	skb_bytes(skb, p->l4 + TCP_HEADER, &first, sizeof(first));
	return p->options != 3 || first != bpf_htonl(TCP_OPT_TIMESTAMPS);
}
