/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Ports: which one a device is, and whether two of them may talk. */
#pragma once

#include "maps.h"

#define SLOT(id) ((id) & (MAX_PORTS - 1))

static __always_inline const volatile struct port *port_at(u32 slot)
{
	return &set.ports[SLOT(slot)];
}

/* The slot of the device that occupies a berth, 0 if it is none. */
static __always_inline u32 berth_slot(u32 ifindex)
{
	struct berth *b;

	if (!on(FEATURE_BERTHS))
		return 0;
	b = bpf_map_lookup_elem(&berths, &ifindex);
	return b ? SLOT(b->id) : 0;
}

/* The slot of a device, 0 if it is no port of this bridge. */
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

/* False when the device has been deleted or moved to another namespace. */
static __always_inline bool port_has_device(struct device_map *devices, u32 slot)
{
	return bpf_map_lookup_elem(devices, &slot);
}

/* The port's device. That of a berth is in the map alone, 0 while it is vacant. */
static __always_inline u32 port_device(struct device_map *devices, u32 slot)
{
	u32 ifindex = port_at(slot)->ifindex, *device;

	if (!on(FEATURE_BERTHS) || ifindex)
		return ifindex;
	device = bpf_map_lookup_elem(devices, &slot);
	return device ? *device : 0;
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

/*
 * Is the port's device up, and does it have a carrier? No helper says so, but a
 * device map leads to the device. A port without a device is no case for a
 * backup: what becomes of that is decided otherwise.
 */
static __always_inline bool port_has_carrier(struct device_map *devices, u32 slot)
{
	void *value = bpf_map_lookup_elem(devices, &slot), *device = 0;
	u64 state = 0;

	if (!value || bpf_probe_read_kernel(&device, sizeof(device), value + cfg.device_at) ||
	    bpf_probe_read_kernel(&state, sizeof(state), device + cfg.device_state))
		return true;
	return (state & DEVICE_RUNS) && !(state & DEVICE_NO_CARRIER);
}

/* Does another port stand in for the port with this id, as that has no carrier? */
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

static __always_inline bool port_learns(const volatile struct port *in)
{
	return !on(FEATURE_NO_LEARN) || (in->flags & PORT_LEARN);
}

static __always_inline bool port_hairpins(const volatile struct port *in)
{
	return on(FEATURE_HAIRPIN) && (in->flags & PORT_HAIRPIN);
}
