/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What the datapath and user space share. Go sees these types through BTF:
 * change them here and run `make generate`.
 */
#pragma once

#include <linux/types.h>

#define MAX_PORTS 1024 /* slots of a bridge; slot 0 stands for "no port" */
#define PORT_TABLE 8192 /* cells of the table that finds a port by ifindex */
#define PORT_PROBES 8 /* cells looked at before an ifindex is nobody's */
#define PORT_NAME 16 /* IFNAMSIZ */

#define FDB_WAYS 4 /* entries of a bucket: one cache line */
#define FDB_WINDOW 8 /* buckets in which an address may live, its home first */

#define EVENT_LOG 4096 /* events kept for monitors, a power of two */
#define DECISIONS 512 /* decisions each CPU remembers, a power of two */

/*
 * Why a frame was not forwarded. The name that users see is the constant's,
 * without DROP_, in lower case, with dashes.
 */
enum drop_reason {
	DROP_UNKNOWN, /* never counted: 0 is no reason */
	DROP_MALFORMED, /* shorter than its headers */
	DROP_RESERVED, /* to 01:80:C2:00:00:0X, which bridges do not forward (802.1Q 8.6.3) */
	DROP_BAD_SOURCE, /* from a group address or from zero */
	DROP_SAME_PORT, /* to an address on the port it came in by */
	DROP_PROTECTED, /* the two ports share a protected domain */
	DROP_MTU, /* too large for the way out */
	DROP_NO_MEMBER, /* nobody to flood it to */
	DROP_REASONS,
};

/* What has happened, for `bascule monitor`. */
enum event_kind {
	EVENT_LEARNED = 1, /* an address was heard for the first time */
	EVENT_MOVED, /* it was heard on another port */
	EVENT_AGED, /* it was not heard for the ageing time */
	EVENT_DELETED, /* somebody asked for it */
	EVENT_REFUSED_FULL, /* not learned: the bridge's or the port's table is full */
	EVENT_REFUSED_PINNED, /* not moved: the entry is static or sticky */
};

/* What a port does, from its settings. */
enum port_flag {
	PORT_LEARN = 1 << 0,
	PORT_DISCOVER = 1 << 1, /* takes floods of unknown unicast */
	PORT_MCAST_FLOOD = 1 << 2,
	PORT_BCAST_FLOOD = 1 << 3,
	PORT_HAIRPIN = 1 << 4,
	/* and from what its device is */
	PORT_XDP = 1 << 9, /* the XDP program is attached as well */
	PORT_XDP_TX = 1 << 10, /* the device takes frames that XDP redirects */
	PORT_XDP_FLOOD = 1 << 11, /* every other port takes every flood from here, by XDP */
	PORT_HOST = 1 << 12, /* the switch's end of a host port */
	/* and what must be put back when the port leaves the bridge */
	PORT_WAS_PROMISC = 1 << 16,
	PORT_HAD_LRO = 1 << 17,
	PORT_HAD_RXVLAN = 1 << 18,
	PORT_END_HAD_CSUM = 1 << 19, /* a veth's other end left checksums to us */
	PORT_END_NO_GRO = 1 << 20, /* a veth's other end had GRO off */
};

/*
 * What any port of the bridge asks for. A feature that is off is a constant
 * to the verifier, which removes its code: nobody pays for it.
 */
enum feature {
	FEATURE_PROTECTED = 1 << 0,
	FEATURE_HAIRPIN = 1 << 1,
	FEATURE_NO_LEARN = 1 << 2, /* a port does not learn */
	FEATURE_FLOOD_FLAGS = 1 << 3, /* a port does not take every flood */
	FEATURE_GROUP_FWD = 1 << 4, /* some reserved addresses are forwarded */
	FEATURE_PEER = 1 << 5,
	FEATURE_XDP_FLOOD = 1 << 6,
};

struct port {
	__u32 id; /* slot in the low 10 bits, incarnation above: never given twice */
	__u32 ifindex;
	enum port_flag flags;
	__u32 domains; /* protected domains, bit N for domain N */
	__u32 fdb_max; /* most dynamic entries, 0 for no limit of its own */
	__u32 host_ifindex; /* host port: the host's end */
	__u64 host; /* host port: MAC of the host's end */
	__u64 peer; /* MAC of a veth's other end, if that is in another network namespace */
	char name[PORT_NAME];
};

/*
 * Everything that a bridge is told, read-only for its programs: one frozen
 * blob per generation, so that no frame ever sees half a change.
 */
struct config {
	__u64 hash_seed; /* random per bridge: nobody can aim at a bucket */
	__u32 layout; /* version of the maps' layout */
	enum feature features;
	__u32 ageing; /* seconds */
	__u32 fdb_max; /* most dynamic entries */
	__u32 fdb_buckets; /* home buckets of the FDB */
	__u32 port_factor; /* multiplier that spreads ifindexes over port_cells */
	__u32 slots; /* slots in use are below this */
	__u32 next_incarnation;
	enum drop_reason reasons; /* DROP_REASONS */
	__u32 pad;
	__u16 group_fwd_mask;
	__u8 address[6]; /* the bridge's own */
	__u16 port_cells[PORT_TABLE]; /* slot, 0 for none */
	struct port ports[MAX_PORTS];
};

/*
 * An address and where it is. The key is vlan << 48 | mac, the MAC's first
 * byte lowest; 0 is a free entry, FDB_CLAIMED one that is being filled. The
 * word's port is the port's id and the two flags; `used` is the second in which
 * the address was last heard.
 */
struct fdb_entry {
	__u64 key;
	__u64 word; /* used << 32 | port */
};

#define FDB_STATIC (1u << 31) /* never ages, never moves */
#define FDB_STICKY (1u << 30) /* the same, but may be flushed as if learned */
#define FDB_PINNED (FDB_STATIC | FDB_STICKY)
#define FDB_CLAIMED (~0ull)

struct fdb_bucket {
	struct fdb_entry way[FDB_WAYS];
};

/*
 * The one place that all CPUs read: written once a second by the timer, and
 * when an address moves or goes.
 */
struct clock {
	__u32 epoch; /* a decision is as old as the epoch it was made in */
	__u32 now; /* seconds since boot */
	__u32 sweep; /* next bucket to look for aged entries in */
	__u32 ticks;
	__u64 events; /* events so far */
};

struct port_stats {
	__u64 rx_frames;
	__u64 rx_bytes;
	__u64 tx_frames;
	__u64 tx_bytes;
	__u64 learned;
	__u64 moves; /* addresses that moved to the port */
	__u64 refused; /* addresses not learned or not moved */
	__u64 drops[DROP_REASONS];
};

struct event {
	__u64 seq; /* number of the event, from 1; 0 while it is written */
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u64 key; /* as in the FDB */
	enum event_kind kind;
	__u32 port; /* id */
	__u32 from; /* id of the port it was on, 0 for none */
	__u32 count; /* how often since the last event like it */
};

/* A request to the control program, and its answer. */
enum control_op {
	CONTROL_START = 1, /* set the clock and arm its timer */
	CONTROL_STORE, /* make (key, word) an entry */
	CONTROL_DELETE, /* remove the entry of key */
	CONTROL_FLUSH, /* remove the entries that match, and all of ports that have left */
};

struct control {
	enum control_op op;
	__s32 result; /* entries changed, or a negative errno */
	__u64 key; /* STORE, DELETE */
	__u64 word; /* STORE */
	__u32 port; /* FLUSH: of this port id; 0 for any */
	__s32 vlan; /* FLUSH: of this VLAN; -1 for any */
	__u32 dynamic; /* FLUSH: dynamic entries */
	__u32 pinned; /* FLUSH: static and sticky entries */
	__u32 keep; /* FLUSH: dynamic entries to leave (of the port, if any); STORE: leave what is
		       there */
	__u32 pad;
};
