/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Types that the datapath and user space share. Go gets them through BTF: change them here,
 * then run `make generate`.
 */
#pragma once

#include <linux/types.h>

#define MAX_PORTS 1024 /* slots of a bridge; slot 0 stands for "no port" */
#define PORT_TABLE 8192 /* cells of the table that finds a port by ifindex */
#define PORT_PROBES 8 /* cells to check before an ifindex counts as no port's */
#define PORT_NAME 16 /* IFNAMSIZ */
#define PORT_WORDS (MAX_PORTS / 64) /* words of a set of ports, which has a bit for each slot */

#define VLANS 4096 /* VLAN identifiers; 0 and 4095 name no VLAN (802.1Q table 9-2) */
#define CABLES 4 /* patch cables of a bridge that are followed by direct jumps */
#define SPANS 16 /* span ports of a bridge */

#define FDB_WAYS 4 /* entries of a bucket: one cache line */
#define FDB_WINDOW 8 /* buckets in which an address may live, its home first */

#define EVENT_LOG 4096 /* events kept for monitors, a power of two */
#define EVENT_CELLS 256 /* cells for events that repeat; the upper bits of a hash choose one */
#define LOOP_CELLS 1024 /* a power of two */
#define SAMPLES 256 /* samples of frames kept for the agent, of each kind; a power of two */
#define DECISIONS 512 /* decisions each CPU remembers, a power of two */

#include "pf/types.h" /* whose tables count by ports */

/*
 * Why a frame was not forwarded. Users see the constant's name, without DROP_, in lower case, with
 * dashes.
 */
enum drop_reason {
	DROP_TAKEN, /* never counted: 0 is no reason, or marks a frame for the switch itself */
	DROP_MALFORMED, /* shorter than its headers */
	DROP_RESERVED, /* to 01:80:C2:00:00:0X, which bridges do not forward (802.1Q 8.6.3) */
	DROP_BAD_SOURCE, /* from a group address or from zero */
	DROP_SAME_PORT, /* to an address on its port of arrival */
	DROP_PROTECTED, /* the two ports share a protected domain */
	DROP_MTU, /* too large for the way out */
	DROP_NO_MEMBER, /* no port takes the flood */
	DROP_SPAN, /* arrived at a span port, which only listens */
	DROP_VLAN, /* the port is not in the frame's VLAN */
	DROP_UNTAGGED, /* without a tag, and the port has no VLAN for such frames */
	DROP_ADMIT, /* the port does not admit frames with a tag, or without */
	DROP_DOUBLE_TAG, /* with a second tag, and the bridge does not take those */
	DROP_OTHER_TAG, /* its only tag is not of the bridge's kind, and the bridge's qinq is off */
	DROP_VLAN_OUT, /* the way out is not in the frame's VLAN */
	DROP_BLOCKED, /* the port is blocked, by its loop guard */
	DROP_LOOP, /* the switch's own frame has come back */
	DROP_STP, /* spanning tree keeps the port from forwarding */
	DROP_LOCKED, /* the port is locked, and the FDB does not have the source there */
	DROP_LIMIT, /* the limit of addresses leaves no room for its source */
	DROP_SPOOFED, /* claims an address that is not bound to its sender at this port */
	DROP_DHCP_GUARD, /* a DHCP server's message from a port that is not trusted */
	DROP_RA_GUARD, /* a router's advertisement from such a port */
	DROP_NON_IP, /* not IPv4, IPv6, ARP or RARP */
	DROP_STORM_BCAST, /* above the port's limit of broadcasts */
	DROP_STORM_MCAST, /* above its limit of multicast */
	DROP_STORM_UNKNOWN, /* above its limit of unknown unicast */
	DROP_RULE, /* blocked by a MAC rule */
	DROP_NO_PEER, /* the patch cable's other end is missing */
	DROP_PATCH_LOOP, /* has been in this bridge already, by patch cables */
	DROP_ETHER, /* blocked by an `ether` rule of pf */
	DROP_PF, /* blocked by a rule of pf */
	DROP_PF_STATE, /* does not fit the state of its connection */
	DROP_PF_LIMIT, /* would need one more state or source than the limit allows */
	DROP_PF_SHORT, /* shorter than its IP, TCP, UDP or ICMP headers state */
	DROP_PF_FRAGMENT, /* a fragment that cannot be part of a proper packet */
	DROP_PF_OPTIONS, /* has IP options, and the rule has no allow-opts */
	DROP_PF_SYNPROXY, /* part of a handshake that the switch makes for a host */
	DROP_TOO_DEEP, /* a filter must judge it, and its packet is behind too many tags */
	DROP_PF_NORMALIZE, /* has TCP flags, ICMP or addresses that no packet on a wire has */
	DROP_CHECKSUM, /* a checksum will be written where a filter has looked */
	DROP_PF_TRANSLATE, /* a rule translates it, and that is impossible */
	DROP_PF_ROUTE, /* a rule sets its next hop, and it cannot go there */
	DROP_PF_DIVERT, /* a rule gives it to a socket of the host, and there is none */
	DROP_PF_TIMESTAMP, /* its TCP timestamps do not fit its connection now */
	DROP_GSO, /* the kernel will cut it into packets that no filter has judged */
	DROP_RATE, /* above the port's limit of all incoming, or of all outgoing frames */
	DROP_NO_CARRIER, /* to a static address on a port that is down or has no carrier */
	DROP_REASONS,
};

/*
 * The counters have room for this many reasons. A new reason goes behind the others: with another's
 * number it would continue the other's count.
 */
#define DROP_ROOM 48
_Static_assert(DROP_REASONS <= DROP_ROOM, "raise DROP_ROOM, and layout in datapath/config.go");

/* Events, for `bascule monitor`. */
enum event_kind {
	EVENT_LEARNED = 1, /* an address was seen for the first time */
	EVENT_MOVED, /* it was seen on another port */
	EVENT_AGED, /* it was not seen for the ageing time */
	EVENT_DELETED, /* its entry was deleted on request */
	EVENT_REFUSED_FULL, /* not learned: the bridge's or the port's table is full */
	EVENT_REFUSED_PINNED, /* not moved: the entry is static or sticky */
	EVENT_REFUSED_DAMPED, /* not moved: it has moved too often this second */
	EVENT_LOOP, /* the switch's own frame came back on the port */
	EVENT_BLOCKED, /* the loop guard has blocked the port; count is the seconds */
	EVENT_LOCKED, /* an unauthorized address was seen on a locked port */
	EVENT_ADDED, /* a static or sticky entry was made for it */
	EVENT_KINDS,
};

/* Settings of a port that are on or off. The decision on a frame tests each of them. */
enum port_flag {
	PORT_LEARN = 1 << 0,
	PORT_DISCOVER = 1 << 1, /* takes floods of unknown unicast */
	PORT_MCAST_FLOOD = 1 << 2,
	PORT_BCAST_FLOOD = 1 << 3,
	PORT_HAIRPIN = 1 << 4,
	PORT_LOCKED = 1 << 5, /* takes a frame only if the FDB has its source there */
	PORT_MAB = 1 << 6, /* locked: an unauthorized address gets a locked entry */
	PORT_LIMIT_DROP = 1 << 7, /* drops frames of an address for which fdb_max leaves no room */
	PORT_BLOCK_NON_IP = 1 << 8,
	PORT_SOURCE_GUARD = 1 << 9,
	PORT_TRUSTED = 1 << 10, /* may send DHCP servers' and routers' messages */
	PORT_LOOP_GUARD = 1 << 11, /* reports when the switch's own frames come back on it */
	PORT_RULES_IN = 1 << 12, /* has MAC rules for incoming frames */
	PORT_RULES_OUT = 1 << 13, /* has MAC rules for outgoing frames */
	PORT_CAPTURE = 1 << 14, /* frames at it are captured, if not those at all ports are */
	PORT_ROUTE = 1 << 15, /* a host port: the datapath routes instead of the host */
};

/* Facts about a port that follow from its device. The decision on a frame tests each of them. */
enum port_fact {
	PORT_PATCH = 1 << 0, /* one end of a patch cable: no device */
	PORT_SPAN = 1 << 1, /* a span port: gets copies, and accepts no frames */
	PORT_XDP_TX = 1 << 2, /* the device takes frames that XDP redirects */
	PORT_XDP_FLOOD = 1 << 3, /* every other port takes every flood from this one, by XDP */
	PORT_TO_HOST = 1 << 4, /* a host port: frames that leave through it enter the host */
};

/*
 * The timer's findings at a port's device: see device.h. The decision on a frame tests the first
 * three. The others are the reasons why the short ways to the device are closed.
 */
enum port_way {
	WAY_XDP_TX = PORT_XDP_TX, /* open: XDP redirects frames to the device */
	WAY_XDP_FLOOD = PORT_XDP_FLOOD, /* open: floods from the port go by XDP */
	WAY_LOST = 1 << 8, /* the device is down, or has no carrier */
	WAY_SEEN = 1 << 9, /* the timer has looked at the device */
	WAY_QUEUE = 1 << 10, /* the device has been given a queueing discipline */
	WAY_TC = 1 << 11, /* the device has egress programs of tcx, or clsact */
	WAY_NETFILTER = 1 << 12, /* the device has egress rules of netfilter */
	WAY_END_XDP = 1 << 13, /* a veth's other end has an XDP program */
};

/*
 * Facts about a port for the code that loads programs and shows ports. The decision on a frame
 * tests none of them.
 */
enum port_note {
	PORT_XDP = 1 << 0, /* is on the xdp hook, as far as its device allows */
	PORT_XDP_RX = 1 << 1, /* XDP gets complete frames from it, so it has the XDP program */
	PORT_HOST = 1 << 2, /* the switch's end of a host port */
	PORT_BERTH = 1 << 3, /* a berth: its device is still to come, and ifindex is 0 */
	PORT_APART = 1 << 4, /* a host port of a host with its own addresses: see port.domain */
};

/*
 * Settings that a port's device had before it became a port. They are restored when the port leaves
 * the bridge. The decision on a frame tests none of them.
 */
enum port_taken {
	PORT_WAS_PROMISC = 1 << 0,
	PORT_HAD_LRO = 1 << 1,
	PORT_HAD_RXVLAN = 1 << 2,
	PORT_END_HAD_CSUM = 1 << 3, /* a veth's other end left checksums to us */
	PORT_END_HAD_VLAN = 1 << 4, /* a veth's other end left VLAN tags beside the packet */
	PORT_END_NO_GRO = 1 << 5, /* a veth's other end had GRO off */
	PORT_END_HAD_SCTP = 1 << 6, /* as PORT_END_HAD_CSUM, for SCTP */
	PORT_END_HAD_STAG = 1 << 7, /* as PORT_END_HAD_VLAN, for service tags */
};

/*
 * Settings of a port for the process that runs spanning tree. The decision on a frame tests none of
 * them.
 */
enum stp_guard {
	STP_BPDU_GUARD = 1 << 0, /* an incoming BPDU shuts the port */
	STP_BPDU_FILTER = 1 << 1, /* the port sends no BPDUs, and ignores incoming ones */
	STP_ROOT_GUARD = 1 << 2, /* no better root is taken from the port */
};

/*
 * A feature is on if the bridge, one of its ports or its rules need it. The loader removes the code
 * of a disabled feature from the program (see on()), so it costs nothing.
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
	/* parts of pf that its rules need */
	FEATURE_PF_RULES = 1ull << 26, /* there are rules, not only ether rules */
	FEATURE_PF_TABLES = 1ull << 27,
	FEATURE_PF_LOG = 1ull << 28,
	FEATURE_PF_SOURCES = 1ull << 29, /* sources are tracked */
	FEATURE_PF_REWRITE = 1ull << 30, /* TCP's numbers are rewritten: modulate, synproxy */
	FEATURE_ETHER = 1ull << 31, /* there are ether rules */
	FEATURE_BERTHS = 1ull << 32, /* devices may come to vacant ports */
	FEATURE_ADMIT = 1ull << 33, /* a port only takes frames with a tag, or without */
	FEATURE_MAB = 1ull << 34,
	FEATURE_BACKUP = 1ull << 35, /* a port has a backup */
	FEATURE_PF_SCRUB = 1ull << 36, /* of pf: headers are changed, by scrub and set tos */
	FEATURE_CONTROL = 1ull << 37, /* the bridge takes frames of a control protocol */
	FEATURE_ROUTE = 1ull << 38, /* a host port routes */
	FEATURE_PF_HOST = 1ull << 39, /* pf is on, and there are host ports */
	FEATURE_PF_NAT = 1ull << 40, /* of pf: addresses are translated at host ports */
	FEATURE_SAMPLE = 1ull << 41, /* some frames, and drops, are reported to a collector */
	FEATURE_PF_FAMILY = 1ull << 42, /* of pf: packets continue in the other family */
	FEATURE_PF_FIB = 1ull << 43, /* of pf: rules use no-route or urpf-failed */
	FEATURE_PF_HOPS = 1ull << 44, /* of pf: rules set the next hop: route-to and its kin */
	FEATURE_PF_REASSEMBLE = 1ull << 45, /* of pf: TCP connections are watched, by scrub */
	/* of programs for that: they begin with a connection's first packet, see pf/reassemble.h */
	FEATURE_PF_STAMPS = 1ull << 46,
	/* of XDP's programs: they judge first packets that they route, see first.h */
	FEATURE_PF_FIRST = 1ull << 47,
	FEATURE_PF_LIMITERS = 1ull << 48, /* of pf: limiters limit states, see pf/limit.h */
	/* of the program that may sleep: it must not look into a trie */
	FEATURE_PF_SLEEPS = 1ull << 49,
	FEATURE_RATE = 1ull << 50, /* a port limits its incoming or outgoing frames */
	FEATURE_END = 1ull << 51, /* no feature has this bit, nor one above it */
	/* features that look behind the addresses, and drop a frame for its contents */
	FEATURES_JUDGE = FEATURE_NON_IP | FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD |
			 FEATURE_RA_GUARD | FEATURE_RULES | FEATURE_PF | FEATURE_ETHER,
	/* which have a program for due work: see due.h */
	FEATURES_DUE = FEATURE_PF_REASSEMBLE | FEATURE_PF_REWRITE,
	/* features that need more checks than a plain switch: see struct judged */
	FEATURES_APART = FEATURE_PROTECTED | FEATURE_VLANS | FEATURE_LOCKED | FEATURE_BLOCKING |
			 FEATURE_NON_IP | FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD |
			 FEATURE_RA_GUARD | FEATURE_SUPPRESS | FEATURE_STORM | FEATURE_RULES |
			 FEATURE_SPAN | FEATURE_CAPTURE | FEATURE_PF | FEATURE_ETHER |
			 FEATURE_CONTROL | FEATURE_ROUTE | FEATURE_SAMPLE,
};

/* In an object, this constant comes before the features that a program tests: see on(). */
#define FEATURE_QUESTION 0xba5c01e0feed5eedull

/*
 * The loader replaces each of these constants by a call of a kernel function: see skb_of_kernel()
 * and route_cast().
 */
#define KERNEL_SKB_CALL 0xba5c01e05eabb0ffull
#define KERNEL_READ_CALL 0xba5c01e05eabb1ffull

/* Places of fields in the kernel's sk_buff that no helper returns, in bytes from its start. */
struct skb_places {
	__u32 cast; /* BTF number of bpf_cast_to_kern_ctx(), 0 until it is looked up */
	__u32 head;
	__u32 data;
	__u32 csum_start;
	__u32 csum_offset;
	__u32 summed; /* the byte that has ip_summed */
	__u32 summed_shift; /* the lowest bit of ip_summed in that byte */
};

/*
 * Places in the kernel that determine what the host does with frames before it routes them: see
 * route.h. They are bytes from the start of a structure.
 */
struct route_places {
	__u32 net; /* in a device: the address of its namespace */
	__u32 handler; /* in a device: the handler of its frames */
	__u32 flags; /* in a device: flags that all see */
	__u32 private; /* in a device: private flags of the kernel */
	__u32 slave; /* the private flag of a device in a VRF */
	__u32 above; /* in a device: the list of the devices above it, a VRF first */
	__u32 entry; /* in an entry of that list: its place in the list */
	__u32 upper; /* there: the address of the device */
	__u32 master; /* there: is the device a master, as a VRF is? */
	__u32 index; /* in a device: its index */
	__u32 ip; /* in a device: the address of its IPv4 part */
	__u32 conf; /* in that part: values of sysctl */
	__u32 owned; /* in that part: the list of the device's addresses */
	__u32 policies; /* in a namespace: numbers of IPsec's policies, 0 if the kernel has none */
	__u32 rules; /* in a namespace: has `ip rule` been changed? 0 if it cannot be */
	__u32 all; /* in a namespace: the address of the values of sysctl for all devices */
	__u32 data; /* there: the values */
	__u32 address; /* in a device: the address of its MAC */
	__u32 hash; /* in a namespace: how next hops of IPv4 are chosen; 0 if there is only one */
	__u32 priority; /* in a namespace: do forwarded packets get the priority of their TOS? */
	__u32 ip6; /* in a device: the address of its IPv6 part */
	__u32 disable6; /* in that part: does the device take no IPv6? */
	__u32 all6; /* in a namespace: as `all`, for IPv6 */
	__u32 forward6; /* there: does the host forward IPv6? */
	__u32 hash6; /* in a namespace: how next hops of IPv6 are chosen */
	__u32 changes; /* in a namespace: a number that changes with routes of IPv4 */
	__u32 changes6; /* the same for IPv6 */
	__u32 cast; /* BTF number of bpf_rdonly_cast() */
	__u32 namespace; /* BTF number of the type of a namespace */
	__u32 device; /* BTF number of the type of a device */
	__u32 adjacent; /* the same for an entry of the list of the devices above a device */
	__u32 hardware; /* the same for an address of a device */
	__u32 mac; /* there: the MAC */
	__u32 cell; /* BTF number of the type of an entry of a device map */
	__u32 cell_device; /* there: the address of the device */
	__u32 rules6; /* in a namespace: has `ip -6 rule` been changed? 0 if it cannot be */
	__u32 list6; /* in a namespace: the address of the object with these rules */
	__u32 rules_list; /* there: their list */
	__u32 rule; /* BTF number of the type of a rule */
	__u32 suppress_group; /* there: the group of devices whose routes it refuses; -1 for none */
	__u32 suppress_bits; /* there: it refuses routes of up to this prefix length; -1 for none */
};

/*
 * Places in the kernel that determine what a device does with outgoing frames: see device.h. They
 * are bytes from the start of a structure.
 */
struct device_places {
	__u32 qdisc; /* in a device: the address of its queueing discipline; 0: all is unknown */
	__u32 handle; /* in a queueing discipline: its number, 0 if it was given none */
	__u32 ops; /* there: the address of its kind */
	__u32 id; /* in a kind: its name */
	__u32 tc; /* in a device: the address of its programs of tcx; 0 if there are none */
	__u32 netfilter; /* in a device: the address of its rules; 0 if there are none */
	__u32 private; /* in a device: its driver's data, where veth has the other end first */
	__u32 xdp; /* in a device: the XDP program in the driver, followed by the link */
	__u32 net; /* in a device: the address of its namespace */
};

/* Settings of a bridge that are on or off. */
enum bridge_flag {
	BRIDGE_VLANS = 1 << 0, /* VLAN filtering */
	BRIDGE_QINQ = 1 << 1, /* the bridge takes frames with a second tag */
	BRIDGE_VLAN_STATS = 1 << 2,
	BRIDGE_DHCP_GUARD = 1 << 3,
	BRIDGE_RA_GUARD = 1 << 4,
	BRIDGE_SUPPRESS = 1 << 5,
	/* on only while a user is watching */
	BRIDGE_CAPTURE = 1 << 6,
	BRIDGE_TALKERS = 1 << 7,
	BRIDGE_PF = 1 << 8,
	BRIDGE_STP = 1 << 9, /* ports have states, and the bridge takes BPDUs */
	BRIDGE_RSTP = 1 << 10, /* the rapid kind of spanning tree */
	BRIDGE_SAMPLE = 1 << 11, /* on only while an agent sends samples to a collector */
	BRIDGE_MAC = 1 << 12, /* its address was configured; programs do not use this */
};

/* Kinds of floods that can be limited, in the order of port.storm. */
enum storm_kind {
	STORM_BCAST,
	STORM_MCAST,
	STORM_UNKNOWN,
	STORM_KINDS,
};

/* How much of a kind of flood may arrive at a port; rate 0 is no limit. */
struct storm {
	__u32 rate;
	__u32 kilobits; /* 1: rate is in 1000 bits a second; 0: in frames a second */
};

/* The directions of frames at a port, in the order of port.limit. */
enum limit_way {
	LIMIT_IN, /* they arrive at it */
	LIMIT_OUT, /* they leave through it */
	LIMIT_WAYS,
};

/* How much may pass a port in one direction; rate 0 is no limit. See rate.h. */
struct limit {
	__u32 rate;
	__u32 kilobits; /* as in struct storm */
	__u32 burst; /* burst size: bytes, or frames; 0: as much as passes in RATE_BURST */
};

/* Settings about a port's cable: spanning tree detects it, or is set to yes or no. */
enum stp_choice {
	STP_AUTO,
	STP_ON,
	STP_OFF,
};

/* The ports that pf judges. */
enum pf_ports {
	PF_PORTS_ALL,
	PF_PORTS_HOST,
	PF_PORTS_STATION,
};

/* The frames that a port accepts, by their tag (802.1Q-2022 6.9: acceptable frame types). */
enum vlan_admit {
	ADMIT_ALL,
	ADMIT_TAGGED,
	ADMIT_UNTAGGED, /* frames without a tag, or with only a priority */
};

struct port {
	__u32 id; /* slot in the low 10 bits, incarnation above: never reused */
	__u32 ifindex; /* 0 for a berth */
	enum port_flag flags;
	enum port_fact facts;
	__u32 domains; /* protected domains, bit N for domain N */
	__u32 fdb_max; /* most dynamic entries, 0 for no limit of its own */
	enum port_way ways; /* the timer writes this, `reached` and `straight` */
	__u32 reached; /* its id while frames reach the device, 0 while it has no carrier */
	__u64 host; /* host port: MAC of the host's end */
	__u64 peer; /* MAC of a veth's other end, if it is in another network namespace */
	__u64 straight; /* the same while frames may go straight to that end, else 0 */
	char name[PORT_NAME];
	__u16 pvid; /* VLAN of frames without a tag, 0 for none */
	__u16 span_in; /* bit N: span port set.spans[N] gets the port's incoming frames */
	/*
	 * Bit N: the same for outgoing frames. A span port has its own bit in these two: its bits
	 * are the directions in which it gets copies.
	 */
	__u16 span_out;
	__u16 admit; /* enum vlan_admit */
	struct storm storm[STORM_KINDS];
	struct limit limit[LIMIT_WAYS];
	__u32 block_time; /* seconds that the loop guard blocks the port, 0 for not at all */
	__u32 endpoint; /* patch port: its number in the namespace, from 1 */
	__u32 peer_endpoint; /* the number of the cable's other end, 0 while there is none */
	__u32 stp_cost; /* 0: by the speed of the device */
	__u32 stp_priority;
	enum stp_choice stp_edge;
	enum stp_choice stp_p2p;
	enum stp_guard stp_guards;
	__u32 backup; /* id of the port that takes over while there is no carrier, 0 for none */
	enum port_note notes;
	enum port_taken taken;
	__u32 host_ifindex; /* host port: the host's end */
	__u32 host_table; /* host port: the table of routes of the host's VRF, 0 for none */
	/*
	 * Host port: its routing domain, which distinguishes states of pf. 0 is the host's; another
	 * host's is the slot, and a VRF's is a number above all slots.
	 */
	__u16 domain;
	__u16 pad;
	/*
	 * The device whose MTU applies to frames that leave through the port: the host's end of a
	 * host port, or else its own; 0 for a berth.
	 */
	__u32 fits_ifindex;
	__u32 pad2;
};

/* The device that occupies a berth, with the facts that a port gets from its device. */
struct berth {
	__u32 id; /* of the port */
	enum port_taken taken;
	__u64 peer;
	char name[PORT_NAME];
};

/*
 * The part of the configuration for which programs are specialised. Its values are constants to the
 * verifier, so a change needs other programs. This and struct settings have everything that is
 * configured for a bridge.
 */
struct config {
	__u64 hash_seed; /* random per bridge: a sender cannot target a bucket */
	enum feature features;
	__u32 layout; /* version of the maps' layout */
	__u32 fdb_buckets; /* home buckets of the FDB */
	enum drop_reason reasons; /* DROP_REASONS */
	enum bridge_flag flags;
	__u16 vlan_proto; /* EtherType of the bridge's own tags: 0x8100 or 0x88a8 */
	__u16 fdb_turn; /* 0 or 1: which half of shared.usage counts the entries of this FDB */
	__u16 pad[2];
	__u32 snaplen; /* bytes of a frame that are captured, at most CAPTURE_BYTES */
	__u32 capture_ring; /* bytes of the ring buffer from the datapath to `bascule capture` */
	__u32 capture_points; /* bit N: frames at the enum capture_point N */
	__u32 sample_rate; /* one of this many frames is sampled, from 1 */
	__u32 sample_drops; /* dropped frames that a CPU reports in a second, 0 for none */
	__u32 ways; /* of routed packets that a CPU remembers, a power of two, less one */
	/* where the kernel has a device's state: see port_has_carrier() */
	__s32 device_at; /* bytes from the value of a device map to the address of the device */
	__u32 device_state; /* bytes from there to its state */
	struct device_places device;
	__u32 pad2;
	struct skb_places skb;
	struct route_places route;
	struct pf_config pf;
};

/*
 * The part of the configuration that programs read while they run. The timer writes its findings at
 * ports' devices, and programs write nothing else here. User space writes it only while no frame is
 * in the programs that it belongs to, so no frame sees half a change.
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
	__u16 span_in; /* as in struct port, for the frames of all ports */
	__u16 span_out;
	__u8 stp_hello; /* seconds, like the next two */
	__u8 stp_max_age;
	__u8 stp_forward_delay;
	__u8 pf_ports; /* enum pf_ports; programs do not use it */
	__u16 port_cells[PORT_TABLE]; /* slot, 0 for none */
	__u32 hurry; /* buckets through which the sweep must still hurry; the timer's, too */
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
	__u64 member[PORT_WORDS]; /* ports on which frames may arrive */
	__u64 reach[PORT_WORDS]; /* ports that frames may go to: members, unless it is private */
	__u64 untagged[PORT_WORDS]; /* ports of reach through which frames leave without a tag */
	__u16 fid; /* VLAN whose addresses it shares: itself, or its primary */
	__u16 span_in; /* as in struct port, for the frames of the VLAN */
	__u16 span_out;
	__u16 unused;
	enum vlan_kind kind;
	__u32 pad;
};

/* An IP address in a VLAN, and the station and port that it is bound to. */
struct binding_key {
	__u16 vlan;
	__u16 type; /* EtherType of the protocol, or BINDING_STATION */
	__u32 address[4]; /* as in a packet; an IPv4 address is only in the last word */
};

/*
 * Instead of a type: the entry is about the station itself. The first two words have its MAC. The
 * third word has the id of a port where the station is bound, or 0: the station is bound somewhere.
 */
#define BINDING_STATION 0
/* The most entries of one binding: its address, its station at the port, its station anywhere. */
#define BINDING_ENTRIES 3

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
 * A MAC rule, as it was configured. Its number is its place in the table of rules; no rule has
 * number 0. Its turn determines when it is tried.
 */
struct rule {
	__u32 port; /* id */
	__u16 blocks; /* 1 if it blocks matching frames, 0 if it passes them */
	__u16 turn; /* the rules of a bridge are tried in the order of their turns, from 1 */
	__u32 tag; /* mark that the rule gives a frame for pf: FNV-1a of its name, 0 for none */
	__u8 text[244]; /* the rule in the form of ifconfig(8), padded with zeros */
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

/* The fields that some rules of a list compare, and the first of these rules. */
struct rule_mask {
	__u16 kind;
	__u16 first; /* turn of that rule, 0 for no mask */
};

#define RULE_PLAIN_MASKS 4 /* masks of a list that only look at source and destination */

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
 * An address, and its port. The key is vlan << 48 | mac, the MAC's first byte lowest. Key 0 marks a
 * free entry, FDB_CLAIMED one that is being filled. The word's port is the port's id and the two
 * flags. Its upper half, `used`, is the second in which the address was last seen. FDB_LOCKED is a
 * bit of `used`: for code that does not test the bit, the entry has aged. So a locked entry opens
 * no port, and no frame is sent by it.
 */
struct fdb_entry {
	__u64 key;
	__u64 word; /* used << 32 | port */
};

#define FDB_STATIC (1u << 31) /* never ages, never moves */
#define FDB_STICKY (1u << 30) /* the same; commands and trace have a different word for it */
#define FDB_PINNED (FDB_STATIC | FDB_STICKY)
#define FDB_LOCKED (1ull << 63) /* seen on a locked port; seconds reach this bit in 68 years */
#define FDB_CLAIMED (~0ull)

struct fdb_bucket {
	struct fdb_entry way[FDB_WAYS];
};

/* Protocols whose frames the switch takes, for the process that runs them next to the switch. */
enum control_protocol {
	PROTOCOL_STP, /* BPDUs */
	CONTROL_PROTOCOLS,
};

/* Counters and shares have room for this many protocols. A new protocol goes behind the others. */
#define CONTROL_ROOM 7
_Static_assert(CONTROL_PROTOCOLS <= CONTROL_ROOM,
	       "raise CONTROL_ROOM, and layout in datapath/config.go");

/*
 * The one place that all CPUs read for each frame. It is rarely written: by the timer eight times a
 * second, by events, and when an address moves or goes.
 */
struct clock {
	__u32 epoch; /* a decision is valid in the epoch in which it was made */
	__u32 now; /* seconds since boot */
	__u32 sweep; /* next bucket in which to look for aged entries */
	__u32 ticks; /* of the timer */
	__u64 events; /* events so far */
	__u64 merged; /* events that were counted in another one, so far */
	__u64 pad[4]; /* the rest is on another cache line than the part that each frame reads */
	__u64 missed[CONTROL_ROOM]; /* frames by protocol that were not handed up, so far */
};

/* The states that spanning tree gives a port. */
enum stp_state {
	STP_FORWARDING, /* all */
	STP_DISCARDING, /* nothing: it sends and receives no frames */
	STP_LEARNING, /* the same, but addresses are learned */
};

#define CONTROL_SHORT 256 /* bytes of a frame that a small record has room for */
#define CONTROL_LONG 1536 /* and in a large one; the rest of a longer frame is left out */

/*
 * How much a port may hand up for a protocol in a second, in units of CONTROL_SHORT. Neighbours
 * send a few frames each. It is less than 256, as 8 bits of port_state.handed count it.
 */
#define CONTROL_SHARE 64

/* An incoming frame of a control protocol. */
struct control_frame {
	__u32 port; /* id */
	enum control_protocol protocol;
	__u32 len; /* bytes of the frame; at most CONTROL_SHORT or CONTROL_LONG are here */
	__u16 tag_type; /* type of the tag that is not in `data`, as in a frame; 0 for none */
	__u16 tag; /* the TCI of that tag */
	__u8 data[CONTROL_LONG];
};

/* The datapath's memory of a port, from one frame to the next. */
struct port_state {
	__u64 stp; /* id << 32 | enum stp_state */
	/* findings of its loop guard */
	__u32 until; /* second until which the port is blocked */
	__u32 told; /* second of the last event; in slot 0, of the bridge's last block */
	__u32 count; /* frames since then */
	/* By protocol: lower bits of a second << 8 | units handed up in it. See CONTROL_SHARE. */
	__u32 handed[CONTROL_ROOM];
};

/* The port's buckets, for its storm limits and its rate: one cache line per port. See bucket.h. */
struct port_buckets {
	__u64 storm[STORM_KINDS];
	__u64 rate[LIMIT_WAYS];
	__u64 pad[8 - STORM_KINDS - LIMIT_WAYS];
};

/*
 * How often an address has returned on a port in a second. In slot 0: the second in which the
 * address was found in a loop. Many addresses share a cell, but a cell counts for one of them at a
 * time. So many addresses that each move once are no loop. In a loop one of the addresses keeps the
 * cell long enough.
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
	__u64 routed; /* frames for a routed host port: ROUTE_DONE; others: struct gateway */
	__u64 drops[DROP_ROOM];
};

/* The result for a frame to a routed host port: the router, and the reason. */
enum route {
	ROUTE_DONE, /* the datapath has routed it */
	ROUTE_OTHER, /* to an address other than the host's end's */
	ROUTE_AWAY, /* the host's end is not in the switch's network namespace */
	ROUTE_TAG, /* it has a tag on its way to the host */
	ROUTE_PROTOCOL, /* not IPv4 or IPv6, or ICMP that the host may need to process */
	ROUTE_HEADER, /* a header with options, or one that is wrong */
	ROUTE_ADDRESS, /* from or to an address that is not a plain station's */
	ROUTE_TTL, /* it must not go further than here */
	ROUTE_LOCAL, /* for the host itself, or without a route */
	ROUTE_OFF, /* the host does not forward packets that arrive here */
	ROUTE_REFUSED, /* by a route: blackhole, unreachable, prohibit */
	ROUTE_TUNNEL, /* the route requires more than a next hop */
	ROUTE_NEIGHBOUR, /* the next hop's MAC is unknown */
	ROUTE_SIZE, /* too large for the way out */
	ROUTE_SOURCE, /* an answer would not go back through this port */
	ROUTE_SAME, /* it leaves as it came, which the host may report to the sender */
	ROUTE_FRESH, /* one a second to a next hop: the host checks whether it still exists */
	ROUTE_TRIP, /* it is a copy of a flood that other patch cables wait for */
	ROUTE_IPSEC, /* the host has IPsec policies, and checks each packet itself */
	ROUTE_TAKEN, /* the host's end belongs to another device: a bridge, a bond */
	ROUTE_CHOICE, /* the host chooses the way by more than its look-up has here */
	ROUTES,
};

#define ROUTE_ROOM 24 /* maximum number of reasons */
_Static_assert(ROUTES <= ROUTE_ROOM, "raise ROUTE_ROOM, and layout in datapath/config.go");

/*
 * An interface of the host at a routed host port: the host's end, or a macvlan above it. It is in a
 * table twice: by the address that its packets have, and by its index, which the host's routes use.
 * The port's counters are in the same table.
 */
struct gateway {
	__u64 mac;
	__u32 endpoint; /* the port's number in the namespace: see patch.h */
	__u32 ifindex; /* by address: the interface's; by index: the port's device's */
	__u32 macvlans; /* there are macvlans at this port */
	__u32 pad;
	__u64 frames[ROUTE_ROOM]; /* counters: by enum route */
};

/* Keys of that table. An index on its own is a key, too. */
#define GATEWAY_MAC(endpoint, mac) ((__u64)(endpoint) << 48 | (mac))
#define GATEWAY_COUNTS(endpoint) (1ull << 63 | (endpoint))

/* The points at which a frame can be captured. */
enum capture_point {
	CAPTURE_IN, /* arrived at a port, and goes on */
	CAPTURE_OUT, /* leaves through it */
	CAPTURE_DROP, /* arrived at it, and goes no further */
	CAPTURE_PORTS, /* not a point; its bit means: only at ports with PORT_CAPTURE */
};

/* The most bytes of a frame that are captured; at least 18, so that the frame has its tag. */
#define CAPTURE_BYTES 16384

/* A captured frame; its first bytes follow, with the tag in its place. */
struct captured {
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u32 port; /* id */
	__u32 len; /* bytes of the frame */
	__u32 kept; /* bytes that follow */
	__u16 vlan; /* VLAN that the frame is in; 0 for none */
	__u8 point; /* enum capture_point */
	__u8 reason; /* enum drop_reason of CAPTURE_DROP */
};

/* The kinds of samples: incoming frames, and dropped ones. */
enum sample_kind {
	SAMPLE_FLOW,
	SAMPLE_DROP,
	SAMPLE_KINDS,
};

#define SAMPLE_BYTES 128 /* bytes of a frame that a sample has at most, as with sFlow's agents */
#define SAMPLE_FLOOD 0xffff /* instead of the slot that a frame leaves through: a flood */

/* A sampled frame, with the tag in its place. */
struct sample {
	__u64 seq; /* number of the sample in its log, from 1; 0 while it is written */
	__u32 port; /* id of the port of arrival */
	__u32 len; /* bytes of the frame */
	__u16 out; /* slot that it leaves through, SAMPLE_FLOOD, or 0 for none */
	__u16 vlan; /* VLAN that the frame is in; 0 for none */
	__u8 kept; /* bytes of the frame that are here */
	__u8 reason; /* enum drop_reason of a frame that goes nowhere; 0: it is for the switch */
	__u8 pad[2];
	__u8 frame[SAMPLE_BYTES];
};

/* The latest samples of a kind. The datapath does not wait for their reader. */
struct sample_log {
	__u64 next; /* number of samples so far */
	__u64 pad[7];
	struct sample cell[SAMPLES];
};

/* Counters of a source address, for finding the busiest. */
struct talker {
	__u64 frames;
	__u64 bytes;
	__u32 port; /* id of the port where it was last seen */
	__u32 heard; /* when: CLOCK_MONOTONIC in units of 2^20 nanoseconds */
};

/* The steps of the decision on a frame, in their order, by the names in `bascule trace`. */
enum step {
	STEP_PORT, /* its port of arrival */
	STEP_FRAME, /* whether it is a whole frame */
	STEP_CHECK, /* whether it may enter, for checks without a step of their own */
	STEP_VLAN,
	STEP_RULES_IN,
	STEP_PF_IN,
	STEP_LEARN, /* its source; the frame has entered */
	STEP_ANSWER, /* the switch itself answers the frame */
	STEP_LOOK_UP, /* its destination */
	STEP_FLOOD,
	STEP_CHECK_OUT, /* whether it may leave, for checks without a step of their own */
	STEP_RULES_OUT,
	STEP_PF_OUT,
	STEP_SEND,
};

/* Results of learning the source. */
enum learned {
	LEARN_NOT_ASKED, /* the frame did not get this far */
	LEARN_OFF, /* the port does not learn */
	LEARN_KNOWN, /* the port has it already */
	LEARN_NEW,
	LEARN_MOVED,
	LEARN_STATIC, /* not moved: the entry is static */
	LEARN_STICKY, /* the same, sticky */
	LEARN_DAMPED, /* the same: it has moved too often this second */
	LEARN_FULL, /* the bridge or the port has no room */
	/* at a locked port, which has not authorized the source */
	LEARN_LOCKED, /* the source has received a locked entry */
	LEARN_LOCKED_AGAIN, /* it has a locked entry already */
	LEARN_LOCKED_AWAY, /* another port has the address */
	LEARN_LOCKED_FULL,
	LEARN_RESULTS,
};

/* Results of looking up the destination. */
enum found {
	FIND_NOT_ASKED, /* the frame did not get this far, or is for a group */
	FIND_NONE,
	FIND_DYNAMIC,
	FIND_STATIC,
	FIND_STICKY,
	FIND_LOCKED, /* an entry that is not used for sending */
	FIND_RESULTS,
};

/* Reasons for a flood to leave out a port, in addition to enum drop_reason. */
enum flood_past {
	PAST_LEARNING = DROP_REASONS, /* spanning tree only lets it learn */
	PAST_ORIGIN, /* the frame has arrived at this port, and the port does not hairpin */
	PAST_FLAG, /* the port takes no floods of this kind */
	PAST_DEVICE, /* the port's device has gone */
	PAST_CARRIER, /* it is down, or has no carrier */
	PAST_END,
};

/* The record of a flood at one port. */
struct traced_port {
	__u16 slot;
	__u16 tag;
	__u16 spans; /* bit N: span port set.spans[N] got a copy */
	__u16 reason; /* 0: the frame goes there; or enum drop_reason, enum flood_past */
};

#define TRACED_MATCHES 4

/* The record of a trial, for `bascule trace`. Fields with names of struct verdict mean the same. */
struct traced {
	enum step step; /* the step that ended the decision */
	__u32 action; /* enum action */
	__u32 reason; /* enum drop_reason, for ACTION_DROP */
	__u32 in;
	__u32 out;
	__u32 flood;
	__u64 src; /* FDB key */
	__u64 dst;
	__u64 word; /* DROP_TAKEN: enum control_protocol; DROP_RESERVED: 1 if sockets get it */
	enum learned learned;
	__u32 learned_from; /* slot of the port that had the source, 0 for none */
	enum found found;
	__u32 behind; /* slot of the port that has the destination; `out` may be its backup */
	__u16 vid;
	__u16 vlan;
	__u16 tag;
	__u16 rule_in;
	__u16 rule_out;
	__u16 spans_in; /* as traced_port.spans, of the frame as it arrived */
	__u16 spans_out; /* of the frame, or of the answer to it, as it left; not of a flood */
	__u16 spans_small; /* span ports that the frame was too large for */
	__u16 pf_in; /* pf's rules, number + 1, 0 for none */
	__u16 pf_out; /* not of a flood */
	__u16 pf_state; /* 1: the packet's connection is known */
	__u16 ports; /* entries of port[], in a flood: all ports that the bridge has */
	__u32 route; /* enum route + 1; 0: not for a routed host port */
	__u32 route_to; /* ROUTE_DONE: index of the host's device that the way leads through */
	__u64 route_dst; /* the frame's addresses there */
	__u64 route_src;
	/* pf's translation of the packet; nat_proto is 0 if there is none */
	__u32 nat_src[4];
	__u32 nat_dst[4];
	__u16 nat_sport; /* or the identifier of an echo; as in the packet */
	__u16 nat_dport;
	__u32 nat_proto;
	/* the next hop that pf gives it, or a copy of it, or the socket; hop_kind is 0 if none */
	__u32 hop[4];
	__u32 hop_kind; /* enum pf_translation_kind */
	__u32 hop_port; /* of a socket that it is diverted to */
	/* match rules that translate it, number + 1, by its direction: in, out; 0 is none */
	__u16 pf_match[2][TRACED_MATCHES];
	struct traced_port port[MAX_PORTS];
};

struct event {
	__u64 seq; /* number of the event, from 1; 0 while it is written */
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u64 key; /* as in the FDB */
	enum event_kind kind;
	__u32 port; /* id */
	__u32 from; /* id of the port that the address was on, 0 for none */
	__u32 count; /* number of occurrences since the last event like it */
};

/*
 * An event that repeats many times a second is reported once a second, with the number of times.
 * Many addresses share a cell. If two addresses fight for a cell, the events of both are reported
 * each time, which is correct, too.
 */
struct told {
	__u64 key; /* key of the event, with its kind in the upper bits */
	__u32 second;
	__u32 count;
};

/*
 * The memory that all CPUs share for a bridge, except for tables whose size is a setting. Each part
 * begins a cache line, so that writing one part does not slow the readers of another.
 */
struct shared {
	struct clock clock;
	__u64 pad;
	struct pf_shared pf;
	__u64 pf_answers; /* time at which the bucket of answers is full again; see storm.h */
	__u64 pad2[5];
	struct told told[EVENT_CELLS];
	/*
	 * Dynamic entries by slot. A new FDB counts in the half that the former FDB does not use.
	 */
	__u32 usage[2][MAX_PORTS];
	struct port_buckets buckets[MAX_PORTS]; /* by slot */
	struct port_state port_states[MAX_PORTS]; /* by slot; in slot 0, for all loop guards */
	struct returns returns[LOOP_CELLS];
	struct event events[EVENT_LOG]; /* the latest events, for any number of monitors */
	struct sample_log samples[SAMPLE_KINDS]; /* the latest samples, by enum sample_kind */
};

/* The work of the clock program: the mark of its frame. */
enum clock_op {
	CLOCK_START, /* set the clock and arm its timer */
	CLOCK_LOOK, /* look at the ports' devices, as the timer does */
};

/* A request to the control program, and its answer. */
enum control_op {
	CONTROL_START = 1, /* of former layouts: the clock program does this */
	CONTROL_STORE, /* make (key, word) an entry */
	CONTROL_DELETE, /* remove the entry of key */
	CONTROL_FLUSH, /* remove the entries that match, and all entries of ports that have left */
	CONTROL_PF_KILL, /* remove the state at a place, if its key is the one of `state` */
	CONTROL_PF_FLUSH, /* remove all states */
	/*
	 * Ends the count of a state with the mark `word` for the node `port`: 0 is the source that
	 * its rule tracks, then enum pf_second_node + 1. Without `place`: remove `source`, if no
	 * state counts for it.
	 */
	CONTROL_PF_UNTRACK,
	CONTROL_PF_STORE, /* insert `state`, if there is none with its key */
	CONTROL_PF_SWEEP, /* remove all states that are over, at once */
	CONTROL_STP, /* give `port` the state `word` */
	CONTROL_FORGET, /* end all decisions that CPUs remember */
	CONTROL_UNBLOCK, /* forget the findings of the loop guard of `port` */
	/*
	 * Add the lower half of `word` to the states of rule `port` (number + 1), the upper half to
	 * its sources; without a rule, to the states and connections of `source`. With `key`, to
	 * the numbers of all states and sources.
	 */
	CONTROL_PF_RECOUNT,
};

struct control {
	enum control_op op;
	__s32 result; /* entries changed, or a negative errno */
	__u64 key; /* STORE, DELETE; PF_RECOUNT */
	__u64 word; /* STORE; STP: enum stp_state; PF_UNTRACK, PF_RECOUNT */
	__u32 port; /* FLUSH: of this port id, 0 for any; STP, UNBLOCK: the port's; as `word` */
	__s32 vlan; /* FLUSH: of this VLAN; -1 for any */
	__u32 dynamic; /* FLUSH: dynamic entries */
	__u32 pinned; /* FLUSH: static and sticky entries; STORE: report a new one */
	__u32 keep; /* FLUSH: dynamic entries to leave (of the port, if there is one) */
	__u32 place; /* PF_KILL; PF_UNTRACK: place + 1 */
	struct pf_state state; /* PF_KILL, PF_STORE */
	struct pf_source_key source; /* PF_UNTRACK, PF_RECOUNT */
};
