// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bascule/agent"
	"bascule/agent/doors"
	"bascule/bridge"
	"bascule/lab/ends"
	"bascule/lab/spaces"

	"github.com/danielgtaylor/huma/v2"
	"github.com/vishvananda/netlink"
)

// rack is a switch in its own network namespace, where requests take effect.
type rack struct {
	fakeAgent
	ns *ends.Namespace
	sw *bridge.Switch
}

func newRack(t testing.TB) *rack {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("BASCULE_STATE_DIR", t.TempDir())
	ns, err := ends.NewNamespace(spaces.Name("basculeapi", "sw"))
	must(err)
	r := &rack{ns: ns}
	t.Cleanup(func() {
		if r.sw != nil {
			if err := errors.Join(r.clear(), r.sw.Close()); err != nil {
				t.Error(err)
			}
		}
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range 2 {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("p%d", i+1)
		must(ns.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("e%d", i+1)}))
	}
	r.sw, err = bridge.Open(ns.Name)
	must(err)
	must(r.whole())
	return r
}

func (r *rack) Places(context.Context) ([]agent.Place, error) {
	return []agent.Place{{Switch: r.sw}}, nil
}

// clear removes all bridges.
func (r *rack) clear() error {
	names, err := r.sw.Names()
	for _, name := range names {
		_, e := r.sw.DelBridge(name)
		err = errors.Join(err, e)
	}
	return err
}

// whole restores bridge br0 with ports p1 and p2 if a request has removed any of them.
func (r *rack) whole() error {
	names, err := r.sw.Names()
	if err != nil {
		return err
	}
	if len(names) == 1 && names[0] == "br0" {
		if list, err := r.sw.Ports("br0"); err == nil && len(list) == 2 && list[0].Name == "p1" && list[1].Name == "p2" {
			return nil
		}
	}
	err = errors.Join(r.clear(), r.sw.AddBridge("br0", nil))
	if err == nil {
		_, err = r.sw.AddPorts("br0", []string{"p1", "p2"}, bridge.PortOptions{})
	}
	return err
}

// reader is a client that closes an endless answer once it has read something.
type reader struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (r reader) Flush()                           { r.leave() }
func (r reader) SetReadDeadline(time.Time) error  { return nil }
func (r reader) SetWriteDeadline(time.Time) error { return nil }

// FuzzRequest sends a request, as bytes of a connection, through guard and API to a switch
// that carries it out. The answer has an HTTP status, and an error is a problem with a
// line. An incomplete request has no effect.
func FuzzRequest(f *testing.F) {
	post := func(path, body string) {
		f.Add("POST /api/v1" + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	}
	for _, text := range []string{
		"GET /api/v1/port/show?bridge=br0&stats=true HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/fdb/show?vlan=7&mac=02:00:00:00:00:01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/trace?bridge=br0&in=p1&frame=ffff HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/trace?bridge=br0&in=p1&ip=192.0.2.1&to=192.0.2.2&tcp=80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/rates?interval=0.5 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/capture?bridge=br0&seconds=0.1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/pf/rules?bridge=br0&anchor=* HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"POST /api/v1/apply/dry-run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
		"POST /api/v1/bridge/del HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"bridge\":\"br0\"}\r\n",
		"POST /api/v1/bridge/del HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{\"bridge\":\"br0\"}",
		"GET /api/v1/monitor HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		"GET /api/v1/../../etc/passwd HTTP/1.0\r\nHost: localhost\r\nOrigin: null\r\n\r\n",
	} {
		f.Add(text)
	}
	post("/port/set", `{"bridge":"br0","port":"p1","settings":{"isolated":"on"}}`)
	post("/bridge/set", `{"bridge":"br0","settings":{"vlan-filtering":"on"}}`)
	post("/bridge/add", `{"bridge":"br1"}`)
	post("/bridge/add", "{\"bridge\":\"\u202e\x00/../\"}")
	post("/port/del", `{"bridge":"br0","ports":["p1"]}`)
	post("/port/add", `{"bridge":"br0","ports":["h1"],"type":"host"}`)
	post("/fdb/add", `{"bridge":"br0","mac":"02:00:00:00:00:07","port":"p1"}`)
	post("/fdb/flush", `{"bridge":"br0","static":true}`)
	post("/vlan/add", `{"bridge":"br0","port":"p1","vlans":"10,20-30"}`)
	post("/rule/add", `{"bridge":"br0","port":"p1","rule":"block in src 02:00:00:00:00:01"}`)
	post("/rule/load?bridge=br0", "block in on p1 src 02:00:00:00:00:01\n")
	post("/binding/add", `{"bridge":"br0","port":"p1","mac":"02:00:00:00:00:01","address":"192.0.2.1"}`)
	post("/pf/table/add", `{"bridge":"br0","table":"t","addresses":["!192.0.2.1","2001:db8::/32"]}`)
	post("/pf/check?bridge=br0", "block in proto tcp to port 22\npass\n")
	post("/pf/kill-states", `{"bridge":"br0","from":"192.0.2.1"}`)
	post("/apply", "bridges: {br0: {ports: {p1: , p2: }}}")
	post("/apply/dry-run?name=hostname.br0", "add p1\n")
	post("/bridge/set", strings.Repeat(`{"settings":`, 4000))

	r := newRack(f)
	h := doors.NewGuard(doors.Address{Path: "/x"}, nil, "").Protect(New(r, Options{Write: true}), nil)
	f.Fuzz(func(t *testing.T, text string) {
		q, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return // the library answers
		}
		if err := r.whole(); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		w := reader{httptest.NewRecorder(), leave}
		body := q.Body
		q.Body = http.MaxBytesReader(w, body, doors.MaxBody)
		h.ServeHTTP(w, q.WithContext(ctx))
		if w.Code < 200 || w.Code > 599 || w.Code == http.StatusInternalServerError {
			t.Errorf("%q: status %d %s", text, w.Code, w.Body)
		}
		if _, err := io.Copy(io.Discard, body); err != nil && w.Code < 400 {
			t.Errorf("%q is cut off: status %d %s", text, w.Code, w.Body)
		}
		var p huma.ErrorModel
		if w.Header().Get("Content-Type") == "application/problem+json" && q.Method != http.MethodHead {
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Detail == "" || p.Status != w.Code {
				t.Errorf("%q: %d %s", text, w.Code, w.Body)
			}
		}
	})
}
