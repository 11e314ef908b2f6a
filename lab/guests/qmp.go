// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// qmp is a client of QEMU's machine protocol (docs/interop/qmp-spec.txt), one command at a time.
type qmp struct {
	conn    io.ReadWriter
	ended   context.Context // of the guest
	bound   time.Duration   // timeout of an answer
	answers chan qmpAnswer

	mu   sync.Mutex
	gone map[string]chan struct{} // devices that are being removed
}

type qmpAnswer struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Device string `json:"device"`
	} `json:"data"`
}

func newQMP(conn io.ReadWriter, ended context.Context, bound time.Duration) *qmp {
	q := &qmp{conn: conn, ended: ended, bound: bound, answers: make(chan qmpAnswer, 1), gone: map[string]chan struct{}{}}
	go q.read()
	return q
}

func (q *qmp) read() {
	dec := json.NewDecoder(q.conn)
	for {
		var a qmpAnswer
		// Only the guest's end stops this loop. All waiting callers watch the guest's
		// context.
		if err := dec.Decode(&a); err != nil {
			return
		}
		switch {
		case a.Event == "DEVICE_DELETED":
			q.mu.Lock()
			if c := q.gone[a.Data.Device]; c != nil {
				close(c)
				delete(q.gone, a.Data.Device)
			}
			q.mu.Unlock()
		case a.Return != nil || a.Error != nil:
			q.answers <- a
		}
	}
}

// run executes a command, with files if it needs them. Files can be sent only over a socket.
func (q *qmp) run(command string, args map[string]any, files ...int) error {
	_, err := q.ask(command, args, files...)
	return err
}

// ask is run with the answer returned.
func (q *qmp) ask(command string, args map[string]any, files ...int) (json.RawMessage, error) {
	if err := context.Cause(q.ended); err != nil {
		return nil, err
	}
	text, err := json.Marshal(map[string]any{"execute": command, "arguments": args})
	if err != nil {
		return nil, err
	}
	text = append(text, '\n')
	if len(files) > 0 {
		_, _, err = q.conn.(*net.UnixConn).WriteMsgUnix(text, unix.UnixRights(files...), nil)
	} else {
		_, err = q.conn.Write(text)
	}
	if err != nil {
		return nil, fmt.Errorf("qemu: %s: %w", command, err)
	}
	select {
	case a := <-q.answers:
		if a.Error != nil {
			return nil, fmt.Errorf("qemu: %s: %s", command, a.Error.Desc)
		}
		return a.Return, nil
	case <-q.ended.Done():
		return nil, context.Cause(q.ended)
	case <-time.After(q.bound):
		return nil, fmt.Errorf("qemu: %s: no answer after %v", command, q.bound)
	}
}

// takeOut removes a device, which the guest's kernel must release.
func (q *qmp) takeOut(device string) error {
	gone := make(chan struct{})
	q.mu.Lock()
	q.gone[device] = gone
	q.mu.Unlock()
	if err := q.run("device_del", map[string]any{"id": device}); err != nil {
		return err
	}
	select {
	case <-gone:
		return nil
	case <-q.ended.Done():
		return context.Cause(q.ended)
	case <-time.After(q.bound):
		return fmt.Errorf("qemu: device_del: the guest keeps %s after %v", device, q.bound)
	}
}
