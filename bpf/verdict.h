/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The decision on a frame, and its hook. */
#pragma once

#include "frame.h"
#include "port.h"
#include "stats.h"

enum action {
	ACTION_PASS, /* not a frame of this bridge */
	ACTION_DROP,
	ACTION_SEND,
	ACTION_FLOOD,
	ACTION_LEAVE, /* undecided: for tcx, which can do more */
	ACTION_ANSWERED, /* the switch answers it itself */
};

/* The hook of a program. Its fields are constants to the compiler. */
struct hook {
	void *ctx; /* struct __sk_buff or xdp_md */
	struct device_map *devices;
	bool skb; /* tcx, which may do everything */
};

struct verdict {
	u32 in; /* slot */
	u32 out; /* slot, for ACTION_SEND; ACTION_ANSWERED: of the requested address */
	u32 reason; /* for ACTION_DROP */
	u32 flood; /* for ACTION_FLOOD: the flag of the ports that take it */
	/*
	 * The FDB's word for the destination. ACTION_ANSWERED: the MAC of the requested address.
	 * DROP_TAKEN: the enum control_protocol that takes the frame. DROP_RESERVED: 1 if sockets
	 * of the host may have it.
	 */
	u64 word;
	u16 vid; /* VLAN that the frame is in */
	u16 vlan; /* VLAN in which addresses are looked up: for a private VLAN, its primary */
	u16 tag; /* ACTION_SEND: the tag to leave with, as in vlan_tag() */
	u16 rule_in; /* number of the MAC rule that matched, 0 for none */
	u16 rule_out;
	u8 answered; /* ACTION_ANSWERED: its kind of request, a QUESTION_ of trust.h */
	u8 fleeting; /* the decision is only valid for this frame: it is not remembered */
	u8 pf; /* enum pf_look */
	u8 pf_plain; /* PF_LOOK_STATE: the only work left is to follow the state */
	/* both about work in a separate program, see due.h */
	u8 due; /* enum due: the work left for another program */
	u8 back; /* the decision continues after that */
	u32 blind; /* of a frame that has come blindly: see route_blind() */
};

/* The due work on a packet. */
enum due {
	DUE_NOT,
	DUE_PROXY, /* the switch makes its connection's handshake */
	DUE_ANSWER, /* it has been dropped, and must be answered */
	/* for `reassemble tcp` */
	DUE_KNOWN, /* it must update its state */
	DUE_FIRST, /* its state has been made */
	DUE_FLOOD, /* it must be flooded, and may make a state */
};

static __always_inline enum action refuse(struct verdict *v, enum drop_reason reason)
{
	v->reason = reason;
	return ACTION_DROP;
}

/* The headers of a large packet of TCP over IPv6, after the Ethernet header. */
struct jumbo_headers {
	struct ipv6hdr ip;
	struct {
		u8 next, len;
		u16 option; /* type and length */
		u32 length;
	} hop;
	struct tcphdr tcp;
};

/*
 * Do the segments fit of a packet that has a kernel-made header with its size (RFC 2675, "BIG
 * TCP")? No segment has that header. But bpf_check_mtu() counts it as one of theirs, like
 * skb_gso_validate_network_len(), so a full segment would not fit.
 */
__noinline bool jumbo_fits(struct __sk_buff *skb, u32 mtu)
{
	struct jumbo_headers h;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(skb, ETHER_HEADER, &h, sizeof(h)))
		return false;
	if (h.ip.payload_len || h.ip.nexthdr != IPPROTO_HOPOPTS || h.hop.next != IPPROTO_TCP ||
	    h.hop.len || h.hop.option != bpf_htons(0xc204))
		return false;
	return sizeof(h.ip) + h.tcp.doff * 4 + skb->gso_size <= mtu;
}

/*
 * May the frame leave through the device? A GSO packet may if its segments may. Returns 0 or the
 * reason against it. This checks the device itself, so that a changed MTU counts at once, and
 * returns its MTU.
 */
static __always_inline int skb_fits(struct __sk_buff *skb, u32 ifindex, u32 tag, u32 *mtu)
{
	long refused = skb->gso_size ? bpf_check_mtu(skb, ifindex, mtu, 0, BPF_MTU_CHK_SEGS)
				     : bpf_check_mtu(skb, ifindex, mtu, -(__s32)tag, 0);

	/* below zero the helper has no answer; the kernel checks again on the way out */
	if (refused <= 0 || (skb->gso_size && jumbo_fits(skb, *mtu)))
		return 0;
	return DROP_MTU;
}

/*
 * Is a length, to be passed to a helper, from 1 to `most`? The comparisons are in assembly, out of
 * the compiler's sight. The compiler would combine the two, omit one that it can derive, or compare
 * a copy. The verifier refuses such a program: it needs both bounds on the same register. The upper
 * bound is first: Linux 7.3 tracks a range by its ends, and forgets that there is a hole in it.
 */
static __always_inline bool length_within(u32 *len, u32 most)
{
	u64 n = *len;

	asm goto("if %[n] > %[most] goto %l[no]\n\t"
		 "if %[n] < 1 goto %l[no]"
		 : [n] "+r"(n)
		 : [most] "i"(most)
		 :
		 : no);
	*len = n;
	return true;
no:
	return false;
}

/* Reads `len` bytes, from 1 to `most`. Returns false if the frame has fewer. */
static __always_inline bool frame_load(struct __sk_buff *skb, u32 at, void *to, u32 len, u32 most)
{
	return length_within(&len, most) && !bpf_skb_load_bytes(skb, at, to, len);
}

/* Returns the linear part of the frame. */
static __always_inline void skb_data(struct __sk_buff *skb, void **data, void **data_end)
{
	*data = (void *)(long)skb->data;
	*data_end = (void *)(long)skb->data_end;
}

/*
 * Brings the frame up to `end` into the kernel's own memory. Returns false if that fails. Bytes
 * that are not linear may be in the sender's memory (splice(2)). The sender could change them after
 * they have been judged, so they are copied.
 */
static __always_inline bool skb_own(struct __sk_buff *skb, u32 end)
{
	u32 linear = (void *)(long)skb->data_end - (void *)(long)skb->data;

	return end <= linear || !bpf_skb_pull_data(skb, end);
}

/* Reads bytes of the frame to judge them, wherever they are. Returns 0 on success. */
static __always_inline long skb_bytes(struct __sk_buff *skb, u32 at, void *to, u32 len)
{
	return skb_own(skb, at + len) ? bpf_skb_load_bytes(skb, at, to, len) : -1;
}

static __always_inline long frame_bytes(const struct hook *h, u32 at, void *to, u32 len)
{
	return h->skb ? skb_bytes(h->ctx, at, to, len) : bpf_xdp_load_bytes(h->ctx, at, to, len);
}
