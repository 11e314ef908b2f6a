// SPDX-License-Identifier: BSD-2-Clause

package rstp

// The machines for input: port receive, port protocol migration, bridge
// detection and port information.

// portReceive is the Port Receive machine (17.23). The value of rcvdMsg
// distinguishes its two states, so that they need no variable.
func (p *port) portReceive() bool {
	switch {
	case !p.PortEnabled && (p.RcvdBPDU || p.EdgeDelayWhile != migrateTime || p.Heard):
		p.prxDiscard()
	case p.PortEnabled && p.RcvdBPDU && !p.RcvdMsg: // RECEIVE
		p.updtBPDUVersion()
		p.OperEdge = false
		p.RcvdBPDU = false
		p.RcvdMsg = true
		p.EdgeDelayWhile = migrateTime
	default:
		return false
	}
	return true
}

func (p *port) prxDiscard() { // DISCARD
	p.RcvdBPDU = false
	p.RcvdRSTP = false
	p.RcvdSTP = false
	p.RcvdMsg = false
	p.EdgeDelayWhile = migrateTime
	p.Heard = false
	p.LoopWhile = 0
}

// updtBPDUVersion records the protocol of the message (17.21.22).
func (p *port) updtBPDUVersion() {
	if p.Message.Type == rstBPDU {
		p.RcvdRSTP = true
	} else {
		p.RcvdSTP = true
	}
}

// A ppmState is a state of the Port Protocol Migration machine.
type ppmState uint8

const (
	ppmCheckingRSTP ppmState = iota
	ppmSelectingSTP
	ppmSensing
	ppmStates
)

// portProtocolMigration is the Port Protocol Migration machine (17.24).
func (p *port) portProtocolMigration() bool {
	switch {
	case p.PPM == ppmCheckingRSTP && p.MdelayWhile == 0:
		p.ppmSensing()
	case p.PPM == ppmCheckingRSTP && p.MdelayWhile != migrateTime && !p.PortEnabled:
		p.ppmCheckingRSTP()
	case p.PPM == ppmSelectingSTP && (p.MdelayWhile == 0 || !p.PortEnabled || p.Mcheck):
		p.ppmSensing()
	case p.PPM == ppmSensing && (!p.PortEnabled || p.Mcheck || p.bridge.rstpVersion() && !p.SendRSTP && p.RcvdRSTP):
		p.ppmCheckingRSTP()
	case p.PPM == ppmSensing && p.SendRSTP && p.RcvdSTP: // SELECTING_STP
		p.PPM = ppmSelectingSTP
		p.SendRSTP = false
		p.MdelayWhile = migrateTime
		p.bridge.report(Migrated, p.Number, STP.String())
	default:
		return false
	}
	return true
}

func (p *port) ppmCheckingRSTP() { // CHECKING_RSTP
	if rstp := p.bridge.rstpVersion(); rstp != p.SendRSTP && p.PortEnabled {
		p.bridge.report(Migrated, p.Number, RSTP.String())
	}
	p.PPM = ppmCheckingRSTP
	p.Mcheck = false
	p.SendRSTP = p.bridge.rstpVersion()
	p.MdelayWhile = migrateTime
}

func (p *port) ppmSensing() { // SENSING
	p.PPM = ppmSensing
	p.RcvdRSTP = false
	p.RcvdSTP = false
}

// A bdmState is a state of the Bridge Detection machine.
type bdmState uint8

const (
	bdmNotEdge bdmState = iota
	bdmEdge
	bdmStates
)

// bridgeDetection is the Bridge Detection machine (17.25).
func (p *port) bridgeDetection() bool {
	switch {
	case p.BDM == bdmEdge && (!p.PortEnabled && !p.adminEdge() || !p.OperEdge):
		p.bdmNotEdge()
	case p.BDM == bdmNotEdge && (!p.PortEnabled && p.adminEdge() ||
		p.EdgeDelayWhile == 0 && p.autoEdge() && p.SendRSTP && p.Proposing):
		p.bdmEdge()
	default:
		return false
	}
	return true
}

func (p *port) bdmBegin() {
	if p.adminEdge() {
		p.bdmEdge()
	} else {
		p.bdmNotEdge()
	}
}

func (p *port) bdmEdge() { // EDGE
	p.BDM = bdmEdge
	p.OperEdge = true
}

func (p *port) bdmNotEdge() { // NOT_EDGE
	p.BDM = bdmNotEdge
	p.OperEdge = false
}

// A pimState is a state of the Port Information machine. States that are left
// at once are missing.
type pimState uint8

const (
	pimDisabled pimState = iota
	pimAged
	pimCurrent
	pimStates
)

// portInformation is the Port Information machine (17.27).
func (p *port) portInformation() bool {
	switch {
	case !p.PortEnabled && p.InfoIs != infoDisabled, p.PIM == pimDisabled && p.RcvdMsg:
		p.pimDisabled()
	case p.PIM == pimDisabled && p.PortEnabled:
		p.pimAged()
	case p.PIM == pimAged && p.Selected && p.UpdtInfo:
		p.pimUpdate()
	case p.PIM == pimCurrent && p.Selected && p.UpdtInfo:
		p.pimUpdate()
	case p.PIM == pimCurrent && p.InfoIs == infoReceived && p.RcvdInfoWhile == 0 && !p.UpdtInfo && !p.RcvdMsg:
		p.pimAged()
	case p.PIM == pimCurrent && p.RcvdMsg && !p.UpdtInfo:
		p.pimReceive()
	default:
		return false
	}
	return true
}

func (p *port) pimDisabled() { // DISABLED
	p.PIM = pimDisabled
	p.RcvdMsg = false
	p.Proposing = false
	p.Proposed = false
	p.Agree = false
	p.Agreed = false
	p.RcvdInfoWhile = 0
	p.InfoIs = infoDisabled
	p.Reselect = true
	p.Selected = false
}

func (p *port) pimAged() { // AGED
	p.PIM = pimAged
	p.InfoIs = infoAged
	p.Reselect = true
	p.Selected = false
}

func (p *port) pimUpdate() { // UPDATE
	p.PIM = pimCurrent
	p.Proposing = false
	p.Proposed = false
	p.Agreed = p.Agreed && p.betterorsameInfo(infoMine)
	p.Synced = p.Synced && p.Agreed
	p.PortPriority = p.DesignatedPriority
	p.PortTimes = p.DesignatedTimes
	p.UpdtInfo = false
	p.InfoIs = infoMine
	p.NewInfo = true
}

func (p *port) pimReceive() { // RECEIVE and the states that follow it
	p.RcvdInfo = p.rcvInfo()
	switch p.RcvdInfo {
	case superiorDesignatedInfo:
		p.Agreed = false
		p.Proposing = false
		p.recordProposal()
		p.setTcFlags()
		p.Agree = p.Agree && p.betterorsameInfo(infoReceived)
		p.recordPriority()
		p.recordTimes()
		p.updtRcvdInfoWhile()
		p.InfoIs = infoReceived
		p.Reselect = true
		p.Selected = false
	case repeatedDesignatedInfo:
		p.recordProposal()
		p.setTcFlags()
		p.updtRcvdInfoWhile()
	case inferiorDesignatedInfo:
		p.recordDispute()
	case inferiorRootAlternateInfo: // NOT_DESIGNATED
		p.recordAgreement()
		p.setTcFlags()
	}
	p.RcvdMsg = false
}

// betterorsameInfo compares new information with the port's (17.21.1).
func (p *port) betterorsameInfo(newInfoIs infoIs) bool {
	if p.InfoIs != newInfoIs {
		return false
	}
	if newInfoIs == infoReceived {
		return p.MsgPriority.compare(p.PortPriority) <= 0
	}
	return p.DesignatedPriority.compare(p.PortPriority) <= 0
}

// rcvInfo classifies the received message for the port (17.21.8).
func (p *port) rcvInfo() rcvdInfo {
	if p.Message.Type == tcnBPDU {
		p.setTcFlags() // the standard calls it in no state that follows a TCN BPDU; 802.1Q has it here
		return otherInfo
	}
	p.MsgPriority = p.Message.Priority
	p.MsgTimes = p.Message.Times
	same := p.MsgPriority == p.PortPriority

	switch p.Message.Flags & flagRole {
	case roleDesignated, roleUnknown: // a configuration BPDU comes from a designated port
		switch {
		case p.MsgPriority.supersedes(p.PortPriority), same && p.MsgTimes != p.PortTimes:
			return superiorDesignatedInfo
		case same:
			return repeatedDesignatedInfo
		}
		return inferiorDesignatedInfo
	}
	if p.MsgPriority.compare(p.PortPriority) >= 0 {
		return inferiorRootAlternateInfo
	}
	return otherInfo
}

// recordAgreement records a neighbour's agreement (17.21.9), if it is an
// agreement to the port's proposal.
func (p *port) recordAgreement() {
	p.Agreed = p.bridge.rstpVersion() && p.Config.PointToPoint && p.Message.Flags&flagAgreement != 0 &&
		p.agreesWithThis()
	if p.Agreed {
		p.Proposing = false
	}
}

// recordDispute records that another port of the link forwards with inferior
// information: that port does not receive this one's messages (17.21.10, in the
// version of 802.1Q clause 13; in 802.1D-2004 it sets agreed, which would make
// the loop that it should prevent).
func (p *port) recordDispute() {
	if p.Message.Flags&(flagLearning|flagForwarding) != 0 {
		p.Disputed = true
		p.Agreed = false
	}
}

// recordProposal records a neighbour's proposal (17.21.11). With root guard it
// ignores the proposal: the port will not be the way to the root, so the rest
// of the bridge need not wait for it.
func (p *port) recordProposal() {
	if p.Message.Flags&flagRole == roleDesignated && p.Message.Flags&flagProposal != 0 && !p.Config.RootGuard {
		p.Proposed = true
	}
}

func (p *port) recordPriority() { p.PortPriority = p.MsgPriority } // 17.21.12
func (p *port) recordTimes()    { p.PortTimes = p.MsgTimes }       // 17.21.13

// setTcFlags records the topology change flags of the message (17.21.17).
func (p *port) setTcFlags() {
	if p.Message.Type == tcnBPDU {
		p.RcvdTcn = true
		return
	}
	p.RcvdTc = p.RcvdTc || p.Message.Flags&flagTC != 0
	p.RcvdTcAck = p.RcvdTcAck || p.Message.Flags&flagTCAck != 0 && p.Message.Type == configBPDU
}

// updtRcvdInfoWhile sets how long the information is valid (17.21.23).
func (p *port) updtRcvdInfoWhile() {
	p.RcvdInfoWhile = 0
	if t := p.PortTimes.older(); t.MessageAge <= t.MaxAge {
		p.RcvdInfoWhile = seconds(3 * t.HelloTime)
	}
}

// agreesWithThis reports whether the agreement in the message is to the
// information that the port sends now. The standard accepts any agreement,
// which is a hole: if the port's information changes while an agreement is on
// its way, that agreement was to the old information, and a port that forwards
// by it can close a loop. A root port's message repeats the information that it
// has agreed to: the same root, a second older (or the same message, which some
// bridges send back). An alternate port's message has only the root in common.
// A refused agreement comes again, since proposals are repeated.
func (p *port) agreesWithThis() bool {
	if p.NewInfo || p.MsgPriority.RootBridgeID != p.PortPriority.RootBridgeID {
		return false
	}
	return p.Message.Flags&flagRole != roleRoot || p.MsgPriority == p.PortPriority ||
		seconds(p.MsgTimes.MessageAge) == seconds(p.PortTimes.older().MessageAge)
}
