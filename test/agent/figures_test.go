// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/test/netlab"
)

// The benchmarks of `make bench-agent`. Each reports one figure or a few, and repeats its
// measurement itself. None of them judges speed, but a lost frame or event fails them.

// A torrent is a series of frames from one end to another, as fast as the kernel generates them
// on the last CPU, with the counts of both ends.
type torrent struct {
	b       testing.TB
	port    *netlab.End // port by which they enter
	lab     *netlab.Lab
	gen     *generator
	counter *probe.Counter
	before  uint64 // frames that the port had received
	start   time.Time
}

// acceptsFrames has an end's port receive frames that the kernel generates at the end.
func acceptsFrames(b testing.TB, l *netlab.Lab, e *netlab.End) {
	b.Helper()
	must(b, l.Switch.SetFeatures(e.Port, ends.Features{Segmentation: true, GRO: true}))
	b.Cleanup(func() {
		if err := l.Switch.SetFeatures(e.Port, ends.Features{Segmentation: true}); err != nil {
			b.Error(err)
		}
	})
}

// A generator generates frames at an end, on one CPU.
type generator struct {
	*probe.Generator
	stopped atomic.Bool
	result  chan error
}

func startGenerator(b testing.TB, at *netlab.End, s probe.Stream, cpu int) *generator {
	b.Helper()
	g := &generator{result: make(chan error, 1)}
	s.Ifindex = at.Ifindex
	must(b, at.Namespace.Do(func() (err error) {
		g.Generator, err = probe.NewGenerator(s)
		return err
	}))
	go func() {
		g.result <- at.Namespace.Do(func() error {
			if err := ends.PinThread(cpu); err != nil {
				return err
			}
			for { // the rest of a stopped run takes a while
				if err := g.Send(1 << 20); err != nil || g.stopped.Load() {
					return err
				}
			}
		})
	}()
	return g
}

// stop stops it and returns the number of generated frames.
func (g *generator) stop(b testing.TB) (made uint64) {
	b.Helper()
	g.stopped.Store(true)
	must(b, g.Stop())
	must(b, <-g.result)
	made, err := g.Sent()
	must(b, err)
	must(b, g.Close())
	return made
}

func startTorrent(b testing.TB, l *netlab.Lab, from, to *netlab.End) *torrent {
	b.Helper()
	t := &torrent{b: b, lab: l, port: from}
	must(b, to.Namespace.Do(func() (err error) {
		t.counter, err = probe.CountTCX(to.Ifindex)
		return err
	}))
	t.before = t.taken()
	t.start = time.Now()
	frame := []byte(l.Frame(to.MAC, from.MAC, 60))
	t.gen = startGenerator(b, from, probe.Stream{Frame: frame}, runtime.NumCPU()-1)
	return t
}

// taken returns the number of frames that the port's device has received.
func (t *torrent) taken() uint64 {
	t.b.Helper()
	link, err := t.lab.Switch.Netlink().LinkByName(t.port.Port)
	must(t.b, err)
	return link.Attrs().Statistics.RxPackets
}

func (t *torrent) arrived() uint64 {
	t.b.Helper()
	n, err := t.counter.Read()
	must(t.b, err)
	return n.Frames
}

// flow waits until n more frames have arrived.
func (t *torrent) flow(n uint64) {
	t.b.Helper()
	goal := t.arrived() + n
	t.lab.Wait("frames to arrive", func() bool { return t.arrived() >= goal })
}

// stop stops it. Of the generated frames, taken reached the switch; the others overran the
// queue of the device before it. lost is the number of taken frames that did not arrive.
func (t *torrent) stop() (made, taken, lost uint64, rate float64) {
	t.b.Helper()
	length := time.Since(t.start)
	made = t.gen.stop(t.b)
	// Frames on their way arrive within this time, or never.
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		taken = t.taken() - t.before
		lost = taken - t.arrived()
		if lost == 0 && taken == made || time.Now().After(deadline) {
			break
		}
	}
	must(t.b, t.counter.Close())
	return made, taken, lost, float64(taken) / length.Seconds()
}

// report reports the result of a torrent. Lost frames fail the benchmark.
func (t *torrent) report() {
	t.b.Helper()
	made, taken, lost, rate := t.stop()
	b := t.b.(*testing.B)
	b.ReportMetric(float64(lost), "lost")
	b.ReportMetric(float64(taken), "frames")
	b.ReportMetric(rate, "frames/s")
	b.ReportMetric(float64(made-taken), "before-the-switch")
	b.ReportMetric(0, "ns/op")
	if lost > 0 {
		drops := map[string]map[string]uint64{}
		for _, p := range t.lab.Ports("br0") {
			drops[p.Ifname] = p.Drops
		}
		backlogs, err := os.ReadFile("/proc/net/softnet_stat") // the second number in each CPU's line
		must(t.b, err)
		b.Errorf("%d of %d frames are lost; the switch has dropped %v; the kernel's queues since the start:\n%s", lost, taken, drops, backlogs)
	}
}

// introduce has the switch learn the ends' addresses.
func introduce(l *netlab.Lab, list ...*netlab.End) {
	for _, e := range list {
		l.Send(e, l.Frames(1, netlab.Broadcast, e.MAC)...)
	}
}

// forwarding waits until all ports of a bridge forward.
func forwarding(l *netlab.Lab, bridge string, ports int) {
	l.Wait("all ports to forward", func() bool {
		n := 0
		for _, p := range l.Ports(bridge) {
			if p.State == "forwarding" {
				n++
			}
		}
		return n == ports
	})
}

// BenchmarkKilled: frames that are lost while the agent is killed and restarted 20 times.
func BenchmarkKilled(b *testing.B) {
	for b.Loop() {
		l := netlab.New(b)
		list := l.NewEnds(2)
		r := newRunner(b, l)
		// The end that counts gets no BPDUs.
		file := r.file("br0.yaml", "bridges:\n  br0:\n    stp: rstp\n    ports:\n      \"p*\": {stp-edge: on}\n      p2: {stp-edge: on, bpdu-filter: on}\n")
		r.start("-f", file)
		forwarding(l, "br0", len(list))
		introduce(l, list...)
		acceptsFrames(b, l, list[0])
		t := startTorrent(b, l, list[0], list[1])
		for range 20 {
			t.flow(10_000)
			r.kill()
			t.flow(10_000)
			r.start("-f", file)
		}
		t.flow(10_000)
		t.report()
		r.stop()
	}
}

// BenchmarkUpgrade: frames that are lost while the service gets another build of the program,
// which loads its own datapath, ten times.
func BenchmarkUpgrade(b *testing.B) {
	newer, err := netlab.Build("agent-newer", "-tags", "newer", "-ldflags", "-X main.version=newer")
	must(b, err)
	for b.Loop() {
		l := netlab.New(b)
		list := l.NewEnds(2)
		builds := []string{newer, l.Binary()}
		l.AddBridge("br0", "tcx", list)
		r := newRunner(b, l)
		r.start()
		introduce(l, list...)
		acceptsFrames(b, l, list[0])
		t := startTorrent(b, l, list[0], list[1])
		for i := range 10 {
			t.flow(10_000)
			before, err := l.Objects()
			must(b, err)
			r.stop()
			l.SetBinary(builds[i%2])
			r.start()
			l.Renewed(before)
		}
		t.flow(10_000)
		t.report()
		r.stop()
	}
}

// Numbers of ports and VLANs of a large switch.
const manyPorts, manyVLANs = 256, 64

// manyDevices makes the devices of a large switch, p1 and so on. They are veths whose other
// sides are e1 and so on, in another namespace.
func manyDevices(b testing.TB, l *netlab.Lab) (far *ends.Namespace) {
	b.Helper()
	far = l.NewNamespace()
	ns, err := os.Open("/run/netns/" + far.Name)
	must(b, err)
	defer ns.Close()
	nl := l.Switch.Netlink()
	for i := range manyPorts {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = fmt.Sprintf("p%d", i+1), net.FlagUp
		peer := fmt.Sprintf("e%d", i+1)
		must(b, nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(int(ns.Fd()))}))
		l.Keep(attrs.Name)
		link, err := far.Netlink().LinkByName(peer)
		must(b, err)
		must(b, far.Netlink().LinkSetUp(link))
	}
	return far
}

// manyFile returns the file of a large switch.
func manyFile(stp string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "bridges:\n  br0:\n    stp: %s\n    vlan-filtering: on\n    ports:\n", stp)
	for i := range manyPorts {
		fmt.Fprintf(&text, "      p%d: {pvid: %d}\n", i+1, 10+i%manyVLANs)
	}
	return text.String()
}

// median returns the median in milliseconds.
func median(list []time.Duration) float64 {
	slices.Sort(list)
	return float64(list[len(list)/2].Nanoseconds()) / 1e6
}

// BenchmarkApply measures `bascule apply` from an empty switch and without a change, and
// `bascule export`: medians of the whole command.
func BenchmarkApply(b *testing.B) {
	for b.Loop() {
		l := netlab.New(b)
		manyDevices(b, l)
		path := file(b, "many.yaml", manyFile("off"))
		run := func(args ...string) time.Duration {
			b.Helper()
			begin := time.Now()
			r, err := l.Run(args...)
			took := time.Since(begin)
			must(b, err)
			if r.Exit != 0 {
				b.Fatal(r)
			}
			return took
		}
		var nothing, unchanged, export []time.Duration
		for i := range 5 {
			if i > 0 {
				run("bridge", "del", "br0")
			}
			nothing = append(nothing, run("apply", path))
		}
		for range 21 {
			unchanged = append(unchanged, run("apply", path))
			export = append(export, run("export"))
		}
		b.ReportMetric(median(nothing), "nothing-ms")
		b.ReportMetric(median(unchanged), "unchanged-ms")
		b.ReportMetric(median(export), "export-ms")
		b.ReportMetric(0, "ns/op")
	}
}

// cpuTime returns the CPU time of a process since it began (clock_getcpuclockid(3)).
func cpuTime(b testing.TB, pid int) time.Duration {
	b.Helper()
	const schedClock = 2 // CPUCLOCK_SCHED, for all threads
	var t unix.Timespec
	must(b, unix.ClockGettime(int32(^pid<<3|schedClock), &t))
	return time.Duration(t.Nano())
}

// rss returns the resident memory of a process, in MiB.
func rss(b testing.TB, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(b, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			must(b, err)
			return float64(kib) / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

// BenchmarkIdle measures the CPU time and memory of an idle, large switch's agent, for 20
// seconds. The last agent has metrics and the page, and has answered a scrape.
func BenchmarkIdle(b *testing.B) {
	for _, test := range []struct{ name, stp string }{{"stp=off", "off"}, {"stp=rstp", "rstp"}, {"seen", "off"}} {
		b.Run(test.name, func(b *testing.B) {
			for b.Loop() {
				l := netlab.New(b)
				manyDevices(b, l)
				r := newRunner(b, l)
				l.Setenv("WATCHDOG_USEC", "10000000") // as in the unit
				args := []string{"--log-level", "info", "-f", r.file("many.yaml", manyFile(test.stp))}
				web, scrape := filepath.Join(r.dir, "web.sock"), filepath.Join(r.dir, "metrics.sock")
				if test.name == "seen" {
					args = append(args, "--web", "unix:"+web, "--metrics", "unix:"+scrape)
				}
				r.start(args...)
				forwarding(l, "br0", manyPorts)
				if test.name == "seen" {
					askWeb(b, func() (net.Conn, error) { return net.Dial("unix", scrape) }, "", "/metrics")
					askWeb(b, func() (net.Conn, error) { return net.Dial("unix", web) }, "", "/api/v1/port/show")
				}
				time.Sleep(5 * time.Second) // the start continues for a while
				pid := r.cmd.Process.Pid
				begin, before := time.Now(), cpuTime(b, pid)
				time.Sleep(20 * time.Second)
				share := (cpuTime(b, pid) - before).Seconds() / time.Since(begin).Seconds()
				b.ReportMetric(100*share, "%core")
				b.ReportMetric(rss(b, pid), "MiB")
				b.ReportMetric(0, "ns/op")
				r.stop()
			}
		})
	}
}

// scrapes is the number of measured scrapes. scrapeStates is the number of pf's states
// meanwhile.
const scrapes, scrapeStates = 101, 10_000

// BenchmarkScrape measures a scrape of a large switch's metrics, with counters of VLANs, RSTP,
// and pf's labels and states: the CPU time, and the time until it is read. The request is like
// Prometheus's.
func BenchmarkScrape(b *testing.B) {
	for b.Loop() {
		l := netlab.New(b)
		far := manyDevices(b, l)
		r := newRunner(b, l)
		l.Setenv("WATCHDOG_USEC", "10000000") // as in the unit
		path := filepath.Join(r.dir, "metrics.sock")
		text := strings.Replace(manyFile("rstp"), "vlan-filtering: on\n", "vlan-filtering: on\n    vlan-stats: on\n", 1)
		r.start("--log-level", "info", "-f", r.file("many.yaml", text), "--metrics", "unix:"+path)
		forwarding(l, "br0", manyPorts)
		var rules strings.Builder
		fmt.Fprintf(&rules, "set limit states 100000\nblock log all label \"else\"\n")
		for i := range manyVLANs {
			fmt.Fprintf(&rules, "pass in proto { tcp udp } to port %d label \"service %d\"\n", 1000+i, i)
		}
		rules.WriteString("pass proto udp to port 9 label \"bench\"\n")
		l.Bascule("pfctl", "-q", "-b", "br0", "-f", file(b, "pf.conf", rules.String()))
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
		defer client.CloseIdleConnections()
		scrape := func(encoding string) []byte {
			b.Helper()
			req, err := http.NewRequest("GET", "http://localhost/metrics", nil)
			must(b, err)
			req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
			req.Header.Set("Accept-Encoding", encoding) // otherwise Go adds the header itself
			resp, err := client.Do(req)
			must(b, err)
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				b.Fatal(resp.Status)
			}
			body, err := io.ReadAll(resp.Body)
			must(b, err)
			return body
		}
		sendDatagrams(b, far, "e1", scrapeStates)
		l.Wait("states", func() bool {
			_, after, _ := strings.Cut(string(scrape("identity")), "\nbascule_pf_states{")
			_, after, _ = strings.Cut(after, "} ")
			text, _, _ := strings.Cut(after, "\n")
			n, err := strconv.ParseFloat(text, 64)
			return err == nil && n >= scrapeStates
		})
		series := bytes.Count(scrape("identity"), []byte("\nbascule_"))
		for range 10 {
			scrape("gzip")
		}
		pid := r.cmd.Process.Pid
		before := cpuTime(b, pid)
		var wall []time.Duration
		for range scrapes {
			begin := time.Now()
			scrape("gzip")
			wall = append(wall, time.Since(begin))
		}
		b.ReportMetric((cpuTime(b, pid)-before).Seconds()*1e3/scrapes, "cpu-ms")
		b.ReportMetric(median(wall), "wall-ms")
		b.ReportMetric(float64(series), "series")
		b.ReportMetric(rss(b, pid), "MiB")
		b.ReportMetric(0, "ns/op")
		r.stop()
	}
}

// sendDatagrams sends the datagrams of n UDP connections from a device, to an address without a
// receiver.
func sendDatagrams(b testing.TB, from *ends.Namespace, device string, n int) {
	b.Helper()
	link, err := from.Netlink().LinkByName(device)
	must(b, err)
	must(b, from.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2}}
		for i := range n {
			udp := layers.UDP{SrcPort: layers.UDPPort(1024 + i), DstPort: 9}
			if err := udp.SetNetworkLayerForChecksum(&ip); err != nil {
				return err
			}
			frame := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializeLayers(frame, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
				&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4},
				&ip, &udp); err != nil {
				return err
			}
			if err := unix.Sendto(fd, frame.Bytes(), 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// changeRate is the target number of learned addresses per second.
const changeRate = 100_000

// changeRounds is the number of seconds of each kind, from which the medians are.
const changeRounds = 9

// middle returns the median of an odd number of values.
func middle(list []float64) float64 { return slices.Sorted(slices.Values(list))[len(list)/2] }

// BenchmarkChanges: addresses are learned at changeRate while the agent watches. It must count
// all of them. The rate of forwarded frames meanwhile is compared with three other kinds of
// rounds: the same frames come from one address, so that nothing is learned; the agent is
// stopped; no such frames come. In the last kind the CPU that generates them is idle, which
// affects CPUs that share a core with it.
func BenchmarkChanges(b *testing.B) {
	for b.Loop() {
		l := netlab.New(b)
		list := l.NewEnds(3)
		l.AddBridge("br0", "tcx", list, "--fdb-max", "4000000")
		r := newRunner(b, l)
		r.start("--log-level", "info")
		r.serves(1)
		introduce(l, list...)
		acceptsFrames(b, l, list[0])
		acceptsFrames(b, l, list[2])
		accounted := func() uint64 {
			e := r.status().Namespaces[0].Bridges[0].Events
			return e.Counts["learned"] + e.Counts["moved"] + e.Missed + e.Merged
		}
		happened := func() (n uint64) {
			for _, p := range l.Ports("br0") {
				n += p.Learned + p.Moves
			}
			return n
		}
		l.Wait("the beginning to be accounted for", func() bool { return accounted() == happened() })
		firstEvents := r.status().Namespaces[0].Bridges[0].Events

		t := startTorrent(b, l, list[0], list[1])
		t.flow(10_000)
		const round = time.Second
		rates := map[string][]float64{}
		var changes []float64
		station := uint64(1)
		for range changeRounds {
			for _, kind := range []string{"quiet", "known", "stopped", "watched"} {
				if kind == "stopped" {
					must(b, r.cmd.Process.Signal(syscall.SIGSTOP))
				}
				var gen *generator
				if kind != "quiet" {
					src := probe.Vary{Base: binary.BigEndian.AppendUint64(nil, 0x02<<40|station<<8)[2:], Count: 1 << 30}
					if kind == "known" {
						src.Count = 1
					}
					gen = startGenerator(b, list[2], probe.Stream{
						// Source and destination are equal, so the
						// frame goes nowhere.
						Frame: []byte(l.Frame(list[2].MAC, list[2].MAC, 60)), Rate: changeRate,
						Src: src,
					}, 0)
					l.Wait("addresses to come", func() bool {
						n, err := gen.Sent()
						return err != nil || n > 0
					})
				}
				begin, before := time.Now(), t.arrived()
				var sent uint64
				if gen != nil {
					sent, _ = gen.Sent()
				}
				time.Sleep(round)
				length := time.Since(begin).Seconds()
				rates[kind] = append(rates[kind], float64(t.arrived()-before)/length)
				if gen != nil {
					now, err := gen.Sent()
					must(b, err)
					if kind == "watched" {
						changes = append(changes, float64(now-sent)/length)
					}
					station += gen.stop(b)>>8 + 1 // new addresses
				}
				if kind == "stopped" {
					must(b, r.cmd.Process.Signal(syscall.SIGCONT))
				}
			}
		}
		_, taken, lost, _ := t.stop()
		if lost > 0 {
			b.Errorf("%d of %d frames are lost", lost, taken)
		}
		all := happened()
		l.Wait(fmt.Sprintf("%d changes to be accounted for", all), func() bool { return accounted() == all })
		e := r.status().Namespaces[0].Bridges[0].Events
		b.ReportMetric(middle(changes), "changes/s")
		for _, kind := range []string{"known", "stopped", "quiet"} {
			b.ReportMetric(middle(rates["watched"])/middle(rates[kind]), "of-"+kind)
		}
		b.ReportMetric(middle(rates["quiet"]), "quiet-frames/s")
		b.ReportMetric(float64(all), "happened")
		b.ReportMetric(float64(e.Missed-firstEvents.Missed), "missed")
		b.ReportMetric(float64(e.Merged-firstEvents.Merged), "merged")
		b.ReportMetric(float64(accounted()-all), "unaccounted")
		b.ReportMetric(float64(lost), "lost")
		b.ReportMetric(0, "ns/op")
		r.stop()
	}
}
