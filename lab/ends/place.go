// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// Place runs the programs of an end: in a network namespace or a guest.
type Place interface {
	// Output runs a program on one CPU or AnyCPU and returns its standard output.
	// An error carries its standard error.
	Output(ctx context.Context, cpu int, name string, args ...string) ([]byte, error)
	// Serve starts a program and waits until it listens. The program ends with ctx.
	Serve(ctx context.Context, cpu int, on Listen, name string, args ...string) (Server, error)
	// SetFeatures sets the offloads of an interface.
	SetFeatures(ifname string, f Features) error
}

// Server is a program that waits for clients.
type Server interface {
	// Ended returns how the program has ended, or ends within the time and before ctx does; nil
	// if it keeps running.
	Ended(ctx context.Context, within time.Duration) error
	// Listening waits until the program listens again: some programs, such as iperf3, close
	// their socket after each client and open it again.
	Listening(ctx context.Context) error
	// Close stops the program and waits for its end.
	Close() error
}

// Unavailable is the reason why this machine cannot measure something, without a failure: a program
// that is not installed, a kernel without the feature, or a part of bascule that is not built yet.
type Unavailable struct {
	Reason string
}

func (u *Unavailable) Error() string { return u.Reason }

// Program is a program that the lab needs, with its Debian package.
type Program struct {
	Command string
	Package string
}

// Installed returns an Unavailable with the first missing program.
func Installed(programs ...Program) error {
	for _, p := range programs {
		if _, err := exec.LookPath(p.Command); err != nil {
			return &Unavailable{fmt.Sprintf("%s is not installed; apt-get install %s", p.Command, p.Package)}
		}
	}
	return nil
}
