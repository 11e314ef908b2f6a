// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/bridge"
	"bascule/datapath"
)

// A fakeHolder is a bridge with control protocols.
type fakeHolder struct {
	fakeBridge
	deaf error // error of reading the ports
	lost error // error of keeping control
}

func (b *fakeHolder) Bridge() (bridge.Info, error)         { return b.info, nil }
func (b *fakeHolder) Ports() ([]bridge.ControlPort, error) { return b.ports, b.deaf }
func (b *fakeHolder) Keep() error                          { return b.lost }
func (b *fakeHolder) Close() error                         { return nil }
func (b *fakeHolder) Read(context.Context) (bridge.ControlFrame, error) {
	return bridge.ControlFrame{}, os.ErrClosed
}

// A fakeProtocol records its calls.
type fakeProtocol struct {
	name string
	told *[]string
}

func (p fakeProtocol) note(format string, a ...any) {
	*p.told = append(*p.told, p.name+": "+fmt.Sprintf(format, a...))
}

func (p fakeProtocol) refresh(_ bridge.Info, ports []bridge.ControlPort) error {
	p.note("refresh %d", len(ports))
	return nil
}
func (p fakeProtocol) receive(port uint32, frame []byte) { p.note("receive %d %s", port, frame) }
func (p fakeProtocol) linkDown(port uint32)              { p.note("down %d", port) }
func (p fakeProtocol) tick(time.Time)                    { p.note("tick") }
func (p fakeProtocol) commit() (bool, error)             { return false, nil }
func (p fakeProtocol) status(*BridgeStatus)              {}
func (p fakeProtocol) end(keep bool)                     { p.note("end %v", keep) }

// twoProtocols returns a bridge that runs two protocols. The second has frames of
// number 99.
func twoProtocols(t *testing.T) (c *controlled, h *fakeHolder, told *[]string) {
	t.Helper()
	other := &runner{name: "other", its: "other", frames: 99, suffix: ".other"}
	before := protocols
	protocols = []*runner{&spanningTree, other}
	t.Cleanup(func() { protocols = before })
	told = &[]string{}
	h = &fakeHolder{fakeBridge: fakeBridge{net: newNet(t)}}
	h.ports = []bridge.ControlPort{{ID: 1, Index: 11, Name: "a", Up: true}, {ID: 2, Name: "b", Type: bridge.TypePatch, Up: true}}
	c = &controlled{bridge: h, stop: func() {}, runs: map[*runner]protocol{
		&spanningTree: fakeProtocol{"tree", told}, other: fakeProtocol{"other", told},
	}}
	if _, err := c.look(); err != nil {
		t.Fatal(err)
	}
	return c, h, told
}

func wantTold(t *testing.T, what string, told *[]string, want ...string) {
	t.Helper()
	if !slices.Equal(want, *told) {
		t.Errorf("%s: told %q, want %q", what, *told, want)
	}
	*told = nil
}

// The agent runs each control protocol, and the names of each are its own.
func TestProtocols(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range protocols {
		for _, name := range []string{"name " + k.name, "in a sentence " + k.its, "suffix " + k.suffix, fmt.Sprint("frames ", k.frames)} {
			if seen[name] || strings.HasSuffix(name, " ") {
				t.Errorf("%q is another's, or nothing", name)
			}
			seen[name] = true
		}
	}
	if len(protocols) != int(datapath.ControlEnd) {
		t.Errorf("the agent runs %d control protocols of %d", len(protocols), datapath.ControlEnd)
	}
}

// Frames reach their protocol, also through cables.
func TestControlReceive(t *testing.T) {
	c, _, told := twoProtocols(t)
	for protocol, want := range map[bridge.Protocol][]string{
		bridge.ProtocolSTP: {"tree: receive 1 x"}, 99: {"other: receive 1 x"}, 98: nil,
	} {
		c.receive(bridge.ControlFrame{Protocol: protocol, Port: 1, Bytes: []byte("x")})
		wantTold(t, fmt.Sprint("protocol ", protocol), told, want...)
	}
	s := &site{bridges: map[string]*served{"br0": {control: c}, "br1": {}}}
	// only the last exists, is a patch port, and runs the protocol
	for _, to := range []string{"br0/a", "br1/b", "br9/b", "br0/b"} {
		line{s, protocols[1]}.Cable(to, []byte("y"))
	}
	for _, h := range s.cabled {
		s.hand(h)
	}
	wantTold(t, "by cables", told, "other: receive 2 y")
	c.end(protocols[1], false)
	wantTold(t, "ended", told, "other: end false")
	c.receive(bridge.ControlFrame{Protocol: 99})
	s.hand(handed{of: protocols[1], to: "br0/b"})
	wantTold(t, "after the end", told)
}

// A lost link is reported at once. A link that comes up may have another speed, so
// the bridge is read again.
func TestControlLinks(t *testing.T) {
	c, _, told := twoProtocols(t)
	log := slog.New(slog.DiscardHandler)
	for _, tt := range []struct {
		index int
		up    bool
		look  bool
		told  []string
	}{
		{11, true, false, nil}, // already known
		{11, false, false, []string{"tree: down 1", "other: down 1"}},
		{11, false, false, nil},
		{11, true, true, nil},
		{12, true, false, nil}, // no bridge has this device
		{0, false, false, nil}, // a patch port has no device
	} {
		if look := c.linkChanged(log, tt.index, tt.up); look != tt.look {
			t.Errorf("device %d, up %v: look %v", tt.index, tt.up, look)
		}
		wantTold(t, fmt.Sprintf("device %d, up %v", tt.index, tt.up), told, tt.told...)
	}
	if (*controlled)(nil).linkChanged(log, 11, false) {
		t.Error("a bridge without protocols is to be looked at")
	}
}

// If ports cannot be read for a moment, the known ones remain.
func TestControlUnread(t *testing.T) {
	c, h, told := twoProtocols(t)
	h.deaf, h.ports = errors.New("interfaces change too fast"), nil
	if _, err := c.look(); err == nil {
		t.Error("nothing is said of ports that cannot be read")
	}
	s := &site{bridges: map[string]*served{"br0": {control: c}}}
	if !s.knows(11) || len(c.ports) != 2 {
		t.Errorf("the ports are %v", c.ports)
	}
	wantTold(t, "unread", told)
}

// The loss of control over a bridge is logged once, with the names of the protocols.
func TestControlLost(t *testing.T) {
	c, h, told := twoProtocols(t)
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	now := time.Now()
	for _, lost := range []error{nil, errors.New("no"), errors.New("no"), nil, errors.New("no")} {
		h.lost, now = lost, now.Add(time.Second)
		c.tick(log, now)
		c.tick(log, now)
	}
	for _, words := range []string{`msg="the spanning tree cannot be marked as running"`, `msg="other cannot be marked as running"`} {
		if got := strings.Count(text.String(), words); got != 2 {
			t.Errorf("%s is said %d times:\n%s", words, got, text.String())
		}
	}
	if len(*told) != 20 {
		t.Errorf("%d ticks for two protocols, should be 20", len(*told))
	}
}

// A bridge is given up when it runs no protocol, and not before.
func TestControlRest(t *testing.T) {
	c, _, told := twoProtocols(t)
	b := &served{control: c}
	c.end(protocols[0], false)
	b.rest()
	if b.control == nil {
		t.Error("a bridge is given back while a protocol runs")
	}
	c.end(protocols[1], true)
	b.rest()
	if b.control != nil {
		t.Error("a bridge is kept of which no protocol runs")
	}
	wantTold(t, "ends", told, "tree: end false", "other: end true")
}
