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
#define PORT_WORDS (MAX_PORTS / 64) /* of a set of ports, one bit each */

#define VLANS 4096 /* VLAN identifiers; 0 and 4095 name no VLAN (802.1Q table 9-2) */
#define CABLES 4 /* patch cables of a bridge that are followed by direct jumps */
#define SPANS 16 /* span ports of a bridge */

#define FDB_WAYS 4 /* entries of a bucket: one cache line */
#define FDB_WINDOW 8 /* buckets in which an address may live, its home first */

#define EVENT_LOG 4096 /* events kept for monitors, a power of two */
#define DECISIONS 512 /* decisions each CPU remembers, a power of two */

/*
 * Why a frame was not forwarded. The name that users see is the constant's,
 * without DROP_, in lower case, with dashes.
 */
enum drop_reason {
	DROP_TAKEN, /* never counted: 0 is no reason, but of a frame that the switch itself takes */
	DROP_MALFORMED, /* shorter than its headers */
	DROP_RESERVED, /* to 01:80:C2:00:00:0X, which bridges do not forward (802.1Q 8.6.3) */
	DROP_BAD_SOURCE, /* from a group address or from zero */
	DROP_SAME_PORT, /* to an address on the port it came in by */
	DROP_PROTECTED, /* the two ports share a protected domain */
	DROP_MTU, /* too large for the way out */
	DROP_NO_MEMBER, /* nobody to flood it to */
	DROP_SPAN, /* came in by a span port, which only listens */
	DROP_VLAN, /* the port is not in the frame's VLAN */
	DROP_UNTAGGED, /* without a tag, and the port has no VLAN for such frames */
	DROP_ADMIT, /* the port does not admit frames with a tag, or without */
	DROP_DOUBLE_TAG, /* with a second tag, and the bridge does not take those */
	DROP_OTHER_TAG, /* with a tag that is not of the bridge's kind, which it does not take
			   either */
	DROP_VLAN_OUT, /* the way out is not in the frame's VLAN */
	DROP_BLOCKED, /* the port is blocked, by its loop guard */
	DROP_LOOP, /* the switch's own frame has come back */
	DROP_STP, /* spanning tree keeps the port from forwarding */
	DROP_LOCKED, /* from an address that the port is not opened for */
	DROP_LIMIT, /* from one address more than the port may have */
	DROP_SPOOFED, /* lies about a bound address */
	DROP_DHCP_GUARD, /* a DHCP server's message from a port that is not trusted */
	DROP_RA_GUARD, /* a router's advertisement from such a port */
	DROP_NON_IP, /* not IPv4, IPv6, ARP or RARP */
	DROP_STORM_BCAST, /* above the port's limit of broadcasts */
	DROP_STORM_MCAST, /* of multicast */
	DROP_STORM_UNKNOWN, /* of unknown unicast */
	DROP_RULE, /* blocked by a MAC rule */
	DROP_NO_PEER, /* the patch cable's other end is not there */
	DROP_PATCH_LOOP, /* has been in this bridge already, by patch cables */
	DROP_ETHER, /* blocked by an `ether` rule of pf */
	DROP_PF, /* blocked by a rule of pf */
	DROP_PF_STATE, /* does not fit the state of its connection */
	DROP_PF_LIMIT, /* would need one state or source more than there may be */
	DROP_PF_SHORT, /* shorter than its IP, TCP, UDP or ICMP headers say */
	DROP_PF_FRAGMENT, /* a fragment that no packet has */
	DROP_PF_OPTIONS, /* has IP options, and the rule has no allow-opts */
	DROP_PF_SYNPROXY, /* part of a handshake that the switch makes for a host */
	DROP_TOO_DEEP, /* a filter has to judge it, and does not get to the end of its tags */
	DROP_PF_NORMALIZE, /* has flags of TCP that no connection has, or the other family's ICMP */
	DROP_CHECKSUM, /* a checksum is yet to be written where a filter has looked */
	DROP_REASONS,
};

/*
 * Reasons that counters have room for. New ones go behind the others, or counters of
 * before would be theirs.
 */
#define DROP_ROOM 48
_Static_assert(DROP_REASONS <= DROP_ROOM, "raise DROP_ROOM, and layout in datapath/config.go");

/* What has happened, for `bascule monitor`. */
enum event_kind {
	EVENT_LEARNED = 1, /* an address was heard for the first time */
	EVENT_MOVED, /* it was heard on another port */
	EVENT_AGED, /* it was not heard for the ageing time */
	EVENT_DELETED, /* somebody asked for it */
	EVENT_REFUSED_FULL, /* not learned: the bridge's or the port's table is full */
	EVENT_REFUSED_PINNED, /* not moved: the entry is static or sticky */
	EVENT_REFUSED_DAMPED, /* not moved: it has moved too often this second */
	EVENT_LOOP, /* the switch's own frame came back by the port */
	EVENT_BLOCKED, /* and the port is blocked for a while; count is the seconds */
	EVENT_LOCKED, /* an address that nobody has let in was heard on a locked port */
	EVENT_ADDED, /* somebody made a static or sticky entry of it */
};

/* What a port was told, where that is yes or no. Frames ask for every bit. */
enum port_flag {
	PORT_LEARN = 1 << 0,
	PORT_DISCOVER = 1 << 1, /* takes floods of unknown unicast */
	PORT_MCAST_FLOOD = 1 << 2,
	PORT_BCAST_FLOOD = 1 << 3,
	PORT_HAIRPIN = 1 << 4,
	PORT_LOCKED = 1 << 5, /* takes frames only from addresses that the FDB has there */
	PORT_MAB = 1 << 6, /* locked: addresses that are not let in get locked entries */
	PORT_LIMIT_DROP = 1 << 7, /* frames from an address above fdb_max are dropped */
	PORT_BLOCK_NON_IP = 1 << 8,
	PORT_SOURCE_GUARD = 1 << 9,
	PORT_TRUSTED = 1 << 10, /* may send what DHCP servers and routers send */
	PORT_LOOP_GUARD = 1 << 11, /* says when the switch's own frames come back by it */
	PORT_RULES_IN = 1 << 12, /* has MAC rules for frames that come in */
	PORT_RULES_OUT = 1 << 13, /* or go out */
	PORT_CAPTURE = 1 << 14, /* frames at it are captured, if not those of all ports are */
};

/* What a port is, by its device. Frames ask for every bit. */
enum port_fact {
	PORT_PATCH = 1 << 0, /* one end of a patch cable: no device */
	PORT_SPAN = 1 << 1, /* gets copies, gives nothing */
	PORT_XDP_TX = 1 << 2, /* the device takes frames that XDP redirects */
	PORT_XDP_FLOOD = 1 << 3, /* every other port takes every flood from here, by XDP */
};

/* The same for who loads programs and shows ports. No frame asks. */
enum port_note {
	PORT_XDP = 1 << 0, /* is on the hook xdp, as far as its device can be */
	PORT_XDP_RX = 1 << 1, /* all of a frame from it is there for XDP, whose program it has */
	PORT_HOST = 1 << 2, /* the switch's end of a host port */
	PORT_BERTH = 1 << 3, /* its device is yet to come: cfg does not know it */
};

/* What a port's device was, for when the port leaves the bridge. No frame asks. */
enum port_taken {
	PORT_WAS_PROMISC = 1 << 0,
	PORT_HAD_LRO = 1 << 1,
	PORT_HAD_RXVLAN = 1 << 2,
	PORT_END_HAD_CSUM = 1 << 3, /* a veth's other end left checksums to us */
	PORT_END_HAD_VLAN = 1 << 4, /* a veth's other end left VLAN tags beside the packet */
	PORT_END_NO_GRO = 1 << 5, /* a veth's other end had GRO off */
};

/* What a port was told of spanning tree, for who runs it. No frame asks. */
enum stp_guard {
	STP_BPDU_GUARD = 1 << 0, /* a BPDU that comes in disables the port */
	STP_BPDU_FILTER = 1 << 1, /* BPDUs are neither sent nor heard */
	STP_ROOT_GUARD = 1 << 2, /* no better root is taken from the port */
};

/*
 * What any port of the bridge asks for. A feature that is off is a constant
 * to the verifier, which removes its code: nobody pays for it.
 */
enum feature {
	FEATURE_PROTECTED = 1ull << 0,
	FEATURE_HAIRPIN = 1ull << 1,
	FEATURE_NO_LEARN = 1ull << 2, /* a port does not learn */
	FEATURE_FLOOD_FLAGS = 1ull << 3, /* a port does not take every flood */
	FEATURE_GROUP_FWD = 1ull << 4, /* some reserved addresses are forwarded */
	FEATURE_PEER = 1ull << 5,
	FEATURE_XDP_FLOOD = 1ull << 6,
	FEATURE_VLANS = 1ull << 7, /* VLAN filtering */
	FEATURE_VLAN_STATS = 1ull << 8,
	FEATURE_LOCKED = 1ull << 9,
	FEATURE_LIMIT_DROP = 1ull << 10,
	FEATURE_MOVE_MAX = 1ull << 11,
	FEATURE_BLOCKING =
		1ull << 12, /* a port may be blocked: by its loop guard, by spanning tree */
	FEATURE_NON_IP = 1ull << 13,
	FEATURE_SOURCE_GUARD = 1ull << 14,
	FEATURE_DHCP_GUARD = 1ull << 15,
	FEATURE_RA_GUARD = 1ull << 16,
	FEATURE_SUPPRESS = 1ull << 17, /* ARP and ND answered from bindings */
	FEATURE_STORM = 1ull << 18,
	FEATURE_RULES = 1ull << 19,
	FEATURE_SPAN = 1ull << 20,
	FEATURE_PATCH = 1ull << 21,
	FEATURE_CAPTURE = 1ull << 22,
	FEATURE_TALKERS = 1ull << 23,
	FEATURE_TRACE = 1ull << 24,
	FEATURE_PF = 1ull << 25,
	/* of pf, what its rules ask for */
	FEATURE_PF_RULES = 1ull << 26, /* there are rules, not ether rules alone */
	FEATURE_PF_TABLES = 1ull << 27,
	FEATURE_PF_LOG = 1ull << 28,
	FEATURE_PF_SOURCES = 1ull << 29, /* sources are tracked */
	FEATURE_PF_REWRITE = 1ull << 30, /* TCP's numbers are rewritten: modulate, synproxy */
	FEATURE_ETHER = 1ull << 31, /* there are ether rules */
	FEATURE_BERTHS = 1ull << 32, /* devices may come to ports that are vacant */
	FEATURE_ADMIT = 1ull << 33, /* a port takes frames with a tag alone, or without */
	FEATURE_MAB = 1ull << 34,
	FEATURE_BACKUP = 1ull << 35, /* a port has another that stands in for it */
	FEATURE_PF_SCRUB = 1ull << 36, /* of pf: headers are changed, by scrub and set tos */
	FEATURE_END = 1ull << 37, /* no feature has this bit, nor one above it */
	/* those that look behind the addresses, and drop what they don't like there */
	FEATURES_JUDGE = FEATURE_NON_IP | FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD |
			 FEATURE_RA_GUARD | FEATURE_RULES | FEATURE_PF | FEATURE_ETHER,
};

/* The constant before the features that a program asks for; see on(). */
#define FEATURE_QUESTION 0xba5c01e0feed5eedull

/* The constant in whose place the loader calls a function of the kernel; see skb_of_kernel(). */
#define KERNEL_SKB_CALL 0xba5c01e05eabb0ffull

/* Where the kernel has what no helper tells of a frame: bytes from the start of its sk_buff. */
struct skb_places {
	__u32 cast; /* number of bpf_cast_to_kern_ctx() in the kernel's BTF, 0 if nobody has looked
		     */
	__u32 head;
	__u32 data;
	__u32 csum_start;
	__u32 csum_offset;
	__u32 summed; /* the byte that has ip_summed */
	__u32 summed_shift; /* and its lowest bit */
};

/* What a bridge was told, where that is yes or no. */
enum bridge_flag {
	BRIDGE_VLANS = 1 << 0, /* VLAN filtering */
	BRIDGE_QINQ = 1 << 1, /* frames with a second tag are taken */
	BRIDGE_VLAN_STATS = 1 << 2,
	BRIDGE_DHCP_GUARD = 1 << 3,
	BRIDGE_RA_GUARD = 1 << 4,
	BRIDGE_SUPPRESS = 1 << 5,
	/* while somebody looks */
	BRIDGE_CAPTURE = 1 << 6,
	BRIDGE_TALKERS = 1 << 7,
	BRIDGE_PF = 1 << 8,
	BRIDGE_STP = 1 << 9, /* ports have states, and BPDUs are taken in */
	BRIDGE_RSTP = 1 << 10, /* the rapid kind */
};

/* Kinds of floods that can be limited, in the order of port.storm. */
enum storm_kind {
	STORM_BCAST,
	STORM_MCAST,
	STORM_UNKNOWN,
	STORM_KINDS,
};

/* How much of a kind of flood may come in by a port; rate 0 is no limit. */
struct storm {
	__u32 rate;
	__u32 kilobits; /* 1: rate is in 1000 bits a second; 0: in frames a second */
};

/* What spanning tree is told of a port's cable. */
enum stp_choice {
	STP_AUTO,
	STP_ON,
	STP_OFF,
};

/* Frames that a port takes, of those of a VLAN (802.1Q-2022 6.9: acceptable frame types). */
enum vlan_admit {
	ADMIT_ALL,
	ADMIT_TAGGED,
	ADMIT_UNTAGGED, /* and those with a priority alone */
};

struct port {
	__u32 id; /* slot in the low 10 bits, incarnation above: never given twice */
	__u32 ifindex; /* 0 of a berth */
	enum port_flag flags;
	enum port_fact facts;
	__u32 domains; /* protected domains, bit N for domain N */
	__u32 fdb_max; /* most dynamic entries, 0 for no limit of its own */
	__u64 host; /* host port: MAC of the host's end */
	__u64 peer; /* MAC of a veth's other end, if that is in another network namespace */
	char name[PORT_NAME];
	__u16 pvid; /* VLAN of frames without a tag, 0 for none */
	__u16 span_in; /* bit N: what comes in by the port is copied to span port cfg.spans[N] */
	__u16 span_out; /* the same of what goes out; a span port has its own bit, for its direction
			 */
	__u16 admit; /* enum vlan_admit */
	struct storm storm[STORM_KINDS];
	__u32 block_time; /* seconds that the loop guard blocks the port, 0 for not at all */
	__u32 endpoint; /* patch port: its number among those of the namespace, from 1 */
	__u32 peer_endpoint; /* and that of the cable's other end, 0 while there is none */
	__u32 stp_cost; /* 0: by the speed of the device */
	__u32 stp_priority;
	enum stp_choice stp_edge;
	enum stp_choice stp_p2p;
	enum stp_guard stp_guards;
	__u32 backup; /* id of the port that stands in while there is no carrier, 0 for none */
	enum port_note notes;
	enum port_taken taken;
	__u32 host_ifindex; /* host port: the host's end */
};

/* The device that occupies a berth, and what a port has of its device. */
struct berth {
	__u32 id; /* of the port */
	enum port_taken taken;
	__u64 peer;
	char name[PORT_NAME];
};

/* What pf is told, beside its tables. */
struct pf_config {
	__u64 secret[5]; /* odd, by chance: nobody can aim at a bucket of states */
	__u32 rules; /* so many */
	__u32 groups; /* of PF_GROUP rules */
	__u32 dims; /* bit N: some rule looks at enum pf_dim N */
	__u32 ether_rules;
	__u32 states_max;
	__u32 buckets; /* of the table of states */
	__u32 nodes_max; /* sources that are tracked */
	__u32 adaptive_start; /* states from which timeouts shrink */
	__u32 adaptive_end; /* and with which they would be nothing */
	__u32 log_interface; /* id of the port that `set loginterface` names, 0 for none */
	__u16 ruleset; /* number of this ruleset: that of a state says whose rules it names */
	__u16 asks; /* enum pf_ask */
	__u64 features; /* enum feature of pf that it needs */
	__u32 table_entries; /* of all tables of addresses together */
	__u32 since; /* second in which pf was enabled or disabled */
	__u32 fragments_max; /* packets whose first fragment is remembered */
	__u32 fragment_time; /* seconds */
};

/* What some rule of a ruleset asks for, beside the features. */
enum pf_ask {
	PF_ASK_ROUTE = 1 << 0, /* no-route, urpf-failed */
	PF_ASK_PRIORITY = 1 << 1, /* prio, set prio */
	PF_ASK_TAG = 1 << 2, /* tag, tagged */
	PF_ASK_RANDOM = 1 << 3, /* probability */
	PF_ASK_ONCE = 1 << 4,
	PF_ASK_RECEIVED = 1 << 5, /* received-on */
	PF_ASK_ETHER_L3 = 1 << 6, /* an ether rule looks at IP addresses */
};

/*
 * Everything that a bridge is told, read-only for its programs: one frozen
 * blob per generation, so that no frame ever sees half a change.
 */
struct config {
	__u64 hash_seed; /* random per bridge: nobody can aim at a bucket */
	enum feature features;
	__u32 layout; /* version of the maps' layout */
	__u32 ageing; /* seconds */
	__u32 fdb_max; /* most dynamic entries */
	__u32 fdb_buckets; /* home buckets of the FDB */
	__u32 port_factor; /* multiplier that spreads ifindexes over port_cells */
	__u32 slots; /* slots in use are below this */
	__u32 next_incarnation;
	enum drop_reason reasons; /* DROP_REASONS */
	enum bridge_flag flags;
	__u16 group_fwd_mask;
	__u8 address[6]; /* the bridge's own */
	__u16 vlan_proto; /* of the bridge's own tags: 0x8100 or 0x88a8 */
	__u16 default_pvid; /* of new ports, 0 for none */
	__u32 move_max; /* moves of an address a second, 0 for no limit */
	__u16 spans[SPANS]; /* slots of the span ports, 0 for none */
	__u32 snaplen; /* bytes of a frame that are captured, at most CAPTURE_BYTES */
	__u32 capture_ring; /* bytes of the buffer between who captures and the datapath */
	__u32 capture_points; /* bit N: frames at the enum capture_point N */
	__u16 cables[CABLES]; /* endpoints that the first patch ports lead to, 0 for none */
	__u16 span_in; /* as of a port, and of all ports */
	__u16 span_out;
	__u16 stp_priority;
	__u8 stp_hello; /* seconds, as the next two */
	__u8 stp_max_age;
	__u8 stp_forward_delay;
	__u8 pad[3];
	/* where the kernel has a device's state: see port_has_carrier() */
	__s32 device_at; /* bytes from the value of a device map to the address of the device */
	__u32 device_state; /* bytes from there to its state */
	struct skb_places skb;
	struct pf_config pf;
	__u16 port_cells[PORT_TABLE]; /* slot, 0 for none */
	struct port ports[MAX_PORTS];
};

enum vlan_kind {
	VLAN_ORDINARY,
	VLAN_PRIMARY, /* of private VLANs (RFC 5517) */
	VLAN_ISOLATED,
	VLAN_COMMUNITY,
};

/* A VLAN: sets of ports by slot. */
struct vlan {
	__u64 member[PORT_WORDS]; /* in which frames may come in */
	__u64 reach[PORT_WORDS]; /* to which they may go: the members, if it is no private VLAN */
	__u64 untagged[PORT_WORDS]; /* of reach, those that they leave by without a tag */
	__u16 fid; /* VLAN whose addresses it shares: itself, or its primary */
	__u16 span_in; /* as of a port */
	__u16 span_out;
	__u16 unused;
	enum vlan_kind kind;
	__u32 pad;
};

/* An IP address in a VLAN, and the station and port that it is bound to. */
struct binding_key {
	__u16 vlan;
	__u16 type; /* EtherType of the protocol, or BINDING_STATION */
	__u32 address[4]; /* as in a packet; IPv4 has the last word alone */
};

/*
 * In the place of a type: the station itself, whose MAC is in the first two words.
 * The third is the id of a port where it is bound, or 0: it is bound somewhere.
 */
#define BINDING_STATION 0
#define BINDING_ENTRIES                                                                            \
	3 /* that a binding has at most: its address, its station here and anywhere */

struct binding {
	__u64 mac;
	__u32 port; /* id */
	__u32 pad;
};

struct vlan_stats {
	__u64 rx_frames;
	__u64 rx_bytes;
	__u64 tx_frames;
	__u64 tx_bytes;
};

/*
 * A MAC rule, as it was given. Its number is its place in the table of rules,
 * which are in the order in which they are tried; number 0 is no rule's.
 */
struct rule {
	__u32 port; /* id */
	__u32 blocks; /* 1 if it blocks what it matches, 0 if that passes */
	__u32 tag; /* that pf finds on what passes by it: FNV-1a of its name, 0 for none */
	__u8 text[244]; /* as ifconfig(8) has it, zeros behind it */
};

/* The fields of a frame that rules compare: the key of Go's package rule. */
struct rule_key {
	__u64 src; /* MACs and IPs have their first byte lowest */
	__u64 dst;
	__u64 sha;
	__u64 tha;
	__u32 spa;
	__u32 tpa;
	__u32 kind; /* enum rule_kind */
	__u32 list;
};

enum rule_kind {
	RULE_ARP = 1 << 0,
	RULE_RARP = 1 << 1,
	RULE_REQUEST = 1 << 2,
	RULE_REPLY = 1 << 3,
	RULE_SRC = 1 << 4,
	RULE_DST = 1 << 5,
	RULE_SHA = 1 << 6,
	RULE_SPA = 1 << 7,
	RULE_THA = 1 << 8,
	RULE_TPA = 1 << 9,
};

/* Which fields some rules of a list compare, and the first of these rules. */
struct rule_mask {
	__u16 kind;
	__u16 first; /* its number, 0 for no mask */
};

#define RULE_PLAIN_MASKS 4 /* that look at no more than source and destination */

/* The rules of a port and direction. The masks are in the order of their first rules. */
struct rule_list {
	__u32 number; /* in the keys of its rules */
	__u32 arp; /* masks of rules about ARP and RARP, at most 128 */
	__u32 arp_at; /* the first of these in their table */
	struct rule_mask plain[RULE_PLAIN_MASKS];
};

struct rule_stats {
	__u64 frames;
	__u64 bytes;
};

/*
 * An address and where it is. The key is vlan << 48 | mac, the MAC's first
 * byte lowest; 0 is a free entry, FDB_CLAIMED one that is being filled. The
 * word's port is the port's id and the two flags; `used` is the second in which
 * the address was last heard. FDB_LOCKED is in `used`: to all who do not look for
 * it the entry has aged, so it opens no port and no frame is sent by it.
 */
struct fdb_entry {
	__u64 key;
	__u64 word; /* used << 32 | port */
};

#define FDB_STATIC (1u << 31) /* never ages, never moves */
#define FDB_STICKY (1u << 30) /* the same: only the word that users see differs */
#define FDB_PINNED (FDB_STATIC | FDB_STICKY)
#define FDB_LOCKED (1ull << 63) /* heard on a locked port; seconds get here in 68 years */
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
	__u64 merged; /* what happened and was not told by itself, so far */
};

/* What spanning tree lets a port do. */
enum stp_state {
	STP_FORWARDING, /* all */
	STP_DISCARDING, /* nothing: it takes no frames, and gets none */
	STP_LEARNING, /* the same, but addresses are learned */
};

#define BPDU_BYTES 256 /* of a BPDU's frame that are handed on */
#define BPDU_RATE 64 /* that a port hands on in a second: neighbours send a few each */

/* A BPDU that came in, for who runs spanning tree. */
struct bpdu {
	__u32 port; /* id */
	__u32 len; /* bytes of the frame; at most BPDU_BYTES are here */
	__u8 data[BPDU_BYTES];
};

/* What blocks a port. */
struct port_state {
	/* what its loop guard has found */
	__u32 until; /* second to which the port is blocked */
	__u32 told; /* second of the last event; of the bridge, of the last block */
	__u32 count; /* frames since then */
	__u32 bpdus; /* the second's lower bits << 8 | BPDUs handed on in it */
	__u64 stp; /* id << 32 | enum stp_state; of the bridge, BPDUs that found no room */
};

struct port_stats {
	__u64 rx_frames;
	__u64 rx_bytes;
	__u64 tx_frames;
	__u64 tx_bytes;
	__u64 learned;
	__u64 moves; /* addresses that moved to the port */
	__u64 refused; /* addresses not learned or not moved */
	__u64 drops[DROP_ROOM];
};

/* Where a captured frame is. */
enum capture_point {
	CAPTURE_IN, /* came in by a port, and goes on */
	CAPTURE_OUT, /* leaves by it */
	CAPTURE_DROP, /* came in by it, and goes no further */
	CAPTURE_PORTS, /* no point, but as a bit: only at ports with PORT_CAPTURE */
};

#define CAPTURE_BYTES                                                                              \
	16384 /* of a frame that can be captured; at least 18, so that it has its tag */

/* A captured frame; its first bytes follow, with the tag in its place. */
struct captured {
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u32 port; /* id */
	__u32 len; /* bytes of the frame */
	__u32 kept; /* bytes that follow */
	__u16 vlan; /* that the frame is in; 0 for none */
	__u8 point; /* enum capture_point */
	__u8 reason; /* enum drop_reason of CAPTURE_DROP */
};

/* A source address, for who looks for the busiest. */
struct talker {
	__u64 frames;
	__u64 bytes;
	__u32 port; /* id of the port that it was last heard on */
	__u32 heard; /* when: CLOCK_MONOTONIC in units of 2^20 nanoseconds */
};

/* What was decided about a frame of `bascule trace`, with struct verdict's words. */
struct traced_port {
	__u16 slot;
	__u16 tag;
	__u32 reason; /* 0: the frame goes there */
};

struct traced {
	__u32 action; /* enum action */
	__u32 reason;
	__u32 in;
	__u32 out;
	__u32 flood;
	__u32 label;
	__u64 src; /* FDB key */
	__u64 dst;
	__u64 word; /* the FDB's for the destination */
	__u16 vid;
	__u16 vlan;
	__u16 tag;
	__u16 rule_in;
	__u16 rule_out;
	__u16 mtu; /* 1: too large for the way out */
	__u16 ports; /* of the flood, below */
	__u16 received; /* VLAN that the frame says it is in, whether the port is or not */
	__u16 pf_in; /* pf's rules, number + 1, 0 for none */
	__u16 pf_out; /* not of a flood */
	__u16 pf_state; /* 1: the packet's connection is known */
	__u16 pad;
	struct traced_port port[MAX_PORTS];
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

/*
 * pf. A rule has a number, its place in the order in which rules are tried,
 * those of anchors where the anchor is called. Which rules match a packet is
 * not asked of each rule: for each of the packet's fields there is the set of
 * the rules that take its value, as a vector of bits, and the rules that match
 * are what these sets share (Baboescu and Varghese, Scalable Packet
 * Classification, SIGCOMM 2001).
 */
#define PF_RULES 65534 /* at most: numbers are kept in 16 bits, with 1 added */
#define PF_GROUP 4096 /* rules of a group: 64 words of 64 bits */
#define PF_TABLES 64 /* of addresses */
#define PF_PROFILES 256

/* The fields. */
enum pf_dim {
	PF_DIM_PORT, /* of the switch, and direction */
	PF_DIM_PROTO, /* family and protocol */
	PF_DIM_SRC,
	PF_DIM_DST,
	PF_DIM_SPORT,
	PF_DIM_DPORT, /* or type and code of ICMP */
	PF_DIM_FLAGS, /* of TCP */
	PF_DIM_TOS, /* and whether it is a fragment */
	PF_DIMS,
};

/*
 * Cells of the table that has the set of rules of a field's value: where the
 * set is in the table of sets. Addresses are looked up in a table of prefixes.
 */
enum pf_cell {
	PF_CELL_PORT = 0, /* + slot * 2 + 1 on the way out: PF_SKIP if pf is not asked there */
	PF_CELL_PROTO = PF_CELL_PORT + 2 * MAX_PORTS, /* + protocol + 256 of IPv6 */
	PF_CELL_FLAGS = PF_CELL_PROTO + 512, /* + flags, or one of the two */
	PF_CELL_FLAGS_OTHER = PF_CELL_FLAGS + 256, /* no TCP */
	PF_CELL_FLAGS_UNKNOWN, /* a later fragment whose first is not known */
	PF_CELL_TOS, /* + TOS + 256 of a fragment */
	PF_CELL_SPORT = PF_CELL_TOS + 512, /* + port, or one of the two */
	PF_CELL_SPORT_OTHER = PF_CELL_SPORT + 65536,
	PF_CELL_SPORT_UNKNOWN,
	PF_CELL_DPORT, /* + port */
	PF_CELL_ICMP4 = PF_CELL_DPORT + 65536, /* + type << 8 | code */
	PF_CELL_ICMP6 = PF_CELL_ICMP4 + 65536,
	PF_CELL_DPORT_OTHER = PF_CELL_ICMP6 + 65536,
	PF_CELL_DPORT_UNKNOWN,
	PF_CELLS,
};

#define PF_SKIP (~0u)

/*
 * A set of rules in the table of sets: for each group, a word that says which
 * of the group's 64 words are not zero, and the place of the first of these,
 * which follow each other.
 */
struct pf_set {
	__u64 words;
	__u64 at;
};

/* An address or network, as the key of a trie: IPv4 as ::ffff:0:0/96 (RFC 4291, 2.5.5.2). */
struct pf_prefix {
	__u32 bits;
	__u8 address[16];
};

/* The sets of rules that take an address of a network. */
struct pf_network {
	__u32 src;
	__u32 dst;
};

/* Tables that an address is in, by number. */
struct pf_member {
	__u64 match; /* bit N: table N has it, by this entry or by a larger network's */
	__u64 here; /* bit N: this very address or network is listed in table N (negated, if not in
		       match) */
	__u64 bits; /* of the network: what the trie has found may be larger than what was asked for
		     */
};

/* Key of an address that a table has by itself; networks are in a trie. */
struct pf_address {
	__u32 word[4];
};

#define PF_TABLE_BATCH 1024 /* addresses that are changed in one go */

/* A change to tables that takes all the CPUs' changes into account, and its answer. */
enum pf_table_op {
	PF_TABLE_ADD = 1, /* the addresses of the batch to the table */
	PF_TABLE_DELETE, /* these from it, if they are negated as the batch says */
	PF_TABLE_INHERIT, /* addresses of `prefix` that the tables do not list take what networks
			     say */
	PF_TABLE_CLEAR, /* the tables list no address any more; networks are gone already */
};

struct pf_table_request {
	enum pf_table_op op;
	__s32 result; /* addresses listed or no longer listed, or a negative errno */
	__u64 tables; /* bit N: table N */
	__u32 count; /* of the batch */
	struct pf_prefix prefix;
};

/* An address of the batch. */
struct pf_table_change {
	struct pf_address address;
	__u32 negated;
};

enum pf_action {
	PF_PASS,
	PF_BLOCK,
	PF_MATCH,
	PF_ANCHOR, /* no rule: what must hold for the rules up to `end` to be tried */
};

enum pf_rule_flag {
	PF_LOG = 1 << 0,
	PF_LOG_ALL = 1 << 1,
	PF_LOG_MATCHES = 1 << 2,
	PF_NOT_TAGGED = 1 << 3, /* tagged is negated */
	PF_NOT_SRC_TABLE = 1 << 4, /* the table, or no-route and urpf-failed */
	PF_NOT_DST_TABLE = 1 << 5,
	PF_NOT_RECEIVED = 1 << 6,
	PF_ALLOW_OPTS = 1 << 7,
	PF_KEEP = 1 << 8, /* keeps state */
	PF_MODULATE = 1 << 9,
	PF_SYNPROXY = 1 << 10,
	PF_SLOPPY = 1 << 11,
	PF_IF_BOUND = 1 << 12,
	PF_TRACK_RULE = 1 << 13, /* source-track rule */
	PF_TRACK_GLOBAL = 1 << 14,
	PF_FLUSH = 1 << 15,
	PF_FLUSH_GLOBAL = 1 << 16,
	PF_ONCE = 1 << 17,
	PF_SRC_NO_ROUTE = 1 << 18,
	PF_DST_NO_ROUTE = 1 << 19,
	PF_SRC_URPF_FAILED = 1 << 20,
};

/* What a block answers. */
enum pf_return {
	PF_RETURN_NOTHING,
	PF_RETURN_RST, /* to TCP */
	PF_RETURN_ICMP, /* to all */
	PF_RETURN_BOTH, /* RST to TCP, ICMP to the rest */
};

/* What rules make of packets: scrub, set tos. */
enum pf_scrub_flag {
	PF_SCRUB_NO_DF = 1 << 0,
	PF_SCRUB_RANDOM_ID = 1 << 1,
	PF_SCRUB_TOS = 1 << 2, /* tos is set */
};

struct pf_scrub {
	__u16 max_mss; /* 0 for any */
	__u8 min_ttl; /* the same */
	__u8 tos;
	enum pf_scrub_flag flags;
};

struct pf_rule {
	enum pf_action action;
	enum pf_rule_flag flags;
	__u32 end; /* once it has matched, no rule from this number on is tried; PF_ANCHOR: if it
		      has not, the next that is tried is this */
	__u32 probability; /* of 2^32; 0: always */
	__u32 tag; /* FNV-1a of its name, 0 for none; the same for tagged */
	__u32 tagged;
	__u32 max; /* states, 0 for no limit */
	__u32 max_src_nodes;
	__u32 max_src_states;
	__u32 max_src_conn;
	__u32 max_src_rate; /* connections in so many seconds */
	__u32 max_src_secs;
	__u16 nr; /* as pfctl numbers it, in its own ruleset; of the log */
	__u16 anchor; /* place of the ruleset's name among those of the log */
	__u16 received; /* set of ports, 0 for none */
	__u8 src_table; /* number + 1, 0 for none */
	__u8 dst_table;
	__u8 overload;
	__u8 profile; /* of the states that it makes */
	__u8 priority; /* + 1, that it matches; 0 for any */
	__u8 answer; /* enum pf_return */
	__u8 ttl; /* of RST, 0 for the default */
	__u8 log_to; /* pflogN */
	__u8 icmp4[2]; /* type and code of the answer */
	__u8 icmp6[2];
	struct pf_scrub scrub;
};

/* What rules have done; the states that are still there count for themselves. */
struct pf_rule_stats {
	__u64 evaluations; /* packets that it was found to match */
	__u64 packets[2]; /* in, out */
	__u64 bytes[2]; /* of IP packets */
	__u64 states; /* made */
};

/*
 * What pf has done at the port of `set loginterface`: by family (IPv4, IPv6),
 * direction (in, out), and what became of it (passed, blocked).
 */
struct pf_port_stats {
	__u64 packets[2][2][2];
	__u64 bytes[2][2][2];
};

/* What rules have that all CPUs share. */
struct pf_rule_use {
	__u32 states;
	__u32 spent; /* 1: a rule with `once` has had its packet */
	__u32 nodes; /* sources that it tracks */
	__u32 pad;
};

/* How long states last, in seconds, in the order of pf.conf(5). */
enum pf_timeout {
	PF_TCP_FIRST,
	PF_TCP_OPENING,
	PF_TCP_ESTABLISHED,
	PF_TCP_CLOSING,
	PF_TCP_FINWAIT,
	PF_TCP_CLOSED,
	PF_TCP_TSDIFF,
	PF_UDP_FIRST,
	PF_UDP_SINGLE,
	PF_UDP_MULTIPLE,
	PF_ICMP_FIRST,
	PF_ICMP_ERROR,
	PF_OTHER_FIRST,
	PF_OTHER_SINGLE,
	PF_OTHER_MULTIPLE,
	PF_FRAG,
	PF_INTERVAL,
	PF_ADAPTIVE_START,
	PF_ADAPTIVE_END,
	PF_SRC_TRACK,
	PF_TIMEOUTS,
};

/* What a state keeps of the rule that made it, when the rule is no more. */
struct pf_profile {
	__u32 timeout[PF_TIMEOUTS];
	__u8 priority[2]; /* set prio, + 1: of packets, and of those that should be quick */
	__u16 pad;
};

/*
 * What makes packets those of one connection, whichever way they go: the lower
 * address first, and of equal ones the lower port. IPv4 as ::ffff:0:0/96.
 */
struct pf_key {
	__u32 address[2][4];
	__u16 port[2]; /* of ICMP queries the identifier, twice; of other protocols 0 */
	__u16 vlan; /* whose addresses are looked at */
	__u8 proto;
	__u8 profile; /* of a state; no part of the key: zero in a packet's */
};

/* One side of a TCP connection; of other protocols, state alone. */
struct pf_peer {
	__u32 lo; /* highest sequence number sent */
	__u32 hi; /* highest that the other side lets it send */
	__u16 max_win;
	__u8 scale; /* window scale, and PF_SCALE_ */
	__u8 state; /* enum pf_tcp_state; of others enum pf_other_state */
};

enum pf_tcp_state { /* RFC 9293, 3.3.2; as pfctl prints them */
		    PF_CLOSED,
		    PF_LISTEN,
		    PF_SYN_SENT,
		    PF_SYN_RECEIVED,
		    PF_ESTABLISHED,
		    PF_CLOSE_WAIT,
		    PF_FIN_WAIT_1,
		    PF_CLOSING,
		    PF_LAST_ACK,
		    PF_FIN_WAIT_2,
		    PF_TIME_WAIT,
		    PF_PROXY_SRC, /* the switch makes the handshake with the initiator */
		    PF_PROXY_DST, /* and then with the other side */
};

enum pf_other_state {
	PF_NO_TRAFFIC,
	PF_SINGLE,
	PF_MULTIPLE,
};

#define PF_SCALE_MASK 0x0f
#define PF_SCALE_KNOWN 0x80 /* this side's SYN had the option */

enum pf_state_flag {
	PF_STATE_SECOND = 1 << 0, /* the key's second side made the connection */
	PF_STATE_SLOPPY = 1 << 1,
	PF_STATE_IF_BOUND = 1 << 2,
	PF_STATE_LOG = 1 << 3, /* every packet */
	PF_STATE_OPTIONS = 1 << 4, /* IP options are let through */
	PF_STATE_TRACK_RULE = 1 << 5, /* counted in its source's node */
	PF_STATE_TRACK_GLOBAL = 1 << 6,
	PF_STATE_CONNECTED = 1 << 7, /* and as a connection, too */
	PF_STATE_REWRITE = 1 << 8, /* diff is used */
	PF_STATE_OUT = 1 << 9, /* made by a rule on the way out; rule_in kept no state */
	PF_STATE_TRACK_OUT = 1 << 10, /* it is rule_out that tracks its source */
	PF_STATE_PRIO = 1 << 11, /* its profile sets a priority */
	PF_STATE_SCRUB = 1 << 12, /* its packets are changed */
};

/*
 * Bits of the packets that a state counts, which no connection sends so many of.
 * In those above is what is changed in its packets, as a state has no room left:
 * of the first side's count max_mss and two flags, of the other's min_ttl, tos and
 * whether that is set.
 */
#define PF_SENT_BITS 46
#define PF_SENT_MASK ((1ull << PF_SENT_BITS) - 1)

struct pf_state {
	struct pf_key key;
	struct pf_peer peer[2]; /* of the key's sides */
	__u64 packets[2]; /* sent by the key's sides; in PF_SENT_BITS of them */
	__u64 bytes[2]; /* of their IP packets */
	__u32 created; /* seconds since boot */
	__u32 used;
	__u32 in; /* id of the port that the first packet came in by */
	__u32 out; /* and left by; 0 while that is not known */
	__u16 rule_in; /* number + 1, 0 for none */
	__u16 rule_out;
	__u16 ruleset; /* in which these are the rules' numbers */
	__u16 flags; /* enum pf_state_flag */
	__u32 diff[2]; /* what is added to the sequence numbers that the sides send */
};

#define PF_WAYS 16 /* states of a bucket: one cache line of marks */

/*
 * Where states are: in the table of states at the same place. A mark is the
 * upper part of the key's hash, not 0; or PF_MARK_CLAIMED while a state is being
 * filled in; or, of one that has gone, PF_MARK_GONE with the second it went in:
 * somebody may still look at it for a moment.
 */
struct pf_bucket {
	__u32 mark[PF_WAYS];
};

#define PF_MARK_STATE 0x80000000u /* set in marks of states */
#define PF_MARK_GONE 0x40000000u
#define PF_MARK_CLAIMED 1u
#define PF_MARK_SECOND 0x3fffffffu /* of PF_MARK_GONE */

/* A source whose states are counted. */
struct pf_source_key {
	__u32 address[4];
	__u16 vlan;
	__u16 rule; /* number + 1, of source-track rule; 0 for all rules together */
	__u16 ruleset; /* of rule */
	__u16 pad;
};

struct pf_source {
	__u32 states; /* or PF_SOURCE_GOING, while it is removed */
	__u32 connections;
	__u32 created; /* seconds since boot */
	__u32 expires; /* second, while it has no states */
	__u32 rate; /* connections * 1000 in the time of max-src-conn-rate, as pf counts them */
	__u32 last; /* second of the last */
};

#define PF_SOURCE_GOING 0x80000000u

/* The first fragment of a packet: what later fragments have no room for. */
struct pf_fragment_key {
	__u32 address[2][4]; /* source, destination */
	__u32 id;
	__u16 vlan;
	__u8 proto; /* of IPv4 (RFC 791); IPv6 has an id for all (RFC 8200, 4.5) */
	__u8 family;
};

struct pf_fragment {
	__u16 port[2]; /* source, destination; of ICMP as in a key */
	__u16 icmp; /* type << 8 | code */
	__u8 flags; /* of TCP */
	__u8 proto; /* behind extension headers */
	__u32 until; /* second */
};

/* What -s info counts. */
enum pf_counter {
	PF_COUNT_SEARCHES, /* packets looked for among states, but for those that states count */
	PF_COUNT_INSERTS,
	PF_COUNT_REMOVALS,
	PF_COUNT_MATCH, /* judged by rules: coming in, and at each port going out */
	PF_COUNT_BAD_OFFSET,
	PF_COUNT_FRAGMENT,
	PF_COUNT_SHORT,
	PF_COUNT_NORMALIZE,
	PF_COUNT_MEMORY,
	PF_COUNT_IP_OPTION,
	PF_COUNT_PROTO_CKSUM,
	PF_COUNT_STATE_MISMATCH,
	PF_COUNT_STATE_INSERT,
	PF_COUNT_STATE_LIMIT,
	PF_COUNT_SRC_LIMIT,
	PF_COUNT_SYNPROXY,
	/* limit counters */
	PF_COUNT_MAX_STATES,
	PF_COUNT_MAX_SRC_STATES,
	PF_COUNT_MAX_SRC_NODES,
	PF_COUNT_MAX_SRC_CONN,
	PF_COUNT_MAX_SRC_RATE,
	PF_COUNT_OVERLOAD,
	PF_COUNT_OVERLOAD_FLUSH,
	PF_COUNT_SYNFLOODS,
	PF_COUNTERS,
};

/* What all CPUs share: written when states are made and go. */
struct pf_shared {
	__u32 states;
	__u32 nodes;
	__u32 sweep; /* next bucket to look for states in that are over */
	__u32 flush; /* second until which states of pf_flushes are looked for */
};

#define PF_LOG_BYTES 160 /* of a packet in the log: pflog's own has 116, with less in front */

/* A packet in the log, for pflog(4). */
struct pf_logged {
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u32 port; /* id */
	__u32 len; /* of the IP packet */
	__u32 kept; /* bytes of data */
	__u16 rule; /* number + 1, 0 for the default */
	__u16 ruleset; /* in which it has it */
	__u8 family; /* 4 or 6 */
	__u8 action; /* enum pf_action */
	__u8 direction; /* 0 in, 1 out */
	__u8 reason; /* enum drop_reason, 0 if a rule decided */
	__u32 log_to;
	__u8 data[PF_LOG_BYTES]; /* from the IP header on */
};

/* A rule for frames (FreeBSD's ether rules), tried one after another. */
struct pf_ether {
	__u64 src, src_mask;
	__u64 dst, dst_mask;
	__u32 action; /* PF_PASS or PF_BLOCK */
	__u32 flags; /* enum pf_ether_flag */
	__u32 tag;
	__u32 tagged;
	__u16 type; /* EtherType as in a frame, 0 for any */
	__u16 ports; /* set of ports, 0 for any */
	__u32 pad;
	struct pf_prefix l3[2]; /* source and destination, bits 0 for any */
	__u8 table[2]; /* number + 1, 0 for none */
	__u8 pad2[6];
};

enum pf_ether_flag {
	PF_ETHER_IN = 1 << 0, /* tried on the way in */
	PF_ETHER_OUT = 1 << 1,
	PF_ETHER_QUICK = 1 << 2,
	PF_ETHER_NOT_SRC = 1 << 3,
	PF_ETHER_NOT_DST = 1 << 4,
	PF_ETHER_NOT_L3_SRC = 1 << 5,
	PF_ETHER_NOT_L3_DST = 1 << 6,
	PF_ETHER_NOT_TAGGED = 1 << 7,
};

/* A request to the control program, and its answer. */
enum control_op {
	CONTROL_START = 1, /* set the clock and arm its timer */
	CONTROL_STORE, /* make (key, word) an entry */
	CONTROL_DELETE, /* remove the entry of key */
	CONTROL_FLUSH, /* remove the entries that match, and all of ports that have left */
	CONTROL_PF_KILL, /* remove the state at a place, if its key is that of `state` */
	CONTROL_PF_FLUSH, /* remove all states */
	CONTROL_PF_UNTRACK, /* remove a source */
	CONTROL_PF_STORE, /* put `state` in, if there is none with its key */
	CONTROL_PF_SWEEP, /* remove all that is over, at once */
	CONTROL_STP, /* give `port` the state `word` */
	CONTROL_UNBLOCK, /* forget what the loop guard of `port` has found */
};

struct control {
	enum control_op op;
	__s32 result; /* entries changed, or a negative errno */
	__u64 key; /* STORE, DELETE */
	__u64 word; /* STORE; STP: enum stp_state */
	__u32 port; /* FLUSH: of this port id, 0 for any; STP, UNBLOCK: the port's */
	__s32 vlan; /* FLUSH: of this VLAN; -1 for any */
	__u32 dynamic; /* FLUSH: dynamic entries */
	__u32 pinned; /* FLUSH: static and sticky entries; STORE: tell of one that is new */
	__u32 keep; /* FLUSH: dynamic entries to leave (of the port, if any); STORE: leave what is
		       there */
	__u32 place; /* PF_KILL */
	struct pf_state state; /* PF_KILL, PF_STORE */
	struct pf_source_key source; /* PF_UNTRACK */
};
