/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Types of pf that C and Go share, and the layout of its tables. */
#pragma once

#include <linux/types.h>

/*
 * pf. A rule's number is its place in the order in which rules are tried. The rules of an anchor
 * are tried where the anchor is called.
 *
 * pf does not try each rule on a packet. For each of the packet's fields there is the set of the
 * rules that match the field's value, as a vector of bits. The matching rules are those that all
 * these sets share (Baboescu and Varghese, Scalable Packet Classification, SIGCOMM 2001).
 */
#define PF_RULES 65534 /* at most: a number is kept in 16 bits, + 1 */
#define PF_GROUP 4096 /* rules of a group: 64 words of 64 bits */
#define PF_TABLES 64 /* tables of addresses */
#define PF_PROFILES 256

/* The fields of packets that have sets of rules. */
enum pf_dim {
	PF_DIM_PORT, /* port of the switch, and direction */
	PF_DIM_PROTO, /* family and protocol of the packet */
	PF_DIM_SRC,
	PF_DIM_DST,
	PF_DIM_SPORT,
	PF_DIM_DPORT, /* or type and code of ICMP */
	PF_DIM_FLAGS, /* of TCP */
	PF_DIM_TOS, /* TOS, and whether the packet is a fragment */
	PF_DIMS,
};

/*
 * Cells, each for a value of a field. A cell has the place, in the table of sets, of the set of the
 * rules that match the value. Addresses have no cells: they are looked up in a table of prefixes.
 */
enum pf_cell {
	PF_CELL_PORT = 0, /* + slot * 2 + 1 on the way out: PF_SKIP if pf is inactive there */
	PF_CELL_PROTO = PF_CELL_PORT + 2 * MAX_PORTS, /* + protocol; + 256 for IPv6 */
	PF_CELL_FLAGS = PF_CELL_PROTO + 512, /* + flags, or one of the next two */
	PF_CELL_FLAGS_OTHER = PF_CELL_FLAGS + 256, /* of a packet other than TCP */
	PF_CELL_FLAGS_UNKNOWN, /* of a later fragment whose first is unknown */
	PF_CELL_TOS, /* + TOS; + 256 for a fragment */
	PF_CELL_SPORT = PF_CELL_TOS + 512, /* + port, or one of the next two */
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
 * A set of rules in the table of sets. Each group has a word that marks which of the group's 64
 * words are not zero, and the place of the first of these. The words that are not zero are
 * adjacent.
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

/* The sets of rules that match an address of a network. */
struct pf_network {
	__u32 src;
	__u32 dst;
};

/* Tables that contain an address, by number. */
struct pf_member {
	__u64 match; /* bit N: the address is in table N, by this entry or by a larger network's */
	/*
	 * Bit N: table N lists exactly this address or network. The entry is negated if `match`
	 * does not have the bit.
	 */
	__u64 here;
	/* Bits of the network: the trie may find a larger network than the requested one. */
	__u64 bits;
};

/*
 * The same for an address that is listed individually. Programs that may sleep must not look into
 * the trie, so this has its result.
 */
struct pf_host {
	__u64 match; /* as in struct pf_member, like the next */
	__u64 here;
	__u64 nets; /* bit N: because of a network, the address would be in table N */
};

/* Key of an address that is listed individually; networks are in a trie. */
struct pf_address {
	__u32 word[4];
};

#define PF_TABLE_BATCH 1024 /* addresses that are changed in one go */

/*
 * A change to tables, and its result. Such a change preserves other CPUs' changes at the same
 * moment.
 */
enum pf_table_op {
	PF_TABLE_ADD = 1, /* add the addresses of the batch to the table */
	PF_TABLE_DELETE, /* remove them from it, if they are negated as in the batch */
	/* Addresses of `prefix` that the tables do not list inherit from networks. */
	PF_TABLE_INHERIT,
	PF_TABLE_CLEAR, /* the tables list no address any more; networks are gone already */
};

struct pf_table_request {
	enum pf_table_op op;
	__s32 result; /* addresses listed or no longer listed, or a negative errno */
	__u64 tables; /* bit N: table N */
	__u32 count; /* addresses of the batch */
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
	PF_ANCHOR, /* no rule: a condition for trying the rules up to `end` */
};

enum pf_rule_flag {
	PF_LOG = 1 << 0,
	PF_LOG_ALL = 1 << 1,
	PF_LOG_MATCHES = 1 << 2,
	PF_NOT_TAGGED = 1 << 3, /* tagged is negated */
	PF_NOT_SRC_TABLE = 1 << 4, /* negates src_table, or no-route and urpf-failed */
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
	PF_TRANSLATES = 1 << 21, /* it has translations, which are made at host ports */
	PF_TRANSLATES_ON = 1 << 22, /* and names its ports: at others it must not pass anything */
	PF_TRANSLATES_FAMILY = 1 << 23, /* to the other family */
	PF_ROUTES_ON = 1 << 24, /* it has next hops, and names its ports, like PF_TRANSLATES_ON */
	PF_LIMITED = 1 << 25, /* its profile has limiters */
	PF_STATE_NO_MATCH = 1 << 26, /* it does not match while its state limiter is exhausted */
	PF_SOURCE_NO_MATCH = 1 << 27, /* the same for its source limiter */
};

/* The answers that a blocking rule may give, and one that a state gives. */
enum pf_return {
	PF_RETURN_NOTHING,
	PF_RETURN_RST, /* to TCP */
	PF_RETURN_ICMP, /* to all */
	PF_RETURN_BOTH, /* RST to TCP, ICMP to the rest */
	PF_RETURN_CHALLENGE, /* no rule's: to a SYN within a connection, see track.h */
};

/* Changes that rules make to packets: scrub, set tos. */
enum pf_scrub_flag {
	PF_SCRUB_NO_DF = 1 << 0,
	PF_SCRUB_RANDOM_ID = 1 << 1,
	PF_SCRUB_TOS = 1 << 2, /* tos is set */
	PF_SCRUB_REASSEMBLE = 1 << 3, /* for packets with a TCP state: see reassemble.h */
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
	/*
	 * After this rule has matched, no rule from number `end` on is tried. PF_ANCHOR: if the
	 * condition does not hold, `end` is tried next.
	 */
	__u32 end;
	__u32 probability; /* of 2^32; 0: always */
	__u32 tag; /* FNV-1a of its name, 0 for none; the same for tagged. PF_TAG_MASK is not 0 */
	__u32 tagged;
	__u32 max; /* states, 0 for no limit */
	__u32 max_src_nodes;
	__u32 max_src_states;
	__u32 max_src_conn;
	__u32 max_src_rate; /* connections in max_src_secs seconds */
	__u32 max_src_secs;
	__u16 nr; /* pfctl's number for it, in its own ruleset; for the log */
	__u16 anchor; /* place of the ruleset's name among the log's names */
	__u16 received; /* set of ports, 0 for none */
	__u8 src_table; /* number + 1, 0 for none */
	__u8 dst_table;
	__u8 overload;
	__u8 profile; /* profile of the states that it makes */
	__u8 priority; /* priority that it matches, + 1; 0 for any */
	__u8 answer; /* enum pf_return */
	__u8 ttl; /* of RST, 0 for the default */
	__u8 log_to; /* pflogN */
	__u8 icmp4[2]; /* type and code of the answer */
	__u8 icmp6[2];
	struct pf_scrub scrub;
	__u32 translation; /* place of its first struct pf_translation in the table of sets */
	__u32 translations; /* their number: they are adjacent */
	__u32 route; /* place of the first one with its next hops */
	__u32 routes; /* their number: one for each family, 0 for none */
	/*
	 * The rules of an anchor have numbers wherever the anchor is called. The use of a rule is
	 * counted at the first of its numbers, which this is.
	 */
	__u32 first;
};

/* The part that a translation changes, in the order of pf.TranslationKind. */
enum pf_translation_kind {
	PF_NAT_TO, /* the source */
	PF_RDR_TO, /* the destination */
	PF_AF_TO, /* the source, to the other family; it comes behind PF_AF_TO_DST */
	PF_AF_TO_DST, /* the destination, likewise; `low` is the new port, 0 if it stays */
	/* nothing, but the pool has next hops: in the order of pf.RouteKind */
	PF_ROUTE_TO, /* of packets in the direction of the connection's first packet */
	PF_REPLY_TO, /* of the answers */
	PF_DUP_TO, /* of copies of both */
	/* nothing, but the host's sockets get packets: in the order of pf.DivertKind */
	PF_DIVERT_TO, /* packets in the first one's direction; the pool and `low` have the socket */
	PF_DIVERT_REPLY, /* the answers */
};

/* How a pool chooses an address, in the order of pf.PoolMethod. */
enum pf_pool_method {
	PF_POOL_SINGLE,
	PF_POOL_BITMASK,
	PF_POOL_RANDOM,
	PF_POOL_SOURCE_HASH,
	PF_POOL_ROUND_ROBIN,
	PF_POOL_LEAST_STATES,
};

/*
 * A translation of a rule for packets of one family. It is in the table of sets, followed by the
 * networks of its pool (struct pf_pool_network).
 */
struct pf_translation {
	__u8 kind; /* enum pf_translation_kind */
	__u8 method; /* enum pf_pool_method */
	__u8 family; /* 4 or 6 */
	__u8 flags; /* enum pf_translation_flag */
	__u32 networks;
	__u64 length; /* addresses of all networks */
	/* ports, as in pf.Translation; both 0: the port stays */
	__u16 low;
	__u16 high;
	__u16 first;
	__u16 embed; /* bits in front of an IPv4 address in an IPv6 address, 0 for none */
	__u64 key[2]; /* of PF_POOL_SOURCE_HASH */
	__u64 turn; /* number of turns that the pool has taken; only this changes */
};

enum pf_translation_flag {
	PF_TRANSLATION_STATIC = 1 << 0, /* the source port stays */
	PF_TRANSLATION_KEYLESS = 1 << 1, /* the rule has no key: the bridge's secrets are one */
	PF_TRANSLATION_STICKY = 1 << 2, /* a source gets the address again that it has */
	PF_TRANSLATION_ENDPOINT = 1 << 3, /* one mapping of a UDP port, wherever its packets go */
	/* how to make an address of the other family, if not by the pool's method (RFC 6052) */
	PF_TRANSLATION_EMBED = 1 << 4, /* the old one is embedded behind the pool's network */
	PF_TRANSLATION_EXTRACT = 1 << 5, /* it is extracted from the old one */
	PF_TRANSLATION_MIX =
		1 << 6, /* of the pool's network, the rest from the old one's last bits */
};

struct pf_pool_network {
	__u32 address[4];
	__u64 begin; /* number of addresses in the networks before */
	__u32 bits; /* of the mask, of 128 */
	__u32 weight; /* how often each address counts */
};

/* Counters of a rule. Existing states have their own counters. */
struct pf_rule_stats {
	__u64 evaluations; /* packets that it was found to match */
	__u64 packets[2]; /* in, out */
	__u64 bytes[2]; /* of IP packets */
	__u64 states; /* made */
};

/*
 * Counters of pf at the port of `set loginterface`: by the packet's family (IPv4, IPv6), its
 * direction (in, out), and its fate (passed, blocked).
 */
struct pf_port_stats {
	__u64 packets[2][2][2];
	__u64 bytes[2][2][2];
};

/* Counters of a rule that all CPUs share, at the first of its numbers. */
struct pf_rule_use {
	__u32 states;
	__u32 spent; /* 1: a rule with `once` has had its packet */
	__u32 nodes; /* sources that it tracks */
	__u32 pad;
};

/* Lifetimes of states, in seconds, in the order of pf.conf(5). */
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

/* Settings that a state keeps from the rule that made it: the rule may be gone. */
struct pf_profile {
	__u32 timeout[PF_TIMEOUTS];
	__u8 priority[2]; /* set prio, + 1: for packets, and for those that should be quick */
	__u8 limiter[2]; /* ids of the state limiter and of the source limiter; 0 for none */
	__u8 bits[2]; /* of an address that make a source: for IPv4, in IPv6 form, and IPv6 */
	__u16 keeps; /* seconds for which a source without states stays */
	__u32 mask[2][4]; /* the same bits, in the order of a packet */
};

/*
 * A limiter, among the words of sets. cfg.pf.limiters is the place of PF_LIMITER_IDS words for
 * state limiters, by their ids, followed by as many for source limiters. Each has the place of the
 * limiter, counted from there, or 0.
 */
struct pf_limiter {
	__u32 limit; /* states */
	__u32 entries; /* sources */
	__u64 token; /* nanoseconds from one state to the next, in the long run; 0 for any */
	__u64 bucket; /* nanoseconds whose tokens may be taken at once */
	/*
	 * A source that has more states than `above` enters the table, by its number + 1. It leaves
	 * the table when it has fewer than the number from PF_LIMITER_BELOW on.
	 */
	__u32 above;
	__u32 table;
};

#define PF_LIMITER_BELOW 8 /* bits of pf_limiter.table in front of that number */

#define PF_LIMITER_IDS 256

/*
 * Packets of one connection have the same key in both directions. The lower address is first; if
 * the addresses are equal, the one with the lower port. IPv4 is mapped, as ::ffff:0:0/96.
 */
struct pf_key {
	__u32 address[2][4];
	__u16 port[2]; /* TCP, UDP: ports; ICMP queries: identifier, kind; ND: 0, kind; others: 0 */
	__u16 vlan; /* VLAN in which addresses are looked up, or with PF_ROUTED a routing domain */
	__u8 proto;
	__u8 profile; /* of a state; not part of the key, and zero in a packet's */
};

/*
 * Packets to and from the host belong to the host's routing, whatever VLAN they are in: a packet
 * that enters the host through one port may be answered through another. Instead of the VLAN, their
 * key has this bit and the routing domain of the host port (port.domain).
 *
 * The host sees a packet that it routes twice, on its way in and out, and each time it is another
 * connection. PF_OUTWARD distinguishes the two: the first side sends its packets out of the host,
 * and the other side into it. Without the bit it is the other way round.
 */
#define PF_ROUTED 0x8000
#define PF_OUTWARD 0x4000

/* One side of a connection. For protocols other than TCP it only has the state. */
struct pf_peer {
	__u32 lo; /* highest sequence number sent */
	__u32 hi; /* highest that the other side lets this one send */
	__u16 max_win;
	__u8 scale; /* window scale, with PF_SCALE_KNOWN */
	__u8 state; /* enum pf_tcp_state; for others enum pf_other_state */
};

enum pf_tcp_state { /* RFC 9293, 3.3.2; with the names that pfctl prints */
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
		    PF_PROXY_DST, /* the switch then makes it with the other side */
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
	PF_STATE_LOG = 1 << 3, /* every packet is logged */
	PF_STATE_OPTIONS = 1 << 4, /* IP options are allowed */
	PF_STATE_TRACK_RULE = 1 << 5, /* it counts for its source */
	PF_STATE_TRACK_GLOBAL = 1 << 6,
	PF_STATE_CONNECTED = 1 << 7, /* it counts as a connection, too */
	PF_STATE_REWRITE = 1 << 8, /* diff is used */
	PF_STATE_OUT = 1 << 9, /* made by a rule on the way out; rule_in kept no state */
	PF_STATE_TRACK_OUT = 1 << 10, /* rule_out tracks its source */
	PF_STATE_PRIO = 1 << 11, /* its profile sets a priority */
	PF_STATE_SCRUB = 1 << 12, /* its packets are changed */
	PF_STATE_NAT = 1 << 13, /* it has a second key, and its packets are translated */
	PF_STATE_KEY = 1 << 14, /* no state: the second key of one */
	PF_STATE_HOP = 1 << 15, /* packets of it have a next hop of their own, or are diverted */
};

/*
 * A state counts packets in the lower bits: no connection sends so many packets. A state has no
 * room left. So the bits above have the changes to its packets. Above the first side's count are
 * max_mss and two flags. Above the other side's count are min_ttl, tos, whether tos is set, and
 * whether `reassemble tcp` is.
 */
#define PF_SENT_BITS 46
#define PF_SENT_MASK ((1ull << PF_SENT_BITS) - 1)

/*
 * It counts their bytes in the lower bits, too. The bits above have the tag of the connection's
 * packets: the lower half is above the first side's count. So tags are distinguished by as many
 * bits.
 */
#define PF_BYTES_BITS 54
#define PF_BYTES_MASK ((1ull << PF_BYTES_BITS) - 1)
#define PF_TAG_HALF (64 - PF_BYTES_BITS)
#define PF_TAG_MASK ((1u << 2 * PF_TAG_HALF) - 1)

struct pf_state {
	struct pf_key key;
	struct pf_peer peer[2]; /* of the key's sides */
	__u64 packets[2]; /* sent by the key's sides: the lower PF_SENT_BITS */
	__u64 bytes[2]; /* of their IP packets: the lower PF_BYTES_BITS */
	__u32 created; /* seconds since boot */
	__u32 used;
	__u32 in; /* id of the port on which the first packet arrived */
	__u32 out; /* id of the port through which it left; 0 while unknown */
	__u16 rule_in; /* number + 1, 0 for none */
	__u16 rule_out;
	__u16 ruleset; /* ruleset that these numbers belong to */
	__u16 flags; /* enum pf_state_flag */
	__u32 diff[2]; /* added to the sequence numbers that the sides send; see PF_STATE_NAT */
};

/*
 * A translated connection has two keys, as in OpenBSD's pf. The wire key has the addresses of its
 * packets outside the host; the stack key has the addresses that the host's stack sees. Packets
 * into the host are looked up by the wire key, packets out of the host by the stack key.
 *
 * The state has the wire key. The stack key has its own place (PF_STATE_KEY), in which only the key
 * and the flags mean anything. Each has the other's place + 1 in PF_STATE_OTHER(). So `modulate
 * state` cannot change the numbers of such a connection. The sides of the two keys may be in a
 * different order: each key's PF_STATE_SECOND shows it.
 */
#define PF_STATE_OTHER(state) ((state)->diff[0])

/*
 * A state with a next hop has a second place, too. If it is not translated, that place has no
 * second key: its mark stays PF_MARK_CLAIMED, and it can only be found through the state.
 */
#define PF_STATE_TWO (PF_STATE_NAT | PF_STATE_HOP)

/*
 * The place of a second key: data that a state has no room for. It has the size of a state, and
 * `flags` and `other` where a state has `flags` and `diff[0]`.
 */
struct pf_second {
	struct pf_key key;
	__u16 sticky[3]; /* by enum pf_pool_use: number + 1 of the rule with sticky-address */
	__u16 ruleset; /* that these numbers belong to */
	__u16 nodes; /* bit N: enum pf_second_node N counts the state */
	__u8 kind; /* enum pf_translation_kind of the next hop, with PF_STATE_HOP */
	__u8 pad4;
	__u32 hop[4]; /* that next hop, or the socket's address */
	__u16 hop_port; /* the socket's port */
	__u16 pad5;
	__u64 unused[5];
	__u32 pad;
	__u16 pad2;
	__u16 flags;
	__u32 other;
	__u32 pad3;
};

/*
 * The data of `scrub (reassemble tcp)` about a side of a connection (struct pf_state_scrub of
 * OpenBSD). Timestamps are as the side itself has them (RFC 7323, 3).
 */
struct pf_stamps {
	__u64 last; /* time of its last timestamp: CLOCK_MONOTONIC, nanoseconds */
	__u32 first; /* the lowest among its first packets */
	__u32 value; /* the highest that it has sent */
	__u32 echo; /* the highest of the other side's that it has echoed */
	__u32 offset; /* added to the timestamps that it sends */
	__u32 of; /* `created` of the state that they belong to, + 1; 0 for none */
	__u8 ttl; /* the highest that it has sent */
	__u8 flags; /* enum pf_stamps_flag */
	__u16 pad;
};

enum pf_stamps_flag {
	PF_STAMPS_ON = 1 << 0, /* its SYN had timestamps */
	PF_STAMPS_CHECKED = 1 << 1, /* it has echoed the other side's: they can be compared */
	PF_STAMPS_IDLED = 1 << 2, /* its clock may have wrapped around since */
	PF_STAMPS_DATA = 1 << 3, /* its first data had them, so all data has */
	PF_STAMPS_NO_DATA = 1 << 4, /* its first data had none */
	/* only PF_STAMPS_ON of these: it has sent no data yet */
	PF_STAMPS_BEGIN = PF_STAMPS_ON | PF_STAMPS_DATA | PF_STAMPS_NO_DATA,
};

/* The same for both sides, in the order of the key, at their state's place. */
struct pf_reassembly {
	struct pf_stamps side[2];
};

/* The use of a pool's address. */
enum pf_pool_use {
	PF_POOL_NAT, /* the source */
	PF_POOL_RDR, /* the destination */
	PF_POOL_HOP, /* the next hop */
};

/* The nodes that also count a state with a second place, by enum pf_source_kind. */
enum pf_second_node {
	PF_SECOND_NAT, /* the source, with sticky-address; by enum pf_pool_use */
	PF_SECOND_RDR,
	PF_SECOND_HOP,
	PF_SECOND_LEAST_NAT, /* the address assigned to it, with least-states; likewise */
	PF_SECOND_LEAST_RDR,
	PF_SECOND_LEAST_HOP,
	PF_SECOND_MAP, /* the mapping of its UDP port, there and back */
	PF_SECOND_MAPPED,
	PF_SECOND_NODES,
};

#define PF_WAYS 16 /* states of a bucket: one cache line of marks */

/*
 * Marks of states. A state has the same place in the table of states as its mark has here. A mark
 * is a part of the key's hash, with PF_MARK_STATE. It is PF_MARK_CLAIMED while a state is being
 * filled in. It has PF_MARK_UNSURE instead of PF_MARK_STATE while the CPU that makes the state
 * looks for others with the same key. When a state has gone, it is PF_MARK_GONE with the second of
 * the removal: another CPU may still look at the state for a moment.
 */
struct pf_bucket {
	__u32 mark[PF_WAYS];
};

#define PF_MARK_STATE 0x80000000u /* set in marks of states */
#define PF_MARK_GONE 0x40000000u
#define PF_MARK_CLAIMED 1u
#define PF_MARK_UNSURE 2u /* with bits of the hash: neither a state, gone, claimed, nor free */
#define PF_MARK_SECOND 0x3fffffffu /* the second in a PF_MARK_GONE */

/*
 * Objects that count states: a source that a rule tracks, or that has an address of a pool (pf's
 * source nodes); and further data that pools must remember while there are states.
 */
struct pf_source_key {
	__u32 address[4];
	__u16 vlan;
	/*
	 * Number + 1 of the rule that tracks the source, or that has the pool; 0 for all rules
	 * together. For a mapping it is a port.
	 */
	__u16 rule;
	__u16 ruleset; /* ruleset of the rule; 0 if `rule` is none */
	__u16 kind; /* enum pf_source_kind */
};

enum pf_source_kind {
	PF_SOURCE_TRACKED,
	PF_SOURCE_NAT, /* sticky-address: `address` has the pool's address for the source */
	PF_SOURCE_RDR, /* the same for rdr-to */
	PF_SOURCE_HOP, /* for route-to and its kin */
	/* these count for no limit */
	PF_SOURCE_LEAST, /* no source, but an address that least-states has assigned */
	PF_SOURCE_MAP, /* an address and port: their endpoint-independent mapping */
	PF_SOURCE_MAPPED, /* a mapped address and port, which has no other owner: its owner */
	/* see struct pf_limited; `rule` is the limiter's id */
	PF_SOURCE_STATE_LIMITER,
	PF_SOURCE_SOURCE_LIMITER,
	PF_SOURCE_LIMITED, /* a source of a limiter; `ruleset` is its prefix length */
};

struct pf_source {
	__u32 states; /* or PF_SOURCE_GOING, while the source is being removed */
	__u32 connections;
	__u32 created; /* seconds since boot */
	__u32 expires; /* second when it goes, while it has no states */
	__u32 rate; /* connections * 1000 in the time of max-src-conn-rate, as pf counts them */
	__u32 last; /* second of the last connection */
	__u32 address[4]; /* assigned to it */
	__u32 port;
	__u32 pad;
};

#define PF_SOURCE_GOING 0x80000000u

/*
 * The counts of a limiter, or of one of its sources, instead of a struct pf_source. It exists from
 * the first state on.
 */
struct pf_limited {
	__u32 states; /* as in struct pf_source */
	__u32 sources; /* for a source: its table's number + 1, and PF_LIMITED_LISTED */
	__u32 full; /* times that a source limiter had no room for one more source */
	__u32 expires; /* as in struct pf_source */
	__u64 spent; /* the tokens before this moment are spent: nanoseconds, CLOCK_MONOTONIC */
	__u64 admitted; /* states that it has allowed */
	__u64 hard; /* states that it has refused, since there were too many */
	__u64 rate; /* or since they came too fast */
};

/* A fragmented packet, and the data that only its first fragment has. */
struct pf_fragment_key {
	__u32 address[2][4]; /* source, destination */
	__u32 id;
	__u16 vlan;
	__u8 proto; /* protocol of IPv4 (RFC 791); an IPv6 id serves all (RFC 8200, 4.5) */
	__u8 family;
};

struct pf_fragment {
	__u16 port[2]; /* source, destination; for ICMP queries: identifier, kind */
	__u16 icmp; /* type << 8 | code */
	__u8 flags; /* of TCP */
	__u8 proto; /* protocol behind extension headers */
	__u32 until; /* second */
};

/* The counters of `-s info`. */
enum pf_counter {
	PF_COUNT_SEARCHES, /* packets looked up among states, without those that states count */
	PF_COUNT_INSERTS,
	PF_COUNT_REMOVALS,
	PF_COUNT_MATCH, /* packets judged by rules: on arrival, and at each port where they leave */
	PF_COUNT_BAD_OFFSET,
	PF_COUNT_FRAGMENT,
	PF_COUNT_SHORT,
	PF_COUNT_NORMALIZE,
	PF_COUNT_MEMORY,
	PF_COUNT_TIMESTAMP,
	PF_COUNT_IP_OPTION,
	PF_COUNT_PROTO_CKSUM,
	PF_COUNT_STATE_MISMATCH,
	PF_COUNT_STATE_INSERT,
	PF_COUNT_STATE_LIMIT,
	PF_COUNT_SRC_LIMIT,
	PF_COUNT_SYNPROXY,
	PF_COUNT_TRANSLATE,
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
	/* in the places of counters for which nothing is dropped */
	PF_COUNT_NO_ROUTE = PF_COUNT_BAD_OFFSET, /* packets that cannot go to their next hop */
	PF_COUNT_DIVERT = PF_COUNT_PROTO_CKSUM, /* packets that no socket takes */
};

/* Numbers that all CPUs share. They are written when states are made and removed. */
struct pf_shared {
	__u32 states;
	__u32 nodes;
	__u32 sweep; /* next bucket in which to look for states that are over */
	__u32 flush; /* second until which the sweep looks for states of pf_flushes */
};

#define PF_LOG_BYTES 160 /* bytes of a packet in the log; pflog has 116, with less in front */

/* A packet in the log, for pflog(4). */
struct pf_logged {
	__u64 time; /* CLOCK_MONOTONIC, nanoseconds */
	__u32 port; /* id */
	__u32 len; /* of the IP packet */
	__u32 kept; /* bytes of data */
	__u16 rule; /* number + 1, 0 for the default */
	__u16 ruleset; /* ruleset in which the rule has this number */
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

/* The configuration of pf, apart from its tables. */
struct pf_config {
	__u64 secret[5]; /* odd and random: a sender cannot target a bucket of states */
	__u32 rules; /* number of rules */
	__u32 groups; /* groups of PF_GROUP rules */
	__u32 dims; /* bit N: some rule looks at enum pf_dim N */
	__u32 ether_rules;
	__u32 states_max;
	__u32 buckets; /* of the table of states */
	__u32 nodes_max; /* limit of tracked sources */
	__u32 adaptive_start; /* states from which timeouts shrink */
	__u32 adaptive_end; /* states at which timeouts would reach 0 */
	__u32 log_interface; /* id of the port of `set loginterface`, 0 for none */
	__u16 ruleset; /* number of this ruleset; a state has the number of its rules' set */
	__u16 asks; /* enum pf_ask */
	__u64 features; /* enum feature that pf needs */
	__u32 table_entries; /* entries of all tables of addresses together */
	__u32 since; /* second in which pf was enabled or disabled */
	__u32 fragments_max; /* packets whose first fragment is remembered */
	__u32 fragment_time; /* seconds */
	__u32 limiters; /* place of the limiters among the words of sets, 0 if there are none */
	__u32 limited; /* limit of limiters and their sources */
};

/* Conditions that some rule of the ruleset has, in addition to the features. */
enum pf_ask {
	PF_ASK_ROUTE = 1 << 0, /* no-route, urpf-failed */
	PF_ASK_PRIORITY = 1 << 1, /* prio, set prio */
	PF_ASK_TAG = 1 << 2, /* tag, tagged */
	PF_ASK_RANDOM = 1 << 3, /* probability */
	PF_ASK_ONCE = 1 << 4,
	PF_ASK_RECEIVED = 1 << 5, /* received-on */
	PF_ASK_ETHER_L3 = 1 << 6, /* an ether rule looks at IP addresses */
	PF_ASK_POOLS = 1 << 7, /* a pool must remember: sticky-address and similar */
	PF_ASK_LOOPBACK = 1 << 8, /* a rule redirects to 127/8: see pf_looped() */
};
