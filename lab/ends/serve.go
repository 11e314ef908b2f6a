// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Listen is the address where a server waits for clients.
type Listen struct {
	Proto string // "tcp" or "udp"
	Port  int
}

func (l Listen) String() string { return fmt.Sprintf("%s port %d", strings.ToUpper(l.Proto), l.Port) }

// server is a program in a namespace that waits for clients.
type server struct {
	cmd    Cmd
	at     *Namespace
	on     Listen
	cancel context.CancelFunc
	done   chan struct{}
	where  string       // program and namespace
	said   bytes.Buffer // valid after the end
}

// Serve starts a program in the namespace, on one CPU or AnyCPU, and waits
// until it listens. The program ends with ctx.
func (n *Namespace) Serve(ctx context.Context, cpu int, on Listen, name string, args ...string) (Server, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{cmd: Command(ctx, name, args...), at: n, on: on, cancel: cancel, done: make(chan struct{})}
	s.where = filepath.Base(name) + " in " + n.Name
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	if err := n.Start(s.cmd, cpu); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		// ProcessState has the result.
		_ = s.cmd.Wait()
		close(s.done)
	}()
	if err := s.Listening(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// patience limits the time until a program listens, and the time that a program which has ended may
// keep its output open. It detects hanging programs.
const patience = time.Minute

// Listening implements Server.
func (s *server) Listening(ctx context.Context) error {
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := s.at.listens(s.on)
		if err == nil && ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			return s.Ended(ctx, 0)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("%s does not listen on %s after %v", s.where, s.on, patience)
		}
	}
}

// Ended implements Server.
func (s *server) Ended(ctx context.Context, within time.Duration) error {
	select {
	case <-s.done:
	case <-ctx.Done():
	case <-time.After(within):
	}
	// Several channels may be ready.
	select {
	case <-s.done:
	default:
		return nil
	}
	// After a signal, the program's last output is not the reason.
	said := strings.FieldsFunc(s.said.String(), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(said) == 0 || !s.cmd.ProcessState.Exited() {
		return fmt.Errorf("%s has ended: %s", s.where, s.cmd.ProcessState)
	}
	const most = 3
	return fmt.Errorf("%s has ended: %s: %s", s.where, s.cmd.ProcessState, strings.Join(said[max(0, len(said)-most):], "; "))
}

// Close implements Server.
func (s *server) Close() error {
	s.cancel()
	<-s.done
	return nil
}

// listens reports whether a socket of the namespace listens at the address.
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

// listensIn looks for a listening socket in the text of /proc/net/tcp or udp.
func listensIn(table string, on Listen) bool {
	// TCP_LISTEN and, for unconnected UDP sockets, TCP_CLOSE of include/net/tcp_states.h.
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
