// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"bascule/locks"

	"golang.org/x/sys/unix"
)

// commandTime is the time limit of a command. A test fails after it, as the command hangs. On a
// busy machine, a file with every feature takes more than two minutes in an emulated machine.
const commandTime = 6 * time.Minute

// watchedTime is the limit of a command whose system calls are watched. It may wait long at one of
// them.
const watchedTime = 5 * time.Minute

// A Result is the result of a run of the program.
type Result struct {
	Args   []string
	Stdout string
	Stderr string
	Exit   int // exit status, -1 if a signal ended it
}

func (r Result) String() string {
	return fmt.Sprintf("bascule %s: exit %d, stdout %q, stderr %q", strings.Join(r.Args, " "), r.Exit, r.Stdout, r.Stderr)
}

// Command prepares a run of the program in the switch's namespace.
func (l *Lab) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(l.binary, append([]string{"-n", l.Switch.Name}, args...)...)
	cmd.Env = append(os.Environ(), l.env...)
	return cmd
}

// Setenv sets an environment variable for the program, in this lab alone.
func (l *Lab) Setenv(name, value string) { l.env = append(l.env, name+"="+value) }

// SetBinary has the lab run another build of the program from now on.
func (l *Lab) SetBinary(path string) { l.binary = path }

// Binary is the program that the lab runs.
func (l *Lab) Binary() string { return l.binary }

// CopyBinary copies the program, with a mode as in chmod(1). Another process writes the copy. If
// this process wrote it, a child that another test starts meanwhile would inherit the file
// descriptor until it calls execve(2). A file that is open for writing cannot be executed (ETXTBSY
// of execve(2)).
func (l *Lab) CopyBinary(to, mode string) {
	l.t.Helper()
	if out, err := exec.Command("install", "-m", mode, l.binary, to).CombinedOutput(); err != nil {
		l.t.Fatalf("copy %s: %v: %s", l.binary, err, out)
	}
}

// Run runs the program in the switch's namespace.
func (l *Lab) Run(args ...string) (Result, error) {
	return RunCommand(l.Command(args...))
}

// RunCommand runs a command to its end. The error says why it could not be run. The result says how
// it ended, without its messages that it waits for another command.
func RunCommand(cmd *exec.Cmd) (Result, error) { return runWithin(cmd, commandTime) }

// AwaitWriter waits until the present change of the switch is complete. A port is shown as soon as
// it is certain to be one. It forwards when the change is complete.
func (l *Lab) AwaitWriter() {
	l.t.Helper()
	if dir := l.openState(); dir != nil {
		defer locks.Close(dir)
		l.must(locks.Wait(dir)) // with the lock that writers use
	}
}

// Writer reports whether a process is changing the switch.
func (l *Lab) Writer() bool {
	l.t.Helper()
	dir := l.openState()
	if dir == nil {
		return false
	}
	defer locks.Close(dir)
	err := locks.Try(dir)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		l.t.Fatal(err)
	}
	return err != nil
}

// openState opens the folder that writers lock. It returns nil if there is no bridge.
func (l *Lab) openState() *os.File {
	l.t.Helper()
	dir, err := os.Open(l.State())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.must(err)
	return dir
}

// State returns the folder of the switch's bridges.
func (l *Lab) State() string {
	l.t.Helper()
	dir, err := l.stateDir()
	l.must(err)
	return dir
}

func runWithin(cmd *exec.Cmd, limit time.Duration) (Result, error) {
	return runStarted(cmd, limit, cmd.Start)
}

// runStarted is like runWithin, but start starts the command.
func runStarted(cmd *exec.Cmd, limit time.Duration, start func() error) (Result, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	r := Result{Args: cmd.Args[1:]}
	if err := start(); err != nil {
		return r, err
	}
	stop := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	if !stop.Stop() {
		return r, fmt.Errorf("%v: not done after %v", cmd.Args, limit)
	}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return r, err
	}
	r.Stdout, r.Stderr, r.Exit = out.String(), withoutWaits(errs.String()), cmd.ProcessState.ExitCode()
	return r, nil
}

// withoutWaits removes messages that a command waits for another one, such as an agent. They occur
// on a busy machine.
func withoutWaits(text string) string {
	const begin = "bascule: another command changes bridges of this network namespace; waiting for "
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, begin) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Bascule runs the program, which must succeed and print nothing to standard error. It returns the
// standard output.
func (l *Lab) Bascule(args ...string) string {
	l.t.Helper()
	r, err := l.Run(args...)
	l.must(err)
	if r.Exit != 0 || r.Stderr != "" {
		l.t.Fatal(r)
	}
	return r.Stdout
}

// Refused runs the program, which must fail with one clear line on standard error that contains the
// given words. It returns the result.
func (l *Lab) Refused(words []string, args ...string) Result {
	l.t.Helper()
	r, err := l.Run(args...)
	l.must(err)
	if err := r.CheckRefusal(words...); err != nil {
		l.t.Error(err)
	}
	return r
}

// CheckRefusal returns an error that says what is wrong with a refusal. A refusal is one line on
// standard error, with the object, the reason, and the remedy, and an exit status of 1 or 2.
func (r Result) CheckRefusal(words ...string) error {
	var errs []error
	if r.Exit != 1 && r.Exit != 2 {
		errs = append(errs, errors.New("the exit status is neither 1 nor 2"))
	}
	if r.Stdout != "" {
		errs = append(errs, errors.New("something on standard output"))
	}
	if strings.Count(r.Stderr, "\n") != 1 || !strings.HasSuffix(r.Stderr, "\n") {
		errs = append(errs, errors.New("standard error is not one line"))
	}
	if !strings.HasPrefix(r.Stderr, "bascule: ") {
		errs = append(errs, errors.New("the line does not begin with the program's name"))
	}
	if !strings.Contains(r.Stderr, "; ") {
		errs = append(errs, errors.New("the line has no way out after a semicolon"))
	}
	for _, w := range words {
		if !strings.Contains(r.Stderr, w) {
			errs = append(errs, fmt.Errorf("the line does not have %q in it", w))
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%v: %w", r, errors.Join(errs...))
}

// BridgeInfo is a bridge in the output of `bascule -j bridge show`.
type BridgeInfo struct {
	Ifname       string   `json:"ifname"`
	Address      string   `json:"address"`
	AgeingTime   float64  `json:"ageing_time"`
	FDBMax       int      `json:"fdb_max"`
	FDBCount     int      `json:"fdb_count"`
	GroupFwdMask int      `json:"group_fwd_mask"`
	Ports        []string `json:"ports"`

	VLANFiltering bool   `json:"vlan_filtering"`
	DefaultPVID   int    `json:"vlan_default_pvid"`
	VLANProtocol  string `json:"vlan_protocol"`
	QinQ          bool   `json:"qinq"`
	VLANStats     bool   `json:"vlan_stats_enabled"`
	MoveMax       int    `json:"move_max"`
	DHCPGuard     bool   `json:"dhcp_guard"`
	RAGuard       bool   `json:"ra_guard"`
	NeighSuppress bool   `json:"neigh_suppress"`

	STP          string  `json:"stp"`
	Priority     int     `json:"priority"`
	HelloTime    float64 `json:"hello_time"`
	MaxAge       float64 `json:"max_age"`
	ForwardDelay float64 `json:"forward_delay"`
	AgentRuns    bool    `json:"agent_runs"`
}

// Owner is the ID by which a port was plugged.
type Owner struct {
	ID        string `json:"id"`
	By        string `json:"by"`
	Network   string `json:"network"`
	Container string `json:"container"`
}

// PortInfo is a port in the output of `bascule -j port show`.
type PortInfo struct {
	Ifindex  int      `json:"ifindex"`
	Ifname   string   `json:"ifname"`
	Flags    []string `json:"flags"`
	TakenBy  string   `json:"taken_by"`
	Findings []struct {
		Kind string `json:"kind"`
		What string `json:"what"`
		Text string `json:"text"`
	} `json:"findings"`
	MTU        int    `json:"mtu"`
	Address    string `json:"address"`
	Master     string `json:"master"`
	Type       string `json:"type"`
	Hook       string `json:"hook"`
	State      string `json:"state"`
	Owner      *Owner `json:"owner"`
	Learning   bool   `json:"learning"`
	Flood      bool   `json:"flood"`
	McastFlood bool   `json:"mcast_flood"`
	BcastFlood bool   `json:"bcast_flood"`
	Hairpin    bool   `json:"hairpin"`
	Isolated   bool   `json:"isolated"`
	Protected  []int  `json:"protected"`
	FDBMax     int    `json:"fdb_max"`
	FDBCount   int    `json:"fdb_count"`

	FDBFull      string   `json:"fdb_full"`
	Locked       bool     `json:"locked"`
	MAB          bool     `json:"mab"`
	Admit        string   `json:"admit"`
	BackupPort   string   `json:"backup_port"`
	Way          string   `json:"way"`
	Egress       []string `json:"egress"`
	BlockNonIP   bool     `json:"block_non_ip"`
	SourceGuard  bool     `json:"source_guard"`
	Trusted      bool     `json:"trusted"`
	LoopGuard    string   `json:"loop_guard"`
	StormBcast   string   `json:"storm_bcast"`
	StormMcast   string   `json:"storm_mcast"`
	StormUnknown string   `json:"storm_unknown"`
	RateIn       string   `json:"rate_in"`
	RateOut      string   `json:"rate_out"`
	Cost         int      `json:"cost"`
	Priority     int      `json:"priority"`
	Edge         string   `json:"edge"`
	P2P          string   `json:"p2p"`
	Guard        bool     `json:"guard"`
	BPDUFilter   bool     `json:"bpdu_filter"`
	RootBlock    bool     `json:"root_block"`

	// with --stats
	Stats64 struct {
		RX Counter `json:"rx"`
		TX Counter `json:"tx"`
	} `json:"stats64"`
	Learned uint64            `json:"learned"`
	Moves   uint64            `json:"moves"`
	Refused uint64            `json:"refused"`
	Drops   map[string]uint64 `json:"drops"`
	Routed  map[string]uint64 `json:"routed"`
}

// Counter counts frames and their bytes.
type Counter struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
}

// FDBEntry is an entry in the output of `bascule -j fdb show`.
type FDBEntry struct {
	MAC     string   `json:"mac"`
	VLAN    int      `json:"vlan"`
	Ifname  string   `json:"ifname"`
	Master  string   `json:"master"`
	Flags   []string `json:"flags"`
	State   string   `json:"state"`
	Updated *int     `json:"updated"`
}

func (e FDBEntry) String() string {
	s := fmt.Sprintf("%s vlan %d %s", e.MAC, e.VLAN, e.Ifname)
	if e.State != "" {
		s += " " + e.State
	}
	for _, f := range e.Flags {
		s += " " + f
	}
	return s
}

// JSON runs the program with -j, which must succeed, and decodes its output.
func (l *Lab) JSON(into any, args ...string) {
	l.t.Helper()
	out := l.Bascule(append([]string{"-j"}, args...)...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		l.t.Fatalf("bascule -j %s: %v in %q", strings.Join(args, " "), err, out)
	}
}

// Bridge returns the output for one bridge.
func (l *Lab) Bridge(name string) BridgeInfo {
	l.t.Helper()
	var list []BridgeInfo
	l.JSON(&list, "bridge", "show", name)
	if len(list) != 1 || list[0].Ifname != name {
		l.t.Fatalf("bridge show %s: %+v", name, list)
	}
	return list[0]
}

// Ports returns the output for a bridge's ports.
func (l *Lab) Ports(bridge string) []PortInfo {
	l.t.Helper()
	var list []PortInfo
	l.JSON(&list, "port", "show", bridge, "--stats")
	return list
}

// Port returns the output for one port.
func (l *Lab) Port(bridge, port string) PortInfo {
	l.t.Helper()
	var list []PortInfo
	l.JSON(&list, "port", "show", bridge, port, "--stats")
	if len(list) != 1 || list[0].Ifname != port {
		l.t.Fatalf("port show %s %s: %+v", bridge, port, list)
	}
	return list[0]
}

// FDB returns a bridge's entries. args select some of them.
func (l *Lab) FDB(bridge string, args ...string) []FDBEntry {
	l.t.Helper()
	var list []FDBEntry
	l.JSON(&list, append([]string{"fdb", "show", bridge}, args...)...)
	return list
}

// AddBridge makes a bridge with the given ends' devices as ports, on the given hook. For XDP it
// prepares the ends to take XDP frames.
func (l *Lab) AddBridge(name, hook string, ports []*End, flags ...string) {
	l.t.Helper()
	l.Bascule(append([]string{"bridge", "add", name}, flags...)...)
	l.AddPorts(name, hook, ports)
}

// AddPort adds an end's device to a bridge, on the given hook, and verifies that it is there.
func (l *Lab) AddPort(bridge, hook string, e *End, flags ...string) {
	l.t.Helper()
	l.AddPorts(bridge, hook, []*End{e}, flags...)
}

// AddPorts is AddPort for several ends, by one command.
func (l *Lab) AddPorts(bridge, hook string, ends []*End, flags ...string) {
	l.t.Helper()
	if len(ends) == 0 {
		return
	}
	add := []string{"port", "add", bridge}
	for _, e := range ends {
		add = append(add, e.Port)
	}
	l.ready(hook, ends)
	l.Bascule(append(append(add, "--hook", hook), flags...)...)
	l.onHooks(bridge, hook, ends)
}

// Apply applies a file. Before that, it prepares the ends for the given hook. Then it verifies that
// they are ports of the bridges, by name.
func (l *Lab) Apply(hook string, ports map[string][]*End, file string) {
	l.t.Helper()
	for _, ends := range ports {
		l.ready(hook, ends)
	}
	cmd := l.Command("apply", "-")
	cmd.Stdin = strings.NewReader(file)
	r, err := RunCommand(cmd)
	l.must(err)
	if r.Exit != 0 || r.Stderr != "" {
		l.t.Fatalf("%v, of\n%s", r, file)
	}
	for bridge, ends := range ports {
		l.onHooks(bridge, hook, ends)
	}
}

// ready prepares ends for ports on a hook.
func (l *Lab) ready(hook string, ends []*End) {
	l.t.Helper()
	for _, e := range ends {
		if hook == "xdp" {
			e.ReadyForXDP()
		}
	}
}

// onHooks verifies that ends are ports of a bridge, on a hook.
func (l *Lab) onHooks(bridge, hook string, ends []*End) {
	l.t.Helper()
	ports := map[string]PortInfo{}
	for _, p := range l.Ports(bridge) {
		ports[p.Ifname] = p
	}
	for _, e := range ends {
		l.onHook(e, ports[e.Port].Hook, hook)
	}
}

// onHook verifies that an end's port, which is shown on a hook, is really on it, and that it is the
// expected hook.
func (l *Lab) onHook(e *End, shown, hook string) {
	l.t.Helper()
	if shown != hook {
		l.t.Fatalf("port %s was to be on hook %s, and is on %q", e.Port, hook, shown)
	}
	link, err := l.Switch.Netlink().LinkByName(e.Port)
	l.must(err)
	xdp := link.Attrs().Xdp != nil && link.Attrs().Xdp.Attached
	if xdp != (hook == "xdp") {
		l.t.Fatalf("port %s is shown on hook %s, and its device has an XDP program: %v", e.Port, hook, xdp)
	}
}
