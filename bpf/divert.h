/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The last part of the way of a packet that a rule gives to a socket of the host: divert-to and
 * divert-reply. It is in the program of next hops, and in the state where a next hop is: see
 * pf/hop.h. The packet keeps its addresses. The socket goes with it into the host's stack, as with
 * TPROXY of nftables (the kernel's Documentation/networking/tproxy.rst). The stack drops the socket
 * of a packet that is sent through a port's device. So the packet enters the stack at the host's
 * interface itself.
 */
#pragma once

#include "hop.h"

#ifndef DECIDES_AT_ONCE
/*
 * The mark of diverted packets. A routing rule of the host for this mark makes the stack accept
 * packets whose destination the host does not have. docs/pf.md has that rule.
 */
enum pf_mark { PF_DIVERT_MARK = 0xba5cd1 };

/* Puts the type into BTF for Go: notes at load name the mark. */
const enum pf_mark *pf_mark_type __attribute__((unused));

/*
 * Does a UDP socket have an address of its own? The words are loaded one by one: the verifier
 * refuses arithmetic on the address of a socket, which clang would do.
 */
static __always_inline bool divert_bound(const struct bpf_sock *sk, bool six)
{
	const volatile struct bpf_sock *s = sk;
	u32 four = s->src_ip4, a = s->src_ip6[0], b = s->src_ip6[1], c = s->src_ip6[2],
	    d = s->src_ip6[3];

	return six ? a | b | c | d : four;
}

/* Is the packet, whose way ends in this program, for a socket? */
static __always_inline bool divert_is_asked(void)
{
	struct pf_nat *n = pf_nat();

	return n && n->hop_kind >= PF_DIVERT_TO;
}

/*
 * Fills in the addresses and ports of a packet as they are now; its header has been read. With
 * `listener`, the address and port of the rule's socket replace the destination. Returns the size
 * of the tuple, or 0 if the packet has no ports.
 */
static __always_inline u32 divert_tuple(struct __sk_buff *skb, struct bpf_sock_tuple *t,
					bool listener)
{
	struct route_memory *memory = route_memory_get();
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	const struct ipv6hdr *six;
	const struct iphdr *ip;
	u16 ports[2];

	if (!memory || !p || !n || (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP) ||
	    (p->flags & PF_P_FRAGMENT) || skb_bytes(skb, p->l4, ports, sizeof(ports)))
		return 0;
	if (p->family == 4) {
		ip = (const struct iphdr *)memory->header;
		t->ipv4.saddr = ip->saddr;
		t->ipv4.daddr = listener ? n->hop[3] : ip->daddr;
		t->ipv4.sport = ports[0];
		t->ipv4.dport = listener ? n->hop_port : ports[1];
		return sizeof(t->ipv4);
	}
	six = (const struct ipv6hdr *)memory->header;
	__builtin_memcpy(t->ipv6.saddr, &six->saddr, 16);
	if (listener)
		__builtin_memcpy(t->ipv6.daddr, n->hop, 16);
	else
		__builtin_memcpy(t->ipv6.daddr, &six->daddr, 16);
	t->ipv6.sport = ports[0];
	t->ipv6.dport = listener ? n->hop_port : ports[1];
	return sizeof(t->ipv6);
}

/*
 * Gives the packet its TCP socket: its own connection's, or with `listener` the rule's. Returns
 * false if there is none.
 */
__noinline u32 divert_tcp(struct __sk_buff *skb, bool listener)
{
	struct pf_packet *p = pf_packet();
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;
	bool fits;
	u32 size;

	if (!on(FEATURE_PF_HOPS) || !p)
		return false;
	size = divert_tuple(skb, &t, listener);
	if (!size)
		return false;
	sk = size == sizeof(t.ipv4)
		     ? bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0)
		     : bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	if (listener)
		fits = sk->state == BPF_TCP_LISTEN;
	else
		/* a connection that is over does not keep its client from the next one */
		fits = sk->state != BPF_TCP_LISTEN &&
		       !(sk->state == BPF_TCP_TIME_WAIT && (p->tcp_flags & TCP_SYN));
	if (fits && !on(FEATURE_TRACE))
		fits = !bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return fits;
}

/* The same for UDP. A socket that receives `answers` need not be connected. */
__noinline u32 divert_udp(struct __sk_buff *skb, bool listener, bool answers)
{
	struct bpf_sock_tuple t = {};
	bool fits, connected, bound;
	struct bpf_sock *sk;
	u32 size;

	if (!on(FEATURE_PF_HOPS))
		return false;
	size = divert_tuple(skb, &t, listener);
	if (!size)
		return false;
	sk = size == sizeof(t.ipv4)
		     ? bpf_sk_lookup_udp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0)
		     : bpf_sk_lookup_udp(skb, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	connected = sk->state == BPF_TCP_ESTABLISHED;
	bound = divert_bound(sk, size != sizeof(t.ipv4));
	fits = listener ? !connected : bound && (connected || answers);
	if (fits && !on(FEATURE_TRACE))
		fits = !bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return fits;
}

/*
 * Finds the host's interface and the packet's socket. Returns 0, or the reason to drop the packet.
 */
__noinline u32 divert_find(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	bool tcp, answers;
	u32 tag, slot;

	if (!on(FEATURE_PF_HOPS) || !on(FEATURE_ROUTE) || !memory || !j || !p || !n)
		return DROP_PF_DIVERT;
	slot = j->v.out;
	tag = on(FEATURE_VLANS) ? tag_with_priority(&j->f, j->v.tag) : j->f.outer;
	if (hop_is_outward(&j->v) || !(port_at(slot)->flags & PORT_ROUTE) || tag ||
	    !hop_read(skb, memory, p) || route_interface(&h, memory, slot, j->f.dst))
		return DROP_PF_DIVERT;
	/* the stack finds the socket of a message by the packet that the message quotes */
	if (p->flags & PF_P_ERROR)
		return 0;
	tcp = p->proto == IPPROTO_TCP;
	answers = n->hop_kind == PF_DIVERT_REPLY;
	if (tcp ? divert_tcp(skb, false) : divert_udp(skb, false, answers))
		return 0;
	if (!answers && (tcp ? divert_tcp(skb, true) : divert_udp(skb, true, false)))
		return 0;
	return DROP_PF_DIVERT;
}

/* Records the packet's end for `bascule trace`. */
static __always_inline int divert_tell(struct __sk_buff *skb, struct judged *j, struct pf_nat *n,
				       u32 reason)
{
	struct traced *t = watch_memory();

	if (!t)
		return TC_ACT_OK;
	__builtin_memcpy(t->hop, n->hop, sizeof(t->hop));
	t->hop_port = n->hop_port;
	t->hop_kind = n->hop_kind;
	trace_verdict(&j->f, &j->v, reason ? ACTION_DROP : ACTION_SEND, reason);
	TRACE(step, reason ? STEP_PF_OUT : STEP_SEND);
	if (on(FEATURE_SPAN) && !reason)
		span_out(skb, &j->f, &j->v, j->v.out);
	return TC_ACT_OK;
}

/* Gives the packet to its socket, or drops it. */
__noinline int divert_skb(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_nat *n = pf_nat();
	u32 reason;

	if (!on(FEATURE_PF_HOPS) || !memory || !j || !n)
		return TC_ACT_SHOT;
	reason = divert_find(skb);
	if (on(FEATURE_TRACE))
		return divert_tell(skb, j, n, reason);
	if (reason)
		return drop_skb(skb, &j->f, &j->v, reason);
	if (!hop_count(skb, &j->f, &j->v, true))
		return TC_ACT_SHOT;
	route_count(j->v.out, ROUTE_LOCAL);
	skb->mark = PF_DIVERT_MARK;
	return bpf_redirect(memory->interface, BPF_F_INGRESS);
}

/* Does all of it. */
static __always_inline int divert_or_hop_skb(struct __sk_buff *skb)
{
	u32 reason = hop_begin(skb);

	if (!reason && pf_cross() == PF_CROSS_HOP && divert_is_asked())
		return divert_skb(skb);
	return hop_skb(skb, reason);
}
#endif
