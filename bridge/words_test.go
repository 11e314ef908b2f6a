// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"bascule/lab/ends"
	"bascule/rule"

	"golang.org/x/sys/unix"
)

// TestWords checks that errors and notes have the words that help in each case.
func TestWords(t *testing.T) {
	b := newBench(t, 4)
	b.must(b.AddBridge("br0", nil))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		func(e *Edit) error { return e.SetPort("p1", PortOptions{Changes: []Change{{"backup", "p2"}}}) },
	)
	r, err := rule.ParseRule([]string{"block", "in"}, "p3")
	b.must(err)
	const add = "or add it with 'bascule port add br0 p3'"
	one := func(_ any, err error) error { return err }
	b.must(one(b.AddSpan("br0", "p4", SpanOptions{})))
	addedSpan, addedTwice := one(b.AddSpan("br0", "p4", SpanOptions{})), one(b.AddSpan("br0", "p1", SpanOptions{}))
	b.must(b.DelSpan("br0", "p4"))
	for _, c := range []struct {
		err   error
		words string // part of the text
		never string // not part of the text
	}{
		{b.DelSpan("br0", "p3"), "p3 is not a port of this bridge; see 'bascule port show br0'", add},
		{one(b.DelPort("br0", "p3")), "p3 is not a port of this bridge; see 'bascule port show br0'", add},
		{b.DelRule("br0", r), "p3 is not a port of this bridge; see 'bascule port show br0'", add},
		{b.DelVLANs("br0", "p3", []uint16{1}), "", add},
		{one(b.FlushRules("br0", "p3")), "p3 is not a port of this bridge", add},
		{one(b.Rules("br0", "p3")), "p3 is not a port of this bridge", add},
		{one(b.FDB("br0", Match{Port: "p3"})), "p3 is not a port of this bridge", add},
		{one(b.Flush("br0", Match{Port: "p3"})), "p3 is not a port of this bridge", add},
		{one(b.FlushBindings("br0", Match{Port: "p3"})), "p3 is not a port of this bridge", add},
		{b.AddEntry("br0", Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Port: "p3", Static: true}), add, "--"},
		{one(b.SetPorts("br0", []string{"p1"}, PortOptions{Changes: on("mab")})), "but the port would not be locked", "--learn"},
		{one(b.SetPorts("br0", []string{"p1"}, PortOptions{Changes: []Change{{"learn", "off"}, {"locked", "on"}, {"mab", "on"}}})),
			"without a limit these could fill the FDB; give the port one, such as --fdb-max=64", "--learn"},
		{one(b.AddPort("br0", "p1", PortOptions{})), "it is a port of bridge br0 already; change it with 'bascule port set br0 p1'", "port del"},
		{addedSpan, "it is a span port of bridge br0; delete it there first with 'bascule span del br0 p4'", "port del"},
		{addedTwice, "it is a port of bridge br0; delete it there first with 'bascule port del br0 p1'", "span del"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.words) || strings.Contains(c.err.Error(), c.never) {
			t.Errorf("the error is %v, should have %q and not %q", c.err, c.words, c.never)
		}
	}
	for words, err := range map[string]error{
		"cannot get address 02:00:00:00:00:01 of br9: there is no bridge br9":    one(b.GetEntry("br9", net.HardwareAddr{2, 0, 0, 0, 0, 1}, nil)),
		"cannot show the FDB of br9: there is no bridge br9":                     one(b.FDB("br9", Match{})),
		"cannot show the ports of br9: there is no bridge br9":                   one(b.Ports("br9")),
		"cannot show the rules of br9: there is no bridge br9":                   one(b.Rules("br9", "")),
		"cannot read bridge br9: there is no bridge br9":                         one(b.Read("br9")),
		"cannot clear the counters of pf of br9: there is no bridge br9":         b.ZeroPF("br9"),
		"cannot show bridge br9: there is no bridge br9":                         one(b.Bridge("br9")),
		"cannot monitor bridge br9: there is no bridge br9":                      b.Monitor(t.Context(), "br9", nil),
		"cannot capture at bridge br9: there is no bridge br9":                   one(b.Capture(t.Context(), "br9", CaptureOptions{Snaplen: 100, Buffer: 1 << 16})),
		"cannot trace a frame at port p1 of br9: there is no bridge br9":         one(b.Trace("br9", "p1", make([]byte, 60))),
		"cannot show the VLANs of br9: there is no bridge br9":                   one(b.VLANs("br9")),
		"cannot show the table of VLANs of br9: there is no bridge br9":          one(b.VLANTable("br9")),
		"cannot show the berths of br9: there is no bridge br9":                  one(b.Berths("br9")),
		"cannot flush states of pf of br9: there is no bridge br9":               one(b.FlushPF("br9", "", "states")),
		"cannot follow bridge br9: there is no bridge br9":                       one(b.OpenEvents("br9")),
		"cannot follow the devices of br9: there is no bridge br9":               one(b.Refresh("br9")),
		"cannot follow names and addresses in pf of br9: there is no bridge br9": one(b.RefreshPF("br9")),
		"cannot run control protocols of bridge br9: there is no bridge br9":     one(b.OpenControl("br9")),
	} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("the error is %v, should be of %s", err, words)
		}
	}
	_, err = b.AddPort("br0", "host0", PortOptions{Type: TypeHost})
	b.must(err)
	_, err = b.AddPort("br0", "host0", PortOptions{Type: TypeHost})
	if err == nil || !strings.Contains(err.Error(), "host0 is a port of br0 already") {
		t.Errorf("a host port that is there: %v", err)
	}
	const warning = "p3 has the addresses 192.0.2.1/24, 192.0.2.2/24, which no longer reaches the host: " +
		"a port belongs to the switch; give them to host port host0"
	if got := AddressWarning("br0", "host0", "p3", []string{"192.0.2.1/24", "192.0.2.2/24"}); got != warning {
		t.Errorf("it warns %q, should warn %q", got, warning)
	}
	if err := failed("do it", fmt.Errorf("map create: %w", unix.ENOMEM)); !strings.HasSuffix(err.Error(), "give lower limits") {
		t.Errorf("without memory: %v", err)
	}
	notes, err := b.DelPort("br0", "p2")
	b.must(err)
	if want := []string{"port p1 has no backup any more: that was p2"}; !slices.Equal(notes, want) {
		t.Errorf("a port that stands in for another leaves with %q, should say %q", notes, want)
	}
}

// A cable from a port to another port of its bridge returns flooded frames.
func TestCableToItself(t *testing.T) {
	b := newBench(t, 0)
	b.must(b.AddBridge("br0", nil))
	_, err := ends.Cable(b.ns, "left", b.ns, "right", 1, ends.Wire{})
	b.must(err)
	add := func(port string) (warnings []string) {
		warnings, err := b.AddPort("br0", port, PortOptions{})
		b.must(err)
		return warnings
	}
	if got := add("left"); len(got) != 0 {
		t.Errorf("the first end comes with %q", got)
	}
	want := []string{"right is the other end of left, which is a port of br0 too: floods may go round and round; " +
		"take one of the two out, or turn on spanning tree"}
	// the ends of the lab's cables have addresses, which cause another warning
	if got := add("right"); !slices.Equal(got[1:], want) {
		t.Errorf("the other end comes with %q, should with %q", got[1:], want)
	}
	_, err = b.DelPort("br0", "right")
	b.must(err)
	_, err = b.SetBridge("br0", []Change{{"stp", "rstp"}})
	b.must(err)
	if got := add("right"); slices.ContainsFunc(got, func(w string) bool { return strings.Contains(w, "round") }) {
		t.Errorf("with spanning tree it comes with %q", got)
	}
}

// TestSaysWhatItRemoved: loading a file without rules, which removes the present ones, says so. The
// error for a span port of VLANs on a bridge without VLANs has the remedy.
func TestSaysWhatItRemoved(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", nil))
	_, err := b.AddPorts("br0", []string{"p1"}, PortOptions{})
	b.must(err)
	load := func(text, want string) {
		t.Helper()
		notes, err := b.LoadRules("br0", "", "file", strings.NewReader(text))
		b.must(err)
		if got := strings.Join(notes, "; "); got != want {
			t.Errorf("the rules %q: notes %q, want %q", text, got, want)
		}
	}
	load("", "")
	load("block in on p1 arp\npass on p1\n", "")
	load("# nothing\n", "file has no rule: 2 rules removed")
	load("", "")
	_, err = b.AddSpan("br0", "p2", SpanOptions{VLANs: []uint16{10}})
	if err == nil || !strings.Contains(err.Error(), "the bridge does not filter VLANs, so no frame is in one; leave --vlan out, or switch filtering on with") {
		t.Errorf("a span of a VLAN: %v", err)
	}
}
