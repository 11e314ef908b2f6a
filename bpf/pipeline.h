/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What a switch does with a frame: the whole decision, in order. The same for
 * every hook; how a frame is sent is the hook's affair (switch.bpf.c).
 */
#pragma once

#include "fdb.h"

enum action {
	ACTION_PASS, /* not a frame of this bridge */
	ACTION_DROP,
	ACTION_SEND,
	ACTION_FLOOD,
	ACTION_LEARN, /* not decided: the source has to be learned first */
};

struct verdict {
	u32 in; /* slot */
	u32 out; /* slot, for ACTION_SEND */
	u32 reason; /* for ACTION_DROP */
	u32 flood; /* for ACTION_FLOOD: the flag of the ports that take it */
};

static __always_inline enum action refuse(struct verdict *v, enum drop_reason reason)
{
	v->reason = reason;
	return ACTION_DROP;
}

/* Does the source have to be learned, or its age be written? */
static __always_inline bool source_is_news(const struct frame *f, u32 id, u32 now)
{
	u64 word = fdb_find(fdb_key(f->src, f->vlan));

	if (PORT_OF(word) != id)
		return true;
	return !((u32)word & FDB_PINNED) && USED_OF(word) != now;
}

/*
 * Decides on a frame. Where the hook may not learn, a frame whose source has to
 * be learned is left undecided.
 */
static __always_inline enum action decide(const struct frame *f, struct verdict *v, u32 now,
					  struct device_map *devices, bool may_learn)
{
	const volatile struct port *in, *out;
	u64 word;

	/* a device that has been moved away takes its program along */
	v->in = port_slot(f->ifindex);
	if (!v->in || !port_has_device(devices, v->in))
		return ACTION_PASS;
	in = port_at(v->in);

	if (mac_is_reserved(f->dst) && !((cfg.features & FEATURE_GROUP_FWD) &&
					 (cfg.group_fwd_mask >> (f->dst >> 40 & 15) & 1)))
		return refuse(v, DROP_RESERVED);
	if (!mac_is_source(f->src))
		return refuse(v, DROP_BAD_SOURCE);

	if (port_learns(in) && source_is_news(f, in->id, now)) {
		if (!may_learn)
			return ACTION_LEARN;
		fdb_learn(fdb_key(f->src, f->vlan), in->id);
	}

	if (f->dst == BROADCAST) {
		v->flood = PORT_BCAST_FLOOD;
		return ACTION_FLOOD;
	}
	if (mac_is_group(f->dst)) {
		v->flood = PORT_MCAST_FLOOD;
		return ACTION_FLOOD;
	}
	word = fdb_find(fdb_key(f->dst, f->vlan));
	if (!fdb_valid(word, now) || !port_has_device(devices, SLOT(PORT_OF(word)))) {
		v->flood = PORT_DISCOVER;
		return ACTION_FLOOD;
	}

	v->out = SLOT(PORT_OF(word));
	out = port_at(v->out);
	if (v->out == v->in && !port_hairpins(in))
		return refuse(v, DROP_SAME_PORT);
	if (v->out != v->in && port_protected(in, out))
		return refuse(v, DROP_PROTECTED);
	return ACTION_SEND;
}

/* Does a flood from one port reach another? */
static __always_inline bool flood_reaches(u32 in_slot, u32 out_slot, u32 kind)
{
	const volatile struct port *in = port_at(in_slot), *out = port_at(out_slot);

	if (!out->id)
		return false;
	if (out_slot == in_slot && !port_hairpins(in))
		return false;
	if (out_slot != in_slot && port_protected(in, out))
		return false;
	return !(cfg.features & FEATURE_FLOOD_FLAGS) || (out->flags & kind);
}
