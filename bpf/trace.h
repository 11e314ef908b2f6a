/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The record that a trial makes, step by step, of what it does. Only the object of trials
 * has any of this (trial.bpf.c). In all other objects it is as if it were not there.
 */
#pragma once

#include "port.h"

MEMORY_HOLDS(struct traced);

/* Puts the types into BTF, for Go: BTF has only types that something uses. */
const struct traced *traced_type __attribute__((unused));
const enum flood_past *flood_past_type __attribute__((unused));

/*
 * Memory of this CPU: a frame that is captured is put together in it, or a trial keeps its
 * record.
 */
static __always_inline void *watch_memory(void)
{
	u32 part = memory_part(MEMORY_WATCH);

	return bpf_map_lookup_elem(&memory, &part);
}

/* Puts a value into a field of a trial's record. Other objects do not even find the value out. */
#define TRACE(field, value)                                                                        \
	do {                                                                                       \
		if (on(FEATURE_TRACE)) {                                                           \
			struct traced *traced = watch_memory();                                    \
			if (traced)                                                                \
				traced->field = (value);                                           \
		}                                                                                  \
	} while (0)

/* Begins the step that learns. The code that learns notes the result, unless this is it already. */
static __always_inline void trace_learn(const volatile struct port *in)
{
	TRACE(step, STEP_LEARN);
	TRACE(learned, port_learns(in) ? LEARN_KNOWN : LEARN_OFF);
}

/*
 * Notes that a span port has got a copy, or that the frame was too large for it. The copy
 * counts as one of the frame as it leaves, until trace_spans_in() or trace_flood() takes
 * it.
 */
static __always_inline void trace_span(u32 n, bool small)
{
	struct traced *t = watch_memory();
	u16 bit = 1 << (n & (SPANS - 1));

	if (t && small)
		t->spans_small |= bit;
	else if (t)
		t->spans_out |= bit;
}

/* Notes that the copies so far were of the frame as it came in. */
static __always_inline void trace_spans_in(void)
{
	struct traced *t = watch_memory();

	if (!t)
		return;
	t->spans_in = t->spans_out;
	t->spans_out = 0;
}

/*
 * Notes what a flood did at a port: 0, or why it did not go there. The copies so far were
 * of the frame as it left by this port.
 */
static __always_inline void trace_flood(u32 slot, u32 reason, u16 tag)
{
	struct traced *t = watch_memory();
	u32 n;

	if (!t || !port_at(slot)->id)
		return;
	n = t->ports;
	if (n >= MAX_PORTS)
		return;
	t->port[n] = (struct traced_port){
		.slot = slot,
		.tag = tag,
		.spans = t->spans_out,
		.reason = reason,
	};
	t->ports = n + 1;
	t->spans_out = 0;
}
