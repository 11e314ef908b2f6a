// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"bascule/client"
	"bascule/test/netlab"
)

// openapi is the path of the committed OpenAPI document.
const openapi = "../../docs/openapi.json"

// schemaOf compiles the schema of a response.
func schemaOf(t *testing.T, path, method, media string) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(openapi)
	must(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	must(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must(t, c.AddResource("openapi.json", document))
	escape := func(s string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(s) }
	s, err := c.Compile(fmt.Sprintf("openapi.json#/paths/%s/%s/responses/200/content/%s/schema", escape(path), method, escape(media)))
	must(t, err)
	return s
}

// matches checks JSON against a schema, and returns its value.
func matches(t *testing.T, what string, s *jsonschema.Schema, text []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v in %s", what, err, text)
	}
	if err := s.Validate(v); err != nil {
		t.Errorf("%s is not what the document says: %v\n%s", what, err, text)
	}
	return v
}

// settled removes the values from a response that change without a command.
func settled(v any) any {
	switch x := v.(type) {
	case map[string]any:
		maps.DeleteFunc(x, func(key string, _ any) bool {
			return slices.Contains([]string{"seconds", "age", "expires", "updated", "stats64", "rx_packets", "rx_bytes", "tx_packets", "tx_bytes"}, key)
		})
		for _, below := range x {
			settled(below)
		}
	case []any:
		for _, below := range x {
			settled(below)
		}
	}
	return v
}

// webRack is a switch with an agent that serves the web page, and clients of both.
type webRack struct {
	*runner
	path         string         // path of the socket of --web
	socket, page *client.Client // clients of the agent's socket and of the socket of --web
	raw          *http.Client   // client of the agent's socket
}

func newWebRack(t *testing.T, l *netlab.Lab, args ...string) *webRack {
	t.Helper()
	w := &webRack{runner: newRunner(t, l)}
	w.path = filepath.Join(t.TempDir(), "web.sock")
	w.start(append([]string{"--web", "unix:" + w.path}, args...)...)
	var err error
	w.socket, err = client.New("unix:"+w.at(".sock"), "")
	must(t, err)
	w.page, err = client.New("unix:"+w.path, "")
	must(t, err)
	w.raw = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.at(".sock"))
	}}}
	t.Cleanup(func() { w.socket.Close(); w.page.Close(); w.raw.CloseIdleConnections() })
	return w
}

// get requests an existing resource through the agent's socket.
func (w *webRack) get(t *testing.T, path string) []byte {
	t.Helper()
	r, err := w.raw.Get("http://localhost/api/v1" + path)
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	if r.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %s %s", path, r.Status, text)
	}
	return text
}

// TestAPI: the output of commands with -j equals the API's responses, and both match the
// OpenAPI document. The switch has one of each thing, and is made through the API.
func TestAPI(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	l.NewEnds(8)
	w := newWebRack(t, l)
	ctx := t.Context()

	plan, _, err := w.page.ApplyDryRun(ctx, client.ApplyDryRunParams{}, []byte(everything))
	must(t, err)
	if len(plan) == 0 {
		t.Error("there is nothing to do on an empty switch")
	}
	if list, err := w.page.BridgeShow(ctx, client.BridgeShowParams{}); err != nil || len(list) > 0 {
		t.Errorf("a dry run has made %v, %v", list, err)
	}
	done, _, err := w.socket.Apply(ctx, client.ApplyParams{}, []byte(everything))
	must(t, err)
	if !reflect.DeepEqual(done, plan) {
		t.Errorf("planned %v, done %v", plan, done)
	}
	if again, _, err := w.socket.Apply(ctx, client.ApplyParams{}, []byte(everything)); err != nil || len(again) > 0 {
		t.Errorf("applied again: %v, %v", again, err)
	}
	_, err = w.socket.BridgeSet(ctx, client.BridgeSetParams{}, client.SetBridge{Bridge: "br0", Settings: map[string]string{"vlan-stats": "on"}})
	must(t, err)

	for _, test := range []struct{ command, path string }{
		{"--version", "/version"},
		{"agent status", "/agent/status"},
		{"help reasons", "/help/reasons"},
		{"export", "/export"},
		{"export br1", "/export?bridge=br1"},
		{"help routed", "/help/routed"},
		{"bridge show", "/bridge/show"},
		{"bridge show br0", "/bridge/show?bridge=br0"},
		{"port show", "/port/show"},
		{"port show br0 p1", "/port/show?bridge=br0&port=p1"},
		{"port show br0 --stats", "/port/show?bridge=br0&stats=true"},
		{"stats", "/stats"},
		{"stats br0 p1", "/stats?bridge=br0&port=p1"},
		{"fdb show", "/fdb/show"},
		{"fdb show br0 --static --vlan 20", "/fdb/show?bridge=br0&static=true&vlan=20"},
		{"fdb get br0 02:00:00:00:00:aa --vlan 20", "/fdb/get?bridge=br0&mac=02:00:00:00:00:aa&vlan=20"},
		{"vlan show", "/vlan/show"},
		{"vlan show br0 p1", "/vlan/show?bridge=br0&port=p1"},
		{"vlan show br0 --stats", "/vlan/show?bridge=br0&stats=true"},
		{"rule show", "/rule/show"},
		{"rule show br0 p1 --stats", "/rule/show?bridge=br0&port=p1&stats=true"},
		{"binding show", "/binding/show"},
		{"span show", "/span/show"},
		{"trace br0 --in p1 --dst ff:ff:ff:ff:ff:ff --arp request --spa 192.0.2.1 --tpa 192.0.2.2",
			"/trace?bridge=br0&in=p1&dst=ff:ff:ff:ff:ff:ff&arp=request&spa=192.0.2.1&tpa=192.0.2.2"},
		{"pfctl -b br0 -s rules", "/pf/rules?bridge=br0"},
		{"pfctl -b br0 -a * -s rules", "/pf/rules?bridge=br0&anchor=*"},
		{"pfctl -b br0 -s nat", "/pf/nat?bridge=br0"},
		{"pfctl -b br0 -s ether", "/pf/ether?bridge=br0"},
		{"pfctl -b br0 -s labels", "/pf/labels?bridge=br0"},
		{"pfctl -b br0 -s Anchors", "/pf/anchors?bridge=br0"},
		{"pfctl -b br0 -s states", "/pf/states?bridge=br0"},
		{"pfctl -b br0 -s Sources", "/pf/sources?bridge=br0"},
		{"pfctl -b br0 -s info", "/pf/info?bridge=br0"},
		{"pfctl -b br0 -s timeouts", "/pf/timeouts?bridge=br0"},
		{"pfctl -b br0 -s memory", "/pf/memory?bridge=br0"},
		{"pfctl -b br0 -s Interfaces", "/pf/interfaces?bridge=br0"},
		{"pfctl -b br0 -s Tables", "/pf/tables?bridge=br0"},
		{"pfctl -b br0 -t own -T show", "/pf/table/show?bridge=br0&table=own"},
	} {
		path, _, _ := strings.Cut(test.path, "?")
		s := schemaOf(t, path, "get", "application/json")
		r, err := l.Run(append([]string{"-j"}, strings.Fields(test.command)...)...)
		must(t, err)
		if r.Exit != 0 {
			t.Errorf("%v", r)
			continue
		}
		printed := matches(t, test.command, s, []byte(r.Stdout))
		answer := matches(t, test.path, s, w.get(t, test.path))
		if path == "/agent/status" {
			continue // its events continue
		}
		if !reflect.DeepEqual(settled(printed), settled(answer)) {
			t.Errorf("%s prints\n%v\n%s answers\n%v", test.command, printed, test.path, answer)
		}
	}

	// a flush prints its result, too
	r, err := l.Run("-j", "fdb", "flush", "br0")
	must(t, err)
	matches(t, "fdb flush", schemaOf(t, "/fdb/flush", "post", "application/json"), []byte(r.Stdout))
	r, err = l.Run("-j", "apply", "--dry-run", w.file("less.yaml", "bridges: {br1: }"))
	must(t, err)
	matches(t, "apply --dry-run", schemaOf(t, "/apply/dry-run", "post", "application/json"), []byte(r.Stdout))
	flushed, _, err := w.socket.FDBFlush(ctx, client.FDBFlushParams{}, client.FlushEntries{Bridge: "br0"})
	if err != nil || len(flushed) != 1 || flushed[0].Bridge != "br0" {
		t.Errorf("fdb flush: %v, %v", flushed, err)
	}
}

// TestAPIFollows: events are reported, captured packets can be read, and an error precedes all
// other output.
func TestAPIFollows(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	list := l.NewEnds(2)
	l.AddBridge("br0", "tcx", list)
	w := newWebRack(t, l)
	ctx := t.Context()

	edits := make(chan error, 1)
	stop := make(chan struct{})
	go func() { // repeatedly, since it is unknown when the reader has started
		var err error
		for n := 0; err == nil; n++ {
			select {
			case <-stop:
				edits <- nil
				return
			default:
			}
			mac := "02:00:00:00:00:07"
			_, err = w.socket.FDBAdd(ctx, client.FDBAddParams{}, client.AddEntry{Bridge: "br0", MAC: mac, Port: list[0].Port})
			if err == nil {
				_, err = w.socket.FDBDel(ctx, client.FDBDelParams{}, client.DelEntry{Bridge: "br0", MAC: mac})
			}
		}
		edits <- err
	}()
	s := schemaOf(t, "/monitor", "get", "text/event-stream")
	for e, err := range w.page.Monitor(ctx, client.MonitorParams{Bridge: "br0"}) {
		must(t, err)
		text, err := json.Marshal(e)
		must(t, err)
		matches(t, "an event", s, text)
		if e.Event == "added" && e.MAC == "02:00:00:00:00:07" && e.Name == list[0].Port {
			break
		}
	}
	close(stop)
	must(t, <-edits)
	for rates, err := range w.page.Rates(ctx, client.RatesParams{Bridge: "br0"}) {
		must(t, err)
		if len(rates) != 2 || rates[0].Rates == nil || rates[0].Elapsed <= 0 {
			t.Errorf("rates %+v", rates)
		}
		break
	}
	for _, err := range w.page.Monitor(ctx, client.MonitorParams{Bridge: "none"}) {
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusNotFound {
			t.Errorf("events of no bridge: %v", err)
		}
	}

	one, seconds := uint64(1), 60.0
	file, err := w.page.Capture(ctx, client.CaptureParams{Bridge: "br0", Count: &one, Seconds: &seconds})
	must(t, err)
	defer file.Close()
	l.Send(list[0], l.Frame(list[1].MAC, list[0].MAC, 60))
	text, err := io.ReadAll(file)
	must(t, err)
	if !bytes.HasPrefix(text, []byte{0x0a, 0x0d, 0x0d, 0x0a}) || !bytes.Contains(text, list[0].MAC[:]) {
		t.Errorf("the capture is %x", text)
	}
}

// TestWebReadOnly: without --web-write nothing can be changed, and no door returns data that
// only root may read.
func TestWebReadOnly(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	l.AddBridge("br0", "tcx", l.NewEnds(1))
	w := newWebRack(t, l)
	ctx := t.Context()
	secret := w.file("secret", "the root of all secrets")
	refused := func(what string, err error, status int) {
		t.Helper()
		var e *client.Error
		if !errors.As(err, &e) || e.Status != status || strings.Contains(err.Error(), "all secrets") {
			t.Errorf("%s: %v, want status %d", what, err, status)
		}
	}
	_, err := w.page.BridgeAdd(ctx, client.BridgeAddParams{}, client.AddBridge{Bridge: "br1"})
	refused("bridge add", err, http.StatusForbidden)
	_, _, err = w.page.Apply(ctx, client.ApplyParams{}, []byte("bridges: {br1: }"))
	refused("apply", err, http.StatusForbidden)
	for _, c := range []*client.Client{w.page, w.socket} {
		for _, text := range []string{
			"bridges: {br0: {pf: {file: " + secret + "}}}",
			"bridges: {br0: {pf: {rules: 'include \"" + secret + "\"'}}}",
			"bridges: {br0: {pf: {rules: 'table <x> persist file \"" + secret + "\"'}}}",
			"netns: " + secret + "\nbridges: {br0: }",
		} {
			_, _, err := c.ApplyDryRun(ctx, client.ApplyDryRunParams{}, []byte(text))
			refused(text, err, http.StatusUnprocessableEntity)
		}
		for _, text := range []string{"include \"" + secret + "\"\n", "table <x> persist file \"" + secret + "\"\n"} {
			_, err := c.PFCheck(ctx, client.PFCheckParams{Bridge: "br0"}, []byte(text))
			refused(text, err, http.StatusUnprocessableEntity)
		}
		_, err = c.BridgeShow(ctx, client.BridgeShowParams{Netns: secret})
		refused("netns", err, http.StatusNotFound)
	}
	if list, err := w.page.BridgeShow(ctx, client.BridgeShowParams{}); err != nil || len(list) != 1 {
		t.Errorf("there is %+v, %v", list, err)
	}
}

// TestAPIPlugs: a port is plugged, tables are read and flushed, and all bridges are deleted.
func TestAPIPlugs(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	list := l.NewEnds(1)
	l.Bascule("bridge", "add", "br0", "--vlan-filtering")
	l.Bascule("bridge", "add", "br1")
	w := newWebRack(t, l, "--web-write")
	ctx, device := t.Context(), list[0].Port
	vlan := uint64(10)
	for range 2 { // the second request changes nothing
		_, err := w.page.Plug(ctx, client.PlugParams{}, client.AddPlug{
			ID: "g1", Bridge: "br0", Device: device, VLAN: &vlan, Tagged: "20-21", PF: "block in proto udp to port 67\n",
			Bindings: []client.PlugBinding{{MAC: "02:00:00:00:00:01", Address: "192.0.2.1"}},
		})
		must(t, err)
	}
	ports, err := w.page.PortShow(ctx, client.PortShowParams{Bridge: "br0", Port: device})
	must(t, err)
	if o := ports[0].Owner; o == nil || o.ID != "g1" || o.By != "plug" {
		t.Errorf("the port's owner is %+v", o)
	}
	if got := l.Bascule("vlan", "show", "br0", device); !strings.Contains(got, " 10 ") || !strings.Contains(got, "PVID") || !strings.Contains(got, " 20-21 ") {
		t.Errorf("VLANs: %s", got)
	}
	if got := l.Bascule("binding", "show", "br0"); !strings.Contains(got, "192.0.2.1") {
		t.Errorf("bindings: %s", got)
	}
	if got := l.Bascule("pfctl", "-b", "br0", "-a", "plug/g1", "-s", "rules"); !strings.Contains(got, "port = 67") {
		t.Errorf("rules: %s", got)
	}
	_, err = w.page.Unplug(ctx, client.UnplugParams{}, client.DelPlug{ID: "g1"})
	must(t, err)
	if ports, err := w.page.PortShow(ctx, client.PortShowParams{Bridge: "br0"}); err != nil || len(ports) > 0 {
		t.Errorf("unplugged: %+v, %v", ports, err)
	}

	table := client.TableEdit{Bridge: "br0", Table: "t", Addresses: []string{"192.0.2.0/24", "2001:db8::1"}}
	_, _, err = w.page.PFTableAdd(ctx, client.PFTableAddParams{}, table)
	must(t, err)
	table.Addresses = []string{"192.0.2.9", "198.51.100.1"}
	if got, _, err := w.page.PFTableTest(ctx, client.PFTableTestParams{}, table); err != nil || got.Asked != 2 || got.Matched != 1 {
		t.Errorf("test: %+v, %v", got, err)
	}
	table.Addresses = []string{"192.0.2.0/25"}
	var refused *client.Error
	if _, _, err := w.page.PFTableTest(ctx, client.PFTableTestParams{}, table); !errors.As(err, &refused) || refused.Status != http.StatusUnprocessableEntity {
		t.Errorf("test of a network: %v", err)
	}
	name := client.TableName{Bridge: "br0", Table: "t"}
	_, err = w.page.PFTableZero(ctx, client.PFTableZeroParams{}, name)
	must(t, err)
	if got, _, err := w.page.PFTableFlush(ctx, client.PFTableFlushParams{}, name); err != nil || len(got) != 1 || got[0].Removed != 2 {
		t.Errorf("flush: %+v, %v", got, err)
	}
	_, err = w.page.PFTableKill(ctx, client.PFTableKillParams{}, name)
	must(t, err)
	if got, err := w.page.PFTables(ctx, client.PFTablesParams{Bridge: "br0"}); err != nil || len(got) > 0 {
		t.Errorf("tables: %+v, %v", got, err)
	}
	if got, _, err := w.page.BridgeDelAll(ctx, client.BridgeDelAllParams{}); err != nil || len(got) != 2 {
		t.Errorf("del --all: %+v, %v", got, err)
	}
}
