/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Rules of pf for frames, whatever they carry (FreeBSD's ether rules). */
#pragma once

#include "pf_rules.h"

/* Does an ether rule block the frame at the port? 0 or the reason. */
static __always_inline u32 pf_ether(const struct hook *h, const struct frame *f, struct verdict *v,
				    u32 slot, u32 out)
{
	return 0;
}
