// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"bascule/agent"
	"bascule/agent/doors"
	"bascule/answer"
	"bascule/bridge"

	"github.com/danielgtaylor/huma/v2"
)

// fakeAgent serves two namespaces. Tests must not use their switches.
type fakeAgent struct{}

func (fakeAgent) Status(context.Context) (agent.Status, error) { return agent.Status{}, nil }
func (fakeAgent) Reload(context.Context, agent.Reload) error   { return nil }
func (fakeAgent) Places(context.Context) ([]agent.Place, error) {
	return []agent.Place{{Switch: &bridge.Switch{}}, {Netns: "lab", Switch: &bridge.Switch{}}}, nil
}

// TestRefused: invalid requests are refused before they have any effect.
func TestRefused(t *testing.T) {
	const yaml = "bridges: {br0: {pf: {file: /etc/shadow}}}"
	for _, test := range []struct {
		method, path, body string
		write              bool
		status             int
		want               string
	}{
		{"GET", "/none", "", true, 404, "there is no"},
		{"GET", "/bridge/add", "", true, 405, "takes POST"},
		{"POST", "/bridge/show", "", true, 405, "takes GET"},
		{"DELETE", "/bridge/show", "", true, 405, "takes GET"},
		{"GET", "/port/show?birdge=br0", "", true, 422, `"detail":"query.birdge: unknown query parameter; see /api/v1/openapi.json"`},
		{"POST", "/fdb/add", `{"bridge":"br0"}`, true, 422, "openapi.json (the first of 2 mistakes)"},
		{"POST", "/bridge/add", `{"bridge":"br0","bridge":"br1"}`, true, 400, `occurs twice`},
		{"POST", "/bridge/add", `{"bridge":"br0","Bridge":"br1"}`, true, 422, `body.Bridge`},
		{"POST", "/bridge/add", `{"Bridge":"br1"}`, true, 422, `body.Bridge`},
		{"GET", "/port/show?bridge=", "", true, 422, "is empty"},
		{"GET", "/port/show?bridge=a&bridge=b", "", true, 422, "give it once"},
		{"GET", "/port/show?bridge=a%0d%0aX:y", "", true, 422, "has a control character"},
		{"GET", "/capture?bridge=br0&port=%00", "", true, 422, "has a control character"},
		{"GET", "/port/show?bridge=a;stats=true", "", true, 400, "cannot be read"},
		{"GET", "/port/show?stats=maybe", "", true, 422, "invalid boolean"},
		{"GET", "/port/show?port=p1", "", true, 422, "port needs bridge"},
		{"GET", "/port/show?netns=/proc/1/ns/net", "", true, 404, "serves no network namespace"},
		{"GET", "/fdb/show?vlan=5000", "", true, 422, "4094"},
		{"GET", "/fdb/show?mac=x", "", true, 422, "not a MAC address"},
		{"GET", "/trace?bridge=br0&in=p1", "", true, 422, "the frame is missing"},
		{"GET", "/trace?bridge=br0&in=p1&dst=x", "", true, 422, "not a MAC address"},
		{"POST", "/bridge/add", `{"bridge":"br0"}`, false, 403, "--web-write"},
		{"POST", "/apply", `bridges: {br0: }`, false, 403, "--web-write"},
		{"POST", "/bridge/add", `{"bridge":"br0","setings":{}}`, true, 422, "unexpected property"},
		{"POST", "/bridge/add", `{"bridge":"br0","settings":{"agein":"1s"}}`, true, 422, "unexpected property"},
		{"POST", "/bridge/add", `{"bridge":"br0"`, true, 400, ""},
		{"POST", "/bridge/add", ``, true, 400, "body is required"},
		{"POST", "/bridge/add", `{"bridge":"` + strings.Repeat("x", maxEdit) + `"}`, true, 413, ""},
		{"POST", "/fdb/flush", `{"bridge":"br0","prot":"p1"}`, true, 422, "unexpected property"},
		{"POST", "/fdb/flush", `{"bridge":"br0","port":""}`, true, 422, "expected length >= 1"},
		{"POST", "/fdb/flush", `{"bridge":"br0","vlan":-1}`, true, 422, ""},
		{"POST", "/pf/kill-states", `{"bridge":"br0"}`, true, 422, "or all by itself"},
		{"POST", "/pf/kill-states", `{"bridge":"br0","all":true,"from":"192.0.2.1"}`, true, 422, "or all by itself"},
		{"POST", "/pf/kill-states", `{"bridge":"br0","from":"x"}`, true, 422, "not an address"},
		{"POST", "/pf/kill-sources", `{"bridge":"br0","port":"p1"}`, true, 422, "have no label"},
		{"POST", "/binding/add", `{"bridge":"br0","port":"p1","mac":"02:00:00:00:00:01","address":"192.0.2.1","vlan":0}`, true, 422, "body.vlan: expected number >= 1"},
		{"POST", "/binding/add", `{"bridge":"br0","port":"p1","mac":"02:00:00:00:00:01","address":"192.0.2.1","vlan":1e1}`, true, 422, "body: vlan is 1e1; give a whole number, 0 or more; see"},
		{"POST", "/binding/add", `{"bridge":"br0","port":"p1","mac":"02:00:00:00:00:01","address":"192.0.2.1","vlan":10.0}`, true, 422, "body: vlan is 10.0; give a whole number"},
		{"POST", "/binding/add", `{"bridge":"br0","port":"p1","mac":"02:00:00:00:00:01","address":"x","vlan":null}`, true, 422, "x: not an IP address"},
		{"POST", "/binding/flush", `{"bridge":"br0","vlan":1e1}`, true, 422, "body: vlan is 1e1"},
		{"POST", "/binding/add", `{"bridge":"br0","port":null,"mac":"02:00:00:00:00:01","address":"192.0.2.1"}`, true, 422, "body.port"},
		{"POST", "/binding/del", `{"bridge":"br0","address":"x"}`, true, 422, "x: not an IP address"},
		{"POST", "/binding/add", `{"bridge":"br0","port":"p1","mac":"x","address":"192.0.2.1"}`, true, 422, "x: not a MAC address"},
		{"POST", "/fdb/add", `{"bridge":"br0","port":"p1","mac":"02:00:00:00:00:01","vlan":0}`, true, 422, "body.vlan: expected number >= 1"},
		{"POST", "/port/add", `{"bridge":"br0","ports":["p1"],"vlan":0}`, true, 422, "body.vlan: expected number >= 1"},
		{"POST", "/plug", `{"id":"g1","bridge":"br0","device":"p1","vlan":0}`, true, 422, "body.vlan: expected number >= 1"},
		{"POST", "/vlan/private", `{"bridge":"br0","primary":5}`, true, 422, "or none by itself"},
		// files that root can read, and namespaces that the agent does not serve,
		// stay out of reach
		{"POST", "/apply/dry-run", yaml, false, 422, "cannot be read from here"},
		{"POST", "/apply", yaml, true, 422, "cannot be read from here"},
		{"POST", "/apply/dry-run", "netns: /proc/1/ns/net\nbridges: {br0: }", false, 422, "leave out its netns"},
		{"POST", "/apply/dry-run", "netns: lab\nbridges: {br0: }", false, 422, "leave out its netns"},
		{"POST", "/apply/dry-run?name=../../etc/x", yaml, false, 422, "pattern"},
		{"POST", "/apply/dry-run", "bridges: {}", false, 422, "names no bridge"},
		{"POST", "/apply/dry-run?dry_run=false", "bridges: {br0: }", false, 422, "unknown query parameter"},
	} {
		h := New(fakeAgent{}, Options{Program: answer.Version{Version: "v1"}, Write: test.write})
		r := httptest.NewRequest(test.method, Prefix+test.path, strings.NewReader(test.body))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s %s %.80s: %d %s; want %d, %q", test.method, test.path, test.body, w.Code, w.Body, test.status, test.want)
		}
		if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("%s %s: the error is %s", test.method, test.path, got)
		}
	}
}

func TestVersion(t *testing.T) {
	want := answer.Version{Version: "v1", Commit: "c0ffee", Go: "go1.26", Platform: "linux/arm64", Layout: 7}
	h := New(fakeAgent{}, Options{Program: want})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", Prefix+"/version", nil))
	var got answer.Version
	if err := json.NewDecoder(w.Body).Decode(&got); err != nil || w.Code != http.StatusOK || got != want {
		t.Errorf("%d %+v, %v", w.Code, got, err)
	}
}

// broken is a body that fails after some bytes.
type broken struct {
	text io.Reader
	err  error
}

func (b broken) Read(to []byte) (int, error) {
	n, err := b.text.Read(to)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

// TestBodies: an incomplete body has no effect, a slow one takes no place from other
// requests, and all bodies together have limited room.
func TestBodies(t *testing.T) {
	h := New(fakeAgent{}, Options{Write: true})
	post := func(body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", Prefix+"/bridge/add", http.MaxBytesReader(w, io.NopCloser(body), doors.MaxBody)))
		return w
	}
	for _, test := range []struct {
		err    error
		status int
		want   string
	}{
		{io.ErrUnexpectedEOF, 400, "cut off"},
		{errors.New("invalid byte in chunk length"), 400, "cut off"},
		{os.ErrDeadlineExceeded, 408, "in time"},
	} {
		w := post(broken{strings.NewReader(`{"bridge":"br0"}`), test.err})
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) || w.Header().Get("Connection") != "close" ||
			w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v: %d %v %s", test.err, w.Code, w.Header(), w.Body)
		}
	}
	if w := post(strings.NewReader(strings.Repeat(" ", doors.MaxBody+1))); w.Code != 413 {
		t.Errorf("too large: %d %s", w.Code, w.Body)
	}

	// bodies that do not end
	var pipes []*io.PipeWriter
	var done sync.WaitGroup
	begin := func(some int) {
		r, w := io.Pipe()
		pipes = append(pipes, w)
		done.Go(func() { post(r) })
		if _, err := w.Write(make([]byte, some)); err != nil {
			t.Error(err)
		}
	}
	for range 2 * mostAtOnce {
		begin(1)
	}
	version := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", Prefix+"/version", nil))
		return w.Code
	}
	if code := version(); code != 200 {
		t.Errorf("with slow ones: %d", code)
	}
	for range 4 {
		begin(doors.MaxBody - 1)
	}
	if w := post(strings.NewReader(strings.Repeat(" ", 1<<20))); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("a large one beside those of others: %d %s", w.Code, w.Body)
	}
	if w := post(strings.NewReader("{}")); w.Code != 422 {
		t.Errorf("a small one beside those of others: %d %s", w.Code, w.Body)
	}
	for _, p := range pipes {
		p.CloseWithError(io.ErrUnexpectedEOF)
	}
	done.Wait()
	if held := h.held.Load(); held != 0 {
		t.Errorf("%d bytes are held by nobody", held)
	}
	if w := post(strings.NewReader(strings.Repeat(" ", 1<<20))); w.Code != 413 {
		t.Errorf("a large one when others have gone: %d %s", w.Code, w.Body)
	}
}

// TestProblemLines: a problem has a line for each mistake, and a name with newlines adds
// none.
func TestProblemLines(t *testing.T) {
	detail := func(err error) (line string, more int) {
		e := problem(err).(*huma.ErrorModel)
		return e.Detail, len(e.Errors)
	}
	if line, more := detail(errors.New("cannot show bridge a\nb\x1b[31m: why")); line != "cannot show bridge a b [31m: why" || more != 0 {
		t.Errorf("%q, %d", line, more)
	}
	if line, more := detail(errors.Join(errors.New("one"), errors.New("two"))); line != "one" || more != 2 {
		t.Errorf("%q, %d", line, more)
	}
}

// TestSchemas: each request and each answer has a schema with a description of its
// contents.
func TestSchemas(t *testing.T) {
	var d spec
	if err := json.Unmarshal(New(fakeAgent{}, Options{}).Document(), &d); err != nil {
		t.Fatal(err)
	}
	says := func(s specSchema) bool {
		for s.Ref != "" {
			of, ok := d.Components.Schemas[strings.TrimPrefix(s.Ref, schemas)]
			if !ok {
				return false
			}
			s = of
		}
		if s.Items != nil {
			return s.Items.Ref != "" || s.Items.Type != nil
		}
		if s.Type == "object" && s.Properties == nil {
			of, _ := s.AdditionalProperties.(map[string]any)
			return len(of) > 0 || s.AdditionalProperties == false
		}
		return s.Type != nil || s.AnyOf != nil
	}
	seen := 0
	for path, methods := range d.Paths {
		for method, o := range methods {
			bodies := map[string]specSchema{}
			for media, c := range o.Responses["200"].Content {
				bodies["answer as "+media] = c.Schema
			}
			if len(bodies) == 0 {
				t.Errorf("%s %s has no answer", method, path)
			}
			if o.RequestBody != nil {
				for media, c := range o.RequestBody.Content {
					bodies["request as "+media] = c.Schema
				}
			}
			for what, s := range bodies {
				if seen++; !says(s) {
					t.Errorf("%s %s: the %s has no schema that says anything: %+v", method, path, what, s)
				}
			}
		}
	}
	if seen < 60 || says(specSchema{Type: "object", AdditionalProperties: map[string]any{}}) || says(specSchema{Ref: schemas + "None"}) {
		t.Errorf("%d schemas were seen: the test is blind", seen)
	}
}
