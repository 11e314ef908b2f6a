/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* What the switch answers to packets that pf blocks. */
#pragma once

#include "pf_rules.h"

/*
 * Makes the answer of the rule that blocks this CPU's packet out of the packet;
 * its length, or 0 if there is none.
 */
__noinline u32 pf_answer(struct __sk_buff *skb)
{
	asm volatile("" ::"r"(skb));
	return 0;
}
