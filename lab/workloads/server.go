// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bascule/lab/ends"
)

// server is a program that waits in an end for clients.
type server struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{}
}

// serve starts a program at an end, on one CPU or any, and waits until it
// listens on the TCP port.
func serve(ctx context.Context, at ends.End, cpu, port int, name string, args ...string) (*server, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{cmd: ends.Command(ctx, name, args...), cancel: cancel, done: make(chan struct{})}
	var said bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &said, &said
	if err := at.Namespace.Start(s.cmd, cpu); err != nil {
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
		ok, err := listens(at.Namespace, port)
		if err == nil && ok {
			return s, nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			cancel()
			return nil, fmt.Errorf("%s in %s: %s: %s", filepath.Base(name), at.Namespace.Name, s.cmd.ProcessState, strings.TrimSpace(said.String()))
		case <-ctx.Done():
			s.Close()
			return nil, context.Cause(ctx)
		case <-deadline:
			s.Close()
			return nil, fmt.Errorf("%s in %s does not listen on TCP port %d after 10 s", filepath.Base(name), at.Namespace.Name, port)
		}
	}
}

// Close ends the program and waits for its end.
func (s *server) Close() error {
	s.cancel()
	<-s.done
	return nil
}

// listens tells whether something listens on a TCP port of the namespace.
func listens(ns *ends.Namespace, port int) (found bool, err error) {
	err = ns.Do(func() error {
		for _, table := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + table)
			if err != nil {
				return err
			}
			found = found || listensIn(string(text), port)
		}
		return nil
	})
	return found, err
}

// listensIn looks for a listening socket in the text of /proc/net/tcp.
func listensIn(table string, port int) bool {
	const listening = "0A" // TCP_LISTEN of include/net/tcp_states.h
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != listening {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && int(p) == port {
			return true
		}
	}
	return false
}
