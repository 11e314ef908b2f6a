/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * VLANs: the VLAN of a frame, the ports of a VLAN, and the tag with which a frame leaves (802.1Q
 * clauses 6.9 and 8.6).
 */
#pragma once

#include "verdict.h"

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum vlan_admit *vlan_admit_type __attribute__((unused));

static __always_inline bool ports_have(const u64 *set, u32 slot)
{
	return set[SLOT(slot) / 64] >> (slot % 64) & 1;
}

static __always_inline struct vlan *vlan_row(u32 vid)
{
	return bpf_map_lookup_elem(&vlans, &vid);
}

static __always_inline bool vlan_reaches(u32 vid, u32 slot)
{
	struct vlan *row = vlan_row(vid);

	return row && ports_have(row->reach, slot);
}

/* The VLAN of the frame's tag, or else the port's: 0 for none. */
static __always_inline u32 frame_vlan(const struct frame *f, const volatile struct port *in)
{
	u32 vid = f->outer & VID_MASK;

	return vid ? vid : in->pvid; /* a tag may only have a priority, and no VLAN */
}

/*
 * Does the port take frames with such a tag, or with none? A tag with only a priority counts as
 * none.
 */
static __always_inline bool vlan_admits(const volatile struct port *in, bool tagged)
{
	return in->admit == ADMIT_ALL || (in->admit == ADMIT_TAGGED) == tagged;
}

/* Finds the VLAN of an incoming frame. Returns 0 or the reason to drop it. */
static __always_inline u32 vlan_in(const struct frame *f, struct verdict *v,
				   const volatile struct port *in)
{
	u32 vid = frame_vlan(f, in);
	struct vlan *row;

	if (on(FEATURE_ADMIT) && !vlan_admits(in, f->outer & VID_MASK))
		return DROP_ADMIT;
	/* a tag other than the bridge's own, behind the bridge's or instead of it */
	if ((f->label & LABEL_DOUBLE) && !(cfg.flags & BRIDGE_QINQ) &&
	    cfg.vlan_proto == ETHERTYPE_VLAN)
		return f->outer ? DROP_DOUBLE_TAG : DROP_OTHER_TAG;
	if (!vid)
		return DROP_UNTAGGED;
	row = vlan_row(vid);
	if (!row || !ports_have(row->member, v->in))
		return DROP_VLAN;
	v->vid = vid; /* only now: a frame that is not let in does not count in the VLAN */
	v->vlan = row->fid;
	return 0;
}

/*
 * The tag with which to leave through a port: TAG_OUT and the VLAN, or 0 for none. A frame of a
 * private VLAN leaves in the primary VLAN through a port that is only a member of the primary.
 */
#define TAG_OUT (1 << 12)

static __always_inline u16 vlan_tag(const struct verdict *v, u32 slot)
{
	struct vlan *row = on(FEATURE_VLANS) ? vlan_row(v->vid) : 0;

	if (!row || ports_have(row->untagged, slot))
		return 0;
	return TAG_OUT | (ports_have(row->member, slot) ? v->vid : v->vlan);
}

/* A tag from vlan_tag(), with the frame's priority on arrival: TAG_PRESENT | TCI, 0 for none. */
static __always_inline u32 tag_with_priority(const struct frame *f, u16 tag)
{
	return tag ? TAG_PRESENT | (f->outer & TAG_PRIORITY) | (tag & VID_MASK) : 0;
}

/* Gives an skb another tag. Returns false if there is no memory for it. */
__noinline int skb_retag(struct __sk_buff *skb, u32 has, u32 wants)
{
	if (has == wants)
		return true;
	if (has && bpf_skb_vlan_pop(skb))
		return false;
	return !wants || !bpf_skb_vlan_push(skb, bpf_htons(cfg.vlan_proto), wants & 0xffff);
}

struct addresses {
	u32 word[3]; /* destination and source */
};

/* The same without an skb. Returns false if there is no room; nothing has changed then. */
static __always_inline bool xdp_retag(struct xdp_md *xdp, u32 has, u32 wants)
{
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	struct addresses addresses;

	if (has == wants)
		return true;
	if (data + ETHER_HEADER + ETHER_TAG > data_end)
		return false;
	addresses = *(struct addresses *)data;
	if (!has || !wants) {
		if (bpf_xdp_adjust_head(xdp, has ? ETHER_TAG : -ETHER_TAG))
			return false;
		data = (void *)(long)xdp->data;
		data_end = (void *)(long)xdp->data_end;
		if (data + ETHER_HEADER + (wants ? ETHER_TAG : 0) > data_end)
			return false;
		*(struct addresses *)data = addresses;
	}
	if (wants) {
		*(u16 *)(data + 12) = bpf_htons(cfg.vlan_proto);
		*(u16 *)(data + 14) = bpf_htons(wants & 0xffff);
	}
	return true;
}

static __always_inline void vlan_count(u32 vid, u32 len, bool rx)
{
	struct vlan_stats *s = bpf_map_lookup_elem(&vlan_stats, &vid);

	if (!s)
		return;
	if (rx) {
		s->rx_frames++;
		s->rx_bytes += len;
	} else {
		s->tx_frames++;
		s->tx_bytes += len;
	}
}
