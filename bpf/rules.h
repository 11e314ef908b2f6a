/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* MAC rules: the first that matches says whether a frame passes. */
#pragma once

#include "verdict.h"

enum rule_direction {
	RULE_IN,
	RULE_OUT,
};

/* The number of the first rule of the port that the frame matches, 0 if none does. */
static __always_inline u16 rule_match(const struct hook *h, const struct frame *f, u32 slot,
				      u32 direction)
{
	return 0;
}

static __always_inline bool rule_blocks(u16 number)
{
	return false;
}

static __always_inline void rule_count(u16 number, u32 len)
{
}
