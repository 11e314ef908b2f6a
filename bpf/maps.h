/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The bridge's state. Sizes marked 1 are set by the loader. */
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

/* What the programs are made for, and what they are told beside. */
const volatile struct config cfg = {};
volatile struct settings set SEC(".data.settings") = {};

/* Features that an object does not have at all: see plain.bpf.c and trial.bpf.c. */
#ifndef FEATURES_NEVER
#define FEATURES_NEVER FEATURE_TRACE
#endif

/*
 * Is any of these features on? The loader finds the question, which is two
 * constants for one register, writes the answer in its place, and takes out what
 * is off. It is volatile, or clang would ask once and keep the answer on the stack.
 * What the object never has is not asked, and clang does not even see what depends
 * on it: seen and left out later, that would change what is around it.
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

/* Addresses. Read without a lock, walked by user space through mmap. */
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

/* Counters by slot; slot 0 counts frames of devices that are no ports. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, u32);
	__type(value, struct port_stats);
} stats SEC(".maps");

/*
 * The ports' devices, by slot. The kernel takes a device out when it is deleted
 * or moved to another namespace: an index that is here is still the port's. A
 * device map serves programs of one type, so each hook has its own.
 */
struct device_map {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, u32);
	__type(value, u32);
};

/*
 * Devices that have come since the configuration was made, by ifindex. Each
 * configuration has its own: to the next they are ports like any other.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct berth);
} berths SEC(".maps");

/* VLANs by identifier; one alone where the bridge filters none. */
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
 * MAC rules by number, from 1. A rule keeps its number while it is there, and a new one
 * gets a number that no rule had before the change. So rules change while frames are
 * counted. All of this but the counters is of one set of programs alone.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule);
} rules SEC(".maps");

/*
 * Lists by port and direction: slot * 2 + enum rule_direction. Behind them are the masks
 * of rules about ARP, each the first plain one of a list that has no other.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule_list);
} rule_lists SEC(".maps");

/* The turn and the number of the first rule that compares these fields to these values. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct rule_key);
	__type(value, u32);
} rule_numbers SEC(".maps");

/* What each rule has matched, by number. An entry is made with its first rule, and stays. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rule_stats);
} rule_counters SEC(".maps");

/*
 * Room for the frame that a CPU is at: the stack has none for what is larger, and the
 * verifier does not follow what is in it. One part for each who needs some; those of pf
 * are the last, and the loader leaves them out where there is none.
 */
enum work_part {
	WORK_FRAME,
	WORK_LOOK,
	WORK_RULES,
	WORK_PF, /* the first of them */
	WORK_PF_SLOW = WORK_PF,
	WORK_PF_ETHER,
	WORK_PF_SEGMENT,
	WORK_PF_ANSWER,
	WORK_PF_OVERLOAD,
	WORK_PARTS,
};

/* for the type's sake: Go sees those that something has */
const enum work_part *work_part_type __attribute__((unused));

#define WORK_BYTES 512
#define WORK_HOLDS(type) _Static_assert(sizeof(type) <= WORK_BYTES, "a part of work is larger")

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WORK_PARTS);
	__type(key, u32);
	__uint(value_size, WORK_BYTES);
} work SEC(".maps");

static __always_inline void *work_of(u32 part)
{
	return bpf_map_lookup_elem(&work, &part);
}

/*
 * Numbers that each CPU has of the bridge. New ones go before COUNTER_PF, which leaves
 * room for them.
 */
enum counter {
	COUNTER_TRIP, /* the last trip by this bridge; see patch.h */
	COUNTER_CAPTURE_MISSED, /* frames that there was no room for */
	COUNTER_PF_LOG_MISSED, /* packets that there was no room for */
	COUNTER_PF = 8, /* + enum pf_counter */
	COUNTERS = COUNTER_PF + PF_COUNTERS,
};

/* for the type's sake: Go sees those that something has */
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

/*
 * What a CPU has for itself that is larger, in parts of one size. The loader makes those
 * that are asked for.
 */
enum memory_part {
	MEMORY_DECISIONS,
	MEMORY_PF, /* with FEATURE_PF */
	MEMORY_WATCH, /* with FEATURE_CAPTURE or FEATURE_TRACE; without FEATURE_PF the one before */
};

struct memory {
	u64 word[6 * DECISIONS];
};

#define MEMORY_HOLDS(type)                                                                         \
	_Static_assert(sizeof(type) <= sizeof(struct memory), "a part of memory is larger")

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct memory);
} memory SEC(".maps");

struct device_map tcx_devices SEC(".maps");
struct device_map xdp_devices SEC(".maps");

static __always_inline struct shared *shared_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&shared, &zero);
}

/* How many dynamic entries a port has by its slot, and the bridge by slot 0. */
static __always_inline u32 *usage_in(struct shared *s, u32 slot)
{
	return &s->usage[cfg.fdb_turn & 1][slot & (MAX_PORTS - 1)];
}

static __always_inline struct clock *clock_get(void)
{
	struct shared *s = shared_get();

	return s ? &s->clock : 0;
}

/* Seconds since boot, as the timer has them. */
static __always_inline u32 clock_now(void)
{
	struct clock *c = clock_get();

	return c ? READ_ONCE(c->now) : 0;
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

	/* else clang looks the answer up, in a table where the configuration is */
	asm("" : "+r"(lowest));
	return ones(lowest - 1);
}
