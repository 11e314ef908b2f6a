// SPDX-License-Identifier: BSD-2-Clause

package doors

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]Address{
		"unix:/run/x.sock":               {Path: "/run/x.sock"},
		"unix:/run//x.sock,group=daemon": {Path: "/run/x.sock", Group: "daemon"},
		"127.0.0.1:9810":                 {TCP: netip.MustParseAddrPort("127.0.0.1:9810")},
		"localhost:9810":                 {TCP: netip.MustParseAddrPort("127.0.0.1:9810")},
		"[::1]:1":                        {TCP: netip.MustParseAddrPort("[::1]:1")},
	} {
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                                       "not an address to listen at",
		"9810":                                   "not an address to listen at",
		":9810":                                  `"" is not numeric`,
		"example.org:80":                         "not numeric",
		"127.0.0.1:http":                         `"http" is not a port`,
		"127.0.0.1:0":                            `"0" is not a port`,
		"127.0.0.1:65536":                        "is not a port",
		"unix:":                                  "not an absolute path",
		"unix:x.sock":                            "not an absolute path",
		"unix:/run/":                             "not an absolute path",
		"unix:/" + strings.Repeat("x", 108):      "more than 107 bytes",
		"unix:/run/x,mode=1":                     "only group=NAME",
		"unix:/run/x,group=":                     "only group=NAME",
		"unix:/run/x.sock,group=daemon,group=no": "", // Listen refuses it: there is no such group
	} {
		if _, err := ParseAddress(text); want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestListen: existing files are left alone, except the socket of a program that has ended.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	refused := func(a Address, want string) {
		t.Helper()
		door, err := a.Listen()
		if err == nil {
			door.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", a, err, want)
		}
	}
	os.WriteFile(path("file"), []byte("somebody's"), 0o600)
	refused(Address{Path: path("file")}, "not a socket")
	refused(Address{Path: path("none/x")}, "no such file or directory")
	refused(Address{Path: path("x"), Group: "no-such-group"}, "there is no group no-such-group")
	for address, want := range map[string]bool{"192.0.2.1:0": true, "[2001:db8::1]:0": true, "127.0.0.1:0": false, "[::1]:0": false, "0.0.0.0:0": false, "[::]:0": false} {
		door, err := Address{TCP: netip.MustParseAddrPort(address)}.Listen()
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		door.Close()
		if door.Absent != want {
			t.Errorf("of %s it says that the host lacks it: %v", address, door.Absent)
		}
	}

	ended, err := net.Listen("unix", path("ended"))
	if err != nil {
		t.Fatal(err)
	}
	ended.(*net.UnixListener).SetUnlinkOnClose(false)
	ended.Close()
	door, err := Address{Path: path("ended")}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path("ended")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, %v", st.Mode(), err)
	}
	refused(Address{Path: path("ended")}, "another program does")
	door.Close()
	if os.Geteuid() == 0 {
		listenForGroup(t, dir)
	}
	if _, err := os.Lstat(path("ended")); err == nil {
		t.Error("the socket is still there")
	}

	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	refused(Address{TCP: tcp.Addr().(*net.TCPAddr).AddrPort()}, "another program does")

	// the file that has taken the place of a socket belongs to another program
	door, err = Address{Path: path("mine")}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path("mine"))
	os.WriteFile(path("mine"), []byte("another's"), 0o600)
	door.Close()
	if _, err := os.Lstat(path("mine")); err != nil {
		t.Error("another's file was removed")
	}
}

// listenForGroup: the socket of a group has its mode and its group from its first moment, even if
// another process replaces files meanwhile.
func listenForGroup(t *testing.T, dir string) {
	t.Helper()
	group, err := user.LookupGroup("daemon")
	if err != nil {
		t.Skip(err)
	}
	a := Address{Path: filepath.Join(dir, "group"), Group: "daemon"}
	victim := filepath.Join(dir, "victim")
	os.WriteFile(victim, nil, 0o600)
	stop, stopped := make(chan bool), make(chan bool)
	wrong := make(chan string, 1)
	go func() { // another process that can change the folder
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if st, err := os.Lstat(a.Path); err == nil && st.Mode().Type() == fs.ModeSocket {
				if gid := st.Sys().(*syscall.Stat_t).Gid; st.Mode().Perm() != 0o660 || strconv.Itoa(int(gid)) != group.Gid {
					select {
					case wrong <- fmt.Sprint(st.Mode(), " of group ", gid):
					default:
					}
				}
				os.Remove(a.Path)
				os.Symlink(victim, a.Path)
			}
		}
	}()
	for range 300 {
		os.Remove(a.Path)
		if door, err := a.Listen(); err == nil {
			door.Close()
		}
	}
	close(stop)
	<-stopped
	select {
	case how := <-wrong:
		t.Errorf("the socket of a group was %s for a moment", how)
	default:
	}
	if st, err := os.Stat(victim); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("another file has got the mode of the socket: %v, %v", st.Mode(), err)
	}
	if name, err := os.MkdirTemp("", "after"); err == nil {
		if st, _ := os.Stat(name); st.Sys().(*syscall.Stat_t).Gid != 0 {
			t.Error("files that come later have the group of the socket")
		}
		os.Remove(name)
	}
}

// TestGuard: requests from pages of other sites, and without the token, are refused.
func TestGuard(t *testing.T) {
	g := NewGuard(Address{TCP: netip.MustParseAddrPort("192.0.2.7:9811")}, []string{"switch.example"}, "secret-token-16b")
	h := g.Protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in") }), func(r *http.Request) bool { return r.URL.Path == "/login" })
	for _, test := range []struct {
		host, path string
		head       map[string]string
		want       int
	}{
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b"}, 200},
		{"127.0.0.1:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b"}, 200},
		{"[::1]:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b"}, 200},
		{"192.0.2.7:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b"}, 200},
		{"SWITCH.example", "/", map[string]string{"Authorization": "Bearer secret-token-16b"}, 200},
		{"localhost:9811", "/login", nil, 200},
		{"localhost:9811", "/", nil, 401},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16"}, 401},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer "}, 401},
		{"localhost:9811", "/", map[string]string{"Cookie": "bascule-token=secret-token-16b"}, 401},
		{"localhost:9811", "/login/x", nil, 401},
		// DNS rebinding: the attacker's own name, which resolves to this host now
		{"evil.example:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b"}, 421},
		{"evil.example", "/login", nil, 421},
		{"localhost.evil.example", "/login", nil, 421},
		{"", "/login", nil, 421},
		{"192.0.2.8:9811", "/login", nil, 421},
		// a form or a script of another site that has the token
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "http://evil.example"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "null"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "http://localhost:80"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Sec-Fetch-Site": "cross-site"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Sec-Fetch-Site": "same-site"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "http://localhost:9811"}, 200},
		{"localhost:9811", "/", map[string]string{"Authorization": "bearer secret-token-16b", "Origin": "https://localhost:9811"}, 200},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "ftp://localhost:9811"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "http://evil@localhost:9811"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Origin": "http://localhost:9811\nhttp://evil.example"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Sec-Fetch-Site": "same-origin\ncross-site"}, 403},
		{"localhost:9811", "/", map[string]string{"Authorization": "Basic secret-token-16b"}, 401},
		{"localhost:9811", "/", map[string]string{"Authorization": "Bearer secret-token-16b", "Sec-Fetch-Site": "none"}, 200},
	} {
		r := httptest.NewRequest("GET", test.path, nil)
		r.Host = test.host
		for k, v := range test.head {
			r.Header[k] = strings.Split(v, "\n") // a header that occurs twice
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("%q %s %v: %d, want %d", test.host, test.path, test.head, w.Code, test.want)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("X-Frame-Options") != "DENY" {
			t.Errorf("%q %s: the answer does not say how to be treated: %v", test.host, test.path, w.Header())
		}
	}
}

// TestServerExpect: a refused client gets its answer at once, without a request for the announced
// body (RFC 9110 section 10.1.1). A request for no path of the server is refused, too.
func TestServerExpect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	go NewServer(refuse, slog.New(slog.DiscardHandler), 8).Serve(t.Context(), l)
	for _, head := range []string{
		"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, head)
		// before the server's timeout for the body, which never comes
		conn.SetDeadline(time.Now().Add(bodyTime - 5*time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("%q: %v, %v", head, resp, err)
		}
	}
}

// TestGuardOfSocket: a unix socket has no token, and the same names are valid. A proxy in front
// of it sends the name by which the browser reaches the proxy.
func TestGuardOfSocket(t *testing.T) {
	h := NewGuard(Address{Path: "/x"}, []string{"switch.example"}, "").Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	for host, want := range map[string]int{"localhost": 200, "switch.example": 200, "switch.example:443": 200, "evil.example": 421, "": 421} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: %d, want %d", host, w.Code, want)
		}
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	for i, test := range []struct {
		text string
		mode os.FileMode
		want string // of the error
	}{
		{"0123456789abcdef\n", 0o600, ""},
		{"0123456789abcdef", 0o400, ""},
		{"0123456789abcdef", 0o640, "others can read it (mode 0640)"},
		{"0123456789abcdef", 0o604, "others can read it"},
		{"short", 0o600, "one line of 16 to 512"},
		{"", 0o600, "one line of 16 to 512"},
		{"0123456789abcdef\n0123456789abcdef\n", 0o600, "one line"},
		{"0123456789abcdef;", 0o600, "one line"},
		{strings.Repeat("x", 600), 0o600, "one line"},
	} {
		path := filepath.Join(dir, fmt.Sprint(i))
		os.WriteFile(path, []byte(test.text), test.mode)
		os.Chmod(path, test.mode)
		token, err := ReadToken(path)
		if test.want == "" && (err != nil || token != strings.TrimSpace(test.text)) {
			t.Errorf("%q: %q, %v", test.text, token, err)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q, mode %o: %v, want %s", test.text, test.mode, err, test.want)
		}
	}
	if os.Geteuid() == 0 {
		path := filepath.Join(dir, "another's")
		os.WriteFile(path, []byte("0123456789abcdef\n"), 0o600)
		os.Chown(path, 1, 0)
		if token, err := ReadToken(path); err == nil || !strings.Contains(err.Error(), "the file belongs to user 1") {
			t.Errorf("another user's file: %q, %v", token, err)
		}
	}
	if a, b := NewToken(), NewToken(); a == b || len(a) < minToken {
		t.Errorf("tokens %q and %q", a, b)
	}
}

// TestServerCrowd: silent connections, and connections with an incomplete request, make room for
// a connection with a request, and cause one line in the log.
func TestServerCrowd(t *testing.T) {
	t.Parallel()
	s, at, logs := serveEcho(t, 8, time.Minute)
	for round := range 2 {
		for i := range 300 {
			c := call(t, at)
			switch i % 4 {
			case 0:
				fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow:")
			case 1:
				fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
			case 2:
				fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc")
			}
		}
		c := call(t, at)
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc")
		if got := answered(t, c); got != "200 3" {
			t.Errorf("round %d: answer %q", round, got)
		}
		s.mu.Lock()
		if n := len(s.all); n > 8 {
			t.Errorf("%d connections are held, 8 may be", n)
		}
		s.mu.Unlock()
	}
	if n := strings.Count(logs.String(), "\n"); n != 1 || !strings.Contains(logs.String(), "too many clients") {
		t.Errorf("%d lines are logged:\n%s", n, logs)
	}
}

// TestServerBusy: a connection whose request is whole does not make room.
func TestServerBusy(t *testing.T) {
	t.Parallel()
	_, at, _ := serveEcho(t, 2, time.Minute)
	waiting := call(t, at)
	fmt.Fprint(waiting, "POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
	head := bufio.NewReader(waiting)
	if line, err := head.ReadString('\n'); err != nil || !strings.Contains(line, "200") { // the server works on it
		t.Fatalf("%q, %v", line, err)
	}
	for range 50 {
		fmt.Fprint(call(t, at), "GET / HTTP/1.1\r\n")
	}
	if got := answered(t, ask(t, at, "GET /go HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); got != "200 0" {
		t.Errorf("answer %q", got)
	}
	if rest, err := io.ReadAll(io.LimitReader(head, 1<<16)); !strings.Contains(string(rest), "done") {
		t.Errorf("who waited got %q, %v", rest, err)
	}
}

// TestServerLimits: a client with a wrong, too large or too slow request gets an error, and no
// other client is affected.
func TestServerLimits(t *testing.T) {
	t.Parallel()
	_, at, logs := serveEcho(t, 8, time.Second)
	for _, test := range []struct{ text, want string }{
		{"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", maxHead+4096) + "\r\n\r\n", "431 "},
		{"GET / HTTP/1.1\r\n\r\n", "400 "},
		{"GET / HTTP/9.9\r\nHost: x\r\n\r\n", "505 "},
		{"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", "400 "},
		{"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400 "},
		{"GET / HTTP/1.1\r\nHost : x\r\n\r\n", "400 "},
		{"GET / HTTP/1.1\nHost: x\n X: folded\n\n", "400 "},
		// a proxy in front of the agent may parse it differently (RFC 9112 section 6.3)
		{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400 "},
		{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", "400 "},
		{"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501 "},
		{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\nabcde", "100 "},
		{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nabc", "408 "},
		{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc", "408 "}, // slow
		{"GET / HTTP/1.1\r\nHost: x\r\nX-Slow:", ""},                           // slow and incomplete
		{"", ""},
		{"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "200 0"},
	} {
		if got := answered(t, ask(t, at, test.text)); !strings.HasPrefix(got, test.want) || got != "" && test.want == "" {
			t.Errorf("%.80q: %q, want %q", test.text, got, test.want)
		}
	}
	large, err := http.Post("http://"+at, "text/plain", io.LimitReader(endless{}, MaxBody+1))
	if err != nil {
		t.Fatal(err)
	}
	large.Body.Close()
	if large.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("too large a request: %d", large.StatusCode)
	}
	if logs.String() != "" {
		t.Errorf("clients that are wrong fill the log:\n%s", logs)
	}
}

// A journal has the lines that were logged at level info and above.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// serveEcho serves the length of a request's body. patience is the server's timeout. /wait waits
// for /go.
func serveEcho(t *testing.T, most int, patience time.Duration) (s *Server, at string, logs *journal) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logs = &journal{}
	released := make(chan struct{})
	s = NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			http.Error(w, err.Error(), http.StatusRequestTimeout)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch r.URL.Path {
		case "/wait":
			w.Header().Set("Connection", "close")
			http.NewResponseController(w).Flush()
			<-released
			fmt.Fprint(w, "done")
			return
		case "/go":
			close(released)
		}
		fmt.Fprint(w, len(body))
	}), slog.New(slog.NewTextHandler(logs, nil)), most)
	s.http.ReadHeaderTimeout, s.http.ReadTimeout = patience, patience
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String(), logs
}

func call(t *testing.T, at string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(t *testing.T, at, text string) net.Conn {
	t.Helper()
	c := call(t, at)
	go io.WriteString(c, text) // the server may not read it
	return c
}

// answered returns the status and the text of an answer, "" if the connection ended without one.
func answered(t *testing.T, c net.Conn) string {
	t.Helper()
	c.SetDeadline(time.Now().Add(time.Minute))
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("no answer, and no end")
	}
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(answer.Body)
	return fmt.Sprint(answer.StatusCode, " ", string(text))
}

// endless is an endless text.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// A server that listens at all addresses accepts each of them as its name, and no foreign name.
func TestAllAddresses(t *testing.T) {
	for _, at := range []string{"0.0.0.0:9810", "[::]:9810"} {
		a, err := ParseAddress(at)
		if err != nil {
			t.Fatal(err)
		}
		h := NewGuard(a, nil, "").Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
		for host, want := range map[string]int{
			"192.0.2.1:9810": 200, "[2001:db8::1]:9810": 200, "192.0.2.1": 200, "localhost:9810": 200,
			"evil.example:9810": 421, "192.0.2.1.evil.example": 421, "": 421,
		} {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Host = host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s called as %q: %d, want %d", at, host, w.Code, want)
			}
		}
	}
}
