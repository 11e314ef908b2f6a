// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"bascule/datapath"
	"bascule/pf"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Trace is a bridge's decision on one frame, with its reasons.
type Trace struct {
	Steps   []Step   // in the order of execution
	Verdict string   // in a few words: "forwarded", "flooded", "dropped: same-port"
	Out     []string // ports by which the frame leaves; empty if it is dropped
}

// Step is one step of the decision on a frame.
type Step struct {
	Name string // of the step in the pipeline: "learn", "look up", ...
	Text string // result, as a text without a full stop
}

// Trace runs a bridge's own program on a frame, as if it had entered by a port, and returns the
// decision. The frame begins with its Ethernet header. Nothing is sent, learned or counted.
func (s *Switch) Trace(bridge, port string, frame []byte) (t Trace, err error) {
	what := fmt.Sprintf("trace a frame at port %s of %s", port, bridge)
	err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		p, l, err := findRunning(b, what, bridge, port)
		if err != nil {
			return err
		}
		if l == nil && p.Facts&datapath.PortPatch == 0 {
			return refused(what, "the device of the port is gone", "give a port that has one; see 'bascule port show "+bridge+"'")
		}
		if l == nil {
			return refused(what, "the port has no device", "give a port where frames come in by a device")
		}
		e := &explainer{b: b, in: p, port: port, frame: frame, bridge: bridge}
		if e.devices, err = links(); err != nil {
			return err
		}
		t, err = e.trace()
		if least := datapath.TrialShortError(0); errors.As(err, &least) {
			return refused(what, err.Error(), fmt.Sprintf("give it %d bytes", int(least)))
		}
		if size := (datapath.TrialSizeError{}); errors.As(err, &size) {
			return refused(what, err.Error(), fmt.Sprintf("give a smaller one, of %d bytes at most", size.Most))
		}
		if err != nil {
			return failed(what, err)
		}
		return nil
	})
	return t, err
}

// trace runs the bridge's program on the frame, and explains the decision.
func (e *explainer) trace() (t Trace, err error) {
	if e.t, err = e.b.Trace(e.in, e.frame); err != nil {
		return t, err
	}
	if e.t.PfIn != 0 || e.t.PfOut != 0 || len(e.t.Matches(false)) > 0 || len(e.t.Matches(true)) > 0 {
		if e.pf, err = newPFView(e.b); err != nil {
			return t, err
		}
	}
	if e.t.Found == datapath.FindNone {
		if e.fdb, err = e.b.FDB(); err != nil {
			return t, err
		}
	}
	return e.explain()
}

// explainer describes the datapath's record of a trial.
type explainer struct {
	b       *datapath.Bridge
	t       *datapath.Traced
	in      *datapath.Port
	port    string // its name
	frame   []byte // as given
	devices map[int]netlink.Link
	pf      *pfView          // nil if no rule of pf was evaluated
	fdb     []datapath.Entry // if the destination is unknown
	steps   []Step
	bridge  string // its name
	hops    int    // routed host ports that the frame has passed
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

func (e *explainer) explain() (Trace, error) {
	ruleIn, err := e.rule(e.t.RuleIn)
	if err != nil {
		return Trace{}, err
	}
	ruleOut, err := e.rule(e.t.RuleOut)
	if err != nil {
		return Trace{}, err
	}
	t := e.decided(ruleIn, ruleOut)
	if routed, ok, err := e.route(); ok || err != nil {
		return routed, err
	}
	t.Steps = e.steps
	return t, nil
}

// decided explains the decision. ruleIn and ruleOut are the MAC rules that matched.
func (e *explainer) decided(ruleIn, ruleOut string) Trace {
	t := e.t
	src, dst := datapath.WordMAC(t.Src), datapath.WordMAC(t.Dst)
	e.say("port", "it comes in by %s", e.port)
	if why := e.down(datapath.Slot(e.in.Id)); why != "" {
		e.say("port", "%s: nothing comes in by it now", why)
	}
	if t.Action == datapath.ActionPass {
		e.say("port", "the port's device is in another network namespace: the switch leaves the frame alone")
		return Trace{e.steps, "not the switch's", []string{}}
	}
	if e.unseen() {
		e.say("port", "the kernel drops a tagged frame of less than %d bytes before the switch sees it", untagBytes)
		return Trace{e.steps, "not the switch's", []string{}}
	}
	if t.Step > datapath.StepFrame {
		e.say("frame", "from %s to %s", net.HardwareAddr(src[:]), kindOf(dst))
	}
	e.copies(t.SpansIn, "comes in")
	for _, slot := range e.spans(t.SpansSmall) {
		e.say("span", "%s gets no copy: %s", e.name(slot), words["mtu"])
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
	for _, match := range t.Matches(false) {
		e.rulePF(t.In, false, match)
	}
	e.rulePF(t.In, false, t.PfIn)
	if t.Action == datapath.ActionDrop && t.Reason == 0 {
		taker := protocols[Protocol(t.Word)]
		e.say(taker.name, "it is %s: the switch takes it for itself", taker.frame)
		return Trace{e.steps, "taken in", []string{}}
	}
	if t.Step >= datapath.StepLearn {
		e.say("learn", "%s", e.learned(src))
	}
	if t.Found != datapath.FindNotAsked {
		e.lookUp(dst)
	}
	if t.RuleOut != 0 {
		e.say("rules out", "rule %d of %s matches%s", t.RuleOut, e.name(t.Out), ruleOut)
	}
	for _, match := range t.Matches(true) {
		e.rulePF(t.Out, true, match)
	}
	e.rulePF(t.Out, true, t.PfOut)
	if t.NatProto != 0 {
		from, to := t.Translated()
		e.say("pf", "translates it: it goes on from %s to %s", pfEnd(t.NatProto, from), pfEnd(t.NatProto, to))
	}
	if hop, kind, ok := t.Hop(); ok {
		text := "the next hop is %s, by %s"
		if kind == pf.DupTo {
			text = "a copy goes to the next hop %s, by %s"
		}
		e.say("pf", text, hop, kind)
	}
	if d := t.Diverted(); d != nil && d.Kind == pf.DivertTo {
		e.say("pf", "a socket of the host gets it, by %s", d)
	} else if d != nil {
		e.say("pf", "a socket of the host gets the answers, by %s", d)
	}
	out := []string{}
	if t.Step == datapath.StepFlood {
		out = e.flood()
	}
	switch t.Action {
	case datapath.ActionDrop:
		reason := datapath.Reasons()[t.Reason]
		e.say(e.dropStep(), "%s%s%s", words[reason], e.locked(), e.unrouted(reason))
		if t.ToSockets() {
			e.say("sockets", "programs of the host that listen at %s for its type get it", e.port)
		}
		e.answers(reason)
		return Trace{e.steps, "dropped: " + reason, out}
	case datapath.ActionFlood:
		return Trace{e.steps, "flooded", out}
	case datapath.ActionAnswered:
		e.say("answer", "the address is bound: the switch answers by %s", e.port)
		e.lost("answer", t.In, "answer")
		e.copies(t.SpansOut, "leaves by "+e.port)
		return Trace{e.steps, "answered", []string{e.port}}
	}
	if t.Out == 0 { // it leaves by its next hop, before its way out is determined
		return Trace{e.steps, "forwarded", out}
	}
	e.say("send", "by %s%s", e.name(t.Out), e.tag(t.Tag))
	e.lost("send", t.Out, "frame")
	e.copies(t.SpansOut, "leaves by "+e.name(t.Out))
	return Trace{e.steps, "forwarded", []string{e.name(t.Out)}}
}

// pfEnd formats an address that pf has set in a packet, with the port if the protocol has ports.
func pfEnd(proto uint32, a netip.AddrPort) string {
	if proto != protoTCP && proto != protoUDP {
		return a.Addr().String()
	}
	return a.String()
}

// unrouted names the host port without --route at which a packet has a rule's next hop or socket.
func (e *explainer) unrouted(reason string) string {
	if reason != "pf-route" && reason != "pf-divert" {
		return ""
	}
	for _, slot := range []uint32{datapath.Slot(e.in.Id), e.t.Out} {
		p := datapath.PortAt(&e.b.Config, e.b.Config.Ports[slot].Id)
		if p != nil && p.Notes&datapath.PortHost != 0 && p.Flags&datapath.PortRoute == 0 {
			return fmt.Sprintf(": that needs --%s, which %s does not have", routeSetting, e.name(slot))
		}
	}
	return ""
}

// dropStep returns the name of the step in which the frame is dropped. Filters have steps of their
// own.
func (e *explainer) dropStep() string {
	switch e.t.Step {
	case datapath.StepFrame:
		return "frame"
	case datapath.StepLearn:
		return "learn"
	case datapath.StepFlood:
		return "flood"
	}
	return "check"
}

// rule returns the text of the MAC rule with a number, which is 0 for none.
func (e *explainer) rule(number uint16) (text string, err error) {
	if number == 0 {
		return "", nil
	}
	r, there, err := e.b.RuleOf(number)
	if err != nil || !there { // it has been removed since
		return "", err
	}
	r.Rule.Port = e.name(datapath.Slot(r.Port))
	return ": " + r.Rule.String(), nil
}

// down returns the reason why a port's device sends no frames; `port show` calls such a port
// disabled. It returns "" if the device sends frames, or if the port has no device.
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

// lost adds a step if a "frame" to a port, a "copy" of one or an "answer" is lost in the port's
// device. The switch sends copies and answers regardless of the device's state, and frames until it
// has read that state again.
func (e *explainer) lost(step string, slot uint32, what string) {
	if why := e.down(slot); why != "" {
		e.say(step, "%s: the %s is lost there", why, what)
	}
}

// rulePF adds a step with the rule of pf that has decided on the packet at a port, as pfctl -vvsr
// prints it. number is the rule's plus 1. The directions of a host port are the host's: frames that
// leave the switch there come in to the host.
func (e *explainer) rulePF(slot uint32, out bool, number uint16) {
	if number == 0 {
		return
	}
	ref := e.pf.rule(int(number) - 1)
	if ref == nil {
		return
	}
	at := ""
	if ref.Anchor != "" {
		at = " of anchor " + ref.Anchor
	}
	if p := datapath.PortAt(&e.b.Config, e.b.Config.Ports[slot].Id); p != nil && p.Notes&datapath.PortHost != 0 {
		out = !out
		at += " at " + e.name(slot)
	}
	step := "pf in"
	if out {
		step = "pf out"
	}
	e.say(step, "rule %d%s: %s", ref.Index, at, ref.Rule)
}

// answers adds a step if pf answers a packet that a rule drops. Floods are not answered.
func (e *explainer) answers(reason string) {
	if reason != "pf" || e.t.Step == datapath.StepFlood || e.pf == nil {
		return
	}
	for _, number := range []uint16{e.t.PfIn, e.t.PfOut} {
		ref := e.pf.rule(int(number) - 1)
		if ref == nil || ref.Rule.Action != pf.Block {
			continue
		}
		how := map[pf.Return]string{
			pf.ReturnRST: "TCP by RST", pf.ReturnICMP: "by ICMP", pf.ReturnAll: "TCP by RST, the rest by ICMP",
		}[ref.Rule.Return]
		if how != "" {
			e.say("answer", "pf answers by %s: %s; not RST, ICMP errors, groups and later fragments", e.port, how)
			return
		}
	}
}

// untagBytes is the minimum length of a frame whose outer tag the kernel can remove: the header,
// the tag and a type (skb_vlan_untag). The kernel drops shorter frames.
const untagBytes = 20

// unseen reports whether the frame has a tag and is too short for the kernel. A port's XDP program
// precedes the kernel.
func (e *explainer) unseen() bool {
	if len(e.frame) < 14 || len(e.frame) >= untagBytes || e.in.Notes&datapath.PortXDP != 0 || e.t.Action == datapath.ActionDrop {
		return false
	}
	typ := binary.BigEndian.Uint16(e.frame[12:])
	return typ == 0x8100 || typ == 0x88a8
}

// spans returns the slots of the span ports in a mask.
func (e *explainer) spans(mask uint16) (slots []uint32) {
	for i, slot := range e.b.Config.Spans {
		if slot != 0 && mask>>i&1 != 0 {
			slots = append(slots, uint32(slot))
		}
	}
	return slots
}

// copies adds a step with the span ports that got a copy of the frame.
func (e *explainer) copies(mask uint16, what string) {
	slots := e.spans(mask)
	if slots == nil {
		return
	}
	names := make([]string, len(slots))
	for i, slot := range slots {
		names[i] = e.name(slot)
	}
	e.say("span", "a copy of what %s goes to %s", what, strings.Join(names, ", "))
	for _, slot := range slots {
		e.lost("span", slot, "copy")
	}
}

// learned describes how the source of a frame that entered was learned.
func (e *explainer) learned(src [6]byte) string {
	mac, not := net.HardwareAddr(src[:]).String(), " is not learned: "
	switch e.t.Learned {
	case datapath.LearnOff:
		return "the port does not learn"
	case datapath.LearnNew:
		return mac + " is new on " + e.port
	case datapath.LearnMoved:
		return mac + " moves to " + e.port
	case datapath.LearnStatic:
		return mac + not + "it is static on " + e.name(e.t.LearnedFrom)
	case datapath.LearnSticky:
		return mac + not + "it is sticky on " + e.name(e.t.LearnedFrom)
	case datapath.LearnDamped:
		return mac + not + "it moves too often"
	case datapath.LearnFull:
		if e.t.LearnedFrom != 0 { // the bridge already has it
			return mac + not + "the port has no room for it"
		}
		return mac + not + "there is no room"
	}
	return mac + " is known on " + e.port
}

// locked describes the locked entry for a source without access to a locked port. It returns "" if
// the port makes no such entries.
func (e *explainer) locked() string {
	switch e.t.Learned {
	case datapath.LearnLocked:
		return "; it gets a locked entry"
	case datapath.LearnLockedAgain:
		return " but as a locked entry, which is refreshed"
	case datapath.LearnLockedAway:
		return ", but on " + e.name(e.t.LearnedFrom)
	case datapath.LearnLockedFull:
		return "; there is no room for a locked entry"
	}
	return ""
}

// lookUp adds steps with the location of the destination, and with the backup that replaces its
// port.
func (e *explainer) lookUp(dst [6]byte) {
	t, mac := e.t, net.HardwareAddr(dst[:])
	kind := map[datapath.Found]string{
		datapath.FindDynamic: "dynamic", datapath.FindStatic: "static", datapath.FindSticky: "sticky",
	}[t.Found]
	switch {
	case t.Found == datapath.FindNone:
		e.say("look up", "%s is unknown%s", mac, e.elsewhere(dst))
	case t.Found == datapath.FindLocked:
		e.say("look up", "%s has a locked entry on %s, by which nothing is sent", mac, e.name(t.Behind))
	case t.Out == 0:
		e.say("look up", "%s is behind %s (%s), by which nothing is sent now", mac, e.name(t.Behind), kind)
	default:
		e.say("look up", "%s is behind %s (%s)", mac, e.name(t.Behind), kind)
	}
	if t.Out != 0 && t.Out != t.Behind {
		why := e.down(t.Behind)
		if why == "" { // the carrier has come back since
			why = e.name(t.Behind) + " has no carrier"
		}
		e.say("backup", "%s, and %s stands in for it", why, e.name(t.Out))
	}
}

// elsewhere lists the other VLANs that have an address which is unknown in the frame's VLAN, "" for
// none. This often means that a port is in the wrong VLAN.
func (e *explainer) elsewhere(mac [6]byte) string {
	var found []string
	slices.SortFunc(e.fdb, func(a, b datapath.Entry) int { return cmp.Compare(a.VLAN, b.VLAN) })
	for _, entry := range e.fdb {
		if entry.MAC != mac || entry.Locked {
			continue
		}
		where := "without a VLAN"
		if entry.VLAN != 0 {
			where = fmt.Sprintf("in VLAN %d", entry.VLAN)
		}
		found = append(found, where+" on "+portName(e.b, datapath.PortAt(&e.b.Config, entry.Port), e.devices))
	}
	switch {
	case found == nil:
		return ""
	case len(found) > 4:
		found = append(found[:4], fmt.Sprintf("and in %d more", len(found)-4))
	}
	return " here, and known " + strings.Join(found, ", ")
}

// tag describes the tag with which the frame leaves. Only VLAN filtering changes tags.
func (e *explainer) tag(tag uint16) string {
	switch {
	case e.b.Config.Flags&uint32(datapath.BridgeVLANs) == 0:
		return ""
	case tag == 0:
		return ", without a tag"
	}
	return fmt.Sprintf(", with the tag of VLAN %d", tag&4095)
}

// flood adds a step for each port of a flood, and returns the ports that got it.
func (e *explainer) flood() []string {
	out := []string{}
	for _, p := range e.t.Port[:e.t.Ports] {
		if datapath.PortAt(&e.b.Config, e.b.Config.Ports[p.Slot].Id) == nil {
			continue // a berth without a device
		}
		name := e.name(uint32(p.Slot))
		if p.Reason == 0 {
			e.say("flood", "to %s%s", name, e.tag(p.Tag))
			e.lost("flood", uint32(p.Slot), "frame")
			e.copies(p.Spans, "leaves by "+name)
			out = append(out, name)
		} else if why := e.past(uint32(p.Slot), datapath.FloodPast(p.Reason)); why != "" {
			e.say("flood", "not to %s: %s", name, why)
		}
	}
	return out
}

// past returns the reason why a flood does not reach the port in a slot, or "" if the port is not
// among the targets of floods.
func (e *explainer) past(slot uint32, reason datapath.FloodPast) string {
	switch reason {
	case datapath.PastOrigin:
		return ""
	case datapath.PastLearning:
		return "spanning tree has it " + STPLearning.String()
	case datapath.PastFlag:
		return "its " + map[uint32]string{
			uint32(datapath.PortDiscover):   "discover",
			uint32(datapath.PortMcastFlood): "mcast-flood",
			uint32(datapath.PortBcastFlood): "bcast-flood",
		}[e.t.Flood] + " is off"
	case datapath.PastDevice:
		return "its device has gone"
	case datapath.PastCarrier:
		return cmp.Or(e.down(slot), "it was down, or without a carrier")
	}
	switch name := datapath.Reasons()[reason]; name {
	case "span", "vlan-out": // copies have their own step
		return ""
	case "stp":
		return "spanning tree has it " + STPDiscarding.String()
	default:
		return words[name]
	}
}

// kindOf formats an address with its kind.
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
