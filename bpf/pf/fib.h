/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The answers for no-route and urpf-failed about a packet. A separate program finds them before the
 * rules are evaluated: see ../fib.h.
 */
#pragma once

#include "packet.h"

#define PF_SRC_ROUTE_FLAGS (PF_SRC_NO_ROUTE | PF_SRC_URPF_FAILED)
#define PF_ROUTE_FLAGS (PF_SRC_ROUTE_FLAGS | PF_DST_NO_ROUTE)

#define PF_FIB_CELLS 64 /* a power of two */

/* The answers about this CPU's current packet, and the data for finding them. */
struct pf_fib {
	struct bpf_fib_lookup look; /* the kernel writes its answer here */
	struct bpf_fib_lookup ask; /* the look-up */
	u32 src[4]; /* the packet's addresses */
	u32 dst[4];
	u32 metric; /* of the route to the source */
	u32 direct; /* flags of all look-ups: in a VRF they use the VRF's table */
	u32 here; /* one of the next hops is behind the host port's interface */
	u32 epoch; /* in which the decision on the frame has begun */
	u8 known; /* the answers are valid for the packet */
	u8 back; /* the decision on it continues, with the answers */
	u16 pad;
	u32 bound; /* at station ports: the flags of enum pf_rule_flag that hold */
	u32 cell[PF_FIB_CELLS]; /* at host ports, by slot: slot << 24, and the flags */
};

/* A flag's bits, and a slot's, in a cell. */
#define PF_FIB_SLOT(slot) ((slot) << 22)
_Static_assert(PF_ROUTE_FLAGS < PF_FIB_SLOT(1), "flags about routes have no room in a cell");

WORK_HOLDS(struct pf_fib);

static __always_inline struct pf_fib *pf_fib(void)
{
	return work_of(WORK_PF_FIB);
}

/* The flags that hold at a port. Missing results count as no route, and as failed. */
__noinline u32 pf_fib_at(u32 slot)
{
	struct pf_fib *f = pf_fib();
	u32 cell;

	if (!on(FEATURE_PF_FIB) || !f || !f->known)
		return PF_ROUTE_FLAGS;
	if (!pf_to_host(slot))
		return f->bound;
	cell = f->cell[slot & (PF_FIB_CELLS - 1)] ^ PF_FIB_SLOT(slot);
	return cell < PF_FIB_SLOT(1) ? cell : PF_ROUTE_FLAGS;
}
