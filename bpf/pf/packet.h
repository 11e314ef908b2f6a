/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The parts of a packet that pf looks at. Most packets are TCP, UDP or an echo over plain IP. They
 * are read in place. The rest (options, extension headers, fragments, ICMP errors that quote a
 * packet) takes separate functions, which only tcx has: see slow.h.
 */
#pragma once

#include <linux/udp.h>

#include "../trust.h"
#include "../verdict.h"

enum pf_packet_flag {
	PF_P_FRAGMENT = 1 << 0, /* it is a fragment of a larger packet */
	PF_P_LATER = 1 << 1, /* not the first fragment: its ports are the first one's */
	PF_P_UNKNOWN = 1 << 2, /* a later fragment whose first fragment is unknown */
	PF_P_OPTIONS = 1 << 3, /* has IP options that need allow-opts */
	PF_P_ERROR = 1 << 4, /* ICMP about another packet, whose key is `quoted` */
	PF_P_NO_STATE = 1 << 5, /* a message that has no answer: no state is made for it */
	PF_P_ND = 1 << 6, /* the key does not have its own addresses: rules use `quoted` */
	PF_P_CHOSEN = 1 << 7, /* the walk has the sets of its fields: see pf_choose() */
};

#define PF_TCP_OPTIONS 40 /* bytes, at most */

/* How the rules are evaluated. */
enum pf_how {
	PF_ON_WAY_OUT = 1 << 0,
	PF_KNOWN = 1 << 1, /* the packet's connection is known */
	PF_FLOOD = 1 << 2, /* this port is one of many */
	PF_RESUMES = 1 << 3, /* evaluation resumes behind the rule that has translated the packet */
	PF_UNSEEN = 1 << 4, /* PF_KNOWN, but no rule has seen such a packet leave */
};

struct pf_packet {
	struct pf_key key;
	struct pf_key quoted; /* PF_P_ERROR: of the quoted packet; PF_P_ND: of its own addresses */
	u32 quoted_seq; /* TCP sequence number of the quoted packet */
	u32 seq; /* TCP */
	u32 ack;
	u32 payload; /* bytes of TCP's data */
	u32 l3; /* place of the IP header, from the frame's start */
	u32 l4; /* place of the header behind it */
	u32 length; /* of the IP packet */
	u32 state; /* place of its state + 1, 0 for none */
	u32 before; /* place + 1 of the last state that a packet of this CPU has begun anew */
	u16 window;
	u16 icmp; /* type << 8 | code */
	u16 mss; /* of a SYN that the switch answers on a host's behalf; else 0 */
	u8 options; /* words of TCP's options */
	u8 tcp_flags;
	u8 tos;
	u8 family; /* 4 or 6 */
	u8 flags; /* enum pf_packet_flag */
	u8 side; /* side of the key that sends the packet */
	u8 quoted_side; /* side that sent the quoted packet */
	u8 proto;
	/* decisions about it */
	u32 rule[2]; /* number + 1, on the way in and out; 0 for the default */
	u32 tag;
	u32 tag_in; /* tag with which it reached the rules of a port */
	u32 how; /* enum pf_how of the current evaluation */
	u32 slot; /* of the port where these rules are evaluated */
	u32 received; /* of the port of arrival */
	u32 ether_tag[2]; /* tag that ether rules have given the frame, on the way in and out */
	u32 routes; /* route flags of enum pf_rule_flag that hold at the port of evaluation */
	u8 vacant; /* no state has its key, as far as pf has looked: see pf_ready() */
	u8 made; /* a state has been made, if one was needed */
	u8 unmade; /* why it must not be made: enum drop_reason */
	u8 answer; /* enum pf_return, of the rule that blocks it */
	u8 direction; /* of the current rules: 0 where it enters the switch, 1 where it leaves */
	u8 logs[2]; /* enum pf_logs that its rules must still log, on the way in and out */
	u16 log_slots[2]; /* of the ports where these were evaluated */
	u8 priority;
	u8 scale; /* of TCP's window, as in struct pf_peer; of a SYN */
	u8 bytes[PF_TCP_OPTIONS + 2]; /* TCP's options, and room to look behind their end */
	u8 at; /* the current option */
	/* changes to its connection */
	struct pf_peer src; /* the sides, as they will be */
	struct pf_peer dst;
	struct pf_peer src_was; /* the sides, as they were */
	struct pf_peer dst_was;
	struct pf_scrub scrub[2]; /* changes that its rules make to it, on the way in and out */
	u8 complete; /* the handshake is complete */
	u8 loose; /* the packet passes, but does not keep the connection alive */
	u8 calls[2]; /* both ways as rules see them: 0 in, 1 out; see pf_call() */
	/* `reassemble tcp` */
	u32 stamp; /* its timestamps: TSval, and TSecr as its receiver has it */
	u32 echo;
	u32 epoch; /* in which the decision on it has begun */
	u8 stamps; /* number of its options with timestamps */
	u8 stamp_at; /* place of TSval among the options */
	u8 cable; /* it has come by a cable */
	u8 of_link; /* of neighbour discovery: it has not been routed */
	u32 came; /* slot of the host port where it reached the host; 0 if unknown */
	u32 tag_kept; /* tag with which the last rules have left it: its state keeps this one */
};

WORK_HOLDS(struct pf_packet);

/* Puts the type into BTF for Go: BTF only has types that are used. */
const struct pf_packet *pf_packet_type __attribute__((unused));

/* Flags of TCP (RFC 9293, 3.1). */
enum {
	TCP_FIN = 1 << 0,
	TCP_SYN = 1 << 1,
	TCP_RST = 1 << 2,
	TCP_ACK = 1 << 4,
	TCP_URG = 1 << 5,
};

#define ND_HOPS 255 /* hops left of a message of neighbour discovery (RFC 4861, 7.1) */

/*
 * Is the packet neighbour discovery on its link? Rules may pass or block it. They neither translate
 * it nor send it elsewhere: it is about the addresses of this link.
 */
static __always_inline bool pf_discovers(const struct pf_packet *p)
{
	u32 type = p->icmp >> 8;

	return p->proto == IPPROTO_ICMPV6 && type >= ICMP6_RS && type <= ICMP6_REDIRECT &&
	       p->of_link;
}

/* This CPU's current packet. */
static __always_inline struct pf_packet *pf_packet(void)
{
	return work_of(WORK_PF_PACKET);
}

/* Is the port in a slot, or with an id, a host port? Returns 1 or 0, without a branch. */
static __always_inline u32 pf_port_to_host(u32 slot)
{
	return port_at(slot)->facts / PORT_TO_HOST & 1;
}

static __always_inline bool pf_to_host(u32 slot)
{
	return on(FEATURE_PF_HOST) && pf_port_to_host(slot);
}

/*
 * The direction of a packet at a port as rules see it: 0 in, 1 out. `direction` is 0 where the
 * packet enters the switch. A host port has the name of the host's interface, and rules are about
 * that interface: a packet that leaves the switch there enters the host.
 */
static __always_inline u32 pf_call(u32 slot, u32 direction)
{
	return direction ^ pf_to_host(slot);
}

/* The direction in which rules are being evaluated, as they see it. */
static __always_inline u32 pf_called(const struct pf_packet *p, u32 direction)
{
	return on(FEATURE_PF_HOST) ? p->calls[direction & 1] : direction;
}

/* Results of pf's look at a frame. */
enum pf_look {
	PF_LOOK_NONE, /* pf has not looked yet */
	PF_LOOK_NOT_IP, /* it is not IP, and passes pf */
	PF_LOOK_STATE, /* it belongs to a known connection: it passes */
	PF_LOOK_JUDGE, /* rules decide */
	PF_LOOK_REFUSE, /* it is dropped, for the verdict's reason */
	PF_LOOK_LEAVE, /* XDP leaves it to tcx */
	PF_LOOK_SLOW, /* it is not plain: pf_read_slow() must read it first */
	PF_LOOK_BEGINS, /* with XDP: a SYN, whose state has not been looked up yet */
};

/* Types of ICMP (RFC 792, 950) and ICMPv6 (RFC 4443); linux/icmp.h needs a libc. */
enum {
	ICMP_ECHOREPLY = 0,
	ICMP_ECHO = 8,
	ICMP_TIMESTAMP = 13, /* the next numbers are its answer, information, address mask */
	ICMP_ADDRESSREPLY = 18,
	ICMPV6_ECHO_REQUEST = 128,
	ICMPV6_ECHO_REPLY = 129,
};

struct pf_icmp {
	u8 type;
	u8 code;
	u16 checksum;
	u16 id; /* of queries */
	u16 sequence;
};

#define IP4_RESERVED 0x8000 /* of the word that has a fragment's place (RFC 791, 3.1) */
#define IP4_DF 0x4000
#define IP4_MTU_LEAST 68 /* of every link (RFC 791, 3.2) */
#define IPV4_MAPPED 0xffff0000 /* third word of an IPv4 address, as in a packet (::ffff:0:0/96) */

/*
 * The kind of an ICMP query or answer has one more bit: in a packet, whether it is the answer; in a
 * key, whether the second side is the requester. So an answer has the key of its request, and a
 * request of the other side has another, whatever its identifier is. (pf_icmp_state_lookup() uses
 * the identifier instead of the requester's port.)
 */
#define PF_KIND_TURNED 0x40

/* Converts the kind of a packet from a side to its form in a key, and back. */
static __always_inline u32 pf_kind_turn(u32 kind, u32 side)
{
	return kind ? kind ^ (side & 1) * PF_KIND_TURNED : 0;
}

/*
 * Fills in a key, with the lower side first. The ports follow the addresses if they are the sides'
 * own.
 */
static __always_inline void pf_key_set(struct pf_key *key, u8 *side, const u32 *src, const u32 *dst,
				       u32 sport, u32 dport, bool own)
{
	bool swap = false;

#pragma unroll
	for (int i = 3; i >= 0; i--) {
		if (src[i] != dst[i]) {
			swap = src[i] > dst[i];
			goto known;
		}
	}
	swap = own && sport > dport;
known:
	*side = swap;
	/* the indices are constants, for the verifier and for speed */
	if (swap) {
		__builtin_memcpy(key->address[0], dst, 16);
		__builtin_memcpy(key->address[1], src, 16);
	} else {
		__builtin_memcpy(key->address[0], src, 16);
		__builtin_memcpy(key->address[1], dst, 16);
	}
	key->port[0] = swap && own ? dport : sport;
	key->port[1] = own ? (swap ? sport : dport) : pf_kind_turn(dport, swap);
}

/*
 * The kind of an ICMP query, which its answer shares: the type of the query. Returns 0 if the
 * message is neither.
 */
static __always_inline u32 pf_icmp_query(u32 type)
{
	if (type == ICMP_ECHO || type == ICMP_ECHOREPLY)
		return ICMP_ECHO | (type == ICMP_ECHOREPLY) * PF_KIND_TURNED;
	/* the other queries are odd, and their answers the next number */
	if (type >= ICMP_TIMESTAMP && type <= ICMP_ADDRESSREPLY)
		return (type - 1) | 1 | (~type & 1) * PF_KIND_TURNED;
	return 0;
}

/* The same for ICMPv6. */
static __always_inline u32 pf_icmp6_query(u32 type)
{
	if ((type | 1) != ICMPV6_ECHO_REPLY)
		return 0;
	return ICMPV6_ECHO_REQUEST | (type & 1) * PF_KIND_TURNED;
}

/*
 * The flags that a TCP packet may have together, as in pf (pf_normalize_tcp()): a set, with a bit
 * for each value that the six flags of RFC 9293 may have. SYN excludes RST and FIN. Without SYN
 * there is ACK or RST. FIN, PSH and URG need ACK. This is a set, not conditions, because the
 * verifier would follow each way through conditions.
 */
#define PF_FLAGS_FIT 0x3737000037370014ull

static __always_inline bool pf_flags_fit(u32 flags)
{
	return PF_FLAGS_FIT >> (flags & 63) & 1;
}

#define TCP_RESERVED 0x0f /* bits of the byte before the flags */

/* Does pf_normalize_tcp() have nothing to do with the header? */
static __always_inline bool pf_tcp_is_plain(const struct tcphdr *tcp)
{
	const u8 *bytes = (const u8 *)tcp;
	u32 urgent = tcp->urg_ptr & ((bytes[13] / TCP_URG & 1) - 1); /* 0 if URG is set */

	return !((bytes[12] & TCP_RESERVED) | (~PF_FLAGS_FIT >> (bytes[13] & 63) & 1) | urgent);
}

static __always_inline void pf_read_tcp(struct pf_packet *p, const struct tcphdr *tcp, u32 room)
{
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack_seq);
	p->window = bpf_ntohs(tcp->window);
	p->tcp_flags = ((const u8 *)tcp)[13];
	p->options = tcp->doff - 5;
	p->payload = room - tcp->doff * 4;
}

/*
 * Reads a plain packet: all of its headers are where the program may look. Returns false if the
 * packet is not plain. `at` is the place of the IP header, `type` the EtherType before it, `len`
 * the frame's length.
 */
static __always_inline bool pf_read(struct pf_packet *p, u32 len, void *data, void *data_end,
				    u32 at, u16 type)
{
	u32 src[4], dst[4], room, rest = len - at;
	u64 l4at = at;
	void *l4;

	p->flags = 0;
	p->l3 = at;
	if (type == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + at;

		if ((void *)(ip + 1) > data_end)
			return false;
		if (*(u8 *)ip != 0x45 || (ip->frag_off & bpf_htons(~IP4_DF)))
			return false;
		src[0] = src[1] = dst[0] = dst[1] = 0;
		src[2] = dst[2] = IPV4_MAPPED;
		src[3] = ip->saddr;
		dst[3] = ip->daddr;
		p->proto = ip->protocol;
		p->tos = ip->tos;
		p->family = 4;
		p->length = bpf_ntohs(ip->tot_len);
		/*
		 * A packet that is larger than the length field can express is as long as the frame
		 * (BIG TCP).
		 */
		if (!p->length && rest > 0xffff)
			p->length = rest;
		l4at += sizeof(*ip);
		if (p->length < sizeof(*ip))
			return false;
		room = p->length - sizeof(*ip);
	} else {
		struct ipv6hdr *ip = data + at;

		if ((void *)(ip + 1) > data_end || *(u8 *)ip >> 4 != 6)
			return false;
		__builtin_memcpy(src, &ip->saddr, 16);
		__builtin_memcpy(dst, &ip->daddr, 16);
		p->proto = ip->nexthdr;
		p->tos = bpf_ntohs(*(u16 *)ip) >> 4;
		p->family = 6;
		room = bpf_ntohs(ip->payload_len);
		if (!room && rest > 0xffff + sizeof(*ip))
			room = rest - sizeof(*ip);
		p->length = room + sizeof(*ip);
		l4at += sizeof(*ip);
	}
	if (p->length > rest)
		return false;
	p->l4 = l4at;
	/* else clang adds to a pointer in 32 bits, which the verifier refuses */
	asm volatile("" : "+r"(l4at));
	l4 = data + (l4at & 0xff);
	if (p->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > data_end || tcp->doff < 5 || room < tcp->doff * 4 ||
		    !pf_tcp_is_plain(tcp))
			return false;
		pf_read_tcp(p, tcp, room);
		pf_key_set(&p->key, &p->side, src, dst, tcp->source, tcp->dest, true);
	} else if (p->proto == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > data_end || room < sizeof(*udp))
			return false;
		pf_key_set(&p->key, &p->side, src, dst, udp->source, udp->dest, true);
	} else if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		struct pf_icmp *icmp = l4;
		u32 kind;

		if ((void *)(icmp + 1) > data_end || room < sizeof(*icmp))
			return false;
		/* ICMP of the wrong family is treated like any other protocol */
		if ((p->proto == IPPROTO_ICMP) != (p->family == 4))
			return false;
		if (p->family == 4)
			kind = pf_icmp_query(icmp->type);
		else
			kind = pf_icmp6_query(icmp->type);
		if (!kind)
			return false;
		p->icmp = icmp->type << 8 | icmp->code;
		pf_key_set(&p->key, &p->side, src, dst, icmp->id, kind, false);
	} else {
		return false;
	}
	p->key.proto = p->proto;
	p->key.profile = 0;
	return true;
}

/* Folds a sum of 16-bit words, as the internet checksum adds them (RFC 1071). */
static __always_inline u32 pf_fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}
