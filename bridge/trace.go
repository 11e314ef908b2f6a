// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Trace is a bridge's decision on one frame, and its reasons.
type Trace struct {
	Steps   []Step   // in the order in which they are taken
	Verdict string   // in a few words: "forwarded", "flooded", "dropped: same-port"
	Out     []string // ports that the frame leaves by; empty where it is dropped
}

// Step is one step of the decision on a frame.
type Step struct {
	Name string // of the step in the pipeline: "learn", "look up", ...
	Text string // what it found and did, in words, without a full stop
}

// Trace has a bridge's own program decide on a frame, as if it came in by a
// port, and returns the decision. The frame begins at its Ethernet header.
// Nothing is sent, learned or counted.
func (s *Switch) Trace(bridge, port string, frame []byte) (t Trace, err error) {
	what := fmt.Sprintf("trace a frame at port %s of %s", port, bridge)
	err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		p, l, err := findRunning(b, what, bridge, port)
		if err != nil {
			return err
		}
		if l == nil {
			return refused(what, "the port has no device", "give a port where frames come in by a device")
		}
		traced, err := b.Trace(p, frame)
		if least := datapath.TrialShortError(0); errors.As(err, &least) {
			return refused(what, err.Error(), fmt.Sprintf("give it %d bytes", int(least)))
		}
		if size := datapath.TrialSizeError(0); errors.As(err, &size) {
			return refused(what, err.Error(), "give a smaller one, of 3500 bytes at most")
		}
		if err != nil {
			return failed(what, err)
		}
		e := &explainer{b: b, t: traced, in: p, port: port}
		if e.devices, err = links(); err != nil {
			return err
		}
		if e.entries, err = b.FDB(); err != nil {
			return err
		}
		if e.states, err = b.STPStates(); err != nil {
			return err
		}
		if filters(&b.Config) {
			if e.vlans, err = b.VLANs(); err != nil {
				return err
			}
		}
		if e.t.PfIn != 0 || e.t.PfOut != 0 {
			if e.pf, err = newPFView(b); err != nil {
				return err
			}
		}
		t, err = e.explain()
		return err
	})
	return t, err
}

// explainer puts the datapath's decision on a frame in words.
type explainer struct {
	b       *datapath.Bridge
	t       *datapath.Traced
	in      *datapath.Port
	port    string // its name
	devices map[int]netlink.Link
	entries []datapath.Entry
	states  []datapath.STPState // of ports by slot
	vlans   *datapath.VLANs     // nil where the bridge does not filter
	pf      *pfView             // nil where no rule of pf was asked
	steps   []Step
}

func (e *explainer) say(name, format string, args ...any) {
	e.steps = append(e.steps, Step{name, fmt.Sprintf(format, args...)})
}

func (e *explainer) name(slot uint32) string {
	if p := datapath.PortAt(&e.b.Config, e.b.Config.Ports[slot].Id); p != nil {
		return portName(e.b, p, e.devices)
	}
	return fmt.Sprintf("a port that is gone (slot %d)", slot)
}

// reason is why the frame was dropped, "" if it was not.
func (e *explainer) reason() string {
	if e.t.Action == datapath.ActionDrop {
		return datapath.Reasons()[e.t.Reason]
	}
	for i, n := range e.t.Stats.Drops {
		// before there was anything to decide on
		if n > 0 && e.t.Action == datapath.ActionPass {
			return datapath.Reasons()[i]
		}
	}
	return ""
}

func (e *explainer) explain() (Trace, error) {
	ruleIn, err := e.rule(e.t.RuleIn)
	if err != nil {
		return Trace{}, err
	}
	ruleOut, err := e.rule(e.t.RuleOut)
	if err != nil {
		return Trace{}, err
	}
	return e.decided(ruleIn, ruleOut), nil
}

// decided tells the decision; the MAC rules are those that have matched.
func (e *explainer) decided(ruleIn, ruleOut string) Trace {
	t := e.t
	src, dst := datapath.WordMAC(t.Src), datapath.WordMAC(t.Dst)
	reason := e.reason()
	e.say("port", "it comes in by %s", e.port)
	if why := e.down(t.In); why != "" {
		e.say("port", "%s: nothing comes in by it now", why)
	}
	if t.Action == datapath.ActionPass {
		if reason != "" {
			e.say("frame", "%s", words[reason])
			return Trace{e.steps, "dropped: " + reason, []string{}}
		}
		e.say("port", "the port's device is in another network namespace: the switch leaves the frame alone")
		return Trace{e.steps, "not the switch's", []string{}}
	}
	e.say("frame", "from %s to %s", net.HardwareAddr(src[:]), kindOf(dst))
	if e.in.Facts&datapath.PortSpan == 0 {
		e.copiesIn()
	}
	if e.b.Config.Flags&uint32(datapath.BridgeVLANs) != 0 && t.Vid != 0 {
		text := fmt.Sprintf("VLAN %d", t.Vid)
		if t.Vlan != 0 && t.Vlan != t.Vid {
			text += fmt.Sprintf(", with the addresses of primary VLAN %d", t.Vlan)
		}
		e.say("vlan", "%s", text)
	} else if e.b.Config.Flags&uint32(datapath.BridgeVLANs) == 0 && t.Vlan != 0 {
		e.say("vlan", "tag of VLAN %d; VLAN filtering is off, the tag stays", t.Vlan)
	}
	if t.RuleIn != 0 {
		e.say("rules in", "rule %d matches%s", t.RuleIn, ruleIn)
	}
	if t.PfState != 0 {
		e.say("pf", "its connection has a state")
	}
	e.rulePF("pf in", t.PfIn)
	if t.Action == datapath.ActionDrop && reason == "" {
		taker := protocols[Protocol(t.Word)]
		e.say(taker.name, "it is %s: the switch takes it for itself", taker.frame)
		return Trace{e.steps, "taken in", []string{}}
	}
	if reason == "locked" {
		e.say("check", "%s%s", words[reason], e.locked(src, uint16(t.Src>>48)))
		return Trace{e.steps, "dropped: " + reason, []string{}}
	}
	if e.early() {
		e.say("check", "%s", words[reason])
		return Trace{e.steps, "dropped: " + reason, []string{}}
	}
	e.learning(src, uint16(t.Src>>48))
	if reason == "limit" || reason == "stp" {
		e.say("learn", "%s", words[reason])
		return Trace{e.steps, "dropped: " + reason, []string{}}
	}
	if t.Action == datapath.ActionAnswered {
		e.say("answer", "the address is bound: the switch answers by %s", e.port)
		e.lost("answer", t.In, "answer")
		e.copiesOut(t.In)
		return Trace{e.steps, "answered", []string{e.port}}
	}
	if t.Action == datapath.ActionFlood || reason == "storm-unknown" {
		return e.flood(dst, reason)
	}
	behind, vlan := t.Out, uint16(t.Dst>>48)
	if entry := e.find(dst, vlan); entry != nil && e.backup(entry.Port) == t.Out {
		behind = datapath.Slot(entry.Port)
	}
	e.say("look up", "%s is behind %s (%s)", net.HardwareAddr(dst[:]), e.name(behind), e.entryKind(dst, vlan))
	if behind != t.Out {
		why := e.down(behind)
		if why == "" { // that it has since
			why = e.name(behind) + " has no carrier"
		}
		e.say("backup", "%s, and %s stands in for it", why, e.name(t.Out))
	}
	if t.RuleOut != 0 {
		e.say("rules out", "rule %d of %s matches%s", t.RuleOut, e.name(t.Out), ruleOut)
	}
	e.rulePF("pf out", t.PfOut)
	if reason == "" && t.Mtu != 0 {
		reason = "mtu"
	}
	if reason != "" {
		e.say("check", "%s", words[reason])
		return Trace{e.steps, "dropped: " + reason, []string{}}
	}
	e.say("send", "by %s%s", e.name(t.Out), e.tag(t.Tag))
	e.lost("send", t.Out, "frame")
	e.copiesOut(t.Out)
	return Trace{e.steps, "forwarded", []string{e.name(t.Out)}}
}

// rule returns the text for the MAC rule of a number, 0 for none.
func (e *explainer) rule(number uint16) (text string, err error) {
	if number == 0 {
		return "", nil
	}
	r, there, err := e.b.RuleOf(number)
	if err != nil || !there { // it has gone since
		return "", err
	}
	r.Rule.Port = e.name(datapath.Slot(r.Port))
	return ": " + r.Rule.String(), nil
}

// down says why the device of a port takes no frame, as `port show` has it
// disabled; "" where it does, or where the port has no device.
func (e *explainer) down(slot uint32) string {
	p := datapath.PortAt(&e.b.Config, e.b.Config.Ports[slot].Id)
	if p == nil || p.Facts&datapath.PortPatch != 0 {
		return ""
	}
	l := shownDevice(e.b, p, e.devices)
	switch {
	case l == nil:
		return ""
	case l.Attrs().RawFlags&unix.IFF_UP == 0:
		return e.name(slot) + " is down"
	case l.Attrs().RawFlags&unix.IFF_RUNNING == 0:
		return e.name(slot) + " has no carrier"
	}
	return ""
}

// lost tells that a "frame" to a port, or a copy of one, is lost in its device:
// the switch hands it over whatever becomes of it.
func (e *explainer) lost(step string, slot uint32, what string) {
	if why := e.down(slot); why != "" {
		e.say(step, "%s: the %s is lost there", why, what)
	}
}

// rulePF names the rule of pf that the packet has got, a number with 1 added,
// as pfctl -vvsr does.
func (e *explainer) rulePF(step string, number uint16) {
	if number == 0 {
		return
	}
	ref := e.pf.rule(int(number) - 1)
	if ref == nil {
		return
	}
	of := ""
	if ref.Anchor != "" {
		of = " of anchor " + ref.Anchor
	}
	e.say(step, "rule %d%s: %s", ref.Index, of, ref.Rule)
}

// early reports whether the frame was dropped before its source was learned:
// nothing came of that, nor of looking up where the frame goes.
func (e *explainer) early() bool {
	s := &e.t.Stats
	return e.t.Action == datapath.ActionDrop && s.Learned+s.Moves+s.Refused == 0 && e.t.Out == 0 && e.t.Flood == 0
}

// copies tells which span ports get a copy of the frame.
func (e *explainer) copies(mask uint16, what string) {
	var names []string
	for i, slot := range e.b.Config.Spans {
		if slot != 0 && mask>>i&1 != 0 {
			names = append(names, e.name(uint32(slot)))
		}
	}
	if names != nil {
		e.say("span", "a copy of what %s goes to %s", what, strings.Join(names, ", "))
	}
	for i, slot := range e.b.Config.Spans {
		if slot != 0 && mask>>i&1 != 0 {
			e.lost("span", uint32(slot), "copy")
		}
	}
}

func (e *explainer) copiesIn() {
	mask := e.b.Config.SpanIn | e.in.SpanIn
	if vid := e.t.Received; e.vlans != nil && vid != 0 && inSet(&e.vlans[vid].Member, e.t.In) {
		mask |= e.vlans[vid].SpanIn
	}
	e.copies(mask, "comes in")
}

func (e *explainer) copiesOut(slot uint32) {
	p := datapath.PortAt(&e.b.Config, e.b.Config.Ports[slot].Id)
	if p == nil {
		return
	}
	mask := e.b.Config.SpanOut | p.SpanOut
	if e.vlans != nil && e.t.Vid != 0 {
		mask |= e.vlans[e.t.Vid].SpanOut
	}
	e.copies(mask, "leaves by "+e.name(slot))
}

func (e *explainer) learning(src [6]byte, vlan uint16) {
	mac := net.HardwareAddr(src[:])
	switch s := e.t.Stats; {
	case s.Learned > 0:
		e.say("learn", "%s is new on %s", mac, e.port)
	case s.Moves > 0:
		e.say("learn", "%s moves to %s", mac, e.port)
	case s.Refused > 0:
		e.say("learn", "%s is not learned: %s", mac, e.refusal(src, vlan))
	case e.in.Flags&datapath.PortLearn == 0:
		e.say("learn", "the port does not learn")
	default:
		e.say("learn", "%s is known on %s", mac, e.port)
	}
}

func (e *explainer) find(mac [6]byte, vlan uint16) *datapath.Entry {
	for i := range e.entries {
		if e.entries[i].MAC == mac && e.entries[i].VLAN == vlan {
			return &e.entries[i]
		}
	}
	return nil
}

func (e *explainer) refusal(src [6]byte, vlan uint16) string {
	if entry := e.find(src, vlan); entry != nil && (entry.Static || entry.Sticky) {
		return fmt.Sprintf("it is %s on %s", e.entryKind(src, vlan), e.name(datapath.Slot(entry.Port)))
	} else if entry != nil {
		return "it moves too often, or the port has no room for it"
	}
	return "there is no room"
}

// backup returns the slot of the port that stands in for one, 0 for none.
func (e *explainer) backup(id uint32) uint32 {
	if p := datapath.PortAt(&e.b.Config, id); p != nil {
		return datapath.Slot(p.Backup)
	}
	return 0
}

// locked says what becomes of an address that a locked port does not let in,
// where the port tells of such.
func (e *explainer) locked(src [6]byte, vlan uint16) string {
	if e.in.Flags&datapath.PortMAB == 0 {
		return ""
	}
	switch entry := e.find(src, vlan); {
	case entry != nil && entry.Port != e.in.Id:
		return ", but on " + e.name(datapath.Slot(entry.Port))
	case entry != nil:
		return " but as a locked entry, which is refreshed"
	case e.t.Stats.Refused > 0:
		return "; there is no room for a locked entry"
	}
	return "; it gets a locked entry"
}

func (e *explainer) entryKind(mac [6]byte, vlan uint16) string {
	entry := e.find(mac, vlan)
	switch {
	case entry == nil:
		return "dynamic" // learned or gone at this moment
	case entry.Static:
		return "static"
	case entry.Sticky:
		return "sticky"
	}
	return "dynamic"
}

// tag says how the frame leaves; tags are touched by VLAN filtering alone.
func (e *explainer) tag(tag uint16) string {
	switch {
	case e.b.Config.Flags&uint32(datapath.BridgeVLANs) == 0:
		return ""
	case tag == 0:
		return ", without a tag"
	}
	return fmt.Sprintf(", with the tag of VLAN %d", tag&4095)
}

func (e *explainer) flood(dst [6]byte, reason string) Trace {
	if entry := e.find(dst, uint16(e.t.Dst>>48)); entry != nil && entry.Locked {
		e.say("look up", "%s has a locked entry on %s, by which nothing is sent", net.HardwareAddr(dst[:]), e.name(datapath.Slot(entry.Port)))
	} else if dst[0]&1 == 0 {
		e.say("look up", "%s is unknown", net.HardwareAddr(dst[:]))
	}
	if reason != "" {
		e.say("check", "%s", words[reason])
		return Trace{e.steps, "dropped: " + reason, []string{}}
	}
	out := []string{}
	for _, p := range e.t.Port[:e.t.Ports] {
		name, reason := e.name(uint32(p.Slot)), datapath.Reasons()[p.Reason]
		switch {
		case reason == "span":
			// it gets copies, which are told of by themselves
		case p.Reason != 0:
			e.say("flood", "not to %s: %s", name, words[reason])
		default:
			e.say("flood", "to %s%s", name, e.tag(p.Tag))
			e.lost("flood", uint32(p.Slot), "frame")
			e.copiesOut(uint32(p.Slot))
			out = append(out, name)
		}
	}
	e.left()
	if len(out) == 0 {
		e.say("flood", "%s", words["no-member"])
		return Trace{e.steps, "dropped: no-member", out}
	}
	return Trace{e.steps, "flooded", out}
}

// left tells of ports that the flood did not come near: they take none of the
// kind, have no device, or do not forward.
func (e *explainer) left() {
	kind := map[uint32]string{
		uint32(datapath.PortDiscover):   "discover",
		uint32(datapath.PortMcastFlood): "mcast-flood",
		uint32(datapath.PortBcastFlood): "bcast-flood",
	}[e.t.Flood]
	for _, p := range inOrder(&e.b.Config) {
		name := e.name(datapath.Slot(p.Id))
		switch {
		case p.Id == e.in.Id && p.Flags&datapath.PortHairpin == 0, p.Facts&datapath.PortSpan != 0:
		case uint32(p.Flags)&e.t.Flood == 0:
			e.say("flood", "not to %s: its %s is off", name, kind)
		case !e.b.HasDevice(p) && p.Facts&datapath.PortPatch == 0:
			e.say("flood", "not to %s: its device has gone", name)
		case e.states[datapath.Slot(p.Id)] != datapath.STPForwarding:
			e.say("flood", "not to %s: spanning tree has it %s", name, STPState(e.states[datapath.Slot(p.Id)]))
		}
	}
}

// kindOf says of which kind an address is.
func kindOf(mac [6]byte) string {
	text := net.HardwareAddr(mac[:]).String()
	switch {
	case mac == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}:
		return text + ", every station"
	case mac[0]&1 != 0:
		return text + ", a group"
	}
	return text
}
