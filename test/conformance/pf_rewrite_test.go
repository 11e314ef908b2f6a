// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/safchain/ethtool"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

var pfRewriteCases = []conformance{
	{name: "TCP through modulate state", hooks: both, run: func(t *testing.T, hook string) {
		throughPF(t, hook, "pass proto tcp modulate state")
	}},
	{name: "TCP through synproxy state", hooks: both, run: func(t *testing.T, hook string) {
		throughPF(t, hook, "pass in on p1 proto tcp synproxy state")
	}},
	{name: "TCP through scrub", hooks: both, run: func(t *testing.T, hook string) {
		throughPF(t, hook, scrubRules, scrubSeen)
	}},
	{name: "TCP through scrub and modulate state", hooks: tcx, run: func(t *testing.T, hook string) {
		throughPF(t, hook, scrubRules+"pass proto tcp modulate state\n", scrubSeen)
	}},
}

// scrubRules change every TCP packet. scrubSeen are nft conditions for packets that a station must not receive after
// that. The switch's own packets are different: see stationTTL.
const scrubRules = "match proto tcp scrub (max-mss 600, min-ttl 200, no-df, random-id) set tos 0x28\n"

const scrubSeen = "ip ttl < 200|ip6 hoplimit < 200|ip dscp != 10|ip6 dscp != 10|ip frag-off & 0x4000 != 0|tcp flags & syn == syn tcp option maxseg size > 600"

// stationTTL is the TTL of stations whose packets are all changed. The switch's own answers have a TTL of 64, as
// OpenBSD's, and no rule changes them (pf_send_tcp(), PF_TAG_GENERATED).
const (
	stationTTL = 65
	switchTTL  = 64
)

// throughPF opens connections through a switch with the rule, with all combinations of the stations' offloads, and
// while packets are lost. No station may receive packets that match an nft condition in unseen; bars separate the
// conditions.
func throughPF(t *testing.T, hook, rule string, unseen ...string) {
	l, stations := setup(t, hook, 2)
	rules := filepath.Join(t.TempDir(), "pf.conf")
	must(t, os.WriteFile(rules, []byte("pass\n"+rule+"\n"), 0o600))
	l.Bascule("pfctl", "-b", "br0", "-f", rules)
	for i, e := range stations {
		e.ReadyForXDP()
		must(t, e.Namespace.Do(func() error { return ends.Sysctl("net.ipv6.conf."+e.Ifname+".disable_ipv6", "0") }))
		inNamespace(t, e.Namespace, "ip", "addr", "add", fmt.Sprintf("198.18.0.%d/24", i+1), "dev", e.Ifname)
		inNamespace(t, e.Namespace, "ip", "addr", "add", fmt.Sprintf("2001:db8::%d/64", i+1), "dev", e.Ifname, "nodad")
	}
	for _, conditions := range unseen {
		for _, e := range stations {
			must(t, e.Namespace.Do(func() error {
				return errors.Join(ends.Sysctl("net.ipv4.ip_default_ttl", strconv.Itoa(stationTTL)),
					ends.Sysctl("net.ipv6.conf."+e.Ifname+".hop_limit", strconv.Itoa(stationTTL)))
			}))
			rules := "add table inet seen; add chain inet seen in { type filter hook input priority -10; }; add rule inet seen in meta l4proto tcp counter"
			for _, own := range []string{"ip ttl", "ip6 hoplimit"} {
				rules += fmt.Sprintf("; add rule inet seen in %s %d accept", own, switchTTL)
			}
			for _, c := range strings.Split(conditions, "|") {
				rules += "; add rule inet seen in meta l4proto tcp " + c + " counter"
			}
			inNamespace(t, e.Namespace, "nft", rules)
		}
		defer func() {
			for _, e := range stations {
				expectUnseen(t, e)
			}
		}()
	}
	addresses := []string{"198.18.0.2", "2001:db8::2"}
	for _, address := range addresses {
		converse(t, stations, address, 100, 10_000)
		converse(t, stations, address, 2, 20_000_000)
	}
	if rule == scrubRules {
		callLate(t, l, stations, addresses[0])
	}
	for _, e := range stations {
		e.SetOffloads(false, false)
	}
	converse(t, stations, addresses[0], 10, 1_000_000)
	// A device with checksum offload hides most errors. XDP would lose its information.
	if hook == "tcx" {
		for _, e := range stations {
			e.SetOffloads(true, true)
			leaveChecksums(t, e)
		}
		for _, address := range addresses {
			converse(t, stations, address, 10, 10_000_000)
		}
	}
	for _, e := range stations {
		inNamespace(t, e.Namespace, "nft", "add table inet loss; add chain inet loss in { type filter hook input priority 0; }; "+
			"add rule inet loss in numgen random mod 100 < 2 drop")
	}
	converse(t, stations, addresses[0], 4, 2_000_000)
	for _, e := range stations {
		for _, line := range strings.Split(inNamespace(t, e.Namespace, "nstat", "-asz", "TcpInCsumErrors"), "\n") {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "Tcp") && f[1] != "0" {
				t.Errorf("%s counts %s %s", e, f[0], f[1])
			}
		}
	}
}

// callLate has a delayed SYN of the first station arrive at the second after the connection was closed. The second
// station acknowledges its former number. The switch has no connection with this number, and resets it in the first
// station's name.
func callLate(t *testing.T, l *netlab.Lab, stations []*netlab.End, address string) {
	l.Deliver(stations[0]) // discards earlier frames
	var server net.Listener
	var conn net.Conn
	must(t, stations[1].Namespace.Do(func() (err error) {
		server, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	defer server.Close()
	must(t, stations[0].Namespace.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(t.Context(), "tcp", server.Addr().String())
		return err
	}))
	accepted, err := server.Accept()
	must(t, err)
	must(t, accepted.Close()) // the side that closes first keeps the connection
	_, err = io.ReadAll(conn)
	must(t, errors.Join(err, conn.Close()))
	l.Wait("the connection to be closed", func() bool {
		return slices.ContainsFunc(strings.Split(l.Bascule("pfctl", "-b", "br0", "-s", "states"), "\n"), func(line string) bool {
			return strings.Contains(line, conn.LocalAddr().String()) && strings.Contains(line, "FIN_WAIT_2:FIN_WAIT_2")
		})
	})
	segments := func(frames []netlab.Frame, is func(*layers.IPv4, *layers.TCP) bool) (found int) {
		for _, f := range frames {
			p := gopacket.NewPacket([]byte(f), layers.LayerTypeEthernet, gopacket.Default)
			ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
			tcp, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
			if ip != nil && tcp != nil && is(ip, tcp) {
				found++
			}
		}
		return found
	}
	b := gopacket.NewSerializeBuffer()
	if n := segments(stations[1].Received(), func(ip *layers.IPv4, tcp *layers.TCP) bool {
		if !tcp.SYN {
			return false
		}
		// The number is outside of any window, and too old to start a new connection (RFC 9293, 3.6.1).
		tcp.Seq, tcp.Options = tcp.Seq-1_000_000, nil
		must(t, tcp.SetNetworkLayerForChecksum(ip))
		ether := layers.Ethernet{SrcMAC: stations[0].MAC[:], DstMAC: stations[1].MAC[:], EthernetType: layers.EthernetTypeIPv4}
		o := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		must(t, gopacket.SerializeLayers(b, o, &ether, ip, tcp))
		return true
	}); n != 1 {
		t.Fatalf("%d SYNs have come to the station, should be one", n)
	}
	if n := segments(l.Deliver(stations[0], netlab.Frame(b.Bytes()))[stations[1]], func(ip *layers.IPv4, tcp *layers.TCP) bool {
		return tcp.RST && ip.TTL == switchTTL
	}); n != 1 {
		t.Errorf("%d resets of the switch have come to the station, should be one", n)
	}
}

// expectUnseen checks a station's counters: not zero for the first rule, zero for the others.
func expectUnseen(t *testing.T, e *netlab.End) {
	t.Helper()
	lines := strings.Split(inNamespace(t, e.Namespace, "nft", "list", "table", "inet", "seen"), "\n")
	first := true
	for _, line := range lines {
		if !strings.Contains(line, "counter") {
			continue
		}
		if none := strings.Contains(line, "packets 0 "); none == first {
			t.Errorf("%s counts %s", e, strings.TrimSpace(line))
		}
		first = false
	}
	if first {
		t.Errorf("%s has no rules: %q", e, lines)
	}
}

// inNamespace runs a command, which must succeed, and returns its output.
func inNamespace(t *testing.T, ns *ends.Namespace, name string, args ...string) string {
	t.Helper()
	out, err := ns.Output(t.Context(), ends.AnyCPU, name, args...)
	must(t, err)
	return string(out)
}

// leaveChecksums has a station leave checksums to its device.
func leaveChecksums(t *testing.T, e *netlab.End) {
	t.Helper()
	must(t, e.Namespace.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change(e.Ifname, map[string]bool{"tx-checksum-ip-generic": true})
	}))
}

// converse opens connections at once from the first station to the second, and sends size bytes over each, in both
// directions. Half of the clients wait for the server's data first.
func converse(t *testing.T, stations []*netlab.End, address string, connections, size int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var server net.Listener
	must(t, stations[1].Namespace.Do(func() (err error) {
		// Port 0: the port of the last server may not be free yet.
		server, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	to := server.Addr().(*net.TCPAddr).AddrPort()
	defer server.Close()
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	exchange := func(conn net.Conn, listens bool) error {
		defer conn.Close()
		deadline, _ := ctx.Deadline()
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		sent := make(chan error, 1)
		send := func() {
			_, err := conn.Write(data)
			sent <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
		}
		if !listens {
			go send()
		}
		got, err := io.ReadAll(conn)
		if listens {
			go send()
		}
		if err == nil && !bytes.Equal(got, data) {
			err = fmt.Errorf("%d bytes came, which are not those that were sent", len(got))
		}
		return errors.Join(err, <-sent)
	}
	var group sync.WaitGroup
	for n := range connections {
		group.Go(func() {
			conn, err := server.Accept()
			if err == nil {
				err = exchange(conn, false)
			}
			if err != nil {
				t.Errorf("%s, server: %v", to, err)
			}
		})
		group.Go(func() {
			var conn net.Conn
			err := stations[0].Namespace.Do(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "tcp", to.String())
				return err
			})
			if err == nil {
				err = exchange(conn, n%2 == 1)
			}
			if err != nil {
				t.Errorf("%s, connection %d: %v", to, n, err)
				server.Close() // no client waits for it
			}
		})
	}
	group.Wait()
}
