/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Packets that are not plain: headers outside linear memory, options, extension headers, fragments,
 * ICMP other than queries. They are read byte by byte. A packet whose headers cannot be read to the
 * end is dropped. No stack is left at this depth, so everything is in the CPU's work area.
 */
#pragma once

#include "normalize.h"
#include "state.h"
#include "../trust.h"

/*
 * First fragments, for the fragments that follow. A fragment that arrives before its first is
 * judged without its ports.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct pf_fragment_key);
	__type(value, struct pf_fragment);
} pf_fragments SEC(".maps");

/* A packet that is being read: its own headers, or those that an ICMP error quotes. */
struct pf_slow {
	u32 src[4];
	u32 dst[4];
	u32 own_dst[4]; /* destination of the packet itself, while the quoted one is read */
	u32 at; /* place of the next header */
	u32 end; /* end of the packet */
	u32 id; /* of the packet that this is a fragment of */
	u32 offset; /* of a fragment, in bytes */
	u16 sport; /* or a key's value instead of ports */
	u16 dport;
	u8 next; /* protocol of the header at `at` */
	u8 family;
	u8 fragment; /* it is a fragment, or has a fragment header */
	u8 more; /* fragments follow */
	u8 options; /* there are options, other than those for routers of group messages */
	u8 alert; /* there is an option for routers of group messages */
	u8 own; /* the ports are the sides' own */
	u8 pad;
	struct iphdr ip4;
	struct ipv6hdr ip6;
	struct chain chain;
	struct tcphdr tcp;
	struct pf_icmp icmp; /* or the first bytes of another header */
	struct nd nd;
	struct pf_fragment_key key;
	struct pf_fragment first;
	u32 option;
};

WORK_HOLDS(struct pf_slow);

static __always_inline struct pf_slow *pf_slow(void)
{
	return work_of(WORK_PF_SLOW);
}

/* Makes a key from the headers read: for the packet, or for the one that it quotes. */
__noinline int pf_slow_key(u32 quoted)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	struct pf_key *key;
	u8 *side;

	if (!on(FEATURE_PF) || !p || !s)
		return 0;
	key = quoted ? &p->quoted : &p->key;
	side = quoted ? &p->quoted_side : &p->side;
	pf_key_set(key, side, s->src, s->dst, s->sport, s->dport, s->own);
	key->proto = s->next;
	key->profile = 0;
	return 0;
}

/* Reads bytes of the packet, and none behind its end. */
static __always_inline bool pf_load(struct __sk_buff *skb, const struct pf_slow *s, u32 at,
				    void *to, u32 len)
{
	return at + len <= s->end && !skb_bytes(skb, at, to, len);
}

/* Follows the headers from s->at on. Returns 0, or the reason for a failure. */
static __always_inline u32 pf_slow_chain(struct __sk_buff *skb)
{
	struct pf_slow *s = pf_slow();
	struct chain *c;
	u32 reason;

	if (!on(FEATURE_PF) || !s)
		return DROP_PF_SHORT;
	if (s->offset)
		return 0;
	c = &s->chain;
	__builtin_memset(c, 0, sizeof(*c));
	c->family = s->family;
	c->next = s->next;
	c->at = s->at;
	c->limit = s->end;
	reason = chain_skb(skb, c);
	s->at = c->at;
	s->next = c->next;
	s->options |= c->options;
	s->alert |= c->alert;
	if (c->fragment) {
		s->fragment = true;
		s->offset = c->offset;
		s->more = c->more;
		s->id = c->id;
	}
	return reason;
}

/* Reads an IPv4 header at s->at. Returns its length in bytes, 0 if it is none. */
static __always_inline u32 pf_slow_ip4(struct __sk_buff *skb, struct pf_slow *s)
{
	struct iphdr *ip = &s->ip4;

	if (!pf_load(skb, s, s->at, ip, sizeof(*ip)) || ip->version != 4 || ip->ihl < 5 ||
	    s->at + ip->ihl * 4 > s->end)
		return 0;
	s->src[0] = s->src[1] = s->dst[0] = s->dst[1] = 0;
	s->src[2] = s->dst[2] = IPV4_MAPPED;
	s->src[3] = ip->saddr;
	s->dst[3] = ip->daddr;
	s->family = 4;
	s->next = ip->protocol;
	s->offset = (bpf_ntohs(ip->frag_off) & 0x1fff) * 8;
	s->more = !!(ip->frag_off & bpf_htons(IP_MORE));
	s->fragment = s->offset || s->more;
	s->id = ip->id;
	return ip->ihl * 4;
}

static __always_inline u32 pf_slow_ip6(struct __sk_buff *skb, struct pf_slow *s)
{
	struct ipv6hdr *ip = &s->ip6;

	if (!pf_load(skb, s, s->at, ip, sizeof(*ip)) || ip->version != 6)
		return 0;
	__builtin_memcpy(s->src, &ip->saddr, sizeof(s->src));
	__builtin_memcpy(s->dst, &ip->daddr, sizeof(s->dst));
	s->family = 6;
	s->next = ip->nexthdr;
	s->fragment = s->more = 0;
	s->offset = 0;
	return sizeof(*ip);
}

/*
 * Reads the IP header, and everything between it and the upper header. Returns 0, or the reason for
 * a failure.
 */
__noinline u32 pf_slow_ip(struct __sk_buff *skb, u32 type)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	u32 header, reason, len = skb->len;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF_SHORT;
	s->at = p->l3;
	s->end = len;
	s->options = s->alert = 0;
	if (type == bpf_htons(ETH_P_IP)) {
		header = pf_slow_ip4(skb, s);
		p->tos = s->ip4.tos;
		p->length = bpf_ntohs(s->ip4.tot_len);
	} else {
		header = pf_slow_ip6(skb, s);
		p->tos = bpf_ntohs(*(u16 *)&s->ip6) >> 4;
		p->length = bpf_ntohs(s->ip6.payload_len);
		if (p->length || !skb->gso_size)
			p->length += sizeof(s->ip6);
	}
	if (!header)
		return DROP_PF_SHORT;
	/* the kernel's own large packets have length 0: the field has no room for their length */
	if (!p->length && skb->gso_size)
		p->length = len - p->l3;
	if (p->length < header || p->length > len - p->l3)
		return DROP_PF_SHORT;
	s->end = p->l3 + p->length;
	p->family = s->family;
	if (s->family == 4 && header > sizeof(s->ip4)) {
		s->option = 0;
		skb_bytes(skb, s->at + sizeof(s->ip4), &s->option, sizeof(s->option));
		if (header == sizeof(s->ip4) + 4 && s->option == bpf_htonl(0x94040000))
			s->alert = true; /* RFC 2113 */
		else
			s->options = true;
	}
	if (s->family == 4)
		pf_patch_ip4(skb, p->l3, offsetof(struct iphdr, frag_off), s->ip4.frag_off,
			     s->ip4.frag_off & bpf_htons(~IP4_RESERVED));
	s->at += header;
	reason = pf_slow_chain(skb);
	p->l4 = s->at;
	p->proto = s->next;
	if (!reason && s->next == (s->family == 4 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return DROP_PF_NORMALIZE;
	return reason;
}

/* Does a later fragment need the upper header, which only the first one has? */
static __always_inline bool pf_has_ports(u32 proto, u32 family)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP ||
	       proto == (family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

static __always_inline void pf_fragment_key_set(struct pf_slow *s, const struct pf_packet *p)
{
	struct pf_fragment_key *key = &s->key;

	__builtin_memcpy(key->address[0], s->src, sizeof(s->src));
	__builtin_memcpy(key->address[1], s->dst, sizeof(s->dst));
	key->id = s->id;
	key->vlan = p->key.vlan;
	key->proto = s->family == 4 ? s->ip4.protocol : 0;
	key->family = s->family;
}

#define PF_TCP_LEAST 20 /* bytes of a header */

/*
 * The reason to drop an impossible fragment. No proper fragment is empty, reaches beyond the
 * largest packet, or has a piece of TCP's header (RFC 1858, RFC 3128).
 */
static __always_inline u32 pf_fragment_fails(const struct pf_packet *p, const struct pf_slow *s)
{
	u32 size = s->end - s->at, header = s->family == 4 ? s->at - p->l3 : 0;

	if (!size || (s->more && (size & 7)) || header + s->offset + size > 65535)
		return DROP_PF_FRAGMENT;
	if (s->offset && s->offset < PF_TCP_LEAST && s->next == IPPROTO_TCP)
		return DROP_PF_FRAGMENT;
	return 0;
}

/*
 * Gives a later fragment the data that only the first one has. Returns 0, or the reason to drop the
 * fragment.
 */
__noinline u32 pf_slow_later(u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	struct pf_fragment *first;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF_FRAGMENT;
	p->flags |= PF_P_LATER | PF_P_NO_STATE;
	pf_fragment_key_set(s, p);
	first = bpf_map_lookup_elem(&pf_fragments, &s->key);
	s->sport = s->dport = 0;
	s->own = false;
	if (first && (__s32)(first->until - now) > 0) {
		if (first->proto == IPPROTO_TCP && s->offset < PF_TCP_LEAST)
			return DROP_PF_FRAGMENT;
		s->next = p->proto = first->proto;
		s->sport = first->port[0];
		s->dport = first->port[1];
		s->own = first->proto == IPPROTO_TCP || first->proto == IPPROTO_UDP;
		p->tcp_flags = first->flags;
		p->icmp = first->icmp;
	} else if (pf_has_ports(s->next, s->family) || chain_goes_on(s->next, s->family)) {
		p->flags |= PF_P_UNKNOWN;
	}
	pf_slow_key(false);
	return 0;
}

/*
 * Remembers a first fragment. Its data is still in `s`, unless it is an ICMP error, which does not
 * get here.
 */
static __always_inline void pf_fragment_keep(struct pf_slow *s, const struct pf_packet *p, u32 now)
{
	struct pf_fragment *first = &s->first;

	pf_fragment_key_set(s, p);
	first->port[0] = p->key.port[0];
	first->port[1] = p->key.port[1];
	if (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP) {
		first->port[1] = pf_kind_turn(first->port[1], p->side);
	} else if (p->side) {
		first->port[0] = p->key.port[1];
		first->port[1] = p->key.port[0];
	}
	first->icmp = p->icmp;
	first->flags = p->tcp_flags;
	first->proto = p->proto;
	first->until = now + cfg.pf.fragment_time;
	bpf_map_update_elem(&pf_fragments, &s->key, first, BPF_ANY);
}

/*
 * Reads the first bytes of the upper header, in the form of a key. Returns 0, or the reason for a
 * failure. The kind of ICMP is 0 for a message other than a query.
 */
static __always_inline u32 pf_slow_ports(struct __sk_buff *skb, struct pf_slow *s)
{
	s->sport = s->dport = 0;
	s->own = false;
	if (!pf_has_ports(s->next, s->family))
		return 0;
	if (!pf_load(skb, s, s->at, &s->icmp, sizeof(s->icmp)))
		return DROP_PF_SHORT;
	if (s->next == IPPROTO_TCP || s->next == IPPROTO_UDP) {
		s->sport = *(u16 *)&s->icmp;
		s->dport = s->icmp.checksum;
		s->own = true;
		return 0;
	}
	if (s->family == 4)
		s->dport = pf_icmp_query(s->icmp.type);
	else
		s->dport = pf_icmp6_query(s->icmp.type);
	if (s->dport)
		s->sport = s->icmp.id;
	return 0;
}

/*
 * Does ICMP report on another packet (RFC 792, RFC 4443 2.1)? An IPv4 redirect quotes the packet
 * that should take another way.
 */
static __always_inline bool pf_icmp_is_error(u32 type, u32 family)
{
	if (family == 6)
		return type >= 1 && type <= 4;
	return (type >= 3 && type <= 5) || type == 11 || type == 12;
}

/*
 * Reads the packet that an ICMP error at s->at quotes. Returns 0, or the reason to block the error.
 * An error that does not go to the sender of the quoted packet belongs to no connection.
 */
__noinline u32 pf_slow_quoted(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	u32 header, reason;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF_SHORT;
	__builtin_memcpy(s->own_dst, s->dst, sizeof(s->own_dst));
	s->at += sizeof(s->icmp);
	header = p->family == 4 ? pf_slow_ip4(skb, s) : pf_slow_ip6(skb, s);
	if (!header)
		return DROP_PF_SHORT;
	s->at += header;
	s->options = s->alert = 0;
	reason = pf_slow_chain(skb);
	if (reason)
		return reason;
	if (s->offset) /* there are no errors about later fragments (RFC 1122, 3.2.2) */
		return DROP_PF_FRAGMENT;
	reason = pf_slow_ports(skb, s);
	if (reason)
		return reason;
	if (s->own_dst[0] != s->src[0] || s->own_dst[1] != s->src[1] ||
	    s->own_dst[2] != s->src[2] || s->own_dst[3] != s->src[3])
		return 0;
	/* there are no errors about errors (RFC 1122, 3.2.2) */
	if (pf_has_ports(s->next, s->family) && !s->own && !s->dport)
		return 0;
	p->quoted_seq = bpf_ntohl(*(u32 *)&s->icmp.id);
	p->flags |= PF_P_ERROR;
	pf_slow_key(true);
	return 0;
}

/*
 * Neighbour discovery. A solicitation and the advertisement that answers it are about a target, and
 * the solicitation is not sent to the target's address. A host that checks whether its own address
 * is taken has no address yet, and the answer goes to all (RFC 4862). So the key of both has the
 * target, and :: instead of a group.
 */
static __always_inline u32 pf_slow_nd(struct __sk_buff *skb, struct pf_packet *p, struct pf_slow *s)
{
	if (s->fragment) /* RFC 6980 */
		return DROP_PF_FRAGMENT;
	if (!pf_load(skb, s, s->at, &s->nd, sizeof(s->nd)))
		return DROP_PF_SHORT;
	pf_slow_key(true);
	p->flags |= PF_P_ND;
	s->dport = ICMP6_NS;
	if (s->icmp.type == ICMP6_NS) {
		__builtin_memcpy(s->dst, &s->nd.target, sizeof(s->dst));
	} else {
		__builtin_memcpy(s->src, &s->nd.target, sizeof(s->src));
		if (*(u8 *)s->dst == 0xff)
			__builtin_memset(s->dst, 0, sizeof(s->dst));
		s->dport |= PF_KIND_TURNED;
	}
	pf_slow_key(false);
	return 0;
}

static __always_inline u32 pf_slow_icmp(struct __sk_buff *skb, struct pf_packet *p,
					struct pf_slow *s)
{
	u32 type = s->icmp.type;

	p->icmp = type << 8 | s->icmp.code;
	p->of_link = s->family == 6 && s->ip6.hop_limit == ND_HOPS;
	if (s->dport)
		return 0;
	if (s->family == 6 && (type == ICMP6_NS || type == ICMP6_NA))
		return pf_slow_nd(skb, p, s);
	if (s->family == 6 && s->fragment && type >= ICMP6_RS && type <= ICMP6_REDIRECT)
		return DROP_PF_FRAGMENT;
	p->flags |= PF_P_NO_STATE;
	return pf_icmp_is_error(type, s->family) ? pf_slow_quoted(skb) : 0;
}

/* Reads the upper header. Returns 0, or the reason to block the packet. */
__noinline u32 pf_slow_upper(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	u32 reason;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF_SHORT;
	reason = pf_slow_ports(skb, s);
	if (reason)
		return reason;
	pf_slow_key(false);
	if (s->next == IPPROTO_TCP) {
		u32 room = s->end - s->at;

		if (!pf_load(skb, s, s->at, &s->tcp, sizeof(s->tcp)) || s->tcp.doff < 5 ||
		    room < s->tcp.doff * 4)
			return DROP_PF_SHORT;
		pf_read_tcp(p, &s->tcp, room);
		return pf_normalize_tcp(skb, p, &s->tcp);
	}
	if (s->next != IPPROTO_UDP && pf_has_ports(s->next, s->family))
		return pf_slow_icmp(skb, p, s);
	return 0;
}

/*
 * May the packet have the option for routers? Messages about groups may (IGMP, MLD: RFC 3376, RFC
 * 3810).
 */
static __always_inline bool pf_alert_is_due(const struct pf_packet *p)
{
	u32 type = p->icmp >> 8;

	if (p->family == 4)
		return p->proto == IPPROTO_IGMP;
	return p->proto == IPPROTO_ICMPV6 &&
	       ((type >= ICMP6_MLD_REPORT - 1 && type <= ICMP6_MLD_DONE) ||
		type == ICMP6_MLD2_REPORT);
}

#define PF_NOT_IP 0xff /* no enum drop_reason */

/* Reads this CPU's packet. Returns 0, the reason to block it, or PF_NOT_IP. */
__noinline u32 pf_read_slow(struct __sk_buff *skb, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	u32 reason, front;
	bool first, alert;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF_SHORT;
	front = front_skb(skb);
	if (!FRONT_AT(front))
		return FRONT_TYPE(front);
	if (!type_is_ip(FRONT_TYPE(front)))
		return PF_NOT_IP;
	p->l3 = FRONT_AT(front);
	p->flags = 0;
	p->tcp_flags = 0;
	p->icmp = 0;
	reason = pf_slow_ip(skb, FRONT_TYPE(front));
	if (reason)
		return reason;
	if (s->options)
		p->flags |= PF_P_OPTIONS;
	if (s->fragment) {
		reason = pf_fragment_fails(p, s);
		if (reason)
			return reason;
	}
	/* a packet that consists of one fragment is not fragmented (RFC 6946) */
	if (s->offset || s->more)
		p->flags |= PF_P_FRAGMENT;
	if (s->offset) {
		if (s->alert)
			p->flags |= PF_P_OPTIONS;
		return pf_slow_later(now);
	}
	first = s->more;
	alert = s->alert;
	/* a first fragment must have everything that rules look at (RFC 1858) */
	reason = pf_slow_upper(skb);
	if (reason)
		return first && reason != DROP_PF_NORMALIZE ? DROP_PF_FRAGMENT : reason;
	if (alert && !pf_alert_is_due(p))
		p->flags |= PF_P_OPTIONS;
	if (first && !(p->flags & PF_P_NO_STATE) && !on(FEATURE_TRACE))
		pf_fragment_keep(s, p, now);
	return 0;
}

#define PF_SCALE_MOST 14 /* RFC 7323, 2.3 */

/*
 * Does the packet that an ICMP error quotes fit its state? For TCP, the sender must have been able
 * to send it. Its number must be at most the limit that the other side has granted the sender, and
 * at least the number that the sender has reached, less the other side's window.
 */
__noinline u32 pf_quoted_fits(u32 place)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	const struct pf_peer *sender, *other;
	u32 scale = PF_SCALE_MOST, seq;

	if (!on(FEATURE_PF) || !p || !s)
		return false;
	sender = &s->peer[p->quoted_side & 1];
	other = &s->peer[!(p->quoted_side & 1)];
	seq = p->quoted_seq;
	if (p->quoted.proto != IPPROTO_TCP || (s->flags & PF_STATE_SLOPPY))
		return true;
	if (s->flags & PF_STATE_REWRITE)
		seq -= s->diff[p->quoted_side & 1];
	/* if a SYN was not seen, the scale of the window is unknown: it may be the largest */
	if (sender->scale & other->scale & PF_SCALE_KNOWN)
		scale = other->scale & PF_SCALE_MASK;
	return (__s32)(sender->hi - seq) >= 0 &&
	       (__s32)(seq - (sender->lo - ((u32)other->max_win << scale))) >= 0;
}
