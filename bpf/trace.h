/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What a trial writes down of what it does, step by step. The object of trials alone
 * has any of it (trial.bpf.c): all else is as if it were not there.
 */
#pragma once

#include "port.h"

MEMORY_HOLDS(struct traced);

/* for the type's sake: Go sees those that something has */
const struct traced *traced_type __attribute__((unused));
const enum flood_past *flood_past_type __attribute__((unused));

/* A place of each CPU to put a frame together in that is captured, or for a trial. */
static __always_inline void *watch_memory(void)
{
	u32 part = on(FEATURE_PF) ? MEMORY_WATCH : MEMORY_WATCH - 1;

	return bpf_map_lookup_elem(&memory, &part);
}

/* Puts a value in a field of a trial's record. Others do not even ask what it is. */
#define TRACE(field, value)                                                                        \
	do {                                                                                       \
		if (on(FEATURE_TRACE)) {                                                           \
			struct traced *traced = watch_memory();                                    \
			if (traced)                                                                \
				traced->field = (value);                                           \
		}                                                                                  \
	} while (0)

/* Begins to learn; what comes of it is noted by who learns, if it is something. */
static __always_inline void trace_learn(const volatile struct port *in)
{
	TRACE(step, STEP_LEARN);
	TRACE(learned, port_learns(in) ? LEARN_KNOWN : LEARN_OFF);
}

/*
 * A span port has got a copy, of the frame as it leaves until something else is said;
 * or the frame was too large for it.
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

/* The copies so far were of the frame as it came in. */
static __always_inline void trace_spans_in(void)
{
	struct traced *t = watch_memory();

	if (!t)
		return;
	t->spans_in = t->spans_out;
	t->spans_out = 0;
}

/*
 * What a flood did at a port: 0, or why it did not go there. The copies so far were of
 * the frame as it left by it.
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
