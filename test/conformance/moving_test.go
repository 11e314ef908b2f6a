// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// movingSteps returns the lines in docs/from-linux-bridge.md that move a machine from a Linux bridge, as a script.
func movingSteps(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/from-linux-bridge.md")
	must(t, err)
	const first, last = "    mac=$(cat /sys/class/net/lan/address)\n", "    ip link del lan\n"
	_, rest, there := strings.Cut(string(text), first)
	steps, _, ends := strings.Cut(rest, last)
	if !there || !ends {
		t.Fatal("docs/from-linux-bridge.md has no steps that move from a Linux bridge")
	}
	script := first
	for line := range strings.Lines(steps) {
		if strings.HasPrefix(line, "    ") { // without the text in between
			script += line
		}
	}
	return script + last
}

// A pinging is a ping(8) each 10 ms in a network namespace.
type pinging struct {
	cmd *exec.Cmd
	out netlab.OutputFile
}

func ping10ms(t *testing.T, ns *ends.Namespace, to string) *pinging {
	t.Helper()
	p := &pinging{exec.Command("ip", "netns", "exec", ns.Name, "ping", "-n", "-i", "0.01", to), netlab.NewOutputFile(t)}
	p.cmd.Stdout = p.out.File
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

var sequence = regexp.MustCompile(`icmp_seq=(\d+) ttl`)

// lost returns the largest number of unanswered pings between two answered ones. The first pings may have no answer,
// until each station has resolved the other's address.
func (p *pinging) lost() (most, answers int) {
	before := 0
	for _, m := range sequence.FindAllStringSubmatch(p.out.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		if before != 0 {
			most = max(most, n-before-1)
		}
		before = n
		answers++
	}
	return most, answers
}

// moveHost moves one machine, and returns the largest number of consecutive lost pings.
func moveHost(t *testing.T, steps string) (most int) {
	t.Helper()
	l := netlab.New(t)
	guest, router := l.NewNamespace(), l.NewNamespace()
	run := func(ns *ends.Namespace, script string) {
		t.Helper()
		cmd := exec.Command("ip", "netns", "exec", ns.Name, "bash", "-e", "-c", script)
		dir := t.TempDir()
		must(t, os.Symlink(l.Binary(), filepath.Join(dir, "bascule")))
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v: %s", script, err, out)
		}
	}
	for device, ns := range map[string]*ends.Namespace{"eth2": router, "vnet0": guest} {
		run(l.Switch, fmt.Sprintf("ip link add %s up type veth peer name eth0 netns %s", device, ns.Name))
		l.Keep(device)
	}
	run(guest, "ip address add 10.0.0.20/24 dev eth0; ip link set eth0 up")
	run(router, "ip address add 10.0.0.1/24 dev eth0; ip link set eth0 up")
	// The Linux bridge has the network card's address, as it would set it by itself.
	run(l.Switch, `ip link add lan up address $(cat /sys/class/net/eth2/address) type bridge
ip link set eth2 master lan
ip link set vnet0 master lan
ip address add 10.0.0.10/24 dev lan
ip route add default via 10.0.0.1`)
	all := []*pinging{ping10ms(t, guest, "10.0.0.10"), ping10ms(t, guest, "10.0.0.1"), ping10ms(t, router, "10.0.0.10"), ping10ms(t, router, "10.0.0.20")}
	more := func(when string) {
		t.Helper()
		for _, p := range all {
			_, had := p.lost()
			l.Wait("pings to be answered "+when, func() bool {
				_, has := p.lost()
				return has >= had+20
			})
		}
	}
	more("on the Linux bridge")
	run(l.Switch, steps)
	more("on the switch")
	for _, p := range all {
		must(t, p.cmd.Process.Signal(syscall.SIGINT))
		_ = p.cmd.Wait()
		n, _ := p.lost()
		most = max(most, n)
	}
	run(l.Switch, "bascule bridge del lan")
	return most
}

// A machine moves from a Linux bridge with the steps in docs/from-linux-bridge.md. The machine, its guest and a router
// lose contact for less than 0.2 s. A busy machine delays the steps, so the best of several runs counts.
func TestMoveFromALinuxBridge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which takes root")
	}
	const limit, tries = 20, 20
	steps := movingSteps(t)
	var lost []int
	for range tries {
		n := 0
		t.Run("try", func(t *testing.T) { n = moveHost(t, steps) })
		if t.Failed() {
			return
		}
		if lost = append(lost, n); n < limit {
			t.Logf("%v pings in a row were lost", lost)
			return
		}
	}
	t.Errorf("%v pings in a row were lost, should be fewer than %d once", lost, limit)
}
