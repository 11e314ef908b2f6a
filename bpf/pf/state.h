/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The states of pf: one for each connection that a rule has passed. They are in our own table,
 * which is read without a lock and swept step by step. A state may be in one of two buckets: see
 * pf_claim_room().
 */
#pragma once

#include "nat.h"

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum pf_other_state *pf_other_state_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_bucket);
} pf_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_state);
} pf_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PF_PROFILES);
	__type(key, u32);
	__type(value, struct pf_profile);
} pf_profiles SEC(".maps");

/* Counters that all CPUs share, by rule. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_rule_use);
} pf_rule_use SEC(".maps");

/* Sources whose states are counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct pf_source_key);
	__type(value, struct pf_source);
} pf_sources SEC(".maps");

/* Puts these types into BTF for Go: no map has them. */
const enum pf_cell *pf_cell_type __attribute__((unused));
const enum pf_dim *pf_dim_type __attribute__((unused));
const enum pf_ask *pf_ask_type __attribute__((unused));
const enum pf_counter *pf_counter_type __attribute__((unused));
const enum pf_state_flag *pf_state_flag_type __attribute__((unused));
const enum pf_tcp_state *pf_tcp_state_type __attribute__((unused));
const enum pf_timeout *pf_timeout_type __attribute__((unused));
const enum pf_ports *pf_ports_type __attribute__((unused));
const enum pf_return *pf_return_type __attribute__((unused));
const struct pf_port_stats *pf_port_stats_type __attribute__((unused));
const struct pf_logged *pf_logged_type __attribute__((unused));

static __always_inline void pf_count(u32 what)
{
	u64 *n = counter_of(COUNTER_PF + what);

	if (n)
		++*n;
}

/*
 * For counters that the timer and user space's requests change, too: a frame may interrupt these.
 */
static __always_inline void pf_count_safely(u32 what, u64 more)
{
	u64 *n = counter_of(COUNTER_PF + what);

	if (n)
		__sync_fetch_and_add(n, more);
}

static __always_inline struct pf_state *pf_state_at(u32 place)
{
	return bpf_map_lookup_elem(&pf_states, &place);
}

/* How many packets a side has sent. */
static __always_inline u64 pf_sent(const struct pf_state *s, u32 side)
{
	return s->packets[side & 1] & PF_SENT_MASK;
}

/* How many bytes of packets a side has sent. */
static __always_inline u64 pf_sent_bytes(const struct pf_state *s, u32 side)
{
	return s->bytes[side & 1] & PF_BYTES_MASK;
}

/* The tag of a state's packets, PF_TAG_MASK of it. */
static __always_inline u32 pf_state_tag(const struct pf_state *s)
{
	return s->bytes[0] >> PF_BYTES_BITS | s->bytes[1] >> PF_BYTES_BITS << PF_TAG_HALF;
}

/* Keeps a tag in a state that no other CPU sees yet. */
static __always_inline void pf_state_tag_keep(struct pf_state *s, u32 tag)
{
	s->bytes[0] |= (u64)tag << PF_BYTES_BITS;
	s->bytes[1] |= (u64)(tag >> PF_TAG_HALF) << PF_BYTES_BITS;
}

/* How many packets both sides have sent. */
static __always_inline u64 pf_sent_all(const struct pf_state *s)
{
	return pf_sent(s, 0) + pf_sent(s, 1);
}

/*
 * Multiplies each word by a secret odd number, and adds the products. The upper half of
 * such a sum is as good as random (Dietzfelbinger, Universal hashing, 1996).
 */
static __always_inline u64 pf_hash(const struct pf_key *key)
{
	const u64 *w = (const u64 *)key;

	return w[0] * cfg.pf.secret[0] + w[1] * cfg.pf.secret[1] + w[2] * cfg.pf.secret[2] +
	       w[3] * cfg.pf.secret[3] + w[4] * cfg.pf.secret[4];
}

static __always_inline u32 pf_mark(u64 hash)
{
	return (u32)(hash >> 24) | PF_MARK_STATE;
}

/* The mark of a state whose CPU is not sure yet that it is the only one with its key. */
static __always_inline u32 pf_mark_unsure(u32 mark)
{
	return (mark & ~(PF_MARK_STATE | PF_MARK_GONE)) | PF_MARK_UNSURE;
}

static __always_inline bool pf_mark_is_gone(u32 mark)
{
	return (mark & (PF_MARK_STATE | PF_MARK_GONE)) == PF_MARK_GONE;
}

/* The first or the second bucket of a hash. */
static __always_inline u32 pf_home(u64 hash, bool second)
{
	u64 h = hash >> 32;

	if (second)
		h = (u32)((hash ^ hash >> 31) * 0x9e3779b97f4a7c15ull >> 32);
	return h * cfg.pf.buckets >> 32;
}

#define PF_PROFILE_MASK 0x00ffffffffffffffull /* of the key's last word: all but the profile */

static __always_inline bool pf_key_is(const struct pf_key *a, const struct pf_key *b)
{
	const u64 *x = (const u64 *)a, *y = (const u64 *)b;

	return x[3] == y[3] && x[1] == y[1] && !((x[4] ^ y[4]) & PF_PROFILE_MASK) && x[0] == y[0] &&
	       x[2] == y[2];
}

/* The place of the state that has the key, + 1; 0 for none. */
static __always_inline u32 pf_state_in(const struct pf_key *key, u32 home, u32 mark)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);

	if (!b)
		return 0;
#pragma unroll
	for (u32 i = 0; i < PF_WAYS; i++) {
		if (READ_ONCE(b->mark[i]) == mark) {
			struct pf_state *s = pf_state_at(home * PF_WAYS + i);

			if (s && pf_key_is(&s->key, key))
				return home * PF_WAYS + i + 1;
		}
	}
	return 0;
}

/*
 * Finds the state of a key, which may be over. Returns its place + 1, 0 for none. This is a
 * separate function, because there are many ways through it.
 */
OFTEN __noinline u32 pf_state_find(const struct pf_key *key)
{
	u64 hash;
	u32 found;

	if (!on(FEATURE_PF) || !key)
		return 0;
	hash = pf_hash(key);
	found = pf_state_in(key, pf_home(hash, false), pf_mark(hash));
	return found ? found : pf_state_in(key, pf_home(hash, true), pf_mark(hash));
}

/* The place + 1 of the state that has a key at a place, which may be its second key. */
static __always_inline u32 pf_state_of_key(u32 place)
{
	struct pf_state *s = pf_state_at(place);

	return on(FEATURE_PF_NAT) && s && (s->flags & PF_STATE_KEY) ? PF_STATE_OTHER(s) : place + 1;
}

/* Is the entry at a place the second key of the state at another, which refers back to it? */
static __always_inline bool pf_state_has_key(u32 place, u32 key)
{
	u32 home = place / PF_WAYS;
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);
	struct pf_state *s = pf_state_at(place);

	return b && s && (READ_ONCE(b->mark[place % PF_WAYS]) & PF_MARK_STATE) &&
	       (s->flags & PF_STATE_NAT) && PF_STATE_OTHER(s) == key + 1;
}

/* Is it a key of IPv4 packets? */
static __always_inline bool pf_key_is4(const struct pf_key *key)
{
	const u32 *a = key->address[0], *b = key->address[1];

	return !(a[0] | a[1] | b[0] | b[1] | (a[2] ^ IPV4_MAPPED) | (b[2] ^ IPV4_MAPPED));
}

/*
 * The mark of a packet that has been sent to the device of a host port, where it comes back into
 * the switch: its next hop has been chosen. The mark names the host port through which the packet
 * has left the host, by that port's slot and its endpoint, which is unique in the namespace. So
 * each bridge recognizes its own packets, and the routing domain whose state has seen them. States
 * of another bridge, or of another domain, have not seen them.
 */
#define PF_HOP_MARK 0xba400000u
#define PF_HOP_MASK 0xffc00000u
#define PF_HOP_ENDPOINT 10 /* the lowest bit of the endpoint, behind the slot */
_Static_assert(MAX_PORTS <= 1 << PF_HOP_ENDPOINT, "slots have no room in a mark");

static __always_inline u32 pf_hop_mark(u32 slot)
{
	return PF_HOP_MARK | (port_at(slot)->endpoint << PF_HOP_ENDPOINT & ~PF_HOP_MASK) |
	       SLOT(slot);
}

/* Has the state seen the packet, which had the mark? */
static __always_inline bool pf_hop_seen(const struct pf_nat *n, const struct pf_state *s)
{
	return port_at(n->mark)->endpoint && pf_hop_mark(n->mark) == n->mark &&
	       port_at(n->mark)->domain == (s->key.vlan & ~(PF_ROUTED | PF_OUTWARD));
}

/*
 * The state (its place + 1) of this CPU's packet to or from the host, whose key is at a place.
 * Returns 0 if that key is only for packets in the other direction. `out` is set if the packet
 * leaves the host. The packet then has the key and the sides of the state. If the state has a key
 * of each family, either is for packets in both directions: n->cross has the action for this one.
 */
OFTEN __noinline u32 pf_state_translated(u32 place, u32 out)
{
	struct pf_state *k = pf_state_at(place), *s;
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_key *key;

	if (!on(FEATURE_PF_NAT) || !k || !n || !p)
		return 0;
	if (!(k->flags & (PF_STATE_NAT | PF_STATE_KEY)))
		return place + 1;
	s = pf_state_at(PF_STATE_OTHER(k) - 1);
	if (on(FEATURE_PF_FAMILY) && s && pf_key_is4(&s->key) != pf_key_is4(&k->key)) {
		n->cross = out ? PF_CROSS_DONE : PF_CROSS_KNOWN;
		n->second = !!(k->flags & PF_STATE_KEY);
	} else if (!(k->flags & PF_STATE_KEY) != !out &&
		   !(on(FEATURE_PF_HOPS) && n->marked && pf_hop_seen(n, k))) {
		return 0;
	}
	n->out = out;
	if (!(k->flags & PF_STATE_KEY))
		return place + 1;
	if (!s || !pf_state_has_key(PF_STATE_OTHER(k) - 1, place))
		return 0;
	key = &p->key;
	if (p->flags & PF_P_ERROR) {
		p->quoted_side ^= !!((s->flags ^ k->flags) & PF_STATE_SECOND);
		key = &p->quoted;
	} else {
		p->side ^= !!((s->flags ^ k->flags) & PF_STATE_SECOND);
	}
	*key = s->key;
	key->profile = 0;
	return PF_STATE_OTHER(k);
}

/*
 * Does the packet have the direction of its connection's first packet? An error goes to the side
 * that sent the quoted packet, whatever its source is.
 */
static __always_inline bool pf_forward(const struct pf_packet *p, const struct pf_state *s)
{
	u32 side = p->flags & PF_P_ERROR ? !p->quoted_side : p->side;

	return side == !!(s->flags & PF_STATE_SECOND);
}

/*
 * Does the address only have a meaning on its link, or belong to no station? Such addresses are
 * never routed.
 */
static __always_inline bool pf_of_link(const u32 *address)
{
	const u8 *b = (const u8 *)address;

	if (address[2] == IPV4_MAPPED && !address[0] && !address[1])
		return b[12] >= 224 || (b[12] == 169 && b[13] == 254);
	return b[0] == 0xff || (b[0] == 0xfe && (b[1] & 0xc0) == 0x80);
}

/*
 * May a packet to or from the host belong to the state of a VLAN that is at a place? Not if the
 * state's packets only go from station to station.
 */
static __always_inline bool pf_state_hosts(u32 place)
{
	struct pf_state *s = pf_state_at(place);

	return s && (!s->out || pf_to_host(s->out) || pf_to_host(s->in));
}

/*
 * Finds the state of this CPU's packet, which may be to or from the host. Returns its place + 1, 0
 * for none. Then the key has the same value instead of the VLAN as its state has or will have.
 * `slots` are the way out, 0 if it is unknown, and the way in.
 *
 * A packet between two host ports is bridged. So is one with an unknown way out: it may be flooded.
 * When its way becomes known, its connection continues with the state of the VLAN.
 */
OFTEN __noinline u32 pf_state_find_routed(u32 slots)
{
	struct pf_packet *p = pf_packet();
	u32 in = slots & (MAX_PORTS - 1), out = slots / MAX_PORTS, found, side, inward, error;
	struct pf_key *key;
	u16 vlan, domain;

	_Static_assert(offsetof(struct pf_packet, quoted) == sizeof(p->key), "they are neighbours");
	if (!on(FEATURE_PF_HOST) || !p)
		return 0;
	/* few branches: the verifier would follow all the code behind each of them twice */
	error = p->flags / PF_P_ERROR & 1;
	key = &p->key + error;
	inward = pf_port_to_host(in);
	/* slot 0 does not belong to a host port */
	if (inward == pf_port_to_host(out) || (p->flags & PF_P_ND) || pf_of_link(key->address[0]) ||
	    pf_of_link(key->address[1])) {
		found = pf_state_find(key);
		if (!found)
			p->vacant = true;
		return found;
	}
	side = (p->side & ~error) | ((p->quoted_side ^ 1) & error);
	domain = PF_ROUTED | port_at(out ^ ((in ^ out) & -inward))->domain;
	/* the packet's side sends out of the host, or the other side into it */
	domain |= ((inward ^ side) & 1) * PF_OUTWARD;
	vlan = key->vlan;
	key->vlan = domain;
	found = pf_state_find(key);
	p->vacant = !found;
	if (on(FEATURE_PF_NAT) && found)
		found = pf_state_translated(found - 1, inward);
	if (found)
		return found;
	key->vlan = vlan;
	found = pf_state_find(key);
	if (found && pf_state_hosts(found - 1))
		return found;
	key->vlan = domain;
	/* rules that translate an ICMP error use its own key */
	if (on(FEATURE_PF_NAT))
		p->key.vlan = domain;
	return 0;
}
