// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"encoding/binary"

	"github.com/gopacket/gopacket/layers"
)

var _ = freeBSD.has("checksum", cases{
	// The changed option is at an even and at an odd offset of the header.
	"unaligned": func(r *router) {
		r.load("scrub on em0 reassemble tcp max-mss 1200")
		a, b := r.stations[0], r.stations[1]
		mss := layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: binary.BigEndian.AppendUint16(nil, 1460)}
		nop := layers.TCPOption{OptionType: layers.TCPOptionKindNop}
		for n, options := range [][]layers.TCPOption{{mss}, {nop, mss, nop, nop, nop}} {
			port := layers.TCPPort(1025 + n)
			r.sends(a, r.frame(a, ip4(a.v4, b.v4, layers.IPProtocolTCP),
				&layers.TCP{SrcPort: port, DstPort: 7, Seq: 5, SYN: true, Window: 1000, Options: options}))
			p := r.one(r.gets(b))
			tcp := layer[*layers.TCP](r, p)
			r.must(tcp.SetNetworkLayerForChecksum(p.NetworkLayer()))
			sum, err := tcp.ComputeChecksum()
			r.must(err)
			if sum != 0 {
				r.t.Errorf("option %d: the checksum is wrong: all adds up to %#04x", n, sum)
			}
			at := tcp.Options[n].OptionData
			if n == 1 {
				at = tcp.Options[1].OptionData
			}
			if got := binary.BigEndian.Uint16(at); got != 1200 {
				r.t.Errorf("option %d: the MSS is %d", n, got)
			}
			r.gets(a)
		}
	},
})
