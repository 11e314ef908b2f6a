// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bascule/test/netlab"
)

var (
	lockoutRounds = flag.Int("lockout.rounds", 8, "how often TestLockOut tries to cut the guest off")
	lockoutSeed   = flag.Uint64("lockout.seed", 0, "what TestLockOut does; 0 for another one each time")
)

// TestLockOut makes random changes that may cut off the user who makes them. The switch is a guest's, p1
// is its uplink, and a station behind a router checks with ping(8) whether the guest is reachable. Files
// are applied with --confirm, commands change the switch before and after, and commands, the waiting
// process, and the agent are killed. When the time to confirm is over, the guest has to be reachable again
// each time, in its former state.
func TestLockOut(t *testing.T) {
	seed := *lockoutSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-lockout.seed %d", seed)
	for round := range netlab.Tenth(*lockoutRounds) {
		t.Run(fmt.Sprint(round), func(t *testing.T) { newLockout(t, rand.New(rand.NewPCG(seed, uint64(round)))).round() })
	}
}

// A lockout is one round.
type lockout struct {
	t *testing.T
	*netlab.Lab
	rand  *rand.Rand
	log   []string // executed commands
	agent *exec.Cmd
}

// Addresses of the guest, of the router, and of a station behind it.
const (
	guestAddress  = "192.0.2.2"
	routerAddress = "192.0.2.1"
	farAddress    = "198.51.100.1"
)

func newLockout(t *testing.T, r *rand.Rand) *lockout {
	l := netlab.New(t)
	l.NewEnds(3)
	setFolders(t, l)
	s := &lockout{t: t, Lab: l, rand: r}
	uplink := l.Ends[0]
	ns := uplink.Namespace.Name
	s.ip("-n", ns, "link", "set", "lo", "up")
	s.ip("-n", ns, "address", "add", farAddress+"/32", "dev", "lo")
	s.ip("-n", ns, "address", "add", routerAddress+"/24", "dev", uplink.Ifname)
	return s
}

func (s *lockout) ip(args ...string) {
	s.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// reachable pings the guest from behind the router.
func (s *lockout) reachable() bool {
	return exec.Command("ip", "netns", "exec", s.Ends[0].Namespace.Name, "ping", "-qc1", "-W1", "-I", farAddress, guestAddress).Run() == nil
}

// guestStates are possible states of a guest. The guest is reachable from behind the router in each.
var guestStates = []string{
	`bridges: {br0: {ports: {p1: {}, p2: {}, host0: {type: host, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 10}, p2: {tagged: "10,20"}, host0: {type: host, pvid: 10, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host, addresses: 192.0.2.2/24, mac: 02:00:00:00:99:01, mtu: 1400}},
  pf: {rules: "block in on p1 proto udp\npass"}, rules: ["block in on p1 src 02:00:00:00:77:77"]}}`,
	`bridges: {br0: {ports: {p1: {hook: tcx, rate-in: 10mbit}, to1: {type: patch, peer: br1/to0}}},
  br1: {ports: {to0: {type: patch, peer: br0/to1}, host0: {type: host, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {ports: {p1: {isolated: on}, p2: {isolated: on}, host0: {type: host, route: on, addresses: 192.0.2.2/24}}}}`,
}

// hostileFiles are files that cut the guest off, or may do so.
var hostileFiles = []string{
	`bridges: {br0: {}}`,
	`bridges: {br0: {ports: {p2: {}, host0: {type: host, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {ports: {p1: {}, p2: {}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host, addresses: 203.0.113.9/24}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host, addresses: [], up: off}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host, up: off}}}}`,
	`bridges: {br0: {ports: {p1: {}, host9: {type: host, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host, mtu: 68, mac: 02:00:00:00:00:42, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 7}, host0: {type: host, pvid: 8, addresses: 192.0.2.2/24}}}}`,
	`bridges: {br0: {vlan-filtering: on, ports: {p1: {tagged: 10}, host0: {type: host, pvid: 10}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host}}, pf: {rules: block}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host}}, rules: [block in on p1]}}`,
	`bridges: {br0: {ports: {p1: {locked: on, learn: on}, host0: {type: host}}}}`,
	`bridges: {br0: {ports: {p1: {isolated: on}, host0: {type: host, isolated: on}}}}`,
	`bridges: {br0: {ports: {p1: {rate-in: 1pps, rate-out: 1pps}, host0: {type: host}}}}`,
	`bridges: {br0: {ports: {p1: {source-guard: on}, host0: {type: host}}, bindings: [{address: 192.0.2.1, mac: 02:00:00:00:00:66, port: p1}]}}`,
	`bridges: {br0: {stp: rstp, ports: {p1: {}, host0: {type: host}}}}`,
	`bridges: {br0: {ports: {host0: {type: host}}}, br7: {ports: {p1: {}}}}`,
	`bridges: {br0: {ports: {p2: {}}, mirrors: [{device: p1}]}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: patch, peer: br7/to0}}}, br7: {ports: {to0: {type: patch, peer: br0/host0}, p2: {}}}}`,
	`bridges: {br0: {ports: {p1: {flood: off, learn: off, mcast-flood: off, bcast-flood: off}, host0: {type: host}}}}`,
	`bridges: {br0: {ports: {p1: {}, host0: {type: host}}}, br1: {}}`,
}

// hostileCommands are commands that cut the guest off, or may do so. Commands that begin with ! are the
// host's.
var hostileCommands = []string{
	"port del br0 p1", "port del br0 host0", "bridge del br0", "bridge del --all", "bridge del br1",
	"bridge set br0 --vlan-filtering", "bridge set br0 --vlan-filtering=off", "bridge set br0 --default-pvid 9", "bridge set br0 --stp rstp",
	"bridge set br0 --mac 02:00:00:00:00:43",
	"port set br0 p1 --locked", "port set br0 p1 --admit tagged", "port set br0 p1 --rate-in 1pps", "port set br0 p1 --source-guard",
	"port set br0 host0 --isolated", "port set br0 host0 --mac 02:00:00:00:00:44", "port set br0 host0 --mtu 68",
	"port set br0 p1 --flood=off", "port set br0 p1 --hook xdp", "port set br0 p1 --backup p2",
	"vlan del br0 p1 1-4094", "vlan add br0 p1 9 --pvid --untagged", "vlan del br0 host0 1-4094",
	"rule add br0 p1 block in", "rule flush br0", "rule add br0 host0 block out",
	"fdb flush br0 --static", "fdb add br0 02:00:00:00:00:55 p1",
	"pfctl -b br0 -e", "pfctl -b br0 -d", "pfctl -b br0 -F all", "bridge add br7", "port add br7 p1", "port add br7 host0 --type host", "span add br0 p1",
	"plug guest --bridge br0 --device p1", "plug guest --bridge br7 --device p1", "unplug guest", "port add br0 p1", "port add br0 host0 --type host",
	"port add br0 p3 --isolated", "apply --back", "binding add br0 p1 02:00:00:00:00:66 192.0.2.1", "binding flush br0",
	"!ip link set host0 down", "!ip address flush dev host0", "!ip link set p1 down", "!ip route flush default", "!ip link del host0",
	"!ip address add 203.0.113.7/24 dev host0", "!ip link set host0 address 02:00:00:00:00:77", "!ip link set host0 mtu 900",
	"!ip link set host0 name host8",
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func (s *lockout) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// command runs a command, or kills it. A command that starts no other is killed as it enters a system
// call.
func (s *lockout) command(args ...string) {
	cmd := s.Command(args...)
	call, n := pick(s.rand, []string{"bpf", "mkdirat", "renameat", "unlinkat", "sendto", "flock"}), 1+s.rand.IntN(60)
	after := time.Duration(s.rand.IntN(800)) * time.Millisecond
	switch kill := s.rand.IntN(3) == 0; {
	case !kill:
		r, err := netlab.RunCommand(cmd)
		must(s.t, err)
		s.note("%v", r)
	case args[0] == "apply":
		ctx, cancel := context.WithTimeout(context.Background(), after+time.Millisecond)
		killed := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
		killed.Env = cmd.Env
		r, err := netlab.RunCommand(killed)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) { // the command was faster
			must(s.t, err)
		}
		s.note("%v, killed after %v", r, after)
	default:
		r, err := netlab.RunKilled(cmd, call, n)
		must(s.t, err)
		s.note("%v, killed at call %d of %s", r, n, call)
	}
}

// mischief returns a random command.
func (s *lockout) mischief() {
	words := strings.Fields(pick(s.rand, hostileCommands))
	if name, ok := strings.CutPrefix(words[0], "!"); ok {
		out, err := exec.Command("ip", append([]string{"netns", "exec", s.Switch.Name, name}, words[1:]...)...).CombinedOutput()
		s.note("%s: %v %s", strings.Join(words, " "), err, out)
		return
	}
	s.command(words...)
}

func (s *lockout) startAgent() {
	var out bytes.Buffer
	s.agent = s.Command("agent")
	s.agent.Stdout, s.agent.Stderr = &out, &out
	must(s.t, s.agent.Start())
	s.note("an agent begins")
}

func (s *lockout) killAgent() {
	if s.agent != nil {
		_ = s.agent.Process.Kill()
		_ = s.agent.Wait()
		s.agent = nil
		s.note("the agent is killed")
	}
}

func (s *lockout) killWatchers() {
	for _, pid := range watchers(s.Lab) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		s.note("the process that waits is killed")
	}
	s.Wait("the process to end", func() bool { return len(watchers(s.Lab)) == 0 })
}

func (s *lockout) round() {
	defer func() {
		s.killAgent()
		s.killWatchers()
		if s.t.Failed() {
			s.t.Log(strings.Join(s.log, "\n"))
		}
	}()
	good := pick(s.rand, guestStates)
	s.note("%s", good)
	apply(s.t, s.Lab, file(s.t, "good.yaml", good))
	s.ip("-n", s.Switch.Name, "route", "add", "default", "via", routerAddress)
	s.Wait("the guest to be reached", s.reachable)
	before := s.Bascule("export")

	if s.rand.IntN(3) == 0 {
		s.startAgent()
	}
	bad := pick(s.rand, hostileFiles)
	if strings.Contains(good, "br1:") && !strings.Contains(bad, "br1:") { // other bridges are not put back
		bad = strings.Replace(bad, "bridges: {", "bridges: {br1: {}, ", 1)
	}
	s.note("%s", bad)
	s.command("apply", "--yes", "--confirm", "1h", file(s.t, "bad.yaml", bad))
	begun := waiting(s.Lab)
	s.note("the change waits: %v", begun)
	if begun {
		for n := s.rand.IntN(4); n > 0 && waiting(s.Lab); n-- { // a command puts it back
			s.mischief()
		}
	}
	if s.rand.IntN(3) == 0 {
		s.killAgent()
	}
	if s.rand.IntN(3) == 0 {
		s.killWatchers()
	}
	if waiting(s.Lab) {
		overdue(s.t, s.Lab)
	}
	// Any next command completes it.
	if s.agent == nil && len(watchers(s.Lab)) == 0 && waiting(s.Lab) {
		if s.rand.IntN(2) == 0 {
			s.startAgent()
		} else {
			r, err := s.Run(pick(s.rand, [][]string{{"bridge", "show"}, {"export"}, {"port", "show"}, {"fdb", "show"}, {"check"}})...)
			must(s.t, err)
			s.note("%v", r)
		}
	}
	end := time.Now().Add(40 * time.Second)
	for waiting(s.Lab) || !s.reachable() {
		if time.Now().After(end) {
			now, _ := s.Run("export")
			s.t.Fatalf("the guest is cut off; what runs is\n%v\nand was\n%s\n%s", now, before, s.look())
		}
		time.Sleep(200 * time.Millisecond)
	}
	if begun {
		if after := s.Bascule("export"); after != before && comparable(after) != comparable(before) {
			s.t.Errorf("what runs is\n%s\nand was\n%s", after, before)
		}
	}
}

// comparable returns the output of export without the parts that may differ: the order of ports, pf's
// explicit off, and bridges that are in no file.
func comparable(text string) string {
	text = strings.ReplaceAll(text, "    pf: off\n", "")
	if at := strings.Index(text, "\n  br7:"); at >= 0 {
		text = text[:at+1]
	}
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// look returns the host's state.
func (s *lockout) look() string {
	var all strings.Builder
	for _, args := range [][]string{{"address"}, {"route"}, {"neighbour"}} {
		out, _ := exec.Command("ip", append([]string{"-n", s.Switch.Name}, args...)...).CombinedOutput()
		all.Write(out)
	}
	paths, _ := filepath.Glob(filepath.Join(ofLab(s.Lab), "*"))
	slices.Sort(paths)
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		fmt.Fprintf(&all, "%s:\n%s\n", filepath.Base(path), text)
	}
	return all.String()
}
