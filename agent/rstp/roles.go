// SPDX-License-Identifier: BSD-2-Clause

package rstp

// The machines that decide on roles: port role selection and port role
// transitions.

// portRoleSelection is the Port Role Selection machine (17.28), of the bridge.
func (b *Bridge) portRoleSelection() bool {
	reselect := false
	for _, p := range b.ports {
		reselect = reselect || p.Reselect
	}
	if !reselect {
		return false
	}
	for _, p := range b.ports { // clearReselectTree (17.21.2)
		p.Reselect = false
	}
	b.updtRolesTree()
	for _, p := range b.ports { // setSelectedTree (17.21.16)
		p.Selected = true
	}
	return true
}

// updtRoleDisabled is the port's part of updtRoleDisabledTree (17.21.24).
func (p *port) updtRoleDisabled() { p.SelectedRole = DisabledPort }

// updtRolesTree selects the root, the way to it, and each port's role
// (17.21.25).
func (b *Bridge) updtRolesTree() {
	id := b.bridgeID()
	b.RootPriority = vector{RootBridgeID: id, DesignatedBridgeID: id}
	b.RootTimes = b.bridgeTimes()
	var root *port
	for _, p := range b.ports {
		// restrictedRole (802.1Q clause 13) is commonly called root
		// guard.
		if p.InfoIs != infoReceived || p.PortPriority.ofBridge(id) || p.Config.RootGuard {
			continue
		}
		path := p.PortPriority
		path.RootPathCost = addCost(path.RootPathCost, p.Config.Cost)
		switch c := path.compare(b.RootPriority); {
		case c < 0, c == 0 && root != nil && p.PortID < root.PortID:
			root = p
			b.RootPriority = path
			b.RootTimes = p.PortTimes.older()
		}
	}
	b.RootPortID = 0
	if root != nil {
		b.RootPortID = root.PortID
	}

	for _, p := range b.ports {
		p.DesignatedPriority = b.RootPriority
		p.DesignatedPriority.DesignatedBridgeID = id
		p.DesignatedPriority.DesignatedPortID = p.PortID
		p.DesignatedTimes = b.RootTimes
		p.DesignatedTimes.HelloTime = b.bridgeTimes().HelloTime

		p.UpdtInfo = false
		switch p.InfoIs {
		case infoDisabled:
			p.SelectedRole = DisabledPort
		case infoAged:
			p.SelectedRole = DesignatedPort
			p.UpdtInfo = true
		case infoMine:
			p.SelectedRole = DesignatedPort
			p.UpdtInfo = p.PortPriority != p.DesignatedPriority || p.PortTimes != p.DesignatedTimes
		case infoReceived:
			switch {
			case p == root:
				p.SelectedRole = RootPort
			case p.DesignatedPriority.compare(p.PortPriority) < 0:
				p.SelectedRole = DesignatedPort
				p.UpdtInfo = true
			case p.PortPriority.ofBridge(id):
				p.SelectedRole = BackupPort
			default:
				p.SelectedRole = AlternatePort
			}
		}
	}
}

// addCost adds costs without an overflow, which would make the worst way the
// best.
func addCost(a, b uint32) uint32 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<32 - 1
}

// A prtState is a state of the Port Role Transitions machine. States that are
// left at once are missing.
type prtState uint8

const (
	prtDisablePort prtState = iota
	prtDisabledPort
	prtRootPort
	prtDesignatedPort
	prtBlockPort
	prtAlternatePort
	prtStates
)

// portRoleTransitions is the Port Role Transitions machine (17.29).
func (p *port) portRoleTransitions() bool {
	if !p.Selected || p.UpdtInfo {
		return false
	}
	if p.Role != p.SelectedRole {
		switch p.SelectedRole {
		case DisabledPort:
			p.prtDisablePort()
		case RootPort:
			p.prtRootPort()
		case DesignatedPort:
			p.PRT = prtDesignatedPort
			p.Role = DesignatedPort
		case AlternatePort, BackupPort:
			p.PRT = prtBlockPort
			p.Role = p.SelectedRole
			p.Learn = false
			p.Forward = false
		}
		return true
	}
	switch p.PRT {
	case prtDisablePort, prtDisabledPort:
		return p.disabledTransitions()
	case prtRootPort:
		return p.rootTransitions()
	case prtDesignatedPort:
		return p.designatedTransitions()
	default:
		return p.alternateTransitions()
	}
}

func (p *port) prtInitPort() { // INIT_PORT, then DISABLE_PORT
	p.Synced = false
	p.Sync = true
	p.ReRoot = true
	p.RrWhile = p.fwdDelay()
	p.FdWhile = p.maxAge()
	p.RbWhile = 0
	p.prtDisablePort()
}

func (p *port) prtDisablePort() { // DISABLE_PORT
	p.PRT = prtDisablePort
	p.Role = p.SelectedRole
	p.Learn = false
	p.Forward = false
}

// disabledTransitions makes the transitions of a disabled port (17.29.1).
func (p *port) disabledTransitions() bool {
	switch {
	case p.PRT == prtDisablePort && !p.Learning && !p.Forwarding,
		p.PRT == prtDisabledPort && (p.FdWhile != p.maxAge() || p.Sync || p.ReRoot || !p.Synced):
		p.PRT = prtDisabledPort // DISABLED_PORT
		p.FdWhile = p.maxAge()
		p.Synced = true
		p.RrWhile = 0
		p.Sync = false
		p.ReRoot = false
	default:
		return false
	}
	return true
}

func (p *port) prtRootPort() { // ROOT_PORT
	p.PRT = prtRootPort
	p.Role = RootPort
	p.RrWhile = p.fwdDelay()
}

// rootTransitions makes the transitions of the root port (17.29.2).
func (p *port) rootTransitions() bool {
	mayForward := p.FdWhile == 0 || p.reRooted() && p.RbWhile == 0 && p.bridge.rstpVersion()
	switch {
	case p.Proposed && !p.Agree: // ROOT_PROPOSED
		p.bridge.setSyncTree()
		p.Proposed = false
	case p.bridge.allSynced() && !p.Agree, p.Proposed && p.Agree: // ROOT_AGREED
		p.Proposed = false
		p.Sync = false
		p.Agree = true
		p.NewInfo = true
	case !p.Forward && !p.ReRoot: // REROOT
		p.bridge.setReRootTree()
	case mayForward && !p.Learn: // ROOT_LEARN
		p.FdWhile = p.forwardDelay()
		p.Learn = true
	case mayForward && p.Learn && !p.Forward: // ROOT_FORWARD
		p.FdWhile = 0
		p.Forward = true
	case p.ReRoot && p.Forward: // REROOTED
		p.ReRoot = false
	case p.RrWhile != p.fwdDelay():
	default:
		return false
	}
	p.prtRootPort()
	return true
}

// designatedTransitions makes the transitions of a designated port (17.29.3).
func (p *port) designatedTransitions() bool {
	mayForward := (p.FdWhile == 0 || p.Agreed || p.OperEdge) && (p.RrWhile == 0 || !p.ReRoot) && !p.Sync && p.LoopWhile == 0
	mustDiscard := (p.Sync && !p.Synced || p.ReRoot && p.RrWhile != 0 || p.Disputed || p.LoopWhile != 0) && !p.OperEdge
	switch {
	case mustDiscard && (p.Learn || p.Forward): // DESIGNATED_DISCARD
		p.Learn = false
		p.Forward = false
		p.Disputed = false
		p.FdWhile = p.forwardDelay()
	case !p.Forward && !p.Agreed && !p.Proposing && !p.OperEdge: // DESIGNATED_PROPOSE
		p.Proposing = true
		p.EdgeDelayWhile = p.edgeDelay()
		p.NewInfo = true
	// DESIGNATED_SYNCED
	case !p.Synced && (!p.Learning && !p.Forwarding || p.Agreed || p.OperEdge), p.Sync && p.Synced:
		p.RrWhile = 0
		p.Synced = true
		p.Sync = false
	case p.RrWhile == 0 && p.ReRoot: // DESIGNATED_RETIRED
		p.ReRoot = false
	case mayForward && !p.Learn: // DESIGNATED_LEARN
		p.Learn = true
		p.FdWhile = p.forwardDelay()
	case mayForward && p.Learn && !p.Forward: // DESIGNATED_FORWARD
		p.Forward = true
		p.FdWhile = 0
		p.Agreed = p.SendRSTP
	default:
		return false
	}
	return true
}

// alternateTransitions makes the transitions of an alternate or backup port
// (17.29.4).
func (p *port) alternateTransitions() bool {
	if p.PRT == prtBlockPort {
		if p.Learning || p.Forwarding {
			return false
		}
		p.prtAlternatePort()
		return true
	}
	switch {
	case p.Proposed && !p.Agree: // ALTERNATE_PROPOSED
		p.bridge.setSyncTree()
		p.Proposed = false
	case p.bridge.allSynced() && !p.Agree, p.Proposed && p.Agree: // ALTERNATE_AGREED
		p.Proposed = false
		p.Agree = true
		p.NewInfo = true
	case p.RbWhile != 2*p.helloTime() && p.Role == BackupPort: // BACKUP_PORT
		p.RbWhile = 2 * p.helloTime()
	case p.FdWhile != p.forwardDelay() || p.Sync || p.ReRoot || !p.Synced:
	default:
		return false
	}
	p.prtAlternatePort()
	return true
}

func (p *port) prtAlternatePort() { // ALTERNATE_PORT
	p.PRT = prtAlternatePort
	p.FdWhile = p.forwardDelay()
	p.Synced = true
	p.RrWhile = 0
	p.Sync = false
	p.ReRoot = false
}

// allSynced reports whether no other port of the bridge forwards with old
// information (17.20.3).
func (b *Bridge) allSynced() bool {
	for _, p := range b.ports {
		if !p.Selected || p.UpdtInfo || p.Role != p.SelectedRole || p.Role != RootPort && !p.Synced {
			return false
		}
	}
	return true
}

func (b *Bridge) setSyncTree() { // 17.21.14
	for _, p := range b.ports {
		p.Sync = true
	}
}

func (b *Bridge) setReRootTree() { // 17.21.15
	for _, p := range b.ports {
		p.ReRoot = true
	}
}
