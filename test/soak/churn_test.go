// SPDX-License-Identifier: BSD-2-Clause

package soak

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bascule/test/netlab"
)

// An operation is an action of users, devices or stations.
type operation struct {
	name   string
	weight int
	do     func(*soak)
}

var operations = []operation{
	{"plug a device", 12, func(s *soak) { s.plugOne() }},
	{"unplug a device", 8, func(s *soak) {
		if name := s.aGuest(); name != "" {
			s.unplug(name)
		}
	}},
	{"make a device anew", 6, func(s *soak) {
		if name := s.aGuest(); name != "" {
			s.unplug(name)
			s.plug(name)
		}
	}},
	{"rename a device", 6, (*soak).rename},
	{"add a port", 8, (*soak).addPort},
	{"set a port", 8, (*soak).setPort},
	{"remove a port", 3, (*soak).delPort},
	{"change VLANs", 8, (*soak).vlans},
	{"many addresses", 4, (*soak).flood},
	{"addresses move", 6, (*soak).move},
	{"claim an address", 4, (*soak).claim},
	{"static addresses", 5, (*soak).entries},
	{"flush addresses", 3, func(s *soak) { s.command("fdb", "flush", s.aBridge()) }},
	{"rules", 6, (*soak).rules},
	{"bindings", 5, (*soak).bindings},
	{"storm limits", 4, (*soak).storm},
	{"rates", 4, (*soak).rates},
	{"mirrors", 4, (*soak).mirror},
	{"pf", 10, (*soak).pf},
	{"apply", 6, (*soak).apply},
	{"apply beside others", 3, (*soak).applyBeside},
	{"export", 2, (*soak).export},
	{"reload the agent", 5, (*soak).reload},
	{"restart the agent", 8, (*soak).restart},
	{"readers", 6, (*soak).reader},
	{"look", 6, (*soak).look},
	{"set a bridge", 5, (*soak).setBridge},
	{"another bridge", 5, (*soak).otherBridge},
	{"cut and mend", 3, (*soak).cut},
	{"switch the tree", 1, (*soak).switchTree},
}

// A guest is a device that comes and goes, with the station behind it.
type guest struct {
	far  string
	wire *wire       // nil for a tap
	tap  *netlab.Tap // nil for a veth
}

// Names of guests: for patterns of br0 (g, tap), of br1 (k), and for none (c).
var names = []string{"g0", "g1", "g2", "g3", "g4", "g5", "k0", "k1", "c0", "c1", "c2", "c3", "tap0", "tap1"}

func pick[V any](s *soak, of ...V) V { return of[s.rng.IntN(len(of))] }

func onOff(s *soak) string { return pick(s, "on", "off") }

// aGuest returns the name of a present guest, "" for none.
func (s *soak) aGuest() string {
	var there []string
	for name := range s.guests {
		there = append(there, name)
	}
	if len(there) == 0 {
		return ""
	}
	slices.Sort(there) // the same order each time
	return pick(s, there...)
}

// aPort returns a port as its bridge and name. It may be the device of a guest that should be a
// port by now.
func (s *soak) aPort() (bridge, name string) {
	name = s.aGuest()
	switch {
	case name == "":
		return "br0", "host0"
	case name[0] == 'k':
		return "br1", name
	case name[0] == 'c':
		return cmp.Or(s.put[name], "br0"), name
	}
	return "br0", name
}

// ofBr0 returns a port of br0 that the load does not need.
func (s *soak) ofBr0() string {
	if bridge, name := s.aPort(); bridge == "br0" {
		return name
	}
	return "host0"
}

// aBridge returns a bridge that devices are added to.
func (s *soak) aBridge() string {
	if s.br2 {
		return pick(s, "br0", "br0", "br1", "br2")
	}
	return pick(s, "br0", "br0", "br1")
}

func (s *soak) plugOne() {
	for range 3 {
		if name := pick(s, names...); s.guests[name] == nil {
			s.plug(name)
			return
		}
	}
}

// plug makes a device.
func (s *soak) plug(name string) {
	s.t.Helper()
	s.note("plug %s", name)
	if strings.HasPrefix(name, "tap") {
		s.guests[name] = &guest{tap: s.lab.NewTap(name, s.rng.IntN(2) == 0)}
		return
	}
	s.number++
	g := &guest{far: fmt.Sprintf("f%d", s.number)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	handle, err := netns.GetFromName(s.far.Name)
	s.must(err)
	defer handle.Close()
	mac := netlab.Station(1<<24 + s.number)
	s.must(s.lab.Switch.Netlink().LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: g.far, PeerHardwareAddr: mac[:], PeerNamespace: netlink.NsFd(int(handle)),
	}))
	s.lab.Keep(name)
	far, err := s.far.Netlink().LinkByName(g.far)
	s.must(err)
	s.must(s.far.Netlink().LinkSetUp(far))
	s.setLink(name, true)
	g.wire, err = listen(s.far, far.Attrs().Index)
	s.must(err)
	s.guests[name] = g
}

// unplug deletes a device.
func (s *soak) unplug(name string) {
	s.note("unplug %s", name)
	g := s.guests[name]
	delete(s.guests, name)
	if g.tap != nil {
		g.tap.Close()
		return
	}
	g.wire.close()
	link, err := s.lab.Switch.Netlink().LinkByName(name)
	s.must(err)
	s.must(s.lab.Switch.Netlink().LinkDel(link))
}

func (s *soak) setLink(name string, up bool) {
	s.t.Helper()
	nl := s.lab.Switch.Netlink()
	link, err := nl.LinkByName(name)
	s.must(err)
	if up {
		s.must(nl.LinkSetUp(link))
	} else {
		s.must(nl.LinkSetDown(link))
	}
}

func (s *soak) rename() {
	old, name := s.aGuest(), pick(s, names...)
	if old == "" || s.guests[name] != nil || strings.HasPrefix(name, "tap") != strings.HasPrefix(old, "tap") {
		return
	}
	s.note("rename %s to %s", old, name)
	link, err := s.lab.Switch.Netlink().LinkByName(old)
	s.must(err)
	s.must(s.lab.Switch.Netlink().LinkSetName(link, name))
	s.lab.Keep(name)
	s.guests[name] = s.guests[old]
	delete(s.guests, old)
}

// settings draws settings of a port.
func (s *soak) settings() (args []string) {
	for range 1 + s.rng.IntN(3) {
		args = append(args, pick(s,
			"--learn="+onOff(s), "--discover="+onOff(s), "--hairpin="+onOff(s), "--isolated="+onOff(s), "--mcast-flood="+onOff(s),
			"--fdb-max="+pick(s, "0", "10", "100"), "--fdb-full="+pick(s, "flood", "drop"), "--block-non-ip="+onOff(s),
			"--source-guard="+onOff(s), "--trusted="+onOff(s), "--loop-guard="+pick(s, "off", "report", "2s"), "--hook="+pick(s, "tcx", "xdp", "auto"),
			"--admit="+pick(s, "all", "tagged", "untagged"),
		))
	}
	return args
}

func (s *soak) addPort() {
	if s.rng.IntN(4) == 0 {
		host := pick(s, "host1", "host2")
		s.lab.Keep(host)
		switch s.rng.IntN(4) {
		case 0:
			s.command("port", "del", "br0", host)
		case 1:
			s.command("port", "set", "br0", host, "--route="+onOff(s))
		default:
			s.command("port", "add", "br0", host, "--type", "host", "--route="+onOff(s))
		}
		return
	}
	name := pick(s, "c0", "c1", "c2", "c3")
	if s.guests[name] == nil {
		s.plug(name)
	}
	bridge := s.aBridge()
	if _, ok := s.command(append([]string{"port", "add", bridge, name}, s.settings()...)...); ok {
		s.put[name] = bridge
	}
}

func (s *soak) setPort() {
	bridge, name := s.aPort()
	s.command(append([]string{"port", "set", bridge, name}, s.settings()...)...)
}

func (s *soak) delPort() {
	bridge, name := s.aPort()
	if name != "host0" {
		s.command("port", "del", bridge, name)
	}
}

func (s *soak) vlans() {
	switch s.rng.IntN(5) {
	case 0:
		s.command("vlan", "private", "br0", "40", "--isolated", pick(s, "41", "none"), "--community", pick(s, "42,43", "44", "none"))
	case 1:
		s.command("vlan", "add", "br0", pick(s, "p1", "p2", "p3", "p4", "to1"), pick(s, "20", "20,21", "100-200"))
	case 2:
		s.command("vlan", "del", "br0", pick(s, "p1", "p2", "p3", "p4", "to1", s.ofBr0()), pick(s, "20", "20,21", "100-200"))
	default:
		args := []string{"vlan", "add", "br0", s.ofBr0(), pick(s, "1", "10", "20", "30", "40", "41")}
		if s.rng.IntN(2) == 0 {
			args = append(args, "--untagged", "--pvid")
		}
		s.command(args...)
	}
}

// from sends from a guest.
func (s *soak) from(name string, frames ...netlab.Frame) {
	g := s.guests[name]
	if g == nil || g.wire == nil {
		return
	}
	s.sent += len(frames)
	if err := g.wire.send(frames...); err != nil {
		s.note("%v", err)
	}
}

// flood sends from more stations than the FDB has room for.
func (s *soak) flood() {
	name := s.aGuest()
	var frames []netlab.Frame
	to := netlab.Station(s.rng.IntN(1000))
	for n := range pick(s, 100, 1000, 4000) {
		frames = append(frames, s.lab.Frame(to, netlab.Station(n), 60))
	}
	s.from(name, frames...)
	s.note("%d addresses from %s", len(frames), name)
}

// move has stations move between ports.
func (s *soak) move() {
	for range 4 {
		name := s.aGuest()
		for n := range 50 {
			s.from(name, s.lab.Frame(netlab.Broadcast, netlab.Station(n), 60))
		}
		s.note("50 stations behind %s", name)
	}
}

// claim sends from an address that is static at another port.
func (s *soak) claim() {
	name := s.aGuest()
	for _, e := range s.lab.Ends[:5] {
		s.from(name, s.lab.Frame(netlab.Broadcast, e.MAC, 60), s.lab.Frame(netlab.Station(1), e.MAC, 60).Tagged(10, 0))
	}
	s.note("addresses of others from %s", name)
}

func (s *soak) entries() {
	bridge, port := s.aPort()
	mac := netlab.Station(s.rng.IntN(20)).String()
	switch s.rng.IntN(3) {
	case 0:
		s.command("fdb", "del", bridge, mac)
	case 1:
		s.command("fdb", "add", bridge, mac, port, "--sticky")
	default:
		s.command("fdb", "add", bridge, mac, port)
	}
}

func (s *soak) rules() {
	port, mac := pick(s, "p1", "p2", "p3", s.ofBr0()), netlab.Station(s.rng.IntN(20)).String()
	switch s.rng.IntN(5) {
	case 0:
		s.command("rule", "flush", "br0")
	case 1:
		s.command("rule", "del", "br0", port, "block", "in", "src", mac)
	case 2:
		var b strings.Builder
		for n := range s.rng.IntN(200) {
			fmt.Fprintf(&b, "block in on p%d src %v\npass in on p%d arp spa 192.0.2.%d\n", 1+n%3, netlab.Station(n), 1+n%3, n)
		}
		s.command("rule", "load", "br0", s.write("rules", b.String()))
	default:
		s.command("rule", "add", "br0", port, "block", "in", "src", mac)
	}
}

func (s *soak) bindings() {
	n := s.rng.IntN(20)
	address := pick(s, fmt.Sprintf("192.0.2.%d", n+1), fmt.Sprintf("2001:db8::%d", n+1))
	if s.rng.IntN(3) == 0 {
		s.command("binding", "del", "br0", address, "--vlan", "1")
		return
	}
	s.command("binding", "add", "br0", pick(s, "p3", "host0", s.ofBr0()), netlab.Station(n).String(), address, "--vlan", "1")
}

func (s *soak) storm() {
	bridge, name := s.aPort()
	s.command("port", "set", bridge, name, "--storm-bcast", pick(s, "none", "100pps", "1mbit"), "--storm-mcast", pick(s, "none", "50pps"),
		"--storm-unknown", pick(s, "none", "10pps", "10mbit"))
}

// rates are above the rate of the soak: no frame may be lost.
func (s *soak) rates() {
	bridge, name := s.aPort()
	s.command("port", "set", bridge, name, pick(s, "--rate-in", "--rate-out"), pick(s, "none", "100gbit", "4294gbit:1024mb", "400000000pps"))
}

func (s *soak) mirror() {
	if s.rng.IntN(2) == 0 {
		s.command("span", "del", "br0", "mon0")
		return
	}
	args := []string{"span", "add", "br0", "mon0", "--direction", pick(s, "in", "out", "both")}
	if s.rng.IntN(2) == 0 {
		args = append(args, "--port", pick(s, "p1", "p4", s.ofBr0()))
	}
	s.command(args...)
}

// rulesets are rules for pf. All of them let the load's conversation pass.
var rulesets = []string{
	"pass\n",
	"pass no state\n",
	"table <bad> persist { 10.9.0.0/16 }\nblock in from <bad>\npass\n",
	"set limit states 5000\ntable <bad> counters\nblock in proto tcp\npass in on p1\npass\n",
	"table <bad> { 10.1.2.3, !10.1.2.4 }\nanchor \"aside\"\nblock in on p2 from <bad> to any\npass in log from 10.8.0.0/16\npass keep state\n",
	"match proto tcp scrub (no-df, random-id, max-mss 1200, min-ttl 65, reassemble tcp) set tos 8\npass\n",
	"match in on p1 set prio 3\nether pass on p1\npass quick proto udp\nblock\n",
}

const aside = "table <in> { 10.5.0.1 }\nblock in from <in>\npass\n"

func (s *soak) pf() {
	args := []string{"pfctl", "-q", "-b", "br0"}
	switch s.rng.IntN(8) {
	case 0:
		args = append(args, pick(s, "-e", "-d"))
	case 1:
		args = append(args, "-F", pick(s, "states", "rules", "Tables", "all", "Sources"))
	case 2:
		args = append(args, "-a", "aside", "-f", s.write("aside.conf", aside))
	case 3, 4:
		args = append(args, "-t", "bad", "-T", pick(s, "add", "delete", "replace"), fmt.Sprintf("10.7.%d.%d", s.rng.IntN(4), s.rng.IntN(256)), fmt.Sprintf("10.%d.0.0/16", s.rng.IntN(256)))
	default:
		args = append(args, "-f", s.write("pf.conf", pick(s, rulesets...)))
	}
	s.command(args...)
}

// state returns a file of all bridges: the base's file, or another that is the same for the
// load.
func (s *soak) state(other bool) string {
	ageing, guests, k, more, pf := "300s", "{}", `"k*": {}`, "", "{rules: pass, enabled: off}"
	if other {
		ageing = pick(s, "20s", "300s", "600s")
		guests = pick(s, "{}", "{hairpin: on}", "{isolated: on, storm-bcast: 1000pps}", "{pvid: 10, tagged: 20-30}", "{learn: off}", "{source-guard: on}", "{hook: xdp}")
		k = pick(s, k, "c1: {}", `"[kc]*": {}`, `"k?": {fdb-max: 5}`)
		more += pick(s, "", "    rules: [\"block in on p3 src 02:57:00:00:00:01\", \"block on p1 arp spa 192.0.2.77\"]\n")
		more += pick(s, "", "    bindings: [{port: p3, mac: 02:57:00:00:00:09, address: 192.0.2.99, vlan: 1}, {port: p2, mac: 02:57:00:00:00:0a, address: 2001:db8::99, vlan: 1}]\n")
		more += pick(s, "", "    mirrors: {mon0: {ports: [p1, p3], direction: both}}\n")
		more += pick(s, "", "    private-vlans: {50: {isolated: 51, community: [52, 53]}}\n")
		more += pick(s, "", "    vlan-stats: on\n", "    move-max: 3\n", "    dhcp-guard: on\n    ra-guard: on\n", "    neigh-suppress: on\n", "    pf-ports: host\n")
		pf = pick(s, pf, "off", "on", fmt.Sprintf("{rules: %q}", pick(s, rulesets...)))
	}
	e := s.lab.Ends
	return fmt.Sprintf(`bridges:
  br0:
    ageing: %s
    vlan-filtering: on
    fdb-max: 3000
    ports:
      p1: {pvid: 1, tagged: 10}
      p2: {hook: xdp}
      p3: {}
      p4: {pvid: 10, hook: xdp}
      to1: {type: patch, peer: br1/to0}
      host0: {type: host}
      "g*": %s
      "tap*": {}
    fdb:
      - {mac: %v, port: p1, vlan: 1}
      - {mac: %v, port: p1, vlan: 10}
      - {mac: %v, port: p2, vlan: 1}
      - {mac: %v, port: p3, vlan: 1}
      - {mac: %v, port: p4, vlan: 10}
      - {mac: %v, port: to1, vlan: 1}
    pf: %s
%s  br1:
    ports:
      p5: {}
      to0: {type: patch, peer: br0/to1}
      %s
    fdb:
      - {mac: %v, port: to0}
      - {mac: %v, port: to0}
      - {mac: %v, port: to0}
      - {mac: %v, port: p5}
  r0:
    stp: rstp
    stp-priority: 4096
    ports: {p6: {stp-edge: on}, x0: {stp-edge: off}, y0: {stp-edge: off}}
  r1:
    stp: rstp
    stp-priority: 8192
    ports: {p7: {stp-edge: on}, x1: {stp-edge: off}, y1: {stp-edge: off}}
`, ageing, guests, e[0].MAC, e[0].MAC, e[1].MAC, e[2].MAC, e[3].MAC, e[4].MAC, pf, more, k, e[0].MAC, e[1].MAC, e[2].MAC, e[4].MAC)
}

func (s *soak) apply() { s.command("apply", s.write("apply.yaml", s.state(true))) }

// applyBeside applies a file while other commands run.
func (s *soak) applyBeside() {
	cmd := s.lab.Command("apply", s.write("apply.yaml", s.state(true)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	s.note("apply begins")
	s.must(cmd.Start())
	for range 1 + s.rng.IntN(4) {
		pick(s, (*soak).addPort, (*soak).setPort, (*soak).vlans, (*soak).rules, (*soak).bindings, (*soak).pf, (*soak).plugOne)(s)
	}
	deadly := s.deadly && s.rng.IntN(2) == 0
	if deadly {
		s.killed++
		cmd.Process.Kill()
	}
	err := cmd.Wait()
	s.note("apply ends: %v %s", err, errs.String())
	if status := cmd.ProcessState.ExitCode(); status == -1 && !deadly || status == 1 && !strings.HasPrefix(errs.String(), "bascule: ") || status > 1 {
		s.t.Fatalf("apply: %v, stderr %q", err, errs.String())
	}
}

// export writes the running configuration and applies it. A device that was made again replaces
// the missing one then. After that, the file applies without a change. Devices may come and go
// in between.
func (s *soak) export() {
	deadly := s.deadly
	s.deadly = false
	defer func() { s.deadly = deadly }()
	s.wait("what was exported to be what there is", func() bool {
		path := s.write("export.yaml", s.bascule("export"))
		s.command("apply", path)
		r, err := s.lab.Run("apply", "--dry-run", path)
		s.must(err)
		s.note("apply --dry-run of the export: %v", r)
		if r.Exit != 0 && r.Exit != 2 && !strings.HasPrefix(r.Stderr, "bascule: ") {
			s.t.Fatal(r)
		}
		return r.Exit == 0
	})
}

// reload gives the agent another file, or a bad one, with a signal or a command.
func (s *soak) reload() {
	if s.agent == nil {
		return
	}
	text := s.state(true)
	if s.rng.IntN(6) == 0 {
		text = strings.Replace(text, "ageing", "aging", 1)
	}
	s.write("agent.yaml", text)
	if s.rng.IntN(2) == 0 {
		s.command("agent", "reload")
		return
	}
	s.note("SIGHUP")
	s.must(s.agent.Process.Signal(syscall.SIGHUP))
}

// restart ends the agent, or starts one.
func (s *soak) restart() {
	switch {
	case s.agent == nil:
		s.write("agent.yaml", s.state(true))
		s.startAgent()
	case s.deadly && s.rng.IntN(4) > 0:
		s.stopAgent(syscall.SIGKILL)
		s.murdered++
	case s.deadly:
		if err := s.stopAgent(syscall.SIGTERM); err != nil {
			s.t.Fatalf("the agent, told to end: %v", err)
		}
	}
}

// reader starts to watch a bridge, or ends that.
func (s *soak) reader() {
	if len(s.readers) > 0 && (len(s.readers) > 3 || s.rng.IntN(2) == 0) {
		i := s.rng.IntN(len(s.readers))
		cmd := s.readers[i]
		s.readers = slices.Delete(s.readers, i, i+1)
		how := pick(s, os.Interrupt, os.Kill)
		s.note("%v for %v", how, cmd.Args)
		cmd.Process.Signal(how) // it may have ended with its bridge
		cmd.Wait()
		return
	}
	s.read(s.rng.IntN(len(watchers)))
}

// watchers are commands that watch a bridge until they are ended.
var watchers = [][]string{
	{"monitor", "br0"}, {"-j", "monitor"}, {"capture", "br0", "-w", "/dev/null"}, {"capture", "br0", "--dropped"},
	{"capture", "br1", "-w", "/dev/null", "--port", "p5", "--buffer", "64K"}, {"pflog", "-b", "br0"}, {"stats", "br0", "--interval", "1s"},
}

func (s *soak) read(i int) {
	cmd := s.lab.Command(watchers[i]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.note("%v begins", watchers[i])
	s.must(cmd.Start())
	s.readers = append(s.readers, cmd)
}

func (s *soak) stopReaders() {
	for _, cmd := range s.readers {
		cmd.Process.Signal(os.Interrupt)
		kill := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		cmd.Wait()
		if !kill.Stop() {
			s.t.Errorf("%v does not end", cmd.Args)
		}
	}
	s.readers = nil
}

// look runs all commands that read. These work at any time.
func (s *soak) look() {
	for _, args := range [][]string{
		{"bridge", "show"}, {"port", "show", "br0", "--stats"}, {"fdb", "show", "br0"}, {"vlan", "show", "br0"}, {"rule", "show"}, {"binding", "show"},
		{"span", "show"}, {"export"},
	} {
		if s.rng.IntN(3) == 0 {
			s.command(append([]string{"-j"}, args...)...)
		}
	}
}

func (s *soak) setBridge() {
	s.command(append([]string{"bridge", "set", s.aBridge()}, pick(s, nil, nil, []string{"--ageing", pick(s, "10s", "300s")}, []string{"--vlan-stats=" + onOff(s)},
		[]string{"--neigh-suppress=" + onOff(s)}, []string{"--pf-ports", pick(s, "all", "host", "station")}, []string{"--move-max", pick(s, "0", "5")}, []string{"--group-fwd-mask", pick(s, "0", "0x4000")},
		[]string{"--fdb-max", pick(s, "3000", "2000", "3000")})...)...)
}

// otherBridge adds or removes a bridge with a cable to a permanent bridge. It is a leaf: there
// is no loop.
func (s *soak) otherBridge() {
	if !s.br2 {
		s.command("bridge", "add", "br2", "--vlan-filtering="+onOff(s))
		s.br2 = true
		return
	}
	switch s.rng.IntN(5) {
	case 0:
		s.command("bridge", "del", "br2")
		s.br2 = false
	case 1:
		s.command("port", "del", "br2", "to0")
	default:
		bridge := pick(s, "br0", "br1")
		s.command("port", "add", "br2", "to0", "--type", "patch", "--peer", bridge+"/to2")
		s.command("port", "add", bridge, "to2", "--type", "patch", "--peer", "br2/to0")
	}
}

// cut cuts one of the two cables between the bridges with a spanning tree, and mends it.
func (s *soak) cut() {
	cable := pick(s, "x0", "y0")
	s.note("cut %s", cable)
	s.setLink(cable, false)
	s.onlyOnce()
	if s.agent != nil {
		s.wait("frames to come by the other cable", s.crosses)
	}
	s.note("mend %s", cable)
	s.setLink(cable, true)
	if s.agent != nil {
		s.healed()
	}
}

// switchTree switches the spanning tree off and on while one cable is cut. The cable is mended
// when the agent has closed its ports: ports that exist when a spanning tree is switched on
// continue to forward until the agent decides.
func (s *soak) switchTree() {
	if s.agent == nil {
		return
	}
	deadly := s.deadly
	s.deadly = false
	defer func() { s.deadly = deadly }()
	s.setLink("y0", false)
	s.wait("frames to come by the other cable", s.crosses)
	kind := pick(s, "off", "stp")
	s.command("bridge", "set", "r0", "--stp", kind)
	s.command("bridge", "set", "r1", "--stp", kind)
	s.onlyOnce()
	s.bascule("bridge", "set", "r0", "--stp", "rstp")
	s.bascule("bridge", "set", "r1", "--stp", "rstp")
	s.wait("the cut cable's ports to be closed", func() bool {
		return s.lab.Port("r0", "y0").State != "forwarding" && s.lab.Port("r1", "y1").State != "forwarding"
	})
	s.setLink("y0", true)
	s.healed()
}

// crosses reports whether frames cross the spanning tree in both directions.
func (s *soak) crosses() bool {
	for i := range s.tree {
		f := s.treeFrame(i)
		for deadline := time.Now().Add(20 * time.Millisecond); s.twice[f] == 0; s.onlyOnce() {
			if time.Now().After(deadline) {
				return false
			}
		}
	}
	return true
}

func (s *soak) treeFrame(side int) netlab.Frame {
	f := s.lab.Frame(netlab.Broadcast, s.lab.Ends[5+side].MAC, 60)
	s.must(s.tree[side].send(f))
	s.sent++
	return f
}

// onlyOnce checks the frames that came through the spanning tree: none may arrive twice, or
// return to its sender.
func (s *soak) onlyOnce() {
	s.t.Helper()
	for i, w := range s.tree {
		for _, f := range w.received() {
			if f.Dst() != netlab.Broadcast || f[12] != typeData>>8 {
				continue // a BPDU
			}
			if s.twice[f]++; s.twice[f] > 1 {
				s.t.Fatalf("%v came twice through the tree", f)
			}
			if f.Src() == s.lab.Ends[5+i].MAC {
				s.t.Fatalf("%v came back", f)
			}
		}
	}
}

// healed waits until the spanning tree is complete again, and then checks that all frames cross
// it.
func (s *soak) healed() {
	s.t.Helper()
	want := map[string]string{"x0": "forwarding", "x1": "forwarding", "y0": "forwarding", "y1": "discarding", "p6": "forwarding", "p7": "forwarding"}
	s.wait("the tree to be whole", func() bool {
		for port, state := range want {
			bridge := "r1"
			if strings.HasSuffix(port, "0") || port == "p6" {
				bridge = "r0"
			}
			if r, err := s.lab.Run("-j", "port", "show", bridge, port); err != nil || !strings.Contains(r.Stdout, `"state":"`+state+`"`) {
				return false
			}
		}
		return true
	})
	for range 10 {
		for i := range s.tree {
			f := s.treeFrame(i)
			s.wait(fmt.Sprintf("%v to come through the tree", f), func() bool {
				s.onlyOnce()
				return s.twice[f] > 0
			})
		}
	}
}
