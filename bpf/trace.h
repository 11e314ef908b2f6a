/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The record that a trial makes of its work, step by step. Only the object of trials has any of
 * this (trial.bpf.c). For all other objects it does not exist.
 */
#pragma once

#include "port.h"

MEMORY_HOLDS(struct traced);

/* Puts the types into BTF for Go: BTF only has types that are used. */
const struct traced *traced_type __attribute__((unused));
const enum flood_past *flood_past_type __attribute__((unused));

/* Memory of this CPU: a captured frame is assembled in it, or a trial keeps its record. */
static __always_inline void *watch_memory(void)
{
	u32 part = memory_part(MEMORY_WATCH);

	return bpf_map_lookup_elem(&memory, &part);
}

/* Puts a value into a field of a trial's record. Other objects do not even compute the value. */
#define TRACE(field, value)                                                                        \
	do {                                                                                       \
		if (on(FEATURE_TRACE)) {                                                           \
			struct traced *traced = watch_memory();                                    \
			if (traced)                                                                \
				traced->field = (value);                                           \
		}                                                                                  \
	} while (0)

/*
 * Begins the step that learns. The code that learns records the result, unless it is this one
 * already.
 */
static __always_inline void trace_learn(const volatile struct port *in)
{
	TRACE(step, STEP_LEARN);
	TRACE(learned, port_learns(in) ? LEARN_KNOWN : LEARN_OFF);
}

/*
 * Records that a span port has received a copy, or that the frame was too large for it. The copy
 * counts as one of the outgoing frame, until trace_spans_in() or trace_flood() takes it.
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

/* Records that the copies so far were of the frame as it arrived. */
static __always_inline void trace_spans_in(void)
{
	struct traced *t = watch_memory();

	if (!t)
		return;
	t->spans_in = t->spans_out;
	t->spans_out = 0;
}

/*
 * Records the result of a flood at a port: 0, or why it did not go there. The copies so far were of
 * the frame as it left through this port.
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
