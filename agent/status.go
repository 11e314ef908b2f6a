// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"bascule/agent/hotplug"
	"bascule/agent/rstp"
	"bascule/bridge"
	"bascule/history"

	"golang.org/x/sys/unix"
)

// A Status describes the state of an agent.
type Status struct {
	PID        int          `json:"pid"`
	Version    string       `json:"version"`
	Since      time.Time    `json:"since"`
	Files      []string     `json:"files"`           // that it should apply
	Applying   bool         `json:"applying"`        // a job runs now
	Applied    *time.Time   `json:"applied"`         // time of the last success, null if there was none
	Error      string       `json:"error,omitempty"` // why the last try failed
	Namespaces []SiteStatus `json:"namespaces"`
	Doors      []Door       `json:"doors"` // other addresses of the agent than its socket
	SFlow      *SFlowStatus `json:"sflow"` // null if no samples are sent
}

// SFlowStatus is the state of the sampling by sFlow. Its counts begin at the agent's
// start.
type SFlowStatus struct {
	Collector string `json:"collector"` // address and port
	Rate      uint32 `json:"rate"`      // one frame out of this number is sampled
	Datagrams uint64 `json:"datagrams"` // sent
	Flows     uint64 `json:"flows"`     // samples of incoming frames
	Discards  uint64 `json:"discards"`  // dropped frames that were reported
	Counters  uint64 `json:"counters"`  // samples of ports' counters
	Missed    uint64 `json:"missed"`    // samples that arrived faster than they were read
}

// A Door is an address at which the agent answers.
type Door struct {
	What    string `json:"what"`    // "metrics", "web" or "docker"
	Address string `json:"address"` // as the flag has it
	Write   bool   `json:"write"`   // clients may change something
}

// A SiteStatus is a network namespace that is served.
type SiteStatus struct {
	Netns   string         `json:"netns"` // "" for the agent's own namespace
	Cookie  uint64         `json:"cookie"`
	Bridges []BridgeStatus `json:"bridges"`
	Hotplug *hotplug.Stats `json:"hotplug"` // null if no file names a bridge of the namespace
	Former  bool           `json:"former"`  // devices become ports by the previous agent's files
}

// A BridgeStatus is a bridge that is served.
type BridgeStatus struct {
	Name   string      `json:"ifname"`
	Tree   *TreeStatus `json:"spanning_tree"` // null if the spanning tree is off
	Error  string      `json:"error,omitempty"`
	Events EventStatus `json:"events"`
}

// EventStatus counts events since the agent began to serve the bridge. Each event of
// an address is in one of the three counts.
type EventStatus struct {
	Counts map[string]uint64 `json:"counts"` // events that were read, by kind
	Missed uint64            `json:"missed"` // events that came too fast to be read
	Merged uint64            `json:"merged"` // repetitions within a second, which have no event of their own
}

// A TreeStatus is the state of a bridge in the spanning tree.
type TreeStatus struct {
	rstp.Status
	Ports   []TreePort `json:"ports"`
	Missed  uint64     `json:"missed_bpdus"`      // BPDUs for which there was no room
	Unsaved string     `json:"unsaved,omitempty"` // why there is no snapshot for the next agent
}

// A TreePort is a port that takes part in the spanning tree.
type TreePort struct {
	Name string `json:"ifname"`
	rstp.PortStatus
}

// DefaultDir is the folder of the files by which other processes find an agent.
const DefaultDir = history.DefaultRunDir

// Dir is DefaultDir, or the value of the environment variable BASCULE_AGENT_DIR.
func Dir() string { return history.RunDir() }

func socketPath(dir string, cookie uint64) string {
	return filepath.Join(dir, strconv.FormatUint(cookie, 10)+".sock")
}

// Requests to an agent, as one line on its socket. Each is answered by a reply.
const (
	askStatus = "status"
	askReload = "reload"
)

// A reply is an agent's answer.
type reply struct {
	Status *Status `json:"status,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// How long an agent may take to return its status, and to apply its files.
const (
	statusTime = 10 * time.Second
	reloadTime = 10 * time.Minute
)

// lookTime is the time between two checks of an agent that applies its files. Unless
// it hangs, it answers other requests meanwhile.
const lookTime = 2 * time.Second

// AskStatus requests the status of the agent of the network namespace with the
// cookie.
func AskStatus(dir string, cookie uint64) (Status, error) {
	r, err := ask(dir, cookie, askStatus, statusTime)
	if err != nil {
		return Status{}, err
	}
	if r.Status == nil {
		return Status{}, errors.New("cannot read the agent's answer: the agent has another version; restart it")
	}
	return *r.Status, nil
}

// AskReload makes the agent of the network namespace with the cookie apply its files
// again, and waits for the result.
func AskReload(dir string, cookie uint64, how Reload) error {
	word := askReload
	if how.Confirm > 0 || how.Yes { // an older agent accepts only the bare word
		text, err := json.Marshal(how)
		if err != nil {
			return err
		}
		word += " " + string(text)
	}
	if _, err := ask(dir, cookie, askStatus, statusTime); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := ask(dir, cookie, word, reloadTime)
		done <- err
	}()
	for look := time.NewTicker(lookTime); ; {
		select {
		case err := <-done:
			look.Stop()
			return err
		case <-look.C:
		}
		if _, err := ask(dir, cookie, askStatus, statusTime); err != nil {
			select {
			case err = <-done: // the agent has ended, and has returned the error
			default:
			}
			look.Stop()
			return err
		}
	}
}

func ask(dir string, cookie uint64, word string, patience time.Duration) (r reply, err error) {
	conn, err := dial(socketPath(dir, cookie), cookie)
	if away := (*absence)(nil); errors.As(err, &away) {
		return r, away
	}
	if errors.Is(err, fs.ErrPermission) {
		return r, errors.New("cannot reach the agent: no permission; run as root")
	}
	if errors.Is(err, syscall.EAGAIN) { // the agent has accepted no connection for a long time
		return r, errors.New("the agent does not answer: too many clients wait; see its log, and restart it")
	}
	if err != nil {
		return r, fmt.Errorf("cannot reach the agent: %w; check that it runs", err)
	}
	defer conn.Close()
	if pid := peerOf(conn); pid != 0 && bridge.Stopped(pid) {
		return r, stopped(pid)
	}
	err = conn.SetDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = fmt.Fprintln(conn, word)
	}
	if err == nil {
		r, err = readReply(conn)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return r, fmt.Errorf("the agent does not answer within %v; see its log, and restart it", patience)
	}
	if err != nil {
		return r, fmt.Errorf("the agent does not answer: %w; see its log", err)
	}
	if r.Error != "" {
		return r, Errors(strings.Split(r.Error, "\n"))
	}
	return r, nil
}

// maxQuestion is the largest size of a request, in bytes.
const maxQuestion = 512

// maxAnswer is the largest size of an agent's answer, in bytes. It has room for the
// ports of many bridges.
const maxAnswer = 16 << 20

// readReply reads the answer of an agent.
func readReply(from io.Reader) (r reply, err error) {
	answer := io.LimitedReader{R: from, N: maxAnswer + 1}
	if err = json.NewDecoder(&answer).Decode(&r); err != nil && answer.N <= 0 {
		err = fmt.Errorf("its answer has more than %d bytes", maxAnswer)
	}
	return r, err
}

// doorTime is how long a client waits for the socket of an agent that runs: the
// agent may be about to make it, also again.
const doorTime = 5 * time.Second

// dial connects to an agent's socket.
func dial(path string, cookie uint64) (net.Conn, error) {
	for deadline := time.Now().Add(doorTime); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		gone := slices.ContainsFunc([]error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ENOTDIR, syscall.EPROTOTYPE}, func(e error) bool {
			return errors.Is(err, e)
		})
		if !gone {
			return conn, err
		}
		process, there := bridge.DevicesHolder(cookie)
		switch {
		case !there:
			return nil, &absence{"cannot reach the agent: none runs for this network namespace; start 'bascule agent'"}
		case process != 0 && bridge.Stopped(process):
			return nil, stopped(process)
		case time.Now().After(deadline):
			which := "an agent runs for this network namespace"
			if process != 0 {
				which = fmt.Sprintf("the agent of this network namespace is process %d", process)
			}
			return nil, &absence{fmt.Sprintf("cannot reach the agent: %s, and it has no socket at %s; set BASCULE_AGENT_DIR as for the agent, or restart the agent", which, path)}
		}
	}
}

// An absence is the error that no agent runs.
type absence struct{ text string }

func (a *absence) Error() string { return a.text }

func stopped(process int) error {
	return &absence{fmt.Sprintf("the agent does not answer: its process %d is stopped; resume it with 'kill -CONT %d'", process, process)}
}

// peerOf returns the process that listens at the other end of a connection, 0 if it
// is unknown.
func peerOf(conn net.Conn) (pid int) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if c, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(c.Pid)
		}
	})
	return pid
}

// Errors are an agent's errors about its files, or about a request.
type Errors []string

func (e Errors) Error() string { return strings.Join(e, "; ") }

// mostClients is the largest number of clients that are served at a time. The oldest
// client that has sent nothing yet makes room for a new one.
const mostClients = 64

// serve answers requests at the socket until the socket is closed.
func (a *agent) serve(l net.Listener) {
	clients := newClients(mostClients)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example too many open files
			a.log.Error("the socket for 'agent status' accepts no connections; trying again every second", "error", err)
			time.Sleep(retryPeriod)
			continue
		}
		clients.enter(conn)
		go func() {
			taken := false // the HTTP server has the connection
			defer func() {
				if !taken {
					conn.Close()
				}
				clients.leave(conn)
			}()
			conn.SetReadDeadline(time.Now().Add(statusTime))
			said := bufio.NewReaderSize(conn, maxQuestion)
			line, err := said.ReadSlice('\n')
			if a.web != nil && (errors.Is(err, bufio.ErrBufferFull) || err == nil && isRequest(line)) {
				conn.SetReadDeadline(time.Time{})
				taken = a.handed.take(&begun{conn, io.MultiReader(bytes.NewReader(slices.Clone(line)), said)})
				return
			}
			if err != nil {
				return
			}
			clients.spoke(conn)
			answer := a.answer(strings.TrimSpace(string(line)))
			conn.SetWriteDeadline(time.Now().Add(statusTime))
			if err := json.NewEncoder(conn).Encode(answer); err != nil {
				a.log.Debug("the client does not read the answer", "error", err)
			}
		}()
	}
}

// clients are the connections at the socket.
type clients struct {
	room   chan struct{} // a place for each
	mu     sync.Mutex
	silent []net.Conn // connections that have sent nothing yet, in order of arrival
}

func newClients(most int) *clients { return &clients{room: make(chan struct{}, most)} }

// enter waits for a place. The oldest silent client is closed to make room.
func (c *clients) enter(conn net.Conn) {
	select {
	case c.room <- struct{}{}:
	default:
		c.mu.Lock()
		if len(c.silent) > 0 {
			c.silent[0].Close() // its goroutine leaves
		}
		c.mu.Unlock()
		c.room <- struct{}{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = append(c.silent, conn)
}

func (c *clients) spoke(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = slices.DeleteFunc(c.silent, func(other net.Conn) bool { return other == conn })
}

func (c *clients) leave(conn net.Conn) {
	c.spoke(conn)
	<-c.room
}

// answer answers a request, in the loop.
func (a *agent) answer(word string) reply {
	done := make(chan reply, 1)
	word, rest, _ := strings.Cut(word, " ")
	var how Reload
	if err := json.Unmarshal([]byte(rest), &how); rest != "" && err != nil {
		return reply{Error: fmt.Sprintf("the agent cannot read the request to %s; restart it if it is an older version", word)}
	}
	a.post(func() {
		switch word {
		case askStatus:
			s := a.status()
			done <- reply{Status: &s}
		case askReload:
			a.reload(how, func(err error) {
				r := reply{}
				if err != nil {
					r.Error = err.Error()
				}
				done <- r
			})
		default:
			done <- reply{Error: fmt.Sprintf("the agent has no command %q; restart it if it is an older version", word)}
		}
	})
	select {
	case r := <-done:
		return r
	case <-a.ctx.Done():
		return reply{Error: "the agent ends; restart it"}
	}
}
