// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/agent"
	"bascule/client"
	"bascule/test/netlab"
)

// webAt is the address of the agents' pages: each agent has a loopback device of its own.
const webAt = "127.0.0.1:9811"

// token returns the token that an agent has printed.
func (r *runner) token() string {
	r.t.Helper()
	found := regexp.MustCompile(`http://[^/]+/#([\w-]+)`).FindStringSubmatch(r.logs.String())
	if found == nil {
		r.t.Fatalf("the agent tells no token:\n%s", r.logs.String())
	}
	return found[1]
}

// dialIn connects to an address in the network namespace of a switch.
func dialIn(l *netlab.Lab, address string) (conn net.Conn, err error) {
	err = l.Switch.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, patience)
		return err
	})
	return conn, err
}

// askWeb repeats a request until it gets an answer: a crowd may push the client out of the
// queue.
func askWeb(t testing.TB, dial func() (net.Conn, error), token, path string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var conn net.Conn
		if conn, err = dial(); err != nil {
			continue
		}
		conn.SetDeadline(deadline)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", path, token)
		var answer *http.Response
		if answer, err = http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			if answer.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", path, answer.Status)
			}
		}
		conn.Close()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s has no answer: %v", path, err)
}

// crowdSays are the first bytes of hostile clients, which send nothing more.
var crowdSays = []string{
	"",
	"GET /api/v1/port/show HTTP/1.1\r\nHost: localhost\r\nX-Slow:",
	"POST /api/v1/bridge/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n{",
	"POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 4000000\r\n\r\n" + strings.Repeat("#", 4000),
	"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 24<<10),
	"GET /api/v1/rates HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}

// crowdSize is the number of connections of a crowd. crowdMemory limits the agent's memory
// meanwhile, in MiB.
const crowdSize, crowdMemory = 10_000, 128

// TestCrowd: 10 000 connections to the agent of one of two switches with a spanning tree. The
// tree does not change. Other clients get their answers, the agent's memory is bounded, and its
// log has a line.
func TestCrowd(t *testing.T) {
	t.Parallel()
	w := &network{t: t}
	for range 2 {
		l := w.lab()
		r := newRunner(t, l)
		r.inside = true
		l.Setenv("WATCHDOG_USEC", "10000000") // as in the unit
		r.start("--log-level", "info", "--web", webAt)
		w.add(l, r, "br0", "tcx")
	}
	w.cable(0, 1)
	w.cable(0, 1)
	w.settle("at first")
	for attempt := 1; ; attempt++ {
		why := crowded(t, w)
		if why == "" || t.Failed() {
			return
		}
		if attempt == attempts {
			t.Fatalf("each of %d times: %s\n%s", attempts, why, w.logs())
		}
		w.settle("after the machine stood still, perhaps") // RSTP tolerates this for six seconds
	}
}

// crowded has a crowd connect to the first node, and returns how the tree changed, or "".
func crowded(t *testing.T, w *network) string {
	t.Helper()
	type standing struct {
		changes uint64
		ports   map[string]place
	}
	stands := func() (list []standing) {
		for _, n := range w.nodes {
			list = append(list, standing{uint64(n.tree().Changes), n.view().ports})
		}
		return list
	}
	before := stands()
	first := w.nodes[0]
	r, token := first.agent, first.agent.token()
	pid := r.cmd.Process.Pid
	dial := func() (net.Conn, error) { return dialIn(first.Lab, webAt) }

	conns := make([]net.Conn, crowdSize)
	var next atomic.Int64
	var dialled sync.WaitGroup
	for range 8 {
		dialled.Go(func() {
			err := first.Switch.Do(func() error {
				for i := next.Add(1) - 1; i < crowdSize; i = next.Add(1) - 1 {
					conn, err := net.DialTimeout("tcp", webAt, patience)
					if err != nil {
						return err
					}
					conns[i] = conn
					// The agent may have closed the connection.
					io.WriteString(conn, strings.ReplaceAll(crowdSays[i%int64(len(crowdSays))], "TOKEN", token))
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	most := 0.0
	over := make(chan struct{})
	go func() { dialled.Wait(); close(over) }()
	for done := false; !done; {
		most = max(most, rss(t, pid))
		r.status() // at its own socket
		select {
		case <-over:
			done = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	askWeb(t, dial, token, "/api/v1/port/show")
	askWeb(t, dial, token, "/")
	most = max(most, rss(t, pid))
	if most > crowdMemory {
		t.Errorf("the agent has had %.0f MiB, it may have %d", most, crowdMemory)
	}
	t.Logf("the agent has had %.0f MiB", most)
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	for line := range strings.Lines(r.logs.String()) {
		if strings.Contains(line, "level=WARN") && !strings.Contains(line, "too many clients") || strings.Contains(line, "level=ERROR") {
			t.Errorf("the agent says %s", line)
		}
	}
	if n := r.logs.Lines("too many clients"); n == 0 || n > 5 {
		t.Errorf("%d lines tell of the crowd\n%s", n, r.logs.String())
	}
	after := stands()
	if !reflect.DeepEqual(before, after) {
		return fmt.Sprintf("the tree was %+v and is %+v", before, after)
	}
	return ""
}

// TestHalfRequests: 300 incomplete requests, twice, do not block other clients of --web or of
// the agent's own socket.
func TestHalfRequests(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	l.AddBridge("br0", "tcx", l.NewEnds(1))
	w := newWebRack(t, l, "--web-write", "--log-level", "info")
	for _, path := range []string{w.path, w.at(".sock")} {
		for _, half := range []string{
			"", "GET", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow:",
			"POST /api/v1/bridge/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"bridge\"",
			"POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nbridges:",
		} {
			for range 2 {
				var conns []net.Conn
				for range 300 {
					conn, err := net.Dial("unix", path)
					must(t, err)
					conns = append(conns, conn)
					io.WriteString(conn, half)
				}
				askWeb(t, func() (net.Conn, error) { return net.Dial("unix", path) }, "", "/api/v1/port/show")
				w.status()
				for _, c := range conns {
					c.Close()
				}
			}
		}
	}
	if list, err := w.page.BridgeShow(t.Context(), client.BridgeShowParams{}); err != nil || len(list) != 1 {
		t.Errorf("the switch has %v, %v", list, err)
	}
}

// TestSlow: a client that sends a body too slowly gets an error, and changes nothing.
func TestSlow(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	w := newWebRack(t, l, "--web-write")
	for _, test := range []struct{ text, want string }{
		{"POST /api/v1/bridge/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"bridge\":\"br0\"}", "408"},
		{"POST /api/v1/bridge/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat(" ", 100000), "413"},
		{"POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nbridges: {br0: }", "400"},
		{"GET /api/v1/bridge/show HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 24<<10) + "\r\n\r\n", "431"},
		{"GET /api/v1/bridge/show HTTP/1.1\r\nHost: localhost\r\nX-Slow:", ""},
	} {
		t.Run(cmp.Or(test.want, "none"), func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("unix", w.path)
			must(t, err)
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			go io.WriteString(conn, test.text)
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			switch {
			case os.IsTimeout(err), err == nil != (test.want != ""):
				t.Errorf("%.80q: %v", test.text, err)
			case err == nil && !strings.HasPrefix(answer.Status, test.want):
				t.Errorf("%.80q: %s", test.text, answer.Status)
			}
		})
	}
	t.Cleanup(func() {
		list, err := w.page.BridgeShow(context.Background(), client.BridgeShowParams{})
		if err != nil || len(list) != 0 {
			t.Errorf("the switch has %v, %v", list, err)
		}
	})
}

// TestDoorsRefused: --web refuses files of another owner, addresses that the host lacks, and
// tokens that others can read, in one line. They stay unchanged.
func TestDoorsRefused(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	const secret = "0123456789abcdef\n"
	must(t, os.WriteFile(path("file"), []byte("somebody's"), 0o600))
	must(t, os.WriteFile(path("read"), []byte(secret), 0o644))
	must(t, os.Chmod(path("read"), 0o644))
	must(t, os.WriteFile(path("good"), []byte(secret), 0o600))
	must(t, os.WriteFile(path("short"), []byte("x\n"), 0o600))
	must(t, os.WriteFile(path("others"), []byte(secret), 0o600))
	must(t, os.Chown(path("others"), 65534, 65534))
	must(t, os.Mkdir(path("dir"), 0o700))
	must(t, unix.Mkfifo(path("fifo"), 0o600))
	must(t, os.Symlink(path("file"), path("link")))
	must(t, os.Symlink(path("nothing"), path("dangling")))
	must(t, os.Symlink(path("good"), path("good-link")))
	used, err := net.Listen("unix", path("used"))
	must(t, err)
	defer used.Close()
	stranger, err := net.ListenUnix("unix", &net.UnixAddr{Name: path("stranger"), Net: "unix"})
	must(t, err)
	stranger.SetUnlinkOnClose(false)
	stranger.Close()
	must(t, os.Lchown(path("stranger"), 65534, 65534))
	var taken net.Listener
	must(t, l.Switch.Do(func() (err error) {
		taken, err = net.Listen("tcp", webAt)
		return err
	}))
	defer taken.Close()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--web", webAt}, "another program does"},
		{[]string{"--web", "unix:" + path("file")}, "a file that is not a socket is there"},
		{[]string{"--web", "unix:" + path("dir")}, "a file that is not a socket is there"},
		{[]string{"--web", "unix:" + path("fifo")}, "a file that is not a socket is there"},
		{[]string{"--web", "unix:" + path("link")}, "a file that is not a socket is there"},
		{[]string{"--web", "unix:" + path("dangling")}, "a file that is not a socket is there"},
		{[]string{"--web", "unix:" + path("used")}, "another program does"},
		{[]string{"--web", "unix:" + path("stranger")}, "the socket there is of user 65534"},
		{[]string{"--web", "unix:" + path("file") + "/x"}, "not a directory"},
		{[]string{"--web", "unix:" + path("none/x")}, "no such file or directory"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", path("read")}, "others can read it"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", path("others")}, "the file belongs to user 65534"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", path("short")}, "one line of 16 to 512"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", path("fifo")}, "token"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", path("dir")}, "token"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", path("none")}, "no such file"},
		{[]string{"--web", "127.0.0.1:9812", "--token-file", "/dev/zero"}, "token"},
	} {
		cmd := l.Command(append([]string{"agent"}, test.args...)...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		must(t, l.Switch.Do(cmd.Start))
		err := cmd.Wait()
		if err == nil || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("%q: %v, %s, want %q", test.args, err, stderr.String(), test.want)
		}
		if strings.Contains(stderr.String(), strings.TrimSpace(secret)) {
			t.Errorf("%q tells the token: %s", test.args, stderr.String())
		}
	}
	// A second agent, which is refused, leaves nothing either.
	r := newRunner(t, l)
	r.start()
	for _, args := range [][]string{
		{"--web", "unix:" + path("second")}, {"--metrics", "unix:" + path("second")},
	} {
		cmd := l.Command(append([]string{"agent"}, args...)...)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "another agent does") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
		if _, err := os.Lstat(path("second")); err == nil {
			t.Errorf("%q: the socket is left", args)
		}
	}
	if text, err := os.ReadFile(path("file")); err != nil || string(text) != "somebody's" {
		t.Errorf("somebody's file has %q, %v", text, err)
	}
	if st, err := os.Lstat(path("link")); err != nil || st.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link is %v, %v", st, err)
	}
}

// TestDoorsTold: the agent prints the token at its start at every log level, and 'agent status'
// lists all doors, and no token.
func TestDoorsTold(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	r := newRunner(t, l)
	r.inside = true
	sock := filepath.Join(t.TempDir(), "metrics.sock")
	r.start("--log-level", "error", "--web", webAt, "--web-write", "--metrics", "unix:"+sock)
	token := r.token()
	askWeb(t, func() (net.Conn, error) { return dialIn(l, webAt) }, token, "/api/v1/bridge/show")
	var status agent.Status
	l.JSON(&status, "agent", "status")
	want := []agent.Door{{What: "metrics", Address: "unix:" + sock}, {What: "web", Address: webAt, Write: true}}
	if !reflect.DeepEqual(status.Doors, want) {
		t.Errorf("the doors are %+v, want %+v", status.Doors, want)
	}
	text := l.Bascule("agent", "status")
	for _, want := range []string{"unix:" + sock, webAt, "web", "metrics"} {
		if !strings.Contains(text, want) {
			t.Errorf("agent status does not tell of %s:\n%s", want, text)
		}
	}
	if strings.Contains(text, token) {
		t.Error("agent status tells the token")
	}
}
