// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// patience is how long a command that was interrupted waits for another program: for its reader to take a part of the
// output, and for another command to finish. It is longer than timeout(1) needs to send its signal a second time.
const patience = time.Second

// errStuck means that the reader of an interrupted command's output takes no more of it.
var errStuck = errors.New("its reader reads nothing more")

// An interruption is the cause of the end of a context by a signal.
type interruption syscall.Signal

func (i interruption) Error() string { return syscall.Signal(i).String() }

// untilInterrupted returns a context that ends with a signal from the terminal or the service manager. The command then
// ends in order, if the reader of its output takes the rest: otherwise writing to standard output, or to standard
// error, fails with errStuck.
// A later signal ends the process. Writing to a closed pipe is an error of the write: SIGPIPE ends neither the process
// nor the context.
func (p *program) untilInterrupted(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1)
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, ends...)
	go func() {
		select {
		case s := <-signals:
			cancel(interruption(s.(syscall.Signal)))
			time.Sleep(patience)
			signal.Stop(signals)
		case <-ctx.Done():
		}
	}()
	p.text.to = untilStuck(ctx, "/dev/stdout", p.text.to)
	p.stderr = untilStuck(ctx, "/dev/stderr", p.stderr)
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// begin calls f, which may wait for another command. If ctx is interrupted meanwhile, and f does not return soon, the
// signal ends the process, as it ends other commands that wait.
func begin(ctx context.Context, f func() error) error {
	done := make(chan struct{})
	defer close(done)
	defer context.AfterFunc(ctx, func() {
		why, ok := context.Cause(ctx).(interruption)
		if !ok {
			return
		}
		select {
		case <-done:
		case <-time.After(patience):
			signal.Reset(syscall.Signal(why))
			_ = syscall.Kill(os.Getpid(), syscall.Signal(why)) // it can fail only for an invalid signal
		}
	})()
	return f()
}

// untilStuck returns a writer to a file. If ctx is interrupted, and the reader of the file takes nothing for a while,
// it fails with errStuck. The file may be a terminal or a pipe: a write to these waits for the reader without limit.
func untilStuck(ctx context.Context, name string, to io.Writer) io.Writer {
	return &stuckWriter{ctx: ctx, name: name, to: to}
}

type stuckWriter struct {
	ctx  context.Context
	name string
	to   io.Writer
	err  error // errStuck, after which a write may still be waiting
}

func (w *stuckWriter) Write(b []byte) (n int, err error) {
	if w.err != nil {
		return 0, w.err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = w.to.Write(b)
	}()
	select {
	case <-done:
		return n, err
	case <-w.ctx.Done():
	}
	if !errors.As(context.Cause(w.ctx), new(interruption)) { // an end without a signal
		<-done
		return n, err
	}
	select {
	case <-done:
		return n, err
	case <-time.After(patience):
		w.err = &os.PathError{Op: "write", Path: w.name, Err: errStuck}
		return 0, w.err
	}
}
