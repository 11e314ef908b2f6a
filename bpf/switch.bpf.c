// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The switch: one pipeline (pipeline.h), two hooks. The tcx program does
 * everything, for every kind of port, and keeps GSO packets whole. The XDP
 * program takes what it can send without an skb and declines the rest, which
 * the kernel then hands to the tcx program of the same port.
 */
#include "control.h"
#include "decision.h"
#include "flood.h"

static __always_inline int drop_skb(const struct frame *f, u32 in, u32 reason)
{
	count_rx(in, f->len);
	count_drop(in, reason);
	return TC_ACT_SHOT;
}

static __always_inline int send_skb(const struct frame *f, u32 in, u32 out)
{
	const volatile struct port *p = port_at(out);

	count_rx(in, f->len);
	count_tx(out, f->len);
	/*
	 * straight to the receiver, without a queue between; not what is for
	 * another behind it, because its stack would take the frame for its own
	 */
	if ((cfg.features & FEATURE_PEER) && f->dst == p->peer)
		return bpf_redirect_peer(p->ifindex, 0);
	return bpf_redirect(p->ifindex, 0);
}

SEC("tcx/ingress")
int bascule_tcx(struct __sk_buff *skb)
{
	struct clock *c = clock_get();
	struct verdict v = {};
	struct decision *d;
	struct frame f;
	u32 epoch, reason = 0, mtu = 0;

	if (!frame_of_skb(&f, skb)) {
		v.in = port_slot(f.ifindex);
		return v.in ? drop_skb(&f, v.in, DROP_MALFORMED) : TC_ACT_UNSPEC;
	}
	d = decision_cell(&f);
	if (!c || !d)
		return TC_ACT_SHOT;
	/* read before all else: what changes from here on ends the decision */
	epoch = READ_ONCE(c->epoch);
	/* an old decision must not send to a new device of the same index */
	if (decision_holds(d, &f, epoch) && port_has_device(&tcx_devices, d->out)) {
		u32 segment = f.len - f.tag > d->fits ? frame_segment(&f, skb) : f.len - f.tag;

		if (!segment || segment > d->fits)
			reason = skb_fits(skb, port_at(d->out)->ifindex, f.tag, &mtu);
		return reason ? drop_skb(&f, d->in, reason) : send_skb(&f, d->in, d->out);
	}

	switch (decide(&f, &v, READ_ONCE(c->now), &tcx_devices, true)) {
	case ACTION_SEND:
		reason = skb_fits(skb, port_at(v.out)->ifindex, f.tag, &mtu);
		if (reason)
			return drop_skb(&f, v.in, reason);
		decision_keep(d, &f, &v, epoch, mtu + ETHER_HEADER);
		return send_skb(&f, v.in, v.out);
	case ACTION_FLOOD:
		count_rx(v.in, f.len);
		return flood_skb(skb, &f, &v);
	case ACTION_PASS:
		return TC_ACT_UNSPEC;
	default:
		return drop_skb(&f, v.in, v.reason);
	}
}

/* Sends by XDP; declines where the way out takes no such frames. */
static __always_inline int send_xdp(const struct frame *f, u32 in, u32 out)
{
	if (!(port_at(out)->flags & PORT_XDP_TX) ||
	    bpf_redirect_map(&xdp_devices, out, XDP_PASS) != XDP_REDIRECT)
		return XDP_PASS;
	count_rx(in, f->len);
	count_tx(out, f->len);
	return XDP_REDIRECT;
}

SEC("xdp.frags")
int bascule_xdp(struct xdp_md *xdp)
{
	struct clock *c = clock_get();
	struct verdict v = {};
	struct decision *d;
	struct frame f;
	u32 epoch, mtu = 0;

	if (!frame_of_xdp(&f, xdp))
		return XDP_PASS;
	d = decision_cell(&f);
	if (!c || !d)
		return XDP_PASS;
	epoch = READ_ONCE(c->epoch);
	if (decision_holds(d, &f, epoch) && f.len - f.tag <= d->fits)
		return send_xdp(&f, d->in, d->out);

	switch (decide(&f, &v, READ_ONCE(c->now), &xdp_devices, false)) {
	case ACTION_SEND:
		if (!xdp_fits(xdp, port_at(v.out)->ifindex, f.tag, &mtu))
			return XDP_PASS;
		decision_keep(d, &f, &v, epoch, mtu + ETHER_HEADER);
		return send_xdp(&f, v.in, v.out);
	case ACTION_FLOOD:
		if (!flood_xdp(xdp, &f, &v))
			return XDP_PASS;
		count_rx(v.in, f.len);
		return XDP_REDIRECT;
	default:
		return XDP_PASS;
	}
}

SEC("syscall")
int bascule_control(struct control *r)
{
	struct clock *c = clock_get();

	if (!c)
		return 0;
	switch (r->op) {
	case CONTROL_START:
		r->result = clock_start(c);
		break;
	case CONTROL_STORE:
		r->result = fdb_store(c, r->key, r->word);
		break;
	case CONTROL_DELETE:
		r->result = fdb_delete(c, r->key);
		break;
	case CONTROL_FLUSH:
		r->result = fdb_flush(c, r);
		break;
	default:
		r->result = -EINVAL;
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
