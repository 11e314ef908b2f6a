// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"bascule/answer"
	"bascule/bridge"
	"bascule/files"
	"bascule/frame"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newTrace(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace BRIDGE [FRAME]",
		Short: "explain what a bridge would do with a frame",
		Long: `Explain step by step what a bridge would do with a frame that comes in by the
port --in, and by which ports the frame would leave. Nothing is sent, learned or
counted. The switch's own programs decide. The switch sends nothing to a port
that is down or has no carrier once it has noticed; until then a step says that
the frame is lost there. If the datapath routes the packet (--route of 'bascule
port'), the steps follow it to its way out.

Give the frame in one of three ways, each without check sequence:

FRAME is its bytes in hexadecimal digits, with any spaces, colons and line ends
between them. With - as FRAME, the digits, or a capture, are read from standard
input.

With --pcap the frame is a packet of a capture, in the format pcap or pcapng, as
tcpdump(8) writes it: the first, or that of --packet. It must be whole.

Otherwise the frame is made of its fields. --dst must be given, except for an
ARP request, which goes to all stations. For a packet to another network it is
the MAC address of the gateway. Without --src the source is 00:00:5e:00:53:01,
an address kept for documentation (RFC 9542), which no station has. --ip and
--to make an IP packet, with valid checksums, of one of: --tcp, a SYN; --udp;
--icmp, an echo request. --arp with --spa and --tpa makes an ARP request or
reply. Any other frame has zeros after its EtherType. A frame is as small as
Ethernet allows, 60 bytes, or has --size bytes: a packet is as long as fits in.
The kernel takes frames that fit into a page with its own data, 3712 bytes on
most machines. A larger one is refused; the error says how many bytes this
kernel takes.`,
		Example: `  #! run: switch br0 veth0 veth1; while sleep 0.05; do send veth0; done & bascule capture br0 --count 7 -w file.pcapng
  bascule trace br0 --in veth0 --dst 02:00:00:00:00:02
  bascule trace br0 --in veth0 --dst 02:00:00:00:00:02 --vlan 10 --size 1518
  bascule trace br0 --in veth0 --src 02:00:00:00:00:01 --dst 02:00:00:00:00:02 \
    --ip 192.0.2.1 --to 192.0.2.2 --tcp 443
  bascule trace br0 --in veth0 --arp request --spa 192.0.2.1 --tpa 192.0.2.2
  bascule trace br0 --in veth0 ff:ff:ff:ff:ff:ff:02:00:00:00:00:01:88:b5
  bascule trace br0 --in veth0 --pcap file.pcapng --packet 7
  tcpdump -c 1 -w - -i veth0 | bascule trace br0 --in veth0 -`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
	}
	in := &word{name: "PORT"}
	cmd.Flags().Var(in, "in", "let the frame come in by this port")
	completeFlag(cmd, "in", p.portNames)
	f := addFrame(cmd)
	completeFlag(cmd, "src", p.addresses)
	completeFlag(cmd, "dst", p.addresses)
	completeFlag(cmd, "vlan", p.vlanIDs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if in.text == "" {
			return usagef(cmd, "--in is missing; give the port that the frame comes in by")
		}
		data, err := p.buildFrame(cmd, f, append(args, "")[1])
		if errors.Is(err, frame.ErrNoDst) {
			err = p.noDst(cmd, args[0], f.to.addr)
		}
		if err != nil {
			return err
		}
		return p.with(func(s switcher) error {
			t, err := s.Trace(args[0], in.text, data)
			if err != nil {
				return err
			}
			return p.printTrace(args[0], in.text, t)
		})
	}
	return cmd
}

// frameFlags are the flags that describe a frame, as an alternative to an argument.
type frameFlags struct {
	set                       *pflag.FlagSet // the flags for fields
	pcap                      word
	packet                    number
	dst, src                  macFlag
	vlan, qinq                vlan
	ip, to, spa, tpa          addressFlag
	priority, tcp, udp, sport number
	etherType, size           number
	arp                       choice
	icmp                      bool
}

// addFrame gives cmd the flags of a frame.
func addFrame(cmd *cobra.Command) *frameFlags {
	f := &frameFlags{
		set:       pflag.NewFlagSet("", pflag.ContinueOnError),
		pcap:      word{name: "FILE"},
		packet:    number{name: "N", least: 1, most: 1<<31 - 1},
		priority:  number{name: "PRIORITY", most: 7},
		tcp:       number{name: "PORT", most: 65535},
		udp:       number{name: "PORT", most: 65535},
		sport:     number{name: "PORT", most: 65535},
		etherType: number{name: "TYPE", most: 65535, hex: true},
		size:      number{name: "N", least: frame.MinSize, most: frame.MaxSize},
		arp:       choice{words: []string{"request", "reply"}},
	}
	cmd.Flags().Var(&f.pcap, "pcap", "read the frame from this capture, pcap or pcapng; - is standard input")
	cmd.Flags().Var(&f.packet, "packet", "the number of the packet in the capture, 1 by default")
	f.set.SortFlags = false
	f.set.Var(&f.src, "src", "source MAC address, 00:00:5e:00:53:01 by default")
	f.set.Var(&f.dst, "dst", "destination MAC address, or the gateway's for another network")
	f.set.Var(&f.vlan, "vlan", "802.1Q tag of this VLAN, 0 to 4094")
	f.set.Var(&f.priority, "priority", "priority of the tags, 0 to 7")
	f.set.Var(&f.qinq, "qinq", "802.1ad tag of this VLAN before the other")
	f.set.Var(&f.ip, "ip", "IP packet from this address, IPv4 or IPv6")
	f.set.Var(&f.to, "to", "IP packet to this address")
	f.set.Var(&f.tcp, "tcp", "TCP to this port")
	f.set.Var(&f.udp, "udp", "UDP to this port")
	f.set.BoolVar(&f.icmp, "icmp", false, "ICMP or ICMPv6 echo request")
	f.set.Var(&f.sport, "sport", fmt.Sprintf("TCP or UDP from this port, %d by default", frame.DefaultSrcPort))
	f.set.Var(&f.arp, "arp", "an ARP request or reply")
	f.set.Var(&f.spa, "spa", "ARP's sender, an IPv4 address")
	f.set.Var(&f.tpa, "tpa", "ARP's target, an IPv4 address")
	f.set.Var(&f.etherType, "ethertype", fmt.Sprintf("EtherType in hexadecimal digits, %x by default", frame.EtherTypeTest))
	f.set.Var(&f.size, "size", fmt.Sprintf("size of the frame in bytes, %d to about 3700: the kernel tries frames within a page", frame.MinSize))
	cmd.Flags().AddFlagSet(f.set)
	completeFlag(cmd, "arp", these(f.arp.words))
	return f
}

// buildFrame builds the frame from the flags and the argument, which is "" if it was not given.
func (p *program) buildFrame(cmd *cobra.Command, f *frameFlags, text string) (data []byte, err error) {
	field := ""
	f.set.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && field == "" {
			field = "--" + flag.Name
		}
	})
	packet := 0
	if f.packet.n != nil {
		packet = *f.packet.n
	}
	switch {
	case text != "" && f.pcap.text != "":
		return nil, usagef(cmd, "FRAME and --pcap: give one of them")
	case text != "" && field != "":
		return nil, usagef(cmd, "FRAME and %s: give the bytes or the fields", field)
	case f.pcap.text != "" && field != "":
		return nil, usagef(cmd, "--pcap and %s: give a capture or the fields", field)
	case packet != 0 && f.pcap.text == "" && text != "-":
		return nil, usagef(cmd, "--packet needs --pcap, or - as FRAME")
	case text == "" && f.pcap.text == "" && field == "":
		return nil, usagef(cmd, "the frame is missing: give FRAME, --pcap, or fields such as --dst")
	case f.pcap.text == "-":
		data, err = frame.Capture(p.stdin, max(packet, 1))
		text = "standard input"
	case text == "-":
		data, err = frame.Read(p.stdin, packet)
		text = "standard input"
	case text != "":
		data, err = frame.Parse(text)
		text = "FRAME"
	case f.pcap.text != "":
		file, oerr := files.Open(f.pcap.text)
		if oerr != nil {
			var cause *fs.PathError
			errors.As(oerr, &cause)
			return nil, fmt.Errorf("cannot read capture %s: %w; give a file that tcpdump wrote", f.pcap.text, cause.Err)
		}
		defer file.Close()
		data, err = frame.Capture(file, max(packet, 1))
		text = f.pcap.text
	default:
		data, err = f.fields().Build()
		if errors.Is(err, frame.ErrNoDst) {
			return nil, err
		}
		if err != nil {
			return nil, usagef(cmd, "%s", err)
		}
	}
	if err != nil {
		return nil, usagef(cmd, "%s: %s", text, err)
	}
	return data, nil
}

// noDst returns the error for a frame without a destination, with the known addresses of the packet's target.
func (p *program) noDst(cmd *cobra.Command, name string, to netip.Addr) error {
	if !to.IsValid() {
		return usagef(cmd, "%s", frame.ErrNoDst)
	}
	var known []string
	err := p.with(func(s switcher) error {
		list, err := s.Known(name, to)
		for _, k := range list {
			known = append(known, fmt.Sprintf("--dst %s (%s)", k.MAC, k.Of))
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case known == nil:
		return usagef(cmd, "--dst is missing; give the MAC address of %v, or of its sender's gateway, such as --dst 02:00:00:00:00:02; 'bascule fdb show %s' lists those that are known", to, name)
	}
	return usagef(cmd, "--dst is missing; give %s", strings.Join(known, " or "))
}

func (f *frameFlags) fields() frame.Fields {
	return frame.Fields{
		Dst: f.dst.mac, Src: f.src.mac, VLAN: f.vlan.id, Priority: f.priority.uint16(), QinQ: f.qinq.id,
		IP: f.ip.addr, To: f.to.addr, TCP: f.tcp.uint16(), UDP: f.udp.uint16(), SrcPort: f.sport.uint16(), ICMP: f.icmp,
		ARP: f.arp.text, SenderIP: f.spa.addr, Target: f.tpa.addr, EtherType: f.etherType.uint16(), Size: f.size.uint16(),
	}
}

func (p *program) printTrace(name, port string, t bridge.Trace) error {
	if p.json {
		return p.printJSON([]answer.Trace{answer.OfTrace(name, port, t)})
	}
	facts := make([]fact, 0, len(t.Steps)+2)
	for i, s := range t.Steps {
		facts = append(facts, fact{fmt.Sprintf("%*d  %s", len(strconv.Itoa(len(t.Steps))), i+1, s.Name), s.Text})
	}
	facts = append(facts, fact{"verdict", t.Verdict}, fact{"out", strings.Join(t.Out, " ")})
	printFacts(p.out, name+" "+port, facts)
	return nil
}
