/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Requests of user space, which do not come from frames. Only this code, clock.h and fdb.h write
 * addresses.
 */
#pragma once

#include "fdb.h"
#include "loop.h"
#include "pf/sweep.h"
#include "stp.h"

#define TRIES 8 /* tries against frames that change an entry at the same moment */

/* Does fdb_store()'s work. Returns -EAGAIN if the entry has changed meanwhile. */
__noinline int fdb_store_once(u64 key, u64 word, bool tell)
{
	struct fdb_entry *e = fdb_entry(fdb_locate(key, fdb_home(key), 0));
	bool pinned = (u32)word & FDB_PINNED;
	u64 old;

	if (!e) {
		if (!pinned && !fdb_reserve(PORT_OF(word), true))
			return -ENOSPC;
		if (!fdb_fill(key, word)) {
			fdb_release(word, true);
			return -ENOSPC;
		}
		if (tell && pinned)
			event_add(EVENT_ADDED, key, PORT_OF(word), 0, 1);
		return 1;
	}
	if (!pinned)
		return 0;
	old = READ_ONCE(e->word);
	if (!old || !fdb_swap(e, key, old, word))
		return -EAGAIN;
	fdb_release(old, true);
	if (tell && (u32)old != (u32)word)
		event_add(EVENT_ADDED, key, PORT_OF(word),
			  PORT_OF(old) == PORT_OF(word) ? 0 : PORT_OF(old), 1);
	return 1;
}

/*
 * Puts (key, word) into the table. A static or sticky entry replaces an existing entry; a dynamic
 * one does not. Optionally notifies monitors of a static or sticky entry that is new or has
 * changed.
 */
static __always_inline int fdb_store(struct clock *c, u64 key, u64 word, bool tell)
{
	int stored = -EAGAIN;

	for (u32 tries = 0; tries < TRIES && stored == -EAGAIN; tries++)
		stored = fdb_store_once(key, word, tell);
	if (stored > 0)
		fdb_changed(c);
	return stored;
}

/* Does fdb_delete()'s work. Returns -EAGAIN if the entry has changed meanwhile. */
__noinline int fdb_delete_once(u64 key)
{
	u32 number = fdb_locate(key, fdb_home(key), 0);
	struct fdb_entry *e = fdb_entry(number);
	u64 word;

	if (!e)
		return -ENOENT;
	word = READ_ONCE(e->word);
	if (!fdb_drop(number, key, word))
		return -EAGAIN;
	event_add(EVENT_DELETED, key, PORT_OF(word), 0, 1);
	return 1;
}

static __always_inline int fdb_delete(struct clock *c, u64 key)
{
	int deleted = -EAGAIN;

	for (u32 tries = 0; tries < TRIES && deleted == -EAGAIN; tries++)
		deleted = fdb_delete_once(key);
	if (deleted > 0)
		fdb_changed(c);
	return deleted;
}

/*
 * Deletes an entry if the request matches it. Returns 1 if it did and the entry belonged to a port.
 */
__noinline int flush_entry(u32 number, const struct control *r)
{
	struct fdb_entry *e = fdb_entry(number);
	struct shared *s = shared_get();
	u64 key, word;
	bool pinned;
	u32 id;

	if (!e || !s || !r)
		return 0;
	key = READ_ONCE(e->key);
	word = READ_ONCE(e->word);
	id = PORT_OF(word);
	pinned = (u32)word & FDB_PINNED;
	if (!key || key == FDB_CLAIMED)
		return 0;
	/* entries of a port that has left are deleted in any case: no request can name that port */
	if (port_at(id)->id != id) {
		fdb_drop(number, key, word);
		return 0;
	}
	if (pinned ? !r->pinned : !r->dynamic || READ_ONCE(*usage_in(s, SLOT(r->port))) <= r->keep)
		return 0;
	if (r->port && id != r->port)
		return 0;
	if (r->vlan >= 0 && key >> MAC_BITS != r->vlan)
		return 0;
	if (!fdb_drop(number, key, word))
		return 0;
	event_add(EVENT_DELETED, key, id, 0, 1);
	return 1;
}

static long flush_bucket(u32 index, struct control *r)
{
#pragma unroll
	for (u32 i = 0; i < FDB_WAYS; i++)
		r->result += flush_entry(index * FDB_WAYS + i, r);
	return 0;
}

static __always_inline int fdb_flush(struct clock *c, struct control *r)
{
	struct control request = *r;

	request.result = 0;
	bpf_loop(cfg.fdb_buckets + FDB_WINDOW, flush_bucket, &request, 0);
	fdb_changed(c);
	return request.result;
}

static __always_inline int control_stp(struct clock *c, u32 port, u64 state)
{
	int result = port_set_stp(port, state);

	fdb_changed(c);
	return result;
}

static __always_inline int control_unblock(struct clock *c, u32 port)
{
	int result = port_unblock(SLOT(port));

	fdb_changed(c);
	return result;
}

/* Carries out a request. The result is as in struct control. */
static __always_inline int control_do(struct clock *c, struct control *r)
{
	switch (r->op) {
	case CONTROL_START:
		break;
	case CONTROL_STORE:
		return fdb_store(c, r->key, r->word, r->pinned);
	case CONTROL_DELETE:
		return fdb_delete(c, r->key);
	case CONTROL_FLUSH:
		return fdb_flush(c, r);
	case CONTROL_STP:
		return control_stp(c, r->port, r->word);
	case CONTROL_FORGET:
		fdb_changed(c);
		return 0;
	case CONTROL_UNBLOCK:
		return control_unblock(c, r->port);
	case CONTROL_PF_KILL:
		return on(FEATURE_PF) ? pf_kill(c, r) : -ENOENT;
	case CONTROL_PF_FLUSH:
		return on(FEATURE_PF) ? pf_flush() : 0;
	case CONTROL_PF_UNTRACK:
		return on(FEATURE_PF_SOURCES) ? pf_untrack(c, r) : -ENOENT;
	case CONTROL_PF_RECOUNT:
		return on(FEATURE_PF) ? pf_recount(r) : -ENOENT;
	case CONTROL_PF_STORE:
		return on(FEATURE_PF) ? pf_store(c, r) : -ENOSPC;
	case CONTROL_PF_SWEEP:
		if (on(FEATURE_PF) && cfg.pf.buckets)
			pf_sweep_from(0, cfg.pf.buckets, c->now, on(FEATURE_PF_SOURCES));
		return 0;
	}
	return -EINVAL;
}
