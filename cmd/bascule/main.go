// SPDX-License-Identifier: BSD-2-Clause

// Bascule is an Ethernet switch for Linux that forwards in the kernel, in
// eBPF. This package is its command line: flags and output, nothing else.
//
// There are many commands, and each one does little. So the runtime uses as many threads as there are
// CPUs, and does not check every second which CPUs a cgroup allows: this check reads the whole mount
// list, which grows with each named network namespace. The runtime still checks once at the start.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"bascule/agent"
	"bascule/answer"
	"bascule/bridge"
	"bascule/config"
	"bascule/history"
	"bascule/pf"
	"bascule/rule"

	"github.com/spf13/cobra"
)

//go:generate go run . man ../../docs/man

// The exit statuses. exitStatus has their descriptions.
const (
	exitDone    = 0
	exitRefused = 1
	exitUsage   = 2
	exitChanges = 3 // a dry run has found changes
)

// The main goroutine keeps the process's first thread, so that no other goroutine enters a network
// namespace on it: /proc/self refers to this thread, and shows the process's namespace.
func init() { runtime.LockOSThread() }

func main() {
	be := named(os.Args)
	collectLater()
	if be != nil {
		os.Exit(be())
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// collectLater delays the first garbage collection until the heap reaches 64 MiB: most commands end
// earlier, and would spend a fifth of their time on it. After the first collection, or if the
// environment has GOGC, it works as usual.
func collectLater() {
	const first, usual = 1600, 100 // percent of 4 MiB, the runtime's minimum
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(first)
	runtime.AddCleanup(new(*byte), func(int) { debug.SetGCPercent(usual) }, 0)
}

// run is the whole program: it executes the command of args and returns the
// exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, text: printer{to: stdout}, stderr: stderr, agents: liveAgents{}}
	p.out = bufio.NewWriter(&p.text)
	p.open = func(netns string) (switcher, error) { return openSwitch(netns, stderr) }
	p.nested = p.runNested
	return p.run(args)
}

// openSwitch returns the switch of a network namespace. A change that has to wait for another one prints
// a message on stderr.
func openSwitch(netns string, stderr io.Writer) (switcher, error) {
	s, err := bridge.Open(netns, bridge.Waiting(func(process int) {
		fmt.Fprintf(stderr, "bascule: another command changes bridges of this network namespace; waiting for %s\n", bridge.Waited(process))
	}), bridge.Telling(func(name, note string) {
		fmt.Fprintf(stderr, "bascule: note: bridge %s: %s\n", name, note)
	}))
	if err != nil {
		return nil, err
	}
	h, notes, err := history.Arrive(s, netns)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	p := &program{stderr: stderr}
	p.warn(notes)
	s.Changing(func() (after func()) {
		if waits, err := h.Waiting(); err == nil && waits != nil && !waits.Overdue() && waits.User != history.Caller().User {
			return func() { p.warn([]string{waits.Undoes()}) }
		}
		return nil
	})
	return liveSwitch{s, h}, nil
}

// program is one run of the command line.
type program struct {
	stdin  io.Reader
	stdout io.Writer     // for the lab, which prints tables line by line
	text   printer       // writes to out
	out    *bufio.Writer // standard output; flushed at the end, and by monitor after each event
	stderr io.Writer
	open   func(netns string) (switcher, error)
	agents agents
	nested func(args ...string) error // runNested, as a field to avoid an initialization cycle

	netns   word  // -n
	force   bool  // --force, for commands whose limits take memory
	dry     bool  // --dry-run
	yes     bool  // --yes, for commands that may cut off an ssh session
	lockout bool  // the command may cut off an ssh session
	quiet   bool  // do not print notes, since they are printed again later
	json    bool  // -j
	running bool  // the arguments were valid and the command has begun
	unknown error // --help was given an unknown command; cobra's help function returns no error
}

func (p *program) run(args []string) int { return p.execute(newRootOf(p, wanted(args)), args) }

// execute runs the command that args select below root.
func (p *program) execute(root *cobra.Command, args []string) int {
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would take os.Args
	root.SetIn(p.stdin)
	root.SetOut(p.out)
	root.SetErr(p.stderr)

	cmd, err := root.ExecuteC()
	if err == nil {
		err = p.unknown
	}
	if err != nil && !p.running {
		err = flagError(cmd, err)
	}
	switch ferr := p.out.Flush(); {
	case ferr == nil:
	case errors.Is(ferr, syscall.EPIPE): // the reader has closed the pipe
		if errors.Is(err, ferr) {
			err = nil
		}
	case err == nil, errors.Is(err, ferr), errors.Is(err, errWouldChange):
		err = fmt.Errorf("cannot print: %w; see where standard output goes", ferr)
	}
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errPFNoMatch) {
		return exitUsage // like pfctl(8); the message is printed already
	}
	if errors.Is(err, errWouldChange) {
		return exitChanges
	}
	if bad := new(pfSyntaxError); errors.As(err, &bad) {
		fmt.Fprintln(p.stderr, bad)
		return exitRefused
	}
	var wrong config.Errors
	if errors.As(err, &wrong) {
		for _, e := range wrong {
			p.complain(e.Error())
		}
		return exitRefused
	}
	var refused agent.Errors
	if errors.As(err, &refused) {
		for _, text := range refused {
			p.complain(text)
		}
		return exitRefused
	}
	var bad rule.Errors
	if !errors.As(err, &bad) {
		p.complain(pf.Brief(err))
	} else {
		wrong := counted(len(bad), "line is wrong", "lines are wrong")
		p.complain(strings.Replace(err.Error(), bad.Error(), wrong, 1))
		fmt.Fprint(p.stderr, bad.Detail()) // every invalid line of the file
	}
	var usage *usageError
	var misused *bridge.UsageError
	if errors.As(err, &usage) || errors.As(err, &misused) {
		return exitUsage
	}
	return exitRefused
}

// complain prints text as a single line on standard error.
func (p *program) complain(text string) {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
	fmt.Fprintln(p.stderr, printable("bascule: "+text))
}

// openForced opens the switch of a network namespace, with --force applied to its limits.
func (p *program) openForced(netns string) (switcher, error) {
	s, err := p.open(netns)
	if err == nil && p.force {
		s.Force()
	}
	return s, err
}

// addForce gives a command that sets limits the flag --force.
func (p *program) addForce(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.force, "force", false, "let limits take more than a quarter of the free memory")
}

// addStackForce gives a command that makes devices ports the flag --force.
func (p *program) addStackForce(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.force, "force", false, forceStack)
}

const forceStack = "take a device that has others above it, such as VLAN devices, or is above a port's: those then get nothing"

// change runs f to change the switch. With --dry-run it prints the planned actions and changes nothing.
// It refuses a change that would cut off the ssh session of the command, unless --yes is given. The last
// functions print the results.
func (p *program) change(f func(switcher) error, tell ...func() error) error {
	return p.with(func(s switcher) error {
		var session config.Session
		if at, ok := history.CallersSession(); ok && p.lockout && !p.yes {
			session = config.Session{Client: at.Client.Addr(), Server: at.Server.Addr()}
		}
		if p.dry || session.Server.IsValid() {
			p.quiet = !p.dry
			actions, err := s.Preview(session, func() error { return f(s) })
			p.quiet = false
			switch {
			case p.dry && err != nil:
				return err
			case p.dry:
				return p.wouldDo(actions)
			case errors.As(err, new(*config.LockoutError)):
				return err
			}
		}
		if err := f(s); err != nil {
			return err
		}
		for _, t := range tell {
			if err := t(); err != nil {
				return err
			}
		}
		return nil
	})
}

// wouldDo prints the actions that a command would take.
func (p *program) wouldDo(actions []config.Action) error {
	if p.json {
		if err := p.printJSON(answer.List(actions, func(a config.Action) answer.Action { return answer.OfAction(p.netns.text, a) })); err != nil {
			return err
		}
	} else {
		for _, a := range actions {
			fmt.Fprintln(p.out, a)
		}
	}
	if len(actions) > 0 {
		return errWouldChange
	}
	return nil
}

// addChange gives the flag --dry-run to a command that changes something.
func (p *program) addChange(cmd *cobra.Command) {
	dryRunFlag(cmd, &p.dry)
}

// addLockout gives the flags of addChange and --yes to a command that may cut off its own ssh session.
func (p *program) addLockout(cmd *cobra.Command) {
	p.addChange(cmd)
	p.lockout = true
	cmd.Flags().BoolVar(&p.yes, "yes", false, "go ahead even if it cuts off the ssh session that the command comes through")
}

// with opens the switch and closes it after f.
func (p *program) with(f func(switcher) error) error {
	s, err := p.openForced(p.netns.text)
	if err != nil {
		return err
	}
	err = f(s)
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	return err
}
