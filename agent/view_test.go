// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bascule/agent/doors"
)

// TestRequests: the agent's socket accepts HTTP requests as well as the words of commands.
func TestRequests(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := &agent{log: slog.New(slog.DiscardHandler), ctx: ctx, todo: make(chan func(), 1), handed: newHandover()}
	a.web = doors.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.URL.Path, " ", len(body))
	}), a.log, 4)
	go a.web.Serve(ctx, a.handed)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go a.serve(l)
	go func() {
		for f := range a.todo {
			f()
		}
	}()
	ask := func(text string) *bufio.Reader {
		t.Helper()
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(c, text)
		return bufio.NewReader(c)
	}
	long := strings.Repeat("x", 500)
	for _, path := range []string{"/a", "/" + long} {
		r := ask("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n" + long)
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(answer.Body); string(body) != path+" 500" {
			t.Errorf("the answer is %q", body)
		}
	}
	if line, err := ask("nonsense\n").ReadString('\n'); err != nil || !strings.Contains(line, "the agent has no command") {
		t.Errorf("a word: %q, %v", line, err)
	}
	// too many HTTP requests do not keep words waiting
	for range 20 {
		ask("GET / HTTP/1.1\r\nX-Slow: ")
	}
	if line, err := ask("nonsense\n").ReadString('\n'); err != nil || !strings.Contains(line, "the agent has no command") {
		t.Errorf("a word beside slow requests: %q, %v", line, err)
	}
}
