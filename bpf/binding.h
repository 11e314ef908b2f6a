/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Port security that looks into frames. An IP address can be bound to a port and a station. The
 * binding says which station may claim the address (source guard), and lets the switch answer
 * requests for it (answer.h). trust.h handles messages that only servers and routers may send.
 */
#pragma once

#include "fdb.h"
#include "loop.h"
#include "trust.h"
#include "vlan.h"

#define FEATURE_GUARD                                                                              \
	(FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD | FEATURE_RA_GUARD | FEATURE_SUPPRESS)

/*
 * Bound addresses and their stations. Look-ups take no lock; only user space writes. The loader
 * gives the table its full size once it is used.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BINDING_ENTRIES);
	__type(key, struct binding_key);
	__type(value, struct binding);
} bindings SEC(".maps");

static __always_inline u64 mac_at(const u8 *b)
{
	return (u64) * (u16 *)b | (u64) * (u16 *)(b + 2) << 16 | (u64) * (u16 *)(b + 4) << 32;
}

/* The binding of an address in the frame's VLAN; 0 if there is none. */
static __always_inline struct binding *binding_of4(struct look *l, u32 address)
{
	struct binding_key *key = &l->key;

	__builtin_memset(key, 0, sizeof(*key));
	key->vlan = l->vlan;
	key->type = ETH_P_IP;
	key->address[3] = address;
	return bpf_map_lookup_elem(&bindings, key);
}

static __always_inline struct binding *binding_of6(struct look *l, const struct in6_addr *address)
{
	struct binding_key *key = &l->key;

	key->vlan = l->vlan;
	key->type = ETH_P_IPV6;
	__builtin_memcpy(key->address, address, sizeof(key->address));
	return bpf_map_lookup_elem(&bindings, key);
}

/* Is the address bound to the frame's sender, at the frame's port? Records the result. */
static __always_inline bool binding_permits(struct look *l, const struct binding *b)
{
	l->bound = b && b->port == l->port && b->mac == l->src;
	return l->bound;
}

/* Is the frame's sender bound, but not at this port? */
static __always_inline bool station_is_elsewhere(struct look *l)
{
	struct binding_key *key = &l->key;

	__builtin_memset(key, 0, sizeof(*key));
	key->vlan = l->vlan;
	key->type = BINDING_STATION;
	key->address[0] = l->src;
	key->address[1] = l->src >> 32;
	if (!bpf_map_lookup_elem(&bindings, key))
		return false;
	key->address[2] = l->port;
	return !bpf_map_lookup_elem(&bindings, key);
}

/*
 * Records a request that the switch can answer. It does not answer a request from the station
 * itself, or from the station's port.
 */
static __always_inline void ask(struct look *l, u32 kind, const struct binding *b)
{
	if (!l->plain || !b || b->port == l->port || b->mac == l->src)
		return;
	l->question = kind;
	l->answer = b->mac;
	l->holder = b->port;
}

#define ARPOP_REQUEST 1
#define ARPOP_REPLY 2
#define RARPOP_REQUEST 3

static __always_inline u32 look_arp(const struct hook *h, struct look *l)
{
	struct arp *a = &l->arp;
	struct binding *b;

	if (frame_bytes(h, l->at, a, sizeof(*a)) || a->ptype != bpf_htons(ETH_P_IP) ||
	    a->hlen != ETH_ALEN || a->plen != sizeof(a->spa))
		return looks_for(l, LOOK_SOURCE) ? DROP_MALFORMED : 0;
	if (looks_for(l, LOOK_SOURCE)) {
		if (mac_at(a->sha) != l->src)
			return DROP_SPOOFED;
		/*
		 * From 0.0.0.0 only a request may come: a station sends it before it has an address
		 * (RFC 5227, RFC 903).
		 */
		if (a->spa ? !binding_permits(l, binding_of4(l, a->spa))
			   : a->op != bpf_htons(ARPOP_REQUEST) &&
				     a->op != bpf_htons(RARPOP_REQUEST))
			return DROP_SPOOFED;
	}
	if (looks_for(l, LOOK_QUESTION) && l->type == bpf_htons(ETH_P_ARP) &&
	    a->op == bpf_htons(ARPOP_REQUEST)) {
		b = binding_of4(l, a->tpa);
		if (b && b->mac != mac_at(a->sha))
			ask(l, QUESTION_ARP, b);
	}
	return 0;
}

/*
 * Does the message make a DHCP request for a station other than its sender? The sender would get
 * that station's address, or release it. Relays send requests for others, but they are behind
 * trusted ports.
 */
static __always_inline bool dhcp4_lies(const struct hook *h, struct look *l, u32 at)
{
	struct bootp *m = &l->bootp;

	if (udp_read(h, at, l->end, &l->udp))
		return true;
	if (l->udp.dest != bpf_htons(DHCP4_SERVER))
		return false;
	if (packet_is_cut(h) || packet_bytes(h, at + UDP_HEADER, l->end, m, sizeof(*m)))
		return true;
	return m->op == BOOTREQUEST &&
	       (m->htype != 1 || m->hlen != ETH_ALEN || mac_at(m->chaddr) != l->src);
}

static __always_inline u32 look_ip4(const struct hook *h, struct look *l)
{
	struct iphdr *ip = &l->ip4;
	struct udp *udp = &l->udp;
	u32 upper;

	/*
	 * A program that receives packets outside its IP stack, as a DHCP client does, may ignore
	 * the version.
	 */
	if (frame_bytes(h, l->at, ip, sizeof(*ip)) || ip->version != 4 || ip->ihl < 5)
		return look_minds(l) ? DROP_MALFORMED : 0;
	upper = l->at + ip->ihl * 4;
	l->end = l->at + bpf_ntohs(ip->tot_len);
	/* Stations accept the eight-byte words of a fragment that has others after it. */
	if (ip->frag_off & bpf_htons(IP_MORE))
		l->end = upper + ((l->end - upper) & ~7u);
	if (looks_for(l, LOOK_SOURCE) && !ip->saddr) {
		/* a station that requests an address has none (RFC 2131 4.1) */
		if (ip->daddr != ~0u || ip->protocol != IPPROTO_UDP ||
		    (ip->frag_off & bpf_htons(IP_FRAGMENT)) || udp_read(h, upper, l->end, udp) ||
		    udp->source != bpf_htons(DHCP4_CLIENT) || udp->dest != bpf_htons(DHCP4_SERVER))
			return DROP_SPOOFED;
	} else if (looks_for(l, LOOK_SOURCE) && !binding_permits(l, binding_of4(l, ip->saddr))) {
		return DROP_SPOOFED;
	}
	if (looks_for(l, LOOK_CLIENT) && ip->protocol == IPPROTO_UDP &&
	    !(ip->frag_off & bpf_htons(IP_OFFSET)) && dhcp4_lies(h, l, upper))
		return DROP_SPOOFED;
	if (looks_for(l, LOOK_DHCP) && ip->protocol == IPPROTO_UDP &&
	    !(ip->frag_off & bpf_htons(IP_OFFSET)) && dhcp4_serves(h, l, upper))
		return DROP_DHCP_GUARD;
	return 0;
}

#define ND_OPTIONS 16 /* maximum of options checked; proper messages have fewer */
#define ND_OPT_SOURCE 1
#define ND_OPT_TARGET 2

struct nd_option {
	u8 type;
	u8 len; /* in units of 8 bytes */
	u8 mac[ETH_ALEN];
};

/* Checks the option at a place. Returns the place of the next one, or 0 if the option is false. */
static __always_inline u32 nd_option(const struct hook *h, u64 src, u32 at, bool nobody)
{
	struct nd_option opt = {};

	if (frame_bytes(h, at, &opt, sizeof(opt)) || !opt.len)
		return 0;
	if ((opt.type == ND_OPT_SOURCE || opt.type == ND_OPT_TARGET) &&
	    (nobody || mac_at(opt.mac) != src))
		return 0;
	return at + opt.len * 8;
}

/* A walk over the options of an ND message. */
struct nd_walk {
	void *ctx;
	u64 src; /* the sender's link-layer address */
	u32 at, end;
	bool nobody; /* the message is from :: */
	bool lies;
};

static __always_inline long nd_step(const struct hook *h, struct nd_walk *w)
{
	if (w->at >= w->end) {
		w->lies = false;
		return 1;
	}
	w->at = nd_option(h, w->src, w->at, w->nobody);
	return !w->at;
}

static long nd_step_skb(u32 n, struct nd_walk *w)
{
	struct hook h = {.ctx = w->ctx, .skb = true};

	return nd_step(&h, w);
}

static long nd_step_xdp(u32 n, struct nd_walk *w)
{
	struct hook h = {.ctx = w->ctx};

	return nd_step(&h, w);
}

/*
 * Does an ND message claim a link-layer address other than its sender's? A message from :: may
 * claim none.
 */
__noinline u32 nd_lies_skb(struct __sk_buff *skb, u64 src, u32 at, u32 end, bool nobody)
{
	struct nd_walk w = {skb, src, at, end, nobody, true};

	bpf_loop(ND_OPTIONS + 1, nd_step_skb, &w, 0);
	return w.lies;
}

__noinline u32 nd_lies_xdp(struct xdp_md *xdp, u64 src, u32 at, u32 end, bool nobody)
{
	struct nd_walk w = {xdp, src, at, end, nobody, true};

	bpf_loop(ND_OPTIONS + 1, nd_step_xdp, &w, 0);
	return w.lies;
}

static __always_inline bool nd_options_lie(const struct hook *h, const struct look *l, u32 at,
					   u32 end, bool nobody)
{
	return h->skb ? nd_lies_skb(h->ctx, l->src, at, end, nobody)
		      : nd_lies_xdp(h->ctx, l->src, at, end, nobody);
}

static __always_inline bool address6_is_zero(const struct in6_addr *a)
{
	return !(a->s6_addr32[0] | a->s6_addr32[1] | a->s6_addr32[2] | a->s6_addr32[3]);
}

/* Does the sender use an address that is not bound to it, or claim such an address by ND? */
static __always_inline bool source_lies6(const struct hook *h, struct look *l)
{
	struct ipv6hdr *ip = &l->ip6;
	struct chain *c = &l->chain;
	bool nobody = address6_is_zero(&ip->saddr);
	u32 options;

	if (c->end == CHAIN_UNKNOWN)
		return true;
	if (!nobody && !binding_permits(l, binding_of6(l, &ip->saddr)))
		return true;
	if (c->end != CHAIN_UPPER || c->next != IPPROTO_ICMPV6)
		return nobody;
	switch (c->type) {
	case ICMP6_RS:
		options = 8;
		break;
	case ICMP6_RA:
		options = 16;
		break;
	case ICMP6_NS:
	case ICMP6_NA:
		options = sizeof(l->nd);
		break;
	case ICMP6_MLD_REPORT:
	case ICMP6_MLD_DONE:
	case ICMP6_MLD2_REPORT:
		return false; /* a station sends these from :: until it has an address (RFC 3590) */
	default:
		return nobody;
	}
	/* ND messages are never fragmented (RFC 6980) */
	if (c->fragment || (nobody && (c->type == ICMP6_RA || c->type == ICMP6_NA)))
		return true;
	if ((c->type == ICMP6_NA || (nobody && c->type == ICMP6_NS)) &&
	    (frame_bytes(h, c->at, &l->nd, sizeof(l->nd)) ||
	     !binding_permits(l, binding_of6(l, &l->nd.target))))
		return true;
	return nd_options_lie(h, l, c->at + options, c->limit, nobody);
}

static __always_inline u32 look_ip6(const struct hook *h, struct look *l)
{
	struct ipv6hdr *ip = &l->ip6;
	struct chain *c = &l->chain;
	u32 reason;

	if (frame_bytes(h, l->at, ip, sizeof(*ip)) || ip->version != 6)
		return look_minds(l) ? DROP_MALFORMED : 0;
	__builtin_memset(c, 0, sizeof(*c));
	c->next = ip->nexthdr;
	c->at = l->at + sizeof(*ip);
	/*
	 * A packet of length 0, such as a jumbogram (RFC 2675), extends to the frame's end:
	 * stations do not truncate it.
	 */
	c->limit = ip->payload_len ? c->at + bpf_ntohs(ip->payload_len) : l->len;
	chain_follow(h, c);
	if (looks_for(l, LOOK_SOURCE) && source_lies6(h, l))
		return DROP_SPOOFED;
	reason = serves6(l, c);
	if (reason)
		return reason;
	/* a solicitation in the form that stations send (RFC 4861 7.1.1) */
	if (looks_for(l, LOOK_QUESTION) && ip->nexthdr == IPPROTO_ICMPV6 && c->type == ICMP6_NS &&
	    ip->hop_limit == 255 && bpf_ntohs(ip->payload_len) >= sizeof(l->nd) &&
	    !frame_bytes(h, c->at, &l->nd, sizeof(l->nd)) && !l->nd.code)
		ask(l, QUESTION_ND, binding_of6(l, &l->nd.target));
	return 0;
}

/* Looks into the packet in the frame. Returns 0, or the reason to drop the frame. */
static __always_inline u32 look_into(const struct hook *h, struct look *l)
{
	if (l->type == bpf_htons(ETH_P_IP) &&
	    (looks_for(l, LOOK_SOURCE) || looks_for(l, LOOK_DHCP)))
		return look_ip4(h, l);
	if (l->type == bpf_htons(ETH_P_IPV6))
		return look_ip6(h, l);
	if ((l->type == bpf_htons(ETH_P_ARP) || l->type == bpf_htons(ETH_P_RARP)) &&
	    (looks_for(l, LOOK_SOURCE) || looks_for(l, LOOK_QUESTION)))
		return look_arp(h, l);
	return 0;
}

static __always_inline u32 look_at(const struct hook *h, struct look *l)
{
	u32 reason = look_through(h, l);

	if (!reason)
		reason = look_into(h, l);
	/*
	 * Whatever the frame carries, its source must not be learned here: the bound station would
	 * lose its traffic.
	 */
	if (!reason && looks_for(l, LOOK_SOURCE) && !l->bound && station_is_elsewhere(l))
		return DROP_SPOOFED;
	return reason;
}

/* A separate function is verified once per program, not at each place that calls it. */
OFTEN __noinline int look_skb(struct __sk_buff *skb, struct look *l)
{
	struct hook h = {.ctx = skb, .skb = true};

	return l ? look_at(&h, l) : 0;
}

OFTEN __noinline int look_xdp(struct xdp_md *xdp, struct look *l)
{
	struct hook h = {.ctx = xdp};

	return l ? look_at(&h, l) : 0;
}

/*
 * Would a flood have carried the request to the station, and would frames to the station reach it?
 * If not, an answer does harm: the requester would send into the void.
 */
static __always_inline bool question_reaches(const struct verdict *v, u32 holder,
					     const volatile struct port *in)
{
	const volatile struct port *out = port_at(holder);
	u32 slot = SLOT(holder);

	if (out->id != holder || !port_there(&tcx_devices, slot) || port_protected(in, out))
		return false;
	if (on(FEATURE_BLOCKING) && port_blocked(slot))
		return false;
	if (cfg.device_state && !(on(FEATURE_BACKUP) && out->backup) &&
	    !port_has_carrier(&tcx_devices, slot))
		return false;
	return !on(FEATURE_VLANS) || vlan_reaches(v->vid, slot);
}

struct nd_pseudo {
	struct in6_addr saddr;
	struct in6_addr daddr;
	u32 length;
	u32 next;
};

/*
 * Does the sender leave the solicitation's checksum to hardware? Then the field has only the sum of
 * the pseudo-header so far. The kernel will complete it, and would corrupt the checksum of an
 * answer. So such a frame is flooded. One in 65536 other frames looks the same.
 */
__noinline int nd_unfinished(struct __sk_buff *skb, u32 at)
{
	struct nd_pseudo p = {.next = bpf_htonl(IPPROTO_ICMPV6)};
	struct ipv6hdr ip = {};
	u16 check = 0;
	__s64 sum;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(skb, at + sizeof(ip) + 2, &check, sizeof(check)))
		return true;
	p.saddr = ip.saddr;
	p.daddr = ip.daddr;
	p.length = bpf_htonl(bpf_ntohs(ip.payload_len));
	sum = bpf_csum_diff(0, 0, (void *)&p, sizeof(p), 0);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return check == (u16)sum;
}

/*
 * Looks into every frame, whether the decision on it is remembered or not. Returns 0, or the reason
 * to drop it. If the switch should answer the frame itself, this sets v->answered, v->word to the
 * requested MAC, and v->out to the port of that MAC. XDP only checks whether there is a reason, and
 * then leaves the frame to tcx.
 */
static __always_inline u32 guard(const struct hook *h, const struct frame *f, struct verdict *v,
				 const volatile struct port *in)
{
	u32 wants = 0, reason;
	struct look *l;

	if (on(FEATURE_SOURCE_GUARD) && (in->flags & PORT_SOURCE_GUARD))
		wants |= in->flags & PORT_TRUSTED ? LOOK_SOURCE : LOOK_SOURCE | LOOK_CLIENT;
	if (on(FEATURE_DHCP_GUARD) && !(in->flags & PORT_TRUSTED))
		wants |= LOOK_DHCP;
	if (on(FEATURE_RA_GUARD) && !(in->flags & PORT_TRUSTED))
		wants |= LOOK_RA;
	/* a unicast request checks whether the station is alive (RFC 9161, RFC 1122 2.3.2.1) */
	if (on(FEATURE_SUPPRESS) && h->skb && mac_is_group(f->dst) && !(in->facts & PORT_PATCH))
		wants |= LOOK_QUESTION;
	if (!wants)
		return 0;
	l = work_of(WORK_LOOK);
	if (!l)
		return DROP_MALFORMED; /* never happens: the map has this part */
	l->src = f->src;
	l->port = in->id;
	l->vlan = v->vlan;
	l->len = f->len;
	l->wants = wants;
	l->question = 0;
	l->bound = false;
	if (!h->skb)
		return look_xdp(h->ctx, l);
	reason = look_skb(h->ctx, l);
	if (on(FEATURE_SUPPRESS) && !reason && l->question && question_reaches(v, l->holder, in) &&
	    !(l->question == QUESTION_ND && nd_unfinished(h->ctx, ETHER_HEADER + f->tag))) {
		v->answered = l->question;
		v->word = l->answer;
		v->out = SLOT(l->holder);
	}
	return reason;
}
