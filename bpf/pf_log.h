/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The log of pf, as pflog(4) has it. */
#pragma once

#include "pf_rules.h"

/* Logs this CPU's packet: `rule` is its number + 1, `what` an enum drop_reason or 0. */
__noinline int pf_log(struct __sk_buff *skb, u32 slot, u32 rule, u32 what)
{
	asm volatile("" ::"r"(skb), "r"(slot), "r"(rule), "r"(what));
	return 0;
}
