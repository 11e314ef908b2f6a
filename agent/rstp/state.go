// SPDX-License-Identifier: BSD-2-Clause

package rstp

// The machines for actions: port state transition, topology change, and port
// transmit.

// portStateTransition is the Port State Transition machine (17.30).
func (p *port) portStateTransition() bool {
	switch {
	case p.PST == Discarding && p.Learn:
		p.PST = Learning // LEARNING: enableLearning
		p.Learning = true
	case p.PST == Learning && !p.Learn:
		p.pstDiscarding()
	case p.PST == Learning && p.Forward:
		p.PST = Forwarding // FORWARDING: enableForwarding
		p.Forwarding = true
		p.Counters.Transitions++
	case p.PST == Forwarding && !p.Forward:
		p.pstDiscarding()
	default:
		return false
	}
	p.bridge.out.SetState(p.Number, p.PST)
	return true
}

func (p *port) pstDiscarding() { // DISCARDING: disableLearning, disableForwarding
	p.PST = Discarding
	p.Learning = false
	p.Forwarding = false
}

// A tcmState is a state of the Topology Change machine. States that are left at
// once are missing.
type tcmState uint8

const (
	tcmInactive tcmState = iota
	tcmLearning
	tcmActive
	tcmStates
)

// topologyChange is the Topology Change machine (17.31).
func (p *port) topologyChange() bool {
	inTree := p.Role == RootPort || p.Role == DesignatedPort
	rcvd := p.RcvdTc || p.RcvdTcn || p.RcvdTcAck || p.TcProp
	switch {
	case p.TCM == tcmInactive && p.Learn:
		p.tcmLearning()
	case p.TCM == tcmLearning && inTree && p.Forward && !p.OperEdge: // DETECTED
		p.TCM = tcmActive
		p.newTcWhile()
		p.setTcPropTree()
		p.NewInfo = true
		p.bridge.report(TopologyChange, p.Number, "")
	case p.TCM == tcmLearning && rcvd:
		p.tcmLearning()
	case p.TCM == tcmLearning && !inTree && !p.Learn && !p.Learning:
		p.tcmInactive()
		p.flush()
	case p.TCM == tcmActive && (!inTree || p.OperEdge):
		p.tcmLearning()
	case p.TCM == tcmActive && p.RcvdTcn: // NOTIFIED_TCN
		p.newTcWhile()
		p.notifiedTc()
	case p.TCM == tcmActive && p.RcvdTc:
		p.notifiedTc()
	case p.TCM == tcmActive && p.TcProp: // PROPAGATING
		p.newTcWhile()
		p.TcProp = false
		p.flush()
	case p.TCM == tcmActive && p.RcvdTcAck: // ACKNOWLEDGED
		p.TcWhile = 0
		p.RcvdTcAck = false
	default:
		return false
	}
	return true
}

func (p *port) tcmInactive() { // INACTIVE
	p.TCM = tcmInactive
	p.TcWhile = 0
	p.TcAck = false
}

func (p *port) tcmLearning() { // LEARNING
	p.TCM = tcmLearning
	p.RcvdTc = false
	p.RcvdTcn = false
	p.RcvdTcAck = false
	p.TcProp = false
}

func (p *port) notifiedTc() { // NOTIFIED_TC
	p.RcvdTcn = false
	p.RcvdTc = false
	if p.Role == DesignatedPort {
		p.TcAck = true
	}
	p.setTcPropTree()
}

// newTcWhile sets how long neighbours are notified (17.21.7).
func (p *port) newTcWhile() {
	if p.TcWhile != 0 {
		return
	}
	if p.SendRSTP {
		p.TcWhile = p.helloTime() + 1
		p.NewInfo = true
		return
	}
	p.TcWhile = p.maxAge() + p.fwdDelay() // of rootTimes, which designatedTimes has as well
}

// setTcPropTree makes all other ports signal the change (17.21.18).
func (p *port) setTcPropTree() {
	for _, q := range p.bridge.ports {
		if q != p {
			q.TcProp = true
		}
	}
}

// flush is fdbFlush (17.19.7). It flushes at once for STP, too; the standard
// uses fast ageing there.
func (p *port) flush() { p.bridge.out.Flush(p.Number) }

// portTransmit is the Port Transmit machine (17.26). All its states lead back
// to IDLE. It runs when the others are at rest, so that it sends nothing that
// is already outdated.
func (p *port) portTransmit() bool {
	if !p.Selected || p.UpdtInfo || !p.PortEnabled {
		return false
	}
	maySend := p.NewInfo && p.TxCount < p.bridge.txHoldCount() && p.HelloWhen != 0
	switch {
	case p.HelloWhen == 0: // TRANSMIT_PERIODIC
		p.NewInfo = p.NewInfo || p.Role == DesignatedPort || p.Role == RootPort && p.TcWhile != 0
	case maySend && p.SendRSTP: // TRANSMIT_RSTP
		p.txRstp()
		p.TcAck = false
	case maySend && !p.SendRSTP && p.Role == RootPort: // TRANSMIT_TCN
		p.tx(bpdu{Type: tcnBPDU}, &p.Counters.TxTCN)
	case maySend && !p.SendRSTP && p.Role == DesignatedPort: // TRANSMIT_CONFIG
		p.txConfig()
		p.TcAck = false
	default:
		return false
	}
	p.HelloWhen = p.helloTime() // IDLE
	return true
}

func (p *port) ptxInit() { // TRANSMIT_INIT, then IDLE
	p.NewInfo = true
	p.TxCount = 0
	p.HelloWhen = p.helloTime()
}

func (p *port) txConfig() { // 17.21.19
	var f flags
	if p.TcWhile != 0 {
		f |= flagTC
	}
	if p.TcAck {
		f |= flagTCAck
	}
	p.tx(bpdu{configBPDU, f, p.DesignatedPriority, p.DesignatedTimes}, &p.Counters.TxConfig)
}

func (p *port) txRstp() { // 17.21.20
	var f flags
	switch p.Role {
	case RootPort:
		f = roleRoot
	case DesignatedPort:
		f = roleDesignated
	default:
		f = roleAlternate
	}
	for _, flag := range []struct {
		is  bool
		bit flags
	}{
		{p.TcWhile != 0, flagTC},
		{p.Proposing, flagProposal},
		{p.Learning, flagLearning},
		{p.Forwarding, flagForwarding},
		{p.Agree, flagAgreement},
	} {
		if flag.is {
			f |= flag.bit
		}
	}
	p.tx(bpdu{rstBPDU, f, p.DesignatedPriority, p.DesignatedTimes}, &p.Counters.TxRST)
}

// tx sends a BPDU, unless the port has a BPDU filter.
func (p *port) tx(m bpdu, counter *uint64) {
	p.NewInfo = false
	p.TxCount++
	if p.Config.BPDUFilter {
		return
	}
	*counter++
	source := p.Config.MAC
	if len(source) == 0 {
		source = p.bridge.Config.MAC
	}
	p.bridge.out.Send(p.Number, m.encode(source))
}

// portTimers is the Port Timers machine (17.22), for one second.
func (p *port) portTimers() {
	for _, t := range p.timers() {
		*t.value = max(*t.value-1, 0)
	}
	p.TxCount = max(p.TxCount-1, 0)
}

type timer struct {
	name  string // in 17.17, but for loopWhile
	value *int
}

func (p *port) timers() []timer {
	return []timer{
		{"edgeDelayWhile", &p.EdgeDelayWhile}, {"fdWhile", &p.FdWhile}, {"helloWhen", &p.HelloWhen},
		{"mdelayWhile", &p.MdelayWhile}, {"rbWhile", &p.RbWhile}, {"rcvdInfoWhile", &p.RcvdInfoWhile},
		{"rrWhile", &p.RrWhile}, {"tcWhile", &p.TcWhile}, {"loopWhile", &p.LoopWhile},
	}
}
