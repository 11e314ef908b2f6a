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
#define EVENT_CELLS 256 /* of events that repeat; the upper bits of a hash */
#define LOOP_CELLS 1024 /* a power of two */
#define DECISIONS 512 /* decisions each CPU remembers, a power of two */

#include "pf/types.h" /* which counts by ports */

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
	EVENT_KINDS,
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
	PORT_END_HAD_SCTP = 1 << 6, /* as PORT_END_HAD_CSUM, of SCTP */
	PORT_END_HAD_STAG = 1 << 7, /* as PORT_END_HAD_VLAN, of service tags */
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
	FEATURE_CONTROL = 1ull << 37, /* frames of a control protocol are taken */
	FEATURE_END = 1ull << 38, /* no feature has this bit, nor one above it */
	/* those that look behind the addresses, and drop what they don't like there */
	FEATURES_JUDGE = FEATURE_NON_IP | FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD |
			 FEATURE_RA_GUARD | FEATURE_RULES | FEATURE_PF | FEATURE_ETHER,
	/* those that have more to decide than a plain switch: see struct judged */
	FEATURES_APART = FEATURE_PROTECTED | FEATURE_VLANS | FEATURE_LOCKED | FEATURE_BLOCKING |
			 FEATURE_NON_IP | FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD |
			 FEATURE_RA_GUARD | FEATURE_SUPPRESS | FEATURE_STORM | FEATURE_RULES |
			 FEATURE_SPAN | FEATURE_CAPTURE | FEATURE_PF | FEATURE_ETHER |
			 FEATURE_CONTROL,
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
	BRIDGE_STP = 1 << 9, /* ports have states, and BPDUs are taken */
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
	__u16 span_in; /* bit N: what comes in by the port is copied to span port set.spans[N]
			*/
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

/*
 * What programs are made for: the verifier knows it, so a change of it takes other
 * programs. With struct settings, everything that a bridge is told.
 */
struct config {
	__u64 hash_seed; /* random per bridge: nobody can aim at a bucket */
	enum feature features;
	__u32 layout; /* version of the maps' layout */
	__u32 fdb_buckets; /* home buckets of the FDB */
	enum drop_reason reasons; /* DROP_REASONS */
	enum bridge_flag flags;
	__u16 vlan_proto; /* of the bridge's own tags: 0x8100 or 0x88a8 */
	__u16 fdb_turn; /* 0 or 1: whose turn it is in shared.usage */
	__u16 pad[2];
	__u32 snaplen; /* bytes of a frame that are captured, at most CAPTURE_BYTES */
	__u32 capture_ring; /* bytes of the buffer between who captures and the datapath */
	__u32 capture_points; /* bit N: frames at the enum capture_point N */
	/* where the kernel has a device's state: see port_has_carrier() */
	__s32 device_at; /* bytes from the value of a device map to the address of the device */
	__u32 device_state; /* bytes from there to its state */
	struct skb_places skb;
	struct pf_config pf;
};

/*
 * What programs read as they meet it. They only read: user space writes it while no
 * frame is with the programs whose settings it is, so that none sees half a change.
 */
struct settings {
	__u32 ageing; /* seconds */
	__u32 fdb_max; /* most dynamic entries */
	__u32 port_factor; /* multiplier that spreads ifindexes over port_cells */
	__u32 slots; /* slots in use are below this */
	__u32 next_incarnation;
	__u16 group_fwd_mask;
	__u8 address[6]; /* the bridge's own */
	__u16 default_pvid; /* of new ports, 0 for none */
	__u16 stp_priority;
	__u32 move_max; /* moves of an address a second, 0 for no limit */
	__u16 spans[SPANS]; /* slots of the span ports, 0 for none */
	__u16 cables[CABLES]; /* endpoints that the first patch ports lead to, 0 for none */
	__u16 span_in; /* as of a port, and of all ports */
	__u16 span_out;
	__u8 stp_hello; /* seconds, as the next two */
	__u8 stp_max_age;
	__u8 stp_forward_delay;
	__u8 unused;
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
	__u16 blocks; /* 1 if it blocks what it matches, 0 if that passes */
	__u16 turn; /* the rules of a bridge are tried in the order of their turns, from 1 */
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
	__u16 first; /* its turn, 0 for no mask */
};

#define RULE_PLAIN_MASKS 4 /* that look at no more than source and destination */

/* The rules of a port and direction. The masks are in the order of their first rules. */
struct rule_list {
	__u32 number; /* in the keys of its rules */
	__u32 arp; /* masks of rules about ARP and RARP, at most 128 */
	__u32 arp_at; /* the first of these, behind the lists in their table */
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

/* A protocol whose frames the switch takes, for who runs it beside the switch. */
enum control_protocol {
	PROTOCOL_STP, /* BPDUs */
	CONTROL_PROTOCOLS,
};

/* Protocols that counters and shares have room for; new ones go behind the others. */
#define CONTROL_ROOM 7
_Static_assert(CONTROL_PROTOCOLS <= CONTROL_ROOM,
	       "raise CONTROL_ROOM, and layout in datapath/config.go");

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
	__u64 pad[4]; /* the rest is on another cache line than what each frame reads */
	__u64 missed[CONTROL_ROOM]; /* frames by protocol that were not handed up, so far */
};

/* What spanning tree lets a port do. */
enum stp_state {
	STP_FORWARDING, /* all */
	STP_DISCARDING, /* nothing: it takes no frames, and gets none */
	STP_LEARNING, /* the same, but addresses are learned */
};

#define CONTROL_SHORT 256 /* bytes of a frame that a small record has room for */
#define CONTROL_LONG 1536 /* and a large one; of a longer frame the rest stays behind */

/*
 * What a port may hand up of a protocol in a second, in units of CONTROL_SHORT:
 * neighbours send a few frames each. Less than 256.
 */
#define CONTROL_SHARE 64

/* A frame of a control protocol that came in. */
struct control_frame {
	__u32 port; /* id */
	enum control_protocol protocol;
	__u32 len; /* bytes of the frame; at most CONTROL_SHORT or CONTROL_LONG are here */
	__u16 tag_type; /* of the tag that is not among them, as in a frame; 0 for none */
	__u16 tag; /* its TCI */
	__u8 data[CONTROL_LONG];
};

/* What is known of a port from frame to frame. */
struct port_state {
	__u64 stp; /* id << 32 | enum stp_state */
	/* what its loop guard has found */
	__u32 until; /* second to which the port is blocked */
	__u32 told; /* second of the last event; of the bridge, of the last block */
	__u32 count; /* frames since then */
	/* by protocol: the second's lower bits << 8 | what was handed up in it; see CONTROL_SHARE
	 */
	__u32 handed[CONTROL_ROOM];
};

/* How full the port's buckets of storm control are: one cache line a port. */
struct storm_buckets {
	__u64 full[STORM_KINDS]; /* when each is full again */
	__u64 pad[8 - STORM_KINDS];
};

/*
 * Returns of an address by a port in a second; for slot 0, when the address was
 * found in a loop. A cell serves many, but counts for one: many addresses that
 * move at once are no loop. In a loop one will get it.
 */
struct returns {
	__u64 key;
	__u32 slot;
	__u32 second;
	__u32 count;
	__u32 pad;
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

/*
 * The steps of the decision on a frame, in their order, by the names that `bascule
 * trace` has for them.
 */
enum step {
	STEP_PORT, /* which port it comes in by */
	STEP_FRAME, /* whether it is one */
	STEP_CHECK, /* whether it may come in, as far as no other step says */
	STEP_VLAN,
	STEP_RULES_IN,
	STEP_PF_IN,
	STEP_LEARN, /* its source: it has come in */
	STEP_ANSWER, /* the switch itself answers it */
	STEP_LOOK_UP, /* its destination */
	STEP_FLOOD,
	STEP_CHECK_OUT, /* whether it may go out, as far as no other step says */
	STEP_RULES_OUT,
	STEP_PF_OUT,
	STEP_SEND,
};

/* What became of the source's entry. */
enum learned {
	LEARN_NOT_ASKED, /* the frame did not get so far */
	LEARN_OFF, /* the port does not learn */
	LEARN_KNOWN, /* the port has it already */
	LEARN_NEW,
	LEARN_MOVED,
	LEARN_STATIC, /* not moved: the entry is static */
	LEARN_STICKY, /* the same, sticky */
	LEARN_DAMPED, /* the same: it has moved too often this second */
	LEARN_FULL, /* there is no room, of the bridge or of the port */
	/* of a locked port, which has not let it in */
	LEARN_LOCKED, /* it has got a locked entry */
	LEARN_LOCKED_AGAIN, /* which it has already */
	LEARN_LOCKED_AWAY, /* another port has the address */
	LEARN_LOCKED_FULL,
	LEARN_RESULTS,
};

/* What the FDB has for the destination. */
enum found {
	FIND_NOT_ASKED, /* the frame did not get so far, or is to a group */
	FIND_NONE,
	FIND_DYNAMIC,
	FIND_STATIC,
	FIND_STICKY,
	FIND_LOCKED, /* by which nothing is sent */
	FIND_RESULTS,
};

/* Why a flood goes past a port, where that is no enum drop_reason. */
enum flood_past {
	PAST_LEARNING = DROP_REASONS, /* spanning tree has it learning */
	PAST_ORIGIN, /* the frame has come in by it, and it does not hairpin */
	PAST_FLAG, /* it takes no floods of the kind */
	PAST_DEVICE, /* its device has gone */
	PAST_END,
};

/* What a flood did at a port. */
struct traced_port {
	__u16 slot;
	__u16 tag;
	__u16 spans; /* bit N: span port set.spans[N] got a copy */
	__u16 reason; /* 0: the frame goes there; or enum drop_reason, enum flood_past */
};

/* What a trial did with a frame, for `bascule trace`, with struct verdict's words. */
struct traced {
	enum step step; /* that ended the decision */
	__u32 action; /* enum action */
	__u32 reason; /* of ACTION_DROP */
	__u32 in;
	__u32 out;
	__u32 flood;
	__u64 src; /* FDB key */
	__u64 dst;
	__u64 word; /* DROP_TAKEN: enum control_protocol */
	enum learned learned;
	__u32 learned_from; /* slot of the port that had the source, 0 for none */
	enum found found;
	__u32 behind; /* slot of the port that has the destination; `out` may stand in */
	__u16 vid;
	__u16 vlan;
	__u16 tag;
	__u16 rule_in;
	__u16 rule_out;
	__u16 spans_in; /* as of a port below: of the frame as it came in */
	__u16 spans_out; /* as it, or the answer to it, left: not of a flood */
	__u16 spans_small; /* those that it was too large for */
	__u16 pf_in; /* pf's rules, number + 1, 0 for none */
	__u16 pf_out; /* not of a flood */
	__u16 pf_state; /* 1: the packet's connection is known */
	__u16 ports; /* of the flood, below: all that the bridge has */
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
 * A claim on an address that is repeated many times a second is told once a
 * second, with the number of times. One cell serves many addresses: when two
 * of them fight for it both are told, which is right too.
 */
struct told {
	__u64 key; /* with the event's kind */
	__u32 second;
	__u32 count;
};

/*
 * What all CPUs share of a bridge, and is not of a size that it is told. Each part begins
 * a cache line, so that who writes one does not slow who reads another.
 */
struct shared {
	struct clock clock;
	__u64 pad;
	struct pf_shared pf;
	__u64 pf_answers; /* when the bucket of answers is full again; see storm.h */
	__u64 pad2[5];
	struct told told[EVENT_CELLS];
	/* dynamic entries by slot; an FDB that is made anew counts where the one before does not */
	__u32 usage[2][MAX_PORTS];
	struct storm_buckets storms[MAX_PORTS]; /* by slot */
	struct port_state port_states[MAX_PORTS]; /* by slot; of the loop guards in slot 0 */
	struct returns returns[LOOP_CELLS];
	struct event events[EVENT_LOG]; /* the last, for any number of monitors */
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
	CONTROL_FORGET, /* decisions that are remembered */
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
