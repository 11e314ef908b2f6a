/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The way up: frames of control protocols go to the process that runs these protocols next to the
 * switch. XDP leaves such frames to tcx, like all frames that are not forwarded.
 */
#pragma once

#include "verdict.h"

/* Puts the types into BTF for Go: BTF only has types that are used. */
const struct control_frame *control_frame_type __attribute__((unused));
const enum control_protocol *control_protocol_type __attribute__((unused));

static __always_inline struct port_state *port_state_in(struct shared *s, u32 slot)
{
	return &s->port_states[slot & (MAX_PORTS - 1)];
}

/*
 * May sockets of the host receive a frame to a reserved address that goes no further? They are
 * sockets that programs open at the port's device (packet(7)): hostapd, wpa_supplicant, lldpd. The
 * kernel delivers a frame to every handler of its type, so these are only types that no part of the
 * host's stack takes. A frame of a VLAN could reach a device of that VLAN, whether its tag is
 * 802.1Q's or 802.1ad's: the kernel has removed either, and the bridge's label only knows one of
 * them. A station's IP packet must not reach the host, whatever the frame's address is.
 */
static __always_inline bool sockets_may_have(struct __sk_buff *skb, const struct frame *f)
{
	u32 type = skb->protocol;

	return (type == bpf_htons(ETH_P_PAE) || type == bpf_htons(ETH_P_LLDP) ||
		type == bpf_htons(ETH_P_SLOW) || type == bpf_htons(ETH_P_1588)) &&
	       !((f->label | skb->vlan_tci) & VID_MASK) && mac_is_source(f->src);
}

/* Frames of all protocols, on their way to one reader. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} control_frames SEC(".maps");

/*
 * Would the frame exceed the port's share of the protocol in this second? A sender without end must
 * not take the room that frames of other ports need, nor may one protocol take the room of another.
 * CPUs that count at the same moment let a few more frames through.
 */
static __always_inline bool control_exceeds(struct shared *s, u32 slot, u32 protocol, u32 units)
{
	struct port_state *p = port_state_in(s, slot);
	u32 now, was;

	now = READ_ONCE(s->clock.now) << 8;
	was = READ_ONCE(p->handed[protocol]);
	if ((was & ~0xffu) != now)
		was = now;
	if ((was & 0xff) + units > CONTROL_SHARE)
		return true;
	WRITE_ONCE(p->handed[protocol], was + units);
	return false;
}

/*
 * Puts a frame into the ring, in a record with `room` bytes for it. Returns false if the ring has
 * no room for the record.
 */
static __always_inline bool control_put(struct __sk_buff *skb, u32 slot, u32 protocol, u32 room)
{
	u32 kept = skb->len < room ? skb->len : room;
	struct control_frame *f;

	f = bpf_ringbuf_reserve(&control_frames, offsetof(struct control_frame, data) + room, 0);
	if (!f)
		return false;
	f->port = port_at(slot)->id;
	f->protocol = protocol;
	f->len = skb->len;
	f->tag_type = skb->vlan_present ? skb->vlan_proto : 0;
	f->tag = skb->vlan_present ? skb->vlan_tci : 0;
	if (!frame_load(skb, 0, f->data, kept, room)) {
		bpf_ringbuf_discard(f, 0);
		return false;
	}
	if (on(FEATURE_TRACE))
		bpf_ringbuf_discard(f, 0);
	else
		bpf_ringbuf_submit(f, 0);
	return true;
}

/*
 * Hands a frame up to the process that runs the protocol. Returns false if there was no room, which
 * is counted. The frame stays here: its protocol decides whether it goes on.
 */
__noinline int control_take(struct __sk_buff *skb, u32 slot, u32 protocol)
{
	struct shared *s = shared_get();
	bool done;

	if (!on(FEATURE_CONTROL)) /* Linux before 6.8 verifies functions that are never called */
		return false;
	if (!s || protocol >= CONTROL_PROTOCOLS)
		return false;
	if (skb->len <= CONTROL_SHORT)
		done = !control_exceeds(s, slot, protocol, 1) &&
		       control_put(skb, slot, protocol, CONTROL_SHORT);
	else
		done = !control_exceeds(s, slot, protocol, CONTROL_LONG / CONTROL_SHORT) &&
		       control_put(skb, slot, protocol, CONTROL_LONG);
	if (!done)
		__sync_fetch_and_add(&s->clock.missed[protocol], 1);
	return done;
}
