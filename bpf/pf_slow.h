/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Packets that are not plain: options, extension headers, fragments, ICMP's errors. */
#pragma once

#include "pf_state.h"

/* Reads this CPU's packet; 0, or why it cannot be let through. */
__noinline u32 pf_read_slow(struct __sk_buff *skb, u32 len, u32 at, u32 type)
{
	asm volatile("" ::"r"(skb), "r"(len), "r"(at), "r"(type));
	return DROP_PF_SHORT;
}

/* Does the packet that an ICMP error quotes fit its state? */
static __always_inline bool pf_quoted_fits(const struct pf_packet *p, const struct pf_state *s)
{
	return true;
}
