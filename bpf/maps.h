/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The bridge's state. The loader sets the sizes that are 1 here. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include <stddef.h>

#include "types.h"

#define u8 __u8
#define u16 __u16
#define u32 __u32
#define u64 __u64

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/*
 * Marks a function that most frames with some feature reach: the loader leaves the function's
 * look-ups in place. Other functions call a shared look-up, which makes a load quicker and a frame
 * a little slower (datapath/lookups.go).
 */
#define OFTEN __attribute__((btf_decl_tag("often")))

/* The configuration: what the programs are specialised for, and what they read while they run. */
const volatile struct config cfg = {};
volatile struct settings set SEC(".data.settings") = {};

/* Features that an object never has: see plain.bpf.c and trial.bpf.c. */
#ifndef FEATURES_NEVER
#define FEATURES_NEVER FEATURE_TRACE
#endif

/*
 * Is any of these features on?
 *
 * In an object, the test is two constants for one register. The loader finds it, replaces it by the
 * result, and removes the code of disabled features. The assembly is volatile: else clang would
 * test once and keep the result on the stack.
 *
 * There is no test for a feature that the object never has. Clang does not even see the code that
 * depends on it: if clang saw the code and removed it later, this would change the code around it.
 */
#define on(features) (ON_HERE(features) && on_asked(ON_HERE(features)))
#define ON_HERE(features) ((features) & ~(u64)FEATURES_NEVER)

static __always_inline bool on_asked(u64 features)
{
	u64 answer;

	asm volatile("%0 = %1 ll\n\t%0 = %2 ll"
		     : "=r"(answer)
		     : "i"(FEATURE_QUESTION), "i"(features));
	return answer;
}

/* Addresses. Frames read them without a lock; user space walks over them through mmap. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct fdb_bucket);
} fdb SEC(".maps");

/* User space reads and writes parts of it through mmap. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct shared);
} shared SEC(".maps");

struct timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct timer);
} timer SEC(".maps");

/* Counters by slot; slot 0 counts frames of devices that are not ports. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, u32);
	__type(value, struct port_stats);
} stats SEC(".maps");

/*
 * The ports' devices, by slot. The kernel removes a device when it is deleted or moved to another
 * namespace, so an index in this map always belongs to the port's device. A device map serves
 * programs of one type, so each hook has its own. The kernel accepts no types for it, and reports
 * that only after it has made the map and discarded it.
 */
struct device_map {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
};

/*
 * Devices that have come to berths since the configuration was made, by ifindex. Each configuration
 * has its own table. For the next configuration these devices are ports like any other.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct berth);
} berths SEC(".maps");

/* VLANs by identifier. A bridge that filters no VLANs has a single entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct vlan);
} vlans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct vlan_stats);
} vlan_stats SEC(".maps");

/*
 * MAC rules by number, from 1. A rule keeps its number as long as it exists. A new rule gets a
 * number that no rule had before the change. So rules can change while frames are counted. The
 * counters outlive a set of programs; the other tables of rules belong to one set.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule);
} rules SEC(".maps");

/*
 * Lists of rules by port and direction: slot * 2 + enum rule_direction. The masks of rules about
 * ARP follow the lists. Each of them is the first plain mask of a list that has no other.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule_list);
} rule_lists SEC(".maps");

/*
 * For fields and values: turn and number of the first rule that compares these fields with these
 * values.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct rule_key);
	__type(value, u32);
} rule_numbers SEC(".maps");

/*
 * Counters of each rule, by its number. The first rule with a number makes the entry, which then
 * stays.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule_stats);
} rule_counters SEC(".maps");

/*
 * Numbers of the bridge that each CPU has on its own. New ones go before COUNTER_PF, which leaves
 * room for them.
 */
enum counter {
	COUNTER_TRIP, /* number of the last trip through this bridge; see patch.h */
	COUNTER_CAPTURE_MISSED, /* frames for which there was no room */
	COUNTER_PF_LOG_MISSED, /* packets for which there was no room */
	COUNTER_SAMPLE, /* frames until one is sampled, 0 before the first */
	COUNTER_SAMPLE_DROPS, /* second in the upper half, drops reported in it in the lower */
	/*
	 * Entries of tables of addresses. Only program bascule_table and frames write it, and user
	 * space adds entries, too: see datapath/pf_tables.go.
	 */
	COUNTER_PF_ENTRIES,
	COUNTER_PF_ENTRIES_MORE,
	COUNTER_PF = 8, /* + enum pf_counter */
	/* of the port of `set loginterface`: the words of struct pf_port_stats */
	COUNTER_PF_PORT = COUNTER_PF + PF_COUNTERS,
	COUNTERS = COUNTER_PF_PORT + sizeof(struct pf_port_stats) / 8,
};

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum counter *counter_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline u64 *counter_of(u32 which)
{
	return bpf_map_lookup_elem(&counters, &which);
}

/* Larger memory of each CPU, in parts of one size. The loader makes the required parts. */
enum memory_part {
	MEMORY_DECISIONS,
	MEMORY_PF, /* with FEATURE_PF */
	/* Without the features of a part, the parts behind it move up: see memory_part(). */
	MEMORY_CUT, /* with FEATURE_PF_HOPS */
	MEMORY_ROUTES, /* with FEATURE_ROUTE; one part for every ROUTE_PART ways */
	MEMORY_WATCH, /* with FEATURE_CAPTURE or FEATURE_TRACE */
	MEMORY_FLOWS = MEMORY_WATCH, /* with FEATURE_PF and FEATURE_ROUTE; not with MEMORY_WATCH */
};

#define ROUTE_PART 256 /* ways of routed packets in a part, a power of two */

/* The place of a part. */
static __always_inline u32 memory_part(enum memory_part part)
{
	u32 place = part;

	if (part > MEMORY_PF && !on(FEATURE_PF))
		place--;
	if (part > MEMORY_CUT && !on(FEATURE_PF_HOPS))
		place--;
	if (part > MEMORY_ROUTES)
		place += on(FEATURE_ROUTE) ? cfg.ways / ROUTE_PART : -1;
	return place;
}

/*
 * The work area of a CPU, for its current frame. The stack has no room for larger data, and the
 * verifier does not follow data in a map. Each user has its own part.
 */
enum work_part {
	WORK_FRAME,
	WORK_LOOK,
	WORK_RULES,
	WORK_PF_PACKET,
	WORK_PF_SLOW,
	WORK_PF_ETHER,
	WORK_PF_SEGMENT,
	WORK_PF_ANSWER,
	WORK_PF_OVERLOAD,
	WORK_PF_NAT,
	WORK_PF_THROUGH,
	WORK_PF_FAMILY,
	WORK_PF_FIB,
	WORK_PF_FIRST,
	WORK_PF_FIRST_NAT, /* struct pf_nat on the way into the host */
	WORK_PF_DRY, /* data that stays from one packet to the next */
	WORK_PARTS,
};

#define WORK_BYTES 512
#define WORK_HOLDS(type) _Static_assert(sizeof(type) <= WORK_BYTES, "a part of work is larger")

/* The work area is behind the first part: a map of its own would be one more of 64. */
struct memory {
	u64 word[6 * DECISIONS];
	u64 work[WORK_PARTS][WORK_BYTES / 8];
};

#define MEMORY_HOLDS(type)                                                                         \
	_Static_assert(sizeof(type) <= offsetof(struct memory, work), "a part of memory is "       \
								      "larger")

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct memory);
} memory SEC(".maps");

/*
 * One of the records of a part. Each part has `many` records, a power of two, of `bytes` each.
 * Further records are in the parts behind it. Returns 0 if there is no such part.
 */
static __always_inline void *memory_record(enum memory_part part, u64 number, u32 many, u32 bytes)
{
	u32 place = memory_part(part) + (u32)number / many;
	void *records = bpf_map_lookup_elem(&memory, &place);

	if (!records)
		return 0;
	asm volatile("" : "+r"(records)); /* else clang adds before it compares */
	return records + (number & (many - 1)) * bytes;
}

static __always_inline void *work_of(u32 part)
{
	u32 first = MEMORY_DECISIONS;
	struct memory *m = bpf_map_lookup_elem(&memory, &first);
	void *work;

	if (!m)
		return 0;
	work = m->work[part];
	asm("" : "+r"(work)); /* else clang keeps both on the stack */
	return work;
}

struct device_map tcx_devices SEC(".maps");
struct device_map xdp_devices SEC(".maps");

/* Routed host ports of the namespace; see struct gateway. Bridges share the table. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct gateway);
} gateways SEC(".maps");

/*
 * The same host interfaces, only by index. As with the ports' devices, the kernel removes one when
 * it is deleted or moved to another namespace. Bridges share this table, too: a packet may leave
 * through an interface at another bridge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
} host_ends SEC(".maps");

/*
 * The memory that all CPUs share. There is only one, so it needs no look-up: the loader inserts the
 * address of the map that this names (see locate() in datapath/generation.go).
 */
static __always_inline struct shared *shared_get(void)
{
	struct shared *s;

	asm volatile("%0 = %1 ll" : "=r"(s) : "i"(&shared));
	return s;
}

/* The number of dynamic entries of the port in a slot; the bridge's number for slot 0. */
static __always_inline u32 *usage_in(struct shared *s, u32 slot)
{
	return &s->usage[cfg.fdb_turn & 1][slot & (MAX_PORTS - 1)];
}

static __always_inline struct clock *clock_get(void)
{
	return &shared_get()->clock;
}

/* Seconds since boot, as the timer has set them. */
static __always_inline u32 clock_now(void)
{
	return READ_ONCE(clock_get()->now);
}

/* How many bits are set (Warren, Hacker's Delight, 5-1). */
static __always_inline u32 ones(u64 x)
{
	x -= x >> 1 & 0x5555555555555555ull;
	x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
	x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return x * 0x0101010101010101ull >> 56;
}

/* The lowest bit that is set. */
static __always_inline u32 first_bit(u64 x)
{
	u64 lowest = x & -x;

	/* else clang uses a look-up table, which it puts where the configuration is */
	asm("" : "+r"(lowest));
	return ones(lowest - 1);
}
