/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The timer's findings at the ports' devices. Frames have short ways to a device: straight to a
 * veth's other end, and by XDP. They bypass everything that the host has configured on the device.
 * So the timer closes the short ways while the device has something that frames must not bypass. It
 * reads the kernel's memory, as frames do for a backup, and writes words that frames read in any
 * case.
 */
#pragma once

#include "fdb.h"
#include "port.h"

#define LOOK_TICKS 2 /* of the timer, from one look to the next: a quarter of a second */

/* Why no frame may bypass a device. */
#define WAYS_CLOSED (WAY_QUEUE | WAY_TC | WAY_NETFILTER)

#define NOQUEUE 0x0065756575716f6eull /* "noqueue", with the zero behind it */

/* A word of the kernel's memory, 0 if it cannot be read. */
static __always_inline u64 kernel_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

/*
 * Has the device been given a queueing discipline? The kernel's own choice has no number. On a
 * card, that is a queue that only waits for the card. "noqueue" is none.
 */
static __always_inline bool device_has_queue(u64 device)
{
	u64 qdisc = kernel_word(device + cfg.device.qdisc);

	return (u32)kernel_word(qdisc + cfg.device.handle) &&
	       kernel_word(kernel_word(qdisc + cfg.device.ops) + cfg.device.id) != NOQUEUE;
}

/*
 * May frames go straight to a veth's other end, as far as that end is concerned? It certainly is
 * the other end if it names this device as its peer. The kernel drops such frames within one
 * network namespace.
 */
static __always_inline bool device_end_takes(u64 device, u32 *ways)
{
	u64 end = kernel_word(device + cfg.device.private);

	if (!end || kernel_word(end + cfg.device.private) != device ||
	    kernel_word(end + cfg.device.net) == kernel_word(device + cfg.device.net))
		return false;
	if (!kernel_word(end + cfg.device.xdp) && !kernel_word(end + cfg.device.xdp + 8))
		return true;
	*ways |= WAY_END_XDP;
	return false;
}

/* The findings of a look, as bits: the verifier would follow every value of a counter. */
enum look_found {
	LOOK_CHANGED = 1 << 0, /* a port has lost its carrier since the last look, or got it back */
	LOOK_HEARD = 1 << 1, /* learned addresses are behind a port without a carrier */
	LOOK_CLOSED = 1 << 2, /* no flood goes to a port by XDP */
};

/*
 * Looks at the device of a port. Returns bits of enum look_found. The verifier follows this once.
 */
__noinline u32 look_at_device(u32 slot)
{
	volatile struct port *p = &set.ports[SLOT(slot)];
	u32 ways = WAY_SEEN, reached = p->id, was, found = 0;
	bool limited = port_limits_out(p), closed; /* by a program of tcx, which is ours */
	struct shared *s = shared_get();
	u64 device, straight = 0;
	void *value;

	if (!p->id || (p->facts & PORT_PATCH))
		return 0;
	value = bpf_map_lookup_elem(&tcx_devices, &slot);
	device = value ? kernel_word((u64)value + cfg.device_at) : 0;
	if (!device) { /* it is gone, and frames notice that */
		p->ways &= ~WAY_LOST;
		p->reached = p->id;
		return 0;
	}
	if (!device_runs(kernel_word(device + cfg.device_state)))
		ways |= WAY_LOST;
	if (device_has_queue(device))
		ways |= WAY_QUEUE;
	if (cfg.device.tc && !limited && kernel_word(device + cfg.device.tc))
		ways |= WAY_TC;
	if (cfg.device.netfilter && kernel_word(device + cfg.device.netfilter))
		ways |= WAY_NETFILTER;
	closed = limited || ways & WAYS_CLOSED;
	if (on(FEATURE_PEER) && p->peer && device_end_takes(device, &ways) && !closed)
		straight = p->peer;
	if (!closed)
		ways |= p->facts & PORT_XDP_TX;
	if (ways & WAY_LOST)
		reached = 0;
	was = p->ways;
	if (!(ways & WAY_XDP_TX) || (ways & WAY_LOST))
		found |= LOOK_CLOSED;
	else
		ways |= was & WAY_XDP_FLOOD;
	if (p->straight != straight)
		p->straight = straight;
	if (p->reached != reached)
		p->reached = reached;
	if (was != ways)
		p->ways = ways;
	if ((was ^ ways) & WAY_LOST)
		found |= LOOK_CHANGED;
	/* also addresses that were learned while a link came and went between two looks */
	if (ways & WAY_LOST && !p->backup && s && READ_ONCE(*usage_in(s, slot)))
		found |= LOOK_HEARD;
	return found;
}

static long look_slot(u32 slot, u32 *found)
{
	*found |= look_at_device(slot);
	return 0;
}

/* Opens the XDP way of floods where all ports are open, or closes it. */
static long look_flood(u32 slot, u32 *found)
{
	volatile struct port *p = &set.ports[SLOT(slot)];
	u32 open = *found & LOOK_CLOSED ? 0 : p->facts & PORT_XDP_FLOOD, was = p->ways;

	if ((was & WAY_XDP_FLOOD) != open)
		p->ways = (was & ~WAY_XDP_FLOOD) | open;
	return 0;
}

/*
 * Looks at all ports. The sweep hurries while learned addresses are behind a port without a
 * carrier: these are deleted, as on Linux. Until then frames to them are flooded.
 */
static __always_inline void look_at_devices(struct clock *c)
{
	u32 found = 0;

	/* the place to look at is unknown: all short ways stay closed */
	if (!cfg.device.qdisc || !cfg.device_state)
		return;
	bpf_loop(set.slots, look_slot, &found, 0);
	if (on(FEATURE_XDP_FLOOD))
		bpf_loop(set.slots, look_flood, &found, 0);
	if (found & LOOK_HEARD)
		set.hurry = cfg.fdb_buckets + FDB_WINDOW;
	if (found & LOOK_CHANGED)
		fdb_changed(c);
}
