/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Ports: the port of a device, and whether two ports may talk. */
#pragma once

#include "maps.h"

#define SLOT(id) ((id) & (MAX_PORTS - 1))

static __always_inline const volatile struct port *port_at(u32 slot)
{
	return &set.ports[SLOT(slot)];
}

/* The slot of the berth that the device occupies, 0 if it occupies none. */
static __always_inline u32 berth_slot(u32 ifindex)
{
	struct berth *b;

	if (!on(FEATURE_BERTHS))
		return 0;
	b = bpf_map_lookup_elem(&berths, &ifindex);
	return b ? SLOT(b->id) : 0;
}

/* The slot of a device, 0 if it is not a port of this bridge. */
__noinline u32 port_slot(u32 ifindex)
{
	u32 cell = (u32)(ifindex * set.port_factor) >> 19;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PORT_PROBES; i++) {
		u32 slot = SLOT(set.port_cells[(cell + i) & (PORT_TABLE - 1)]);

		if (!slot)
			break;
		if (set.ports[slot].ifindex == ifindex)
			return slot;
	}
	return berth_slot(ifindex);
}

/*
 * Does the port's device still exist? It does not if it was deleted or moved to another namespace.
 */
static __always_inline bool port_has_device(struct device_map *devices, u32 slot)
{
	return bpf_map_lookup_elem(devices, &slot);
}

/*
 * The index of the port's device. For a berth, it is only in the map, and 0 while the berth is
 * vacant.
 */
static __always_inline u32 port_device(struct device_map *devices, u32 slot)
{
	u32 ifindex = port_at(slot)->ifindex, key, *device;

	if (!on(FEATURE_BERTHS) || ifindex)
		return ifindex;
	key = slot; /* only now: the key of a look-up must be on the stack */
	device = bpf_map_lookup_elem(devices, &key);
	return device ? *device : 0;
}

/*
 * The index of the device whose MTU applies to frames to the port. The switch's end of a host port
 * takes frames of any size, so only the MTU of the host's end counts.
 */
static __always_inline u32 port_fits(struct device_map *devices, u32 slot)
{
	u32 ifindex = port_at(slot)->fits_ifindex;

	if (!on(FEATURE_BERTHS) || ifindex)
		return ifindex;
	return port_device(devices, slot);
}

/* May frames go to the port? A patch cable needs no device. */
static __always_inline bool port_there(struct device_map *devices, u32 slot)
{
	if (devices == &tcx_devices && on(FEATURE_PATCH) && (port_at(slot)->facts & PORT_PATCH))
		return true;
	return port_has_device(devices, slot);
}

/* Bits of a device's state (the kernel's enum netdev_state_t). */
#define DEVICE_RUNS (1ull << 0)
#define DEVICE_NO_CARRIER (1ull << 2)

/* Is a device in this state up, and does it have a carrier? */
static __always_inline bool device_runs(u64 state)
{
	return (state & DEVICE_RUNS) && !(state & DEVICE_NO_CARRIER);
}

/*
 * Is a device up, and does it have a carrier? No helper returns this, but the value of a device map
 * leads to the device. Returns true if it is unknown.
 */
static __always_inline bool device_has_carrier(void *value)
{
	void *device = 0;
	u64 state = 0;

	if (bpf_probe_read_kernel(&device, sizeof(device), value + cfg.device_at) ||
	    bpf_probe_read_kernel(&state, sizeof(state), device + cfg.device_state))
		return true;
	return device_runs(state);
}

/*
 * The same for a port's device. For a port without a device the answer is yes: a backup is not for
 * that case, which is decided elsewhere.
 */
static __always_inline bool port_has_carrier(struct device_map *devices, u32 slot)
{
	void *value = bpf_map_lookup_elem(devices, &slot);

	return !value || device_has_carrier(value);
}

/* Was the port's device down, or without a carrier, at the timer's last look? */
static __always_inline bool port_was_lost(u32 slot)
{
	return !port_at(slot)->reached;
}

/*
 * Is the port's device, which was down or had no carrier at the timer's last look, still in that
 * state? A device that comes up gets the next frame.
 */
static __noinline bool port_still_lost(u32 slot)
{
	/* else the timer does not look either, and the kernel may lack the helper */
	return cfg.device.qdisc && cfg.device_state && !port_has_carrier(&tcx_devices, slot);
}

/* Does a backup replace the port with this id, which has no carrier? */
static __noinline bool port_lost(struct device_map *devices, u32 id)
{
	const volatile struct port *p = port_at(id);

	return id && p->id == id && p->backup && !port_has_carrier(devices, SLOT(id));
}

static __always_inline bool port_protected(const volatile struct port *in,
					   const volatile struct port *out)
{
	return on(FEATURE_PROTECTED) && (in->domains & out->domains);
}

/* Does the port have a limit for frames that leave? See rate.h. */
static __always_inline bool port_limits_out(const volatile struct port *p)
{
	return on(FEATURE_RATE) && p->limit[LIMIT_OUT].rate;
}

/* Does the port take frames that XDP redirects? */
static __always_inline bool port_takes_xdp(const volatile struct port *p)
{
	return p->ways & WAY_XDP_TX;
}

static __always_inline bool port_learns(const volatile struct port *in)
{
	return !on(FEATURE_NO_LEARN) || (in->flags & PORT_LEARN);
}

static __always_inline bool port_hairpins(const volatile struct port *in)
{
	return on(FEATURE_HAIRPIN) && (in->flags & PORT_HAIRPIN);
}
