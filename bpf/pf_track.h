/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The life of a state: made, followed, over. */
#pragma once

#include "pf_rules.h"

/* Takes a packet into its state: 0, or why it is not let through. */
__noinline u32 pf_state_follow(u32 place, u32 len, u32 now)
{
	asm volatile("" ::"r"(place), "r"(len), "r"(now));
	return 0;
}

/* Is the state that the packet has over, or not the one it belongs to? */
static __always_inline bool pf_state_over(const struct pf_state *s, u32 now)
{
	return (__s32)(now - s->used) > 86400;
}

/* Makes the state that the packet's rules ask for; 0, or why it is not made. */
__noinline u32 pf_state_make(u32 in, u32 out, u32 len, u32 now)
{
	asm volatile("" ::"r"(in), "r"(out), "r"(len), "r"(now));
	return 0;
}

/* Frees what is over, step by step: called by the timer. */
static __always_inline void pf_sweep(u32 now)
{
}
