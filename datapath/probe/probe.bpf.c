// SPDX-License-Identifier: BSD-2-Clause
// clang-format off: it is for bpf2go, and no part of the Go package
//go:build ignore
// clang-format on

/*
 * The lab's instruments: a generator of frames, counters that drop
 * frames where they arrive, and the shortest possible forwarder.
 *
 * The generator runs under BPF_PROG_TEST_RUN in live frame mode: every run of
 * the program is one frame, and XDP_TX sends it by the device of the
 * test run. The kernel recycles the pages of the frames without
 * writing them again, so fields that differ from frame to frame are written here.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual BSD/GPL";

/* the values of one of the two addresses of frames */
struct vary {
	__u64 base; /* the first address, as a number: 02:00:00:00:00:01 is 0x020000000001 */
	__u32 count; /* number of addresses from base on; 0 keeps the frame's own address */
	__u32 random; /* 0: one after the other, 1: at random */
};

const volatile struct vary vary_dst;
const volatile struct vary vary_src;
/*
 * The frame's IPv4 header and ports, if afresh is set. A router changes the TTL in the
 * recycled page, and a translating one also the rest.
 */
struct headers {
	__u32 words[7];
};
const volatile struct headers headers;
const volatile __u32 afresh;

/* a length of frames, and the matching header fields of an IPv4 UDP datagram */
struct shape {
	__u32 len;
	__u16 ip_len; /* this field and the next two are in network order */
	__u16 ip_check;
	__u16 udp_len;
	__u16 pad;
};

#define SHAPES 16
/* the shapes that frames get in turn; without any, frames stay as they are */
const volatile struct shape shapes[SHAPES];
const volatile __u32 shape_count;

/* number of pairs of UDP ports that frames get in turn; 0 keeps the frame's own */
const volatile __u32 port_pairs;
/* 1: as for answers, with source and destination exchanged */
const volatile __u32 answers;
/*
 * Number of random source addresses of IPv4 packets, from first_host on; 0
 * keeps the frame's own. With hosts_to these are destination addresses.
 */
const volatile __u32 hosts;
const volatile __u32 first_host;
const volatile __u32 hosts_to;
/* frames a second, 0 for as many as possible */
const volatile __u64 rate;

/* set by the lab to end a run early: the rest of the run sends no frames */
volatile __u32 stop;

struct generated {
	__u64 sent;
	__u64 start; /* ns, 0 until the first frame of a paced run */
	__u32 dst_at;
	__u32 src_at;
	__u32 shape_at;
	__u32 ports_at;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generated);
} generated SEC(".maps");

struct counted {
	__u64 frames;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counted);
} counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} way_out SEC(".maps");

static __always_inline void put_mac(__u8 *p, __u64 mac)
{
	__u64 be = bpf_cpu_to_be64(mac << 16);

	__builtin_memcpy(p, &be, ETH_ALEN);
}

static __always_inline __u64 next_mac(__u64 base, __u32 count, __u32 random, __u32 *at)
{
	__u32 n;

	if (random)
		return base + (((__u64)bpf_get_prandom_u32() * count) >> 32);
	n = *at;
	*at = n + 1 < count ? n + 1 : 0;
	return base + n;
}

/*
 * Whether a paced frame is due. It waits a little, because the lab has to repeat
 * each run of the program that sends no frame.
 */
static __always_inline int due(struct generated *g)
{
	__u64 now;
	int i;

	for (i = 0; i < 64; i++) {
		now = bpf_ktime_get_ns();
		if (!g->start)
			g->start = now;
		if (g->sent * 1000000000ULL < (now - g->start) * rate)
			return 1;
		if (stop)
			break;
	}
	return 0;
}

#define FIRST_PORT 1024
#define PORTS 50000

/*
 * Gives the frame the next length in turn. The kernel restores the whole length
 * of each frame before the next run.
 */
static __always_inline int reshape(struct xdp_md *ctx, struct generated *g)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct udphdr *udp = (void *)(ip + 1);
	__u32 at = g->shape_at;

	if (at >= SHAPES || (void *)(udp + 1) > end)
		return -1;
	g->shape_at = at + 1 < shape_count ? at + 1 : 0;
	ip->tot_len = shapes[at].ip_len;
	ip->check = shapes[at].ip_check;
	udp->len = shapes[at].udp_len;
	return bpf_xdp_adjust_tail(ctx, (int)shapes[at].len - (int)(end - data));
}

/* restores the fields that a router has changed in the page; reshape() sets some of them again */
static __always_inline int refresh(struct xdp_md *ctx)
{
	struct headers *now = (void *)(long)ctx->data + sizeof(struct ethhdr);

	if ((void *)(now + 1) > (void *)(long)ctx->data_end)
		return -1;
#pragma unroll
	for (int i = 0; i < 7; i++)
		now->words[i] = headers.words[i];
	return 0;
}

/* sets the address in an IPv4 header without options, and its checksum (RFC 1071) */
static __always_inline int rehost(struct xdp_md *ctx)
{
	struct iphdr *ip = (void *)(long)ctx->data + sizeof(struct ethhdr);
	__u32 address;
	__u64 sum = 0;
	__u16 *word;
	int i;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	address = bpf_htonl(first_host + (__u32)(((__u64)bpf_get_prandom_u32() * hosts) >> 32));
	if (hosts_to)
		ip->daddr = address;
	else
		ip->saddr = address;
	ip->check = 0;
	word = (void *)ip;
	for (i = 0; i < (int)(sizeof(*ip) / sizeof(*word)); i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
	return 0;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data, *end;
	struct generated *g;
	struct ethhdr *eth;
	__u32 zero = 0;

	if (stop)
		return XDP_DROP;
	g = bpf_map_lookup_elem(&generated, &zero);
	if (!g)
		return XDP_ABORTED;
	if (rate && !due(g))
		return XDP_DROP;
	if (afresh && refresh(ctx))
		return XDP_ABORTED;
	if (shape_count && reshape(ctx, g))
		return XDP_ABORTED;
	if (hosts && rehost(ctx))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	if (data + sizeof(*eth) > end)
		return XDP_ABORTED;
	if (vary_dst.count)
		put_mac(eth->h_dest,
			next_mac(vary_dst.base, vary_dst.count, vary_dst.random, &g->dst_at));
	if (vary_src.count)
		put_mac(eth->h_source,
			next_mac(vary_src.base, vary_src.count, vary_src.random, &g->src_at));
	if (port_pairs) {
		struct udphdr *udp = data + sizeof(*eth) + sizeof(struct iphdr);
		__u32 at = g->ports_at;
		__be16 here = bpf_htons(FIRST_PORT + at % PORTS);
		__be16 there = bpf_htons(FIRST_PORT + at / PORTS);

		if ((void *)(udp + 1) > end)
			return XDP_ABORTED;
		g->ports_at = at + 1 < port_pairs ? at + 1 : 0;
		udp->source = answers ? there : here;
		udp->dest = answers ? here : there;
	}
	g->sent++;
	return XDP_TX;
}

static __always_inline void count(__u64 bytes)
{
	struct counted *c;
	__u32 zero = 0;

	c = bpf_map_lookup_elem(&counted, &zero);
	if (c) {
		c->frames++;
		c->bytes += bytes;
	}
}

SEC("xdp")
int count_xdp(struct xdp_md *ctx)
{
	count(ctx->data_end - ctx->data);
	return XDP_DROP;
}

/* the same for devices whose frames may use several buffers: they accept no other program */
SEC("xdp.frags")
int count_xdp_frags(struct xdp_md *ctx)
{
	count(bpf_xdp_get_buff_len(ctx));
	return XDP_DROP;
}

SEC("tcx/ingress")
int count_tcx(struct __sk_buff *skb)
{
	count(skb->len);
	return TC_ACT_SHOT; /* the value of TCX_DROP, which older headers lack */
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&way_out, 0, 0);
}

/* the device by which every frame leaves, and whether its other end gets it directly */
const volatile __u32 leave_by;
const volatile __u32 to_peer;

SEC("tcx/ingress")
int redirect_tcx(struct __sk_buff *skb)
{
	return to_peer ? bpf_redirect_peer(leave_by, 0) : bpf_redirect(leave_by, 0);
}
