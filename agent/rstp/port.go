// SPDX-License-Identifier: BSD-2-Clause

package rstp

// An infoIs is the source of a port's information (17.19.10).
type infoIs uint8

const (
	infoDisabled infoIs = iota
	infoAged
	infoMine
	infoReceived
)

// A rcvdInfo is the meaning of a received message to a port (17.21.8).
type rcvdInfo uint8

const (
	otherInfo rcvdInfo = iota
	superiorDesignatedInfo
	repeatedDesignatedInfo
	inferiorDesignatedInfo
	inferiorRootAlternateInfo
)

// A port is the state of one port: its settings, the variables of its machines,
// and its counters. A snapshot has all of it.
type port struct {
	bridge *Bridge

	Number uint16
	Config PortConfig
	variables
	saved variables // the variables in the last snapshot, as returned by lasting

	Told     told // the last values that were reported
	Counters Counters
}

// variables are the variables of 17.17 and 17.19, and the states of the
// machines. Timers are in seconds.
type variables struct {
	Up    bool // it has a link
	Heard bool // a BPDU has come since the port was enabled

	Guarded    bool // shut by BPDU guard
	GuardWhile int  // seconds left of the guard's timeout, 0 for none

	// Timers (17.17).
	EdgeDelayWhile int
	FdWhile        int
	HelloWhen      int
	MdelayWhile    int
	RbWhile        int
	RcvdInfoWhile  int
	RrWhile        int
	TcWhile        int
	LoopWhile      int // until its own BPDUs no longer come back; not in the standard

	// Variables (17.19).
	Agree              bool
	Agreed             bool
	DesignatedPriority vector
	DesignatedTimes    times
	Disputed           bool
	Forward            bool
	Forwarding         bool
	InfoIs             infoIs
	Learn              bool
	Learning           bool
	Mcheck             bool
	MsgPriority        vector
	MsgTimes           times
	NewInfo            bool
	OperEdge           bool
	PortEnabled        bool
	PortID             PortID
	PortPriority       vector
	PortTimes          times
	Proposed           bool
	Proposing          bool
	RcvdBPDU           bool
	RcvdInfo           rcvdInfo
	RcvdMsg            bool
	RcvdRSTP           bool
	RcvdSTP            bool
	RcvdTc             bool
	RcvdTcAck          bool
	RcvdTcn            bool
	ReRoot             bool
	Reselect           bool
	Role               Role
	Selected           bool
	SelectedRole       Role
	SendRSTP           bool
	Sync               bool
	Synced             bool
	TcAck              bool
	TcProp             bool
	TxCount            int
	UpdtInfo           bool

	Message bpdu // the message of rcvdBPDU

	// The states of the machines.
	PPM ppmState
	BDM bdmState
	PIM pimState
	PRT prtState
	PST State
	TCM tcmState
}

// The last reported values of a port, so that only changes are reported.
type told struct {
	Role             Role
	RootInconsistent bool
}

// begin puts all machines of the port into their first states (BEGIN, 17.18.1).
func (p *port) begin() {
	*p = port{
		bridge: p.bridge, Number: p.Number, Config: p.Config, saved: p.saved, Told: p.Told, Counters: p.Counters,
		variables: variables{
			Up: p.Up, Guarded: p.Guarded, GuardWhile: p.GuardWhile,

			PortID:          NewPortID(p.Config.Priority, p.Number),
			PortEnabled:     p.Up && !p.Guarded,
			DesignatedTimes: p.bridge.bridgeTimes(),
			SendRSTP:        p.bridge.rstpVersion(),
		},
	}
	p.prxDiscard()
	p.ppmCheckingRSTP()
	p.bdmBegin()
	p.ptxInit()
	p.pimDisabled()
	p.updtRoleDisabled()
	p.prtInitPort()
	p.pstDiscarding()
	p.tcmInactive()
}

// enable derives portEnabled from its causes.
func (p *port) enable() { p.PortEnabled = p.Up && !p.Guarded }

// rootInconsistent reports whether root guard keeps the port from being the way
// to the root.
func (p *port) rootInconsistent() bool {
	return p.Config.RootGuard && p.InfoIs == infoReceived && p.Role == AlternatePort
}

// Conditions (17.20).

func (p *port) adminEdge() bool { return p.Config.Edge == EdgeOn }
func (p *port) autoEdge() bool  { return p.Config.Edge != EdgeOff }

func (p *port) edgeDelay() int { // 17.20.4
	if p.Config.PointToPoint {
		return migrateTime
	}
	return p.maxAge()
}

func (p *port) forwardDelay() int { // 17.20.5
	if p.SendRSTP {
		return p.helloTime()
	}
	return p.fwdDelay()
}

func (p *port) fwdDelay() int  { return seconds(p.DesignatedTimes.ForwardDelay) } // 17.20.6
func (p *port) helloTime() int { return seconds(p.DesignatedTimes.HelloTime) }    // 17.20.7
func (p *port) maxAge() int    { return seconds(p.DesignatedTimes.MaxAge) }       // 17.20.8

// reRooted reports whether all other ports have retired from the role of root
// port (17.20.10).
func (p *port) reRooted() bool {
	for _, q := range p.bridge.ports {
		if q != p && q.RrWhile != 0 {
			return false
		}
	}
	return true
}

// migrateTime is how long to wait for a change of version, in seconds (17.13.9).
const migrateTime = 3
