// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"bascule/bridge"

	"github.com/rogpeppe/go-internal/testscript"
)

// runWith runs one command against a switcher.
func runWith(f *fakeSwitch, stdout, stderr io.Writer, args ...string) int {
	p := &program{stdin: strings.NewReader(""), out: bufio.NewWriter(stdout), stderr: stderr, open: f.open, agents: f}
	return p.run(args)
}

// TestScript runs the cases of testdata/script in process, each against a
// switch in memory. The cases can use the commands of testscript, and
//
//	bascule ARGS...   run it; the exit status must be 0
//	refuse ARGS...    run it; 1, nothing on stdout, one line on stderr
//	misuse ARGS...    run it; 2, nothing on stdout, one line on stderr
//	called TEXT... the last call to the switch must be this
//	busy set the switch's counters and learned addresses
//	vanish remove the device of the last port
func TestScript(t *testing.T) {
	type key struct{}
	switchOf := func(ts *testscript.TestScript) *fakeSwitch { return ts.Value(key{}).(*fakeSwitch) }

	run := func(want int) func(*testscript.TestScript, bool, []string) {
		return func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("say refuse or misuse instead of !")
			}
			var stdout, stderr strings.Builder
			got := runWith(switchOf(ts), &stdout, &stderr, args...)
			fmt.Fprint(ts.Stdout(), stdout.String())
			fmt.Fprint(ts.Stderr(), stderr.String())
			if got != want {
				ts.Fatalf("exit status %d, want %d; stderr: %s", got, want, stderr.String())
			}
			if want == exitDone {
				return
			}
			if stdout.Len() > 0 {
				ts.Fatalf("printed on stdout: %s", stdout.String())
			}
			line := stderr.String()
			if !strings.HasPrefix(line, "bascule: ") || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
				ts.Fatalf("not one line of ours: %q", line)
			}
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Values[key{}] = &fakeSwitch{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"bascule": run(exitDone),
			"refuse":  run(exitRefused),
			"misuse":  run(exitUsage),
			"called": func(ts *testscript.TestScript, neg bool, args []string) {
				want, got := strings.Join(args, " "), ""
				if calls := switchOf(ts).calls; len(calls) > 0 {
					got = calls[len(calls)-1]
				}
				if (got == want) == neg {
					ts.Fatalf("last call: %s", got)
				}
			},
			"vanish": func(ts *testscript.TestScript, neg bool, args []string) {
				f := switchOf(ts)
				p := &f.ports[len(f.ports)-1]
				p.State, p.MTU, p.Flags = "gone", 0, nil
				for i := range f.spans {
					if s := &f.spans[i]; s.Bridge == p.Bridge && s.Port == p.Name {
						s.State = p.State
					}
				}
			},
			"busy": func(ts *testscript.TestScript, neg bool, args []string) {
				f := switchOf(ts)
				f.bridges[0].FDBCount = 2
				f.ports[0].FDBCount = 2
				f.ports[0].Stats = bridge.Stats{
					RxFrames: 12, RxBytes: 1234, TxFrames: 3, TxBytes: 180, Learned: 4, Moves: 1, Refused: 2,
					Drops: map[string]uint64{"same-port": 3, "mtu": 1},
				}
				f.vlans = []bridge.PortVLANs{
					{Bridge: "br0", Port: "p1", Ranges: []bridge.VLANRange{
						{First: 1, Last: 1, VLANOptions: bridge.VLANOptions{Untagged: true, PVID: true}}, {First: 10, Last: 30},
					}},
					{Bridge: "br0", Port: "p2", Ranges: []bridge.VLANRange{}},
				}
				f.table = []bridge.VLAN{
					{Bridge: "br0", ID: 1, RxFrames: 3, RxBytes: 180, TxFrames: 6, TxBytes: 360},
					{Bridge: "br0", ID: 100, Kind: bridge.KindPrimary},
					{Bridge: "br0", ID: 101, Kind: bridge.KindIsolated, Primary: 100},
				}
				f.entries = map[string][]bridge.Entry{"br0": {
					{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Port: "p1", Updated: 3500 * time.Millisecond},
					{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, Port: "p1", VLAN: 10, Static: true},
					{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 3}, Port: "p1", VLAN: 10, Sticky: true},
				}}
			},
		},
	})
}
