// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// Cmd is a program that is killed when the lab dies for any reason.
//
// The kernel kills it when the thread that started it ends, not only when the process ends
// (PR_SET_PDEATHSIG(2const)). A Go thread ends if a goroutine locks it and ends without unlocking
// it. So one thread that never ends starts all programs.
type Cmd struct {
	*exec.Cmd
}

// Command prepares a program. It is killed when ctx ends.
func Command(ctx context.Context, name string, args ...string) Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	// A separate process group: Ctrl-C at the terminal goes only to the lab, which stops its
	// programs in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = patience
	return Cmd{cmd}
}

// Start starts the program in the network namespace of this process.
func (c Cmd) Start() error {
	return starter(c.Cmd.Start)
}

// Run starts the program and waits for its end.
func (c Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and returns its standard output.
func (c Cmd) Output() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the program and returns its standard output and standard error.
func (c Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// starting receives functions for the thread that starts programs.
var starting = sync.OnceValue(func() chan<- func() (back bool) {
	fns := make(chan func() bool)
	var serve func()
	serve = func() {
		runtime.LockOSThread()
		for fn := range fns {
			if !fn() {
				go serve()
				select {} // the thread is unusable, but must not end
			}
		}
	}
	go serve()
	return fns
})

// starter runs fn, which starts a program, on the thread for that. fn may change the thread's
// network namespace and CPU affinity.
func starter(fn func() error) error {
	result := make(chan error, 1)
	starting() <- func() bool {
		back, err := andBack(fn)
		result <- err
		return back
	}
	return <-result
}

// AnyCPU does not restrict a program to a CPU.
const AnyCPU = -1

// Start starts a program in the namespace, on one CPU or AnyCPU.
func (n *Namespace) Start(cmd Cmd, cpu int) error {
	err := starter(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		// A program inherits the CPU affinity of the thread that starts it.
		if cpu != AnyCPU {
			if err := PinThread(cpu); err != nil {
				return err
			}
		}
		return cmd.Cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("%s in %s: %w", filepath.Base(cmd.Path), n.Name, err)
	}
	return nil
}
