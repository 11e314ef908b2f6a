// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Listen is where a server waits for its clients.
type Listen struct {
	Proto string // "tcp" or "udp"
	Port  int
}

func (l Listen) String() string { return fmt.Sprintf("%s port %d", strings.ToUpper(l.Proto), l.Port) }

// server is a program that waits in a namespace for clients.
type server struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{}
}

// Serve starts a program in the namespace, on one CPU or AnyCPU, and waits
// until it listens. Close of what is returned ends the program.
func (n *Namespace) Serve(ctx context.Context, cpu int, on Listen, name string, args ...string) (io.Closer, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{cmd: Command(ctx, name, args...), cancel: cancel, done: make(chan struct{})}
	var said bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &said, &said
	if err := n.Start(s.cmd, cpu); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		// How it ended matters only before it listens, and is told then.
		_ = s.cmd.Wait()
		close(s.done)
	}()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := n.listens(on)
		if err == nil && ok {
			return s, nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			cancel()
			return nil, fmt.Errorf("%s in %s: %s: %s", filepath.Base(name), n.Name, s.cmd.ProcessState, strings.TrimSpace(said.String()))
		case <-ctx.Done():
			s.Close()
			return nil, context.Cause(ctx)
		case <-deadline:
			s.Close()
			return nil, fmt.Errorf("%s in %s does not listen on %s after 10 s", filepath.Base(name), n.Name, on)
		}
	}
}

// Close ends the program and waits for its end.
func (s *server) Close() error {
	s.cancel()
	<-s.done
	return nil
}

// listens tells whether something of the namespace listens there.
func (n *Namespace) listens(on Listen) (found bool, err error) {
	err = n.Do(func() error {
		for _, table := range []string{on.Proto, on.Proto + "6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + table)
			if err != nil {
				return err
			}
			found = found || listensIn(string(text), on)
		}
		return nil
	})
	return found, err
}

// listensIn looks for a socket that waits in the text of /proc/net/tcp or udp.
func listensIn(table string, on Listen) bool {
	// TCP_LISTEN and, for UDP sockets that are not connected, TCP_CLOSE of
	// include/net/tcp_states.h.
	state := map[string]string{"tcp": "0A", "udp": "07"}[on.Proto]
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != state {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && int(p) == on.Port {
			return true
		}
	}
	return false
}
