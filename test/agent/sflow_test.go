// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bascule/datapath"
	"bascule/test/netlab"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/netsampler/goflow2/v2/decoders/sflow"
)

// A collector keeps the datagrams that it receives.
type collector struct {
	t    *testing.T
	conn *net.UDPConn
	mu   sync.Mutex
	got  [][]byte
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	c := &collector{t: t, conn: conn}
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			c.mu.Lock()
			c.got = append(c.got, bytes.Clone(b[:n]))
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *collector) String() string { return c.conn.LocalAddr().String() }

func (c *collector) datagrams() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// samples returns the received samples, decoded by goflow2.
func (c *collector) samples() (flows []sflow.ExpandedFlowSample, drops []sflow.DropSample, counters []sflow.CounterSample) {
	c.t.Helper()
	for i, b := range c.datagrams() {
		var p sflow.Packet
		if err := sflow.DecodeMessageVersion(bytes.NewBuffer(b), &p); err != nil {
			c.t.Fatalf("datagram % x: %v", b, err)
		}
		if int(p.SequenceNumber) != i+1 {
			c.t.Errorf("datagram %d has number %d", i+1, p.SequenceNumber)
		}
		for _, s := range p.Samples {
			switch s := s.(type) {
			case sflow.ExpandedFlowSample:
				flows = append(flows, s)
			case sflow.DropSample:
				drops = append(drops, s)
			case sflow.CounterSample:
				counters = append(counters, s)
			default:
				c.t.Errorf("a sample of type %T", s)
			}
		}
	}
	return flows, drops, counters
}

// of returns the samples of frames with these addresses.
func of(list []sflow.ExpandedFlowSample, dst, src netlab.MAC) (found []sflow.ExpandedFlowSample) {
	for _, s := range list {
		head := header(s.Records).HeaderData
		if bytes.Equal(head[:6], dst[:]) && bytes.Equal(head[6:12], src[:]) {
			found = append(found, s)
		}
	}
	return found
}

func header(records []sflow.FlowRecord) sflow.SampledHeader {
	for _, r := range records {
		if h, ok := r.Data.(sflow.SampledHeader); ok {
			return h
		}
	}
	return sflow.SampledHeader{HeaderData: make([]byte, 14)}
}

// tshark has Wireshark's decoder print these fields of all samples, as lines.
func (c *collector) tshark(fields ...string) (lines []string) {
	c.t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		c.t.Skip("tshark is missing: run 'make needs'")
	}
	path := filepath.Join(c.t.TempDir(), "sflow.pcap")
	f, err := os.Create(path)
	must(c.t, err)
	w := pcapgo.NewWriter(f)
	must(c.t, w.WriteFileHeader(65536, layers.LinkTypeRaw))
	for _, b := range c.datagrams() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IPv4(192, 0, 2, 2)}
		udp := &layers.UDP{SrcPort: 6343, DstPort: 6343}
		must(c.t, udp.SetNetworkLayerForChecksum(ip))
		buf := gopacket.NewSerializeBuffer()
		must(c.t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(b)))
		must(c.t, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(buf.Bytes()), Length: len(buf.Bytes())}, buf.Bytes()))
	}
	must(c.t, f.Close())
	args := []string{"-r", path, "-T", "fields", "-E", "separator= "}
	for _, field := range fields {
		args = append(args, "-e", field)
	}
	cmd := exec.Command("tshark", args...)
	cmd.Env = append(os.Environ(), "HOME="+c.t.TempDir())
	out, err := cmd.Output()
	must(c.t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// samples reports whether a bridge samples.
func samples(t *testing.T, l *netlab.Lab, bridge string) (on bool) {
	t.Helper()
	must(t, l.Switch.Do(func() error {
		store, err := datapath.OpenStore()
		if err != nil {
			return err
		}
		b, err := store.Open(bridge)
		if err != nil {
			return err
		}
		on = datapath.BridgeFlags(b.Config.Flags)&datapath.BridgeSample != 0
		return nil
	}))
	return on
}

// A collector receives samples of incoming frames, with an exact pool, with tcx and with XDP. It
// also receives dropped packets, with the reason. Frames are forwarded with and without a
// collector, and with and without an agent.
func TestSFlow(t *testing.T) {
	t.Parallel()
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t)
			list := l.NewEnds(3)
			if hook == "xdp" {
				for _, e := range list {
					e.ReadyForXDP()
				}
			}
			l.AddBridge("br0", hook, list)
			introduce(l, list...)
			c, r := newCollector(t), newRunner(t, l)
			start := func() {
				t.Helper()
				before := len(c.datagrams())
				r.start("--sflow", c.String()+",rate=1,polling=1,drops=50,sub-agent=9")
				// The agent reads samples before it sends its first counters.
				l.Wait("counters", func() bool { return len(c.datagrams()) > before })
				if !samples(t, l, "br0") {
					t.Error("the bridge is not sampled")
				}
			}
			start()
			frames := append(l.Frames(40, list[1].MAC, list[0].MAC), l.Frame(list[1].MAC, list[0].MAC, 1514))
			l.Reach(list[0], frames, list[1])
			var got []sflow.ExpandedFlowSample
			l.Wait("a sample of each frame", func() bool {
				flows, _, _ := c.samples()
				got = of(flows, list[1].MAC, list[0].MAC)
				return len(got) >= len(frames)
			})
			for i, s := range got {
				head := header(s.Records)
				if want := frames[i]; string(head.HeaderData) != string(want[:min(len(want), 128)]) || int(head.FrameLength) != len(want)+4 {
					t.Errorf("sample %d has % x of %d, want % x", i, head.HeaderData, head.FrameLength, want)
				}
				if s.SamplingRate != 1 || int(s.InputIfValue) != list[0].PortIndex || int(s.OutputIfValue) != list[1].PortIndex || s.Drops != 0 {
					t.Errorf("sample %d: %+v", i, s)
				}
			}
			// Every frame is sampled: the pool equals the number of the last one.
			l.Wait("a sample of the whole pool", func() bool {
				l.Send(list[0], l.Frame(list[1].MAC, list[0].MAC, 60))
				flows, _, _ := c.samples()
				flows = of(flows, list[1].MAC, list[0].MAC)
				last := flows[len(flows)-1]
				return last.SamplePool == last.Header.SampleSequenceNumber
			})

			for range 3 {
				l.Send(list[0], l.Frame(list[0].MAC, list[0].MAC, 60)) // its source is its destination
			}
			l.Wait("the drops", func() bool {
				flows, drops, _ := c.samples()
				flows = of(flows, list[0].MAC, list[0].MAC)
				if len(drops) < 3 || len(flows) < 3 {
					return false
				}
				for i, d := range drops {
					head := header(d.Records)
					if d.Reason != 268 || d.Drops != 0 || int(d.Input) != list[0].PortIndex || int(d.Header.SampleSequenceNumber) != i+1 || head.FrameLength != 64 {
						t.Errorf("drop %d: %+v", i, d)
					}
				}
				for _, s := range flows {
					if s.OutputIfFormat != 1 || s.OutputIfValue != 268 {
						t.Errorf("a frame that is dropped: %+v", s)
					}
				}
				return true
			})
			l.Wait("the counters of all ports", func() bool {
				_, _, counters := c.samples()
				in := map[uint32]uint64{}
				for _, s := range counters {
					for _, r := range s.Records {
						if n, ok := r.Data.(sflow.IfCounters); ok {
							in[n.IfIndex] = uint64(n.IfInDiscards)
						}
					}
				}
				return len(in) == 3 && in[uint32(list[0].PortIndex)] == 3
			})
			// Veths report 10 Gbit/s and full duplex, and a port is promiscuous.
			_, _, counters := c.samples()
			for _, s := range counters {
				for _, r := range s.Records {
					if n, ok := r.Data.(sflow.IfCounters); ok && (n.IfSpeed != 10e9 || n.IfDirection != 1 || n.IfPromiscuousMode != 1) {
						t.Errorf("the link of %d: %+v", n.IfIndex, n)
					}
				}
			}
			if st := r.status().SFlow; st == nil || st.Rate == 0 || st.Flows == 0 || st.Discards == 0 || st.Counters == 0 || st.Datagrams == 0 {
				t.Errorf("the agent says of its samples: %+v", st)
			}
			if text := l.Bascule("agent", "status"); !strings.Contains(text, "sflow") {
				t.Errorf("agent status says nothing of samples:\n%s", text)
			}
			// Wireshark finds no error.
			for _, line := range c.tshark("sflow_245.version", "_ws.malformed") {
				if strings.TrimSpace(line) != "5" && strings.Trim(line, "5, ") != "" {
					t.Errorf("tshark says %q", line)
				}
			}

			// A collector that has gone, and an agent that is killed.
			c.conn.Close()
			l.Reach(list[0], l.Frames(40, list[1].MAC, list[0].MAC), list[1])
			r.kill()
			l.Reach(list[0], l.Frames(40, list[1].MAC, list[0].MAC), list[1])
			if !samples(t, l, "br0") {
				t.Error("a killed agent has ended the sampling: this test sees nothing")
			}
			l.Bascule("bridge", "set", "br0", "--ageing", "299s")
			if samples(t, l, "br0") {
				t.Error("the sampling of a killed agent goes on after a command")
			}
			c = newCollector(t)
			start()
			r.kill()
			start() // another agent replaces it
			r.stop()
			if samples(t, l, "br0") {
				t.Error("the sampling goes on after the agent")
			}
			l.Reach(list[0], l.Frames(40, list[1].MAC, list[0].MAC), list[1])
		})
	}
}
