/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The search for the pf rule that decides about a packet. See struct pf_set for its method. */
#pragma once

#include "../binding.h"
#include "fib.h"
#include "limiter.h"
#include "scrub.h"

/* The sets of rules that match an address or a network named by rules. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct pf_prefix);
	__type(value, struct pf_network);
} pf_networks SEC(".maps");

/*
 * Tables of addresses. This map has single addresses, pf_nets has networks. Both change while
 * frames pass.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct pf_address);
	__type(value, struct pf_host);
} pf_hosts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct pf_prefix);
	__type(value, struct pf_member);
} pf_nets SEC(".maps");

/* Rules by number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_rule);
} pf_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_rule_stats);
} pf_rule_stats SEC(".maps");

/* The most match rules that log one packet. The rule that applies may log it, too. */
#define PF_MATCHES 4

/*
 * Each CPU remembers the rules that match packets with certain sets of their fields: most first
 * packets are like others before them. Some rules lie between each other, and share words but no
 * bits. Without memos, such rules would cost a look at all these words.
 */
#define PF_MEMOS 256
#define PF_MEMO_RULES 20
#define PF_MEMO_END 0xffff /* no rule has this number */

struct pf_memo {
	u32 set[PF_DIMS];
	u16 count; /* number of rules, + 1; 0 while nothing is remembered */
	u16 rule[PF_MEMO_RULES + 1]; /* PF_MEMO_END follows the last */
};

/* The walk over the rules that a packet matches. */
struct pf_walk {
	u64 words; /* words of the group with rules still to try */
	u64 bits; /* rules of the word still to try */
	u64 src_tables; /* tables that contain the packet's addresses */
	u64 dst_tables;
	u32 set[PF_DIMS]; /* the set of each field's value */
	u32 at[PF_DIMS]; /* place of the group's words of this set */
	u64 all[PF_DIMS]; /* which words of the group these are */
	u32 group;
	u32 base; /* number of the word's first rule */
	u32 skip; /* rules below this are not tried */
	u32 end; /* nor are rules from this on */
	u32 rule; /* number + 1 of the last that passes or blocks */
	u32 matches[PF_MATCHES]; /* numbers + 1 of match rules that log the packet */
	u32 matched;
	u32 log_slot; /* port, reason and ruleset of the log entry */
	u32 log_reason;
	u32 log_ruleset;
	u32 log_to;
	u32 log_match;
	struct pf_prefix prefix; /* the address to look up */
	u32 memo; /* number of the memo for such packets */
	u32 found; /* rules found, to be remembered */
	u32 resume; /* number + 1 of a match rule that translates before the walk continues */
	u32 resume_end; /* `end` of the rules left to try then */
	u32 limited; /* number + 1 of a rule that blocks the packet, since a limiter is exhausted */
	u32 pad;
	struct pf_asked_limiter limiter;
	struct pf_limited fresh; /* a limiter's record of a new source: zero except `expires` */
};

/* An address that has been looked up, with the result. */
struct pf_seen {
	u32 address[4];
	struct pf_network network;
	u32 is; /* the address has been looked up */
	u32 pad;
};

#define PF_SEEN 64 /* a power of two */

/* The walk, the memos and the last addresses of a CPU. */
struct pf_walking {
	struct pf_walk walk;
	struct pf_memo memos[PF_MEMOS];
	struct pf_seen seen[PF_SEEN];
};

MEMORY_HOLDS(struct pf_walking);

/* Puts the type into BTF for Go: BTF only has types that are used. */
const struct pf_walk *pf_walk_type __attribute__((unused));

static __always_inline struct pf_walk *pf_walk(void)
{
	u32 part = MEMORY_PF;

	return bpf_map_lookup_elem(&memory, &part);
}

/* The memo for packets like the one of the walk. */
static __always_inline struct pf_memo *pf_memo(struct pf_walk *w)
{
	return &((struct pf_walking *)w)->memos[w->memo & (PF_MEMOS - 1)];
}

static __always_inline bool pf_dim(u32 dim)
{
	return cfg.pf.dims >> dim & 1;
}

/* Enters a group: finds the words in which the sets of all fields have rules. */
static __always_inline void pf_enter_group(struct pf_walk *w)
{
	w->words = ~0ull;
#pragma unroll
	for (u32 dim = 0; dim < PF_DIMS; dim++) {
		if (!pf_dim(dim))
			continue;
		w->all[dim] = pf_word(w->set[dim] + 2 * w->group);
		w->at[dim] = pf_word(w->set[dim] + 2 * w->group + 1);
		w->words &= w->all[dim];
	}
}

/* Enters word `n` of the group: finds the rules that the sets of all fields share. */
static __always_inline void pf_enter_word(struct pf_walk *w, u32 n)
{
	u64 below = (1ull << (n & 63)) - 1;

	w->bits = ~0ull;
#pragma unroll
	for (u32 dim = 0; dim < PF_DIMS; dim++) {
		if (pf_dim(dim))
			w->bits &= pf_word(w->at[dim] + ones(w->all[dim] & below));
	}
	w->base = w->group * PF_GROUP + n * 64;
}

static __always_inline bool pf_in_set(u32 number, u32 slot)
{
	u32 at = PF_CELLS + number * PORT_WORDS + (slot / 64 & (PORT_WORDS - 1));
	u64 *word = bpf_map_lookup_elem(&pf_words, &at);

	return word && *word >> (slot & 63) & 1;
}

/* Does a condition hold that a flag may negate? */
static __always_inline bool pf_holds(bool is, u32 not)
{
	return is != !!not;
}

/*
 * Do the facts about a packet's routes differ from the conditions of a rule with these flags? A
 * rule has at most one condition on its source, and one on its destination. There are no branches
 * here: each would make the verifier follow all the code behind it twice.
 */
static __always_inline bool pf_routes_differ(u32 rule, u32 routes)
{
	u32 hold = rule & routes;
	u32 src = (rule & PF_SRC_NO_ROUTE) / PF_SRC_NO_ROUTE |
		  (rule & PF_SRC_URPF_FAILED) / PF_SRC_URPF_FAILED;
	u32 src_holds = (hold & PF_SRC_NO_ROUTE) / PF_SRC_NO_ROUTE |
			(hold & PF_SRC_URPF_FAILED) / PF_SRC_URPF_FAILED;
	u32 dst = (rule & PF_DST_NO_ROUTE) / PF_DST_NO_ROUTE;
	u32 dst_holds = (hold & PF_DST_NO_ROUTE) / PF_DST_NO_ROUTE;
	u32 not_src = (rule & PF_NOT_SRC_TABLE) / PF_NOT_SRC_TABLE;
	u32 not_dst = (rule & PF_NOT_DST_TABLE) / PF_NOT_DST_TABLE;

	/* a condition must hold, unless the rule negates it */
	return (src & ~(src_holds ^ not_src)) | (dst & ~(dst_holds ^ not_dst));
}

/*
 * Is a limiter of the rule with a number exhausted? Then the packet does not match the rule. If the
 * rule requires it, no other is tried, and the packet is blocked.
 */
static __always_inline bool pf_rule_limited(struct pf_walk *w, const struct pf_packet *p,
					    const struct pf_rule *r, u32 number)
{
	u32 full;

	if (p->how & PF_KNOWN) /* it has its state, which is counted already */
		return false;
	w->limiter.profile = r->profile;
	full = pf_limits_full(&w->limiter, p);
	if (!full)
		return false;
	if (!(r->flags & (full == PF_COUNT_STATE_LIMIT ? PF_STATE_NO_MATCH : PF_SOURCE_NO_MATCH))) {
		w->limited = number + 1;
		w->end = 0;
		if (!on(FEATURE_TRACE))
			pf_count(full);
	}
	return true;
}

/* Does the packet meet the conditions of a rule other than the fields of the sets? */
static __always_inline bool pf_rule_matches(struct pf_walk *w, struct pf_packet *p,
					    const struct pf_rule *r, u32 number)
{
	if ((cfg.pf.asks & PF_ASK_TAG) && r->tagged &&
	    !pf_holds(!((p->tag ^ r->tagged) & PF_TAG_MASK), r->flags & PF_NOT_TAGGED))
		return false;
	if (on(FEATURE_PF_TABLES)) {
		if (r->src_table && !pf_holds(w->src_tables >> ((r->src_table - 1) & 63) & 1,
					      r->flags & PF_NOT_SRC_TABLE))
			return false;
		if (r->dst_table && !pf_holds(w->dst_tables >> ((r->dst_table - 1) & 63) & 1,
					      r->flags & PF_NOT_DST_TABLE))
			return false;
	}
	if ((cfg.pf.asks & PF_ASK_RECEIVED) && r->received &&
	    !pf_holds(pf_in_set(r->received, p->received), r->flags & PF_NOT_RECEIVED))
		return false;
	if ((cfg.pf.asks & PF_ASK_PRIORITY) && r->priority && r->priority - 1 != p->priority)
		return false;
	if (on(FEATURE_PF_FIB) && pf_routes_differ(r->flags, p->routes))
		return false;
	if ((cfg.pf.asks & PF_ASK_RANDOM) && r->probability &&
	    bpf_get_prandom_u32() >= r->probability)
		return false;
	if (on(FEATURE_PF_LIMITERS) && (r->flags & PF_LIMITED) && pf_rule_limited(w, p, r, number))
		return false;
	if ((cfg.pf.asks & PF_ASK_ONCE) && (r->flags & PF_ONCE)) {
		u32 first = r->first;
		struct pf_rule_use *use = bpf_map_lookup_elem(&pf_rule_use, &first);

		if (!use || use->spent || __sync_val_compare_and_swap(&use->spent, 0, 1))
			return false;
	}
	return true;
}

/* Has a limiter of a rule blocked the packet? */
static __always_inline bool pf_limited_by(void)
{
	struct pf_walk *w = pf_walk();

	return w && w->limited;
}

/* Counts a packet for a rule, number + 1, where it enters or leaves. */
static __always_inline void pf_rule_count(u32 rule, u32 out, u64 packets, u64 bytes)
{
	u32 number = rule - 1;
	struct pf_rule_stats *stats = rule ? bpf_map_lookup_elem(&pf_rule_stats, &number) : 0;

	if (!stats)
		return;
	/* the sweep adds the counts of states, so these are atomic */
	__sync_fetch_and_add(&stats->packets[out & 1], packets);
	__sync_fetch_and_add(&stats->bytes[out & 1], bytes);
}

/*
 * Does the rule translate a packet that it matches? Rules translate at host ports, and packets of
 * known connections have been translated. A rule that names another port would translate nothing:
 * such a packet is stopped where translation is impossible.
 */
static __always_inline bool pf_rule_translates(const struct pf_packet *p, const struct pf_rule *r)
{
	return (r->flags & PF_TRANSLATES) && (!(p->how & PF_KNOWN) || (p->how & PF_UNSEEN)) &&
	       (pf_to_host(p->slot) || (r->flags & PF_TRANSLATES_ON)) && !pf_discovers(p);
}

#define PF_FIRST_TRIES 32 /* a power of two: rules that match the packet, both ways */
#define PF_FIRST_LEFT 32 /* a power of two */

/*
 * XDP's data about a first packet that it judges: see ../first.h. Rules count the packet when they
 * match it. Each is noted, so that its count can be subtracted if tcx must judge the packet.
 */
struct pf_first {
	u32 tries[PF_FIRST_TRIES]; /* number << 1 | direction, as rules see it */
	u32 tried; /* number of these */
	u32 judged; /* rule decisions, to be counted by PF_COUNT_MATCH */
	u32 left; /* this packet's place in the array of packets that were left to tcx lately */
	u32 mark; /* and its mark there */
	u32 in; /* slots: where it enters, where it goes to the host, ... */
	u32 slot;
	u32 len; /* bytes of its frame, before it continues at the host's second port */
	u32 fill; /* bytes of padding in that frame */
	u32 tried_in; /* the same two, on its way into the host */
	u32 judged_in;
	/* of struct pf_packet there */
	struct pf_key key;
	u32 rule[2];
	u8 calls[2];
	u8 side;
	u8 on; /* rules translate it there */
	u8 odd; /* its rules require something that only tcx does */
	u8 begun; /* a state counts it: pf_begin() */
	u8 blocked; /* on arrival, and its sender is not notified */
	u8 pad;
	u32 tag; /* tag_kept */
	u32 lately[PF_FIRST_LEFT];
};

WORK_HOLDS(struct pf_first);

static __always_inline struct pf_first *pf_first(void)
{
	return work_of(WORK_PF_FIRST);
}

/* Flags of rules that require something that XDP does not do, if they decide. */
#define PF_RULE_SLOW                                                                               \
	(PF_LOG | PF_LOG_ALL | PF_LOG_MATCHES | PF_MODULATE | PF_SYNPROXY | PF_TRANSLATES_FAMILY)

/* Does the rule require something that XDP does not do, apart from its conditions? */
static __always_inline bool pf_rule_is_slow(const struct pf_rule *r)
{
	return (r->flags & PF_RULE_SLOW) | r->routes | r->scrub.max_mss | r->scrub.min_ttl |
	       r->scrub.flags;
}

/* Notes a rule that matches the packet. Returns false if tcx must judge the packet. */
static __always_inline bool pf_first_notes(const struct pf_packet *p, u32 number,
					   const struct pf_rule *r)
{
	struct pf_first *f = pf_first();
	u32 at;

	if (!f)
		return false;
	at = f->tried;
	if (at >= PF_FIRST_TRIES || (r->action == PF_MATCH && pf_rule_is_slow(r))) {
		f->odd = true;
		return false;
	}
	f->tries[at & (PF_FIRST_TRIES - 1)] = number << 1 | (pf_called(p, p->direction) & 1);
	f->tried = at + 1;
	return true;
}

/* Tries a rule, unless it belongs to an anchor that does not match the packet. */
OFTEN __noinline int pf_try(u32 number)
{
	struct pf_rule *r = bpf_map_lookup_elem(&pf_rules, &number);
	struct pf_packet *p = pf_packet();
	struct pf_walk *w = pf_walk();
	struct pf_rule_stats *stats;

	if (!on(FEATURE_PF_RULES) || !r || !p || !w || number < w->skip)
		return 0;
	/*
	 * An unknown fragment meets every rule that may translate it, and such a rule stops it.
	 * This is no reason to let the fragment pass where nothing is translated.
	 */
	if (on(FEATURE_PF_NAT) && (p->flags & PF_P_UNKNOWN) && (r->flags & PF_TRANSLATES) &&
	    !pf_to_host(p->slot))
		return 0;
	if (!pf_rule_matches(w, p, r, number)) {
		if (r->action == PF_ANCHOR)
			w->skip = r->end;
		return 0;
	}
	if (r->action == PF_ANCHOR)
		return 0;
	if (on(FEATURE_PF_FIRST) && !pf_first_notes(p, number, r)) {
		w->end = 0;
		return 0;
	}
	stats = bpf_map_lookup_elem(&pf_rule_stats, &number);
	if (stats) {
		stats->evaluations++;
		if (r->action == PF_MATCH)
			pf_rule_count(number + 1, pf_called(p, p->direction), 1, p->length);
	}
	if (r->tag)
		p->tag = r->tag;
	if (r->end < w->end)
		w->end = r->end;
	if (r->action != PF_MATCH) {
		w->rule = number + 1;
		return 0;
	}
	if (on(FEATURE_PF_SCRUB))
		pf_scrub_add(&p->scrub[p->direction & 1], &r->scrub);
	if (on(FEATURE_PF_NAT) && pf_rule_translates(p, r)) {
		w->resume = number + 1;
		w->resume_end = w->end;
		w->end = 0;
	}
	if (on(FEATURE_PF_LOG) && (r->flags & PF_LOG) && w->matched < PF_MATCHES)
		w->matches[w->matched++ & (PF_MATCHES - 1)] = number + 1;
	return 0;
}

/*
 * Ends a walk that has found all rules that match packets like this one. Remembers the rules, if
 * the memo has room for them.
 */
static __always_inline long pf_walked(struct pf_walk *w, struct pf_memo *m)
{
	if (w->found <= PF_MEMO_RULES) {
		m->rule[w->found] = PF_MEMO_END;
		m->count = w->found + 1;
	}
	return 1;
}

OFTEN static long pf_step(u32 n, void *unused)
{
	struct pf_walk *w = pf_walk();
	struct pf_memo *m;
	u32 bit, number;

	if (!w)
		return 1;
	m = pf_memo(w);
	if (w->bits) {
		bit = first_bit(w->bits);
		w->bits &= w->bits - 1;
		number = w->base + bit;
		if (number >= cfg.pf.rules)
			return pf_walked(w, m);
		/*
		 * No rule is tried from here on; the walk continues if the memo has room for all
		 * rules.
		 */
		if (number >= w->end && w->found > PF_MEMO_RULES)
			return 1;
		if (w->found < PF_MEMO_RULES)
			m->rule[w->found] = number;
		w->found++;
		if (number < w->end)
			pf_try(number);
		return 0;
	}
	if (w->words) {
		bit = first_bit(w->words);
		w->words &= w->words - 1;
		pf_enter_word(w, bit);
		return 0;
	}
	w->group++;
	if (w->group >= cfg.pf.groups)
		return pf_walked(w, m);
	pf_enter_group(w);
	return 0;
}

/*
 * The same walk over a memo. It is a separate loop, which is cheaper than calls by bpf_loop():
 * nearly all first packets come here.
 */
OFTEN __noinline int pf_walk_memo(void)
{
	struct pf_walk *w = pf_walk();
	const u16 *rule;

	if (!on(FEATURE_PF_RULES) || !w)
		return 0;
	rule = pf_memo(w)->rule;
#pragma clang loop unroll(disable)
	for (u32 n = 0; n < PF_MEMO_RULES; n++) {
		if (rule[n] >= w->end)
			break;
		pf_try(rule[n]);
	}
	return 0;
}

#define PF_STEPS (PF_RULES + PF_RULES / 64 + PF_RULES / PF_GROUP + 4) /* more are not needed */

/* The tables that contain an address. */
static __always_inline u64 pf_tables_of(const struct pf_prefix *prefix)
{
	struct pf_member *m = bpf_map_lookup_elem(&pf_hosts, &prefix->address);

	if (!m) /* an address has it in `match` */
		m = bpf_map_lookup_elem(&pf_nets, prefix);
	return m ? m->match : 0;
}

/*
 * The result for the networks of the walk's address. Returns 0 if no rule can match it. A look into
 * the trie takes 200 instructions and more. Rules look up an address several times, and further
 * connections of the address follow.
 */
static __always_inline const struct pf_network *pf_network_of(struct pf_walk *w)
{
	const u32 *a = (const u32 *)w->prefix.address;
	u32 hash = (a[0] ^ a[1] ^ a[2] ^ a[3]) * 0x9e3779b1 >> 24;
	struct pf_seen *seen = &((struct pf_walking *)w)->seen[hash & (PF_SEEN - 1)];
	struct pf_network *n;

	if ((seen->address[0] ^ a[0]) | (seen->address[1] ^ a[1]) | (seen->address[2] ^ a[2]) |
	    (seen->address[3] ^ a[3]) | !seen->is) {
		n = bpf_map_lookup_elem(&pf_networks, &w->prefix);
		if (!n)
			return 0;
		__builtin_memcpy(seen->address, a, sizeof(seen->address));
		seen->network = *n;
		seen->is = true;
	}
	return &seen->network;
}

/* Looks up one of the packet's addresses. Returns false if no rule can match it. */
static __always_inline bool pf_look_up(struct pf_walk *w, const u32 *address, u32 dim, u64 *tables)
{
	w->prefix.bits = 128;
	__builtin_memcpy(w->prefix.address, address, 16);
	if (pf_dim(dim)) {
		const struct pf_network *n = pf_network_of(w);

		if (!n)
			return false;
		w->set[dim] = dim == PF_DIM_SRC ? n->src : n->dst;
	}
	if (on(FEATURE_PF_TABLES))
		*tables = pf_tables_of(&w->prefix);
	return true;
}

/* Chooses the cells of the fields that only some packets have. */
static __always_inline void pf_choose_cells(struct pf_walk *w, const struct pf_packet *p)
{
	u32 side = p->side & 1;
	u32 flags = PF_CELL_FLAGS_OTHER, sport = PF_CELL_SPORT_OTHER, dport = PF_CELL_DPORT_OTHER;

	if (p->proto == IPPROTO_TCP)
		flags = p->flags & PF_P_UNKNOWN
				? PF_CELL_FLAGS_UNKNOWN
				: PF_CELL_FLAGS + (p->how & PF_KNOWN ? TCP_SYN : p->tcp_flags);
	if (p->flags & PF_P_UNKNOWN) {
		sport = PF_CELL_SPORT_UNKNOWN;
		dport = PF_CELL_DPORT_UNKNOWN;
	} else if (p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP) {
		sport = PF_CELL_SPORT + bpf_ntohs(p->key.port[side]);
		dport = PF_CELL_DPORT + bpf_ntohs(p->key.port[!side]);
	} else if (p->proto == IPPROTO_ICMP && p->family == 4) {
		dport = PF_CELL_ICMP4 + p->icmp;
	} else if (p->proto == IPPROTO_ICMPV6 && p->family == 6) {
		dport = PF_CELL_ICMP6 + p->icmp;
	}
	if (pf_dim(PF_DIM_FLAGS))
		w->set[PF_DIM_FLAGS] = pf_cell(flags);
	if (pf_dim(PF_DIM_SPORT))
		w->set[PF_DIM_SPORT] = pf_cell(sport);
	if (pf_dim(PF_DIM_DPORT))
		w->set[PF_DIM_DPORT] = pf_cell(dport);
}

#define PF_REMEMBERED 2 /* pf_prepare(): the rules are remembered */

/* Does the memo for packets like this one have their rules? If not, the walk will fill it in. */
OFTEN __noinline u32 pf_remembers(void)
{
	struct pf_walk *w = pf_walk();
	u32 hash = 0;
	struct pf_memo *m;
	bool same;

	if (!on(FEATURE_PF_RULES) || !w)
		return false;
#pragma unroll
	for (u32 dim = 0; dim < PF_DIMS; dim++)
		if (pf_dim(dim))
			hash = (hash ^ w->set[dim]) * 0x9e3779b1;
	w->memo = hash >> 24 & (PF_MEMOS - 1);
	w->found = 0;
	m = pf_memo(w);
	same = m->count;
#pragma unroll
	for (u32 dim = 0; dim < PF_DIMS; dim++)
		if (pf_dim(dim) && m->set[dim] != w->set[dim]) {
			m->set[dim] = w->set[dim];
			same = false;
		}
	if (same)
		return true;
	m->count = 0;
	pf_enter_group(w);
	return false;
}

/*
 * Chooses the sets of all fields except the port. Returns false if no rule can match the packet.
 * They are the same wherever rules are evaluated for the packet, so they are chosen once.
 */
OFTEN __noinline u32 pf_choose(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_walk *w = pf_walk();
	const struct pf_key *key;
	u32 side;

	if (!on(FEATURE_PF_RULES) || !p || !w)
		return false;
	key = &p->key;
	side = p->side & 1;
	if (p->flags & PF_P_CHOSEN)
		return true;
	if (pf_dim(PF_DIM_PROTO))
		w->set[PF_DIM_PROTO] =
			pf_cell(PF_CELL_PROTO + p->proto + (p->family == 6 ? 256 : 0));
	if (pf_dim(PF_DIM_TOS))
		w->set[PF_DIM_TOS] =
			pf_cell(PF_CELL_TOS + p->tos + (p->flags & PF_P_FRAGMENT ? 256 : 0));
	pf_choose_cells(w, p);
	if (p->flags & PF_P_ND) {
		key = &p->quoted;
		side = p->quoted_side & 1;
	}
	if (!pf_look_up(w, key->address[side], PF_DIM_SRC, &w->src_tables) ||
	    !pf_look_up(w, key->address[!side], PF_DIM_DST, &w->dst_tables))
		return false;
	p->flags |= PF_P_CHOSEN;
	return true;
}

/*
 * Prepares the walk over the rules that this CPU's packet matches at a port. Returns false if it
 * matches none, PF_SKIP if pf is inactive there. This is a separate function, to save room on the
 * stack.
 */
OFTEN __noinline u32 pf_prepare(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_walk *w = pf_walk();

	if (!on(FEATURE_PF_RULES) || !p || !w)
		return false;
	if (on(FEATURE_PF_FIB))
		p->routes = pf_fib_at(p->slot);
	if (on(FEATURE_ETHER) && p->ether_tag[p->direction & 1])
		p->tag = p->ether_tag[p->direction & 1];
	if (on(FEATURE_PF_NAT) && (p->how & PF_RESUMES)) {
		if (!pf_choose())
			return false;
		w->bits = 0;
		w->group = 0;
		w->skip = w->resume;
		w->end = w->resume_end;
		w->resume = 0;
		return pf_remembers() ? PF_REMEMBERED : true;
	}
	if (on(FEATURE_PF_NAT))
		w->resume = 0;
	if (on(FEATURE_PF_SCRUB))
		p->scrub[p->direction & 1] = (struct pf_scrub){};
	w->rule = 0;
	w->matched = 0;
	if (on(FEATURE_PF_LIMITERS))
		w->limited = 0;
	w->set[PF_DIM_PORT] =
		pf_cell(PF_CELL_PORT + SLOT(p->slot) * 2 + (pf_called(p, p->direction) & 1));
	if (w->set[PF_DIM_PORT] == PF_SKIP)
		return PF_SKIP;
	if (!pf_choose())
		return false;
	w->bits = 0;
	w->group = 0;
	w->skip = 0;
	w->end = cfg.pf.rules;
	return pf_remembers() ? PF_REMEMBERED : true;
}

/*
 * Judges this CPU's packet at a port. Returns the number of the deciding rule + 1, 0 if there is
 * none, or PF_SKIP.
 */
OFTEN __noinline u32 pf_judge(void)
{
	u32 matches = pf_prepare();
	struct pf_walk *w = pf_walk();

	if (!on(FEATURE_PF_RULES) || !w)
		return 0;
	if (matches == PF_SKIP)
		return PF_SKIP;
	if (!on(FEATURE_PF_NAT) && !matches)
		return 0;
	if (matches == PF_REMEMBERED)
		pf_walk_memo();
	else if (matches)
		/*
		 * no flags: `bits` is still 0. A constant would make the kernel reserve room on the
		 * stack
		 */
		bpf_loop(PF_STEPS, pf_step, 0, w->bits);
	if (on(FEATURE_PF_LIMITERS) && w->limited)
		return w->limited;
	return w->rule;
}
