/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Changes to tables of addresses while frames pass. Only user space changes networks. The datapath
 * also adds addresses, if a source sends too much (overload), or has too many states of a limiter,
 * and removes the latter again. So an entry is changed in place, bit by bit, and no change
 * overwrites another.
 */
#pragma once

#include "rules.h"

#define PF_TABLE_TRIES 8 /* tries against others that change an address at the same moment */

/* The addresses that user space adds and deletes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PF_TABLE_BATCH);
	__type(key, u32);
	__type(value, struct pf_table_change);
} pf_table_batch SEC(".maps");

/* Room for a change to an address: frames have none for it on their stack. */
struct pf_table_work {
	struct pf_address address;
	struct pf_prefix prefix;
	struct pf_host fresh;
};

/* The tables that contain the address because of networks. */
static __always_inline u64 pf_table_nets(struct pf_table_work *w)
{
	struct pf_member *net;

	w->prefix.bits = 128;
	__builtin_memcpy(w->prefix.address, &w->address, sizeof(w->prefix.address));
	net = bpf_map_lookup_elem(&pf_nets, &w->prefix);
	return net ? READ_ONCE(net->match) : 0;
}

/*
 * Puts an address into the tables of its networks, except tables outside `tables` and tables that
 * list it.
 */
static __always_inline void pf_table_follow(struct pf_host *m, u64 tables)
{
	u64 nets = READ_ONCE(m->nets), here = READ_ONCE(m->here), added;

	tables &= ~here;
	__sync_fetch_and_or(&m->match, nets & tables);
	__sync_fetch_and_and(&m->match, nets | ~tables);
	/* only the datapath can have listed the address meanwhile, and it negates nothing */
	added = READ_ONCE(m->here) & ~here & tables;
	if (added)
		__sync_fetch_and_or(&m->match, added);
}

/* The same where networks have changed. */
static __always_inline void pf_table_inherit(struct pf_table_work *w, struct pf_host *m, u64 tables)
{
	u64 nets = pf_table_nets(w);

	__sync_fetch_and_or(&m->nets, nets & tables);
	__sync_fetch_and_and(&m->nets, nets | ~tables);
	pf_table_follow(m, tables);
}

#define PF_TABLE_WRITTEN 2 /* it is listed now, unless the entry was deleted meanwhile */
#define PF_TABLE_AGAIN 3 /* another CPU or user space has made the entry at the same moment */

/*
 * Tries to list an address in the tables of `bits`. Returns 1, 0 if it is listed already,
 * PF_TABLE_WRITTEN, PF_TABLE_AGAIN, or the reason of a failure. The verifier follows it once, not
 * once for each try.
 */
__noinline int pf_table_try(struct pf_table_work *w, u64 bits, bool negated)
{
	struct pf_host *m;
	long err;

	if (!on(FEATURE_PF) || !w)
		return -EINVAL;
	m = bpf_map_lookup_elem(&pf_hosts, &w->address);
	if (m) {
		if (READ_ONCE(m->here) & bits)
			return 0;
		__sync_fetch_and_or(&m->here, bits);
		if (negated)
			__sync_fetch_and_and(&m->match, ~bits);
		else
			__sync_fetch_and_or(&m->match, bits);
		return PF_TABLE_WRITTEN;
	}
	w->fresh.here = bits;
	w->fresh.nets = pf_table_nets(w);
	w->fresh.match = w->fresh.nets & ~bits;
	if (!negated)
		w->fresh.match |= bits;
	err = bpf_map_update_elem(&pf_hosts, &w->address, &w->fresh, BPF_NOEXIST);
	if (err == -EEXIST)
		return PF_TABLE_AGAIN;
	if (err)
		return err;
	/* networks may have changed since */
	m = bpf_map_lookup_elem(&pf_hosts, &w->address);
	if (m)
		pf_table_inherit(w, m, ~0ull);
	return 1;
}

/*
 * Adds to the number of addresses that tables list; `more` may be negative. An address that a CPU
 * lists while another deletes its entry may be counted although it is missing: the number is never
 * too low.
 */
static __always_inline void pf_table_note(u64 more)
{
	u64 *n = counter_of(COUNTER_PF_ENTRIES);

	if (n)
		__sync_fetch_and_add(n, more);
}

/*
 * Lists an address in the table of `bit`. Returns 1, 0 if it is listed already, or the reason of a
 * failure.
 */
static __always_inline int pf_table_add(struct pf_table_work *w, u64 bit, bool negated)
{
	bool added = false;
	int did = 0;

	for (u32 i = 0; i < PF_TABLE_TRIES; i++) {
		did = pf_table_try(w, bit, negated);
		if (did == PF_TABLE_WRITTEN)
			added = true; /* it is looked up again */
		else if (did != PF_TABLE_AGAIN)
			break;
	}
	if (did == PF_TABLE_WRITTEN || did == PF_TABLE_AGAIN)
		did = added ? 1 : -EAGAIN;
	else if (!did)
		did = added;
	if (did > 0)
		pf_table_note(1);
	return did;
}

/* Takes an address out of the tables of `bits`. Deletes the entry if no table lists the address. */
static __always_inline bool pf_table_unlist(const struct pf_address *address, struct pf_host *m,
					    u64 bits)
{
	u64 had = __sync_fetch_and_and(&m->here, ~bits) & bits, nets = READ_ONCE(m->nets);

	if (!had)
		return false;
	pf_table_note(-(u64)__builtin_popcountll(had));
	pf_table_follow(m, had);
	if (READ_ONCE(m->nets) != nets) /* the writer may have seen the address listed */
		pf_table_follow(m, had);
	/* a CPU that lists the address at this moment finds the entry gone, and adds it again */
	if (!READ_ONCE(m->here))
		bpf_map_delete_elem(&pf_hosts, address);
	return true;
}

static long pf_table_one(u32 n, struct pf_table_request *r)
{
	struct pf_table_change *c = bpf_map_lookup_elem(&pf_table_batch, &n);
	struct pf_table_work w;
	struct pf_host *m;
	int did = 0;

	if (!c)
		return 1;
	w.address = c->address; /* user space can write to the batch */
	if (r->op == PF_TABLE_ADD) {
		did = pf_table_add(&w, r->tables, c->negated);
	} else {
		m = bpf_map_lookup_elem(&pf_hosts, &w.address);
		if (m && (READ_ONCE(m->here) & r->tables) &&
		    !(READ_ONCE(m->match) & r->tables) == !!c->negated)
			did = pf_table_unlist(&w.address, m, r->tables);
	}
	if (did < 0) {
		r->result = did;
		return 1;
	}
	r->result += did;
	return 0;
}

static __always_inline bool pf_table_covers(const struct pf_prefix *net,
					    const struct pf_address *address)
{
	const u32 *a = (const u32 *)net->address;
	u32 bits = net->bits;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		u32 mask = bits >= 32 ? ~0u : bits ? bpf_htonl(~0u << (32 - bits)) : 0;

		if ((a[i] ^ address->word[i]) & mask)
			return false;
		bits -= bits >= 32 ? 32 : bits;
	}
	return true;
}

static long pf_table_each(void *map, struct pf_address *key, struct pf_host *m,
			  struct pf_table_request *r)
{
	struct pf_table_work w = {.address = *key};

	if (r->op != PF_TABLE_CLEAR && !pf_table_covers(&r->prefix, &w.address))
		return 0;
	pf_table_inherit(&w, m, r->tables);
	if (r->op == PF_TABLE_CLEAR)
		r->result += pf_table_unlist(&w.address, m, r->tables);
	return 0;
}

/* Networks with at least this many bits have few addresses: each address is looked up. */
#define PF_TABLE_SMALL 112

static long pf_table_nth(u32 n, struct pf_table_request *r)
{
	struct pf_table_work w;
	struct pf_host *m;

	__builtin_memcpy(&w.address, r->prefix.address, sizeof(w.address));
	w.address.word[3] = bpf_htonl(bpf_ntohl(w.address.word[3]) + n);
	m = bpf_map_lookup_elem(&pf_hosts, &w.address);
	if (m)
		pf_table_inherit(&w, m, r->tables);
	return 0;
}

/* A request as a tracepoint's arguments, which the program reads one by one. */
struct pf_table_arguments {
	u64 word[sizeof(struct pf_table_request) / sizeof(u64)];
};

static __always_inline int pf_table_change(const struct pf_table_arguments *a)
{
	union {
		struct pf_table_request request;
		struct pf_table_arguments arguments;
	} u;
	struct pf_table_request *r = &u.request;

#pragma unroll
	for (u32 i = 0; i < sizeof(a->word) / sizeof(a->word[0]); i++)
		u.arguments.word[i] = a->word[i];
	r->result = 0;
	switch (r->op) {
	case PF_TABLE_ADD:
	case PF_TABLE_DELETE:
		if (!r->count || r->count > PF_TABLE_BATCH)
			return -EINVAL;
		bpf_loop(r->count, pf_table_one, r, 0);
		break;
	case PF_TABLE_INHERIT:
		if (r->prefix.bits >= PF_TABLE_SMALL && r->prefix.bits <= 128) {
			bpf_loop(1 << (128 - r->prefix.bits), pf_table_nth, r, 0);
			break;
		}
		/* fall through */
	case PF_TABLE_CLEAR:
		bpf_for_each_map_elem(&pf_hosts, pf_table_each, r, 0);
		break;
	default:
		return -EINVAL;
	}
	return r->result;
}
