// SPDX-License-Identifier: BSD-2-Clause

package web

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bascule/answer"
	"bascule/test/browser"

	"github.com/chromedp/chromedp"
)

var pictures = flag.String("web.pictures", "", "write pictures of the page to this `folder`")

func TestMain(m *testing.M) {
	code := m.Run()
	browser.Close()
	os.Exit(code)
}

// serveFake serves the page and a made-up switch.
func serveFake(t testing.TB, f *fakeSwitch) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", f)
	mux.Handle("/", Handler())
	s := httptest.NewServer(mux)
	done := make(chan struct{})
	go f.run(done)
	t.Cleanup(func() { close(done); s.CloseClientConnections(); s.Close() })
	return s
}

// picture saves a picture of the tab, if pictures are requested.
func picture(b *browser.Tab, name string) {
	b.Helper()
	if *pictures == "" {
		return
	}
	var png []byte
	b.Run(chromedp.Sleep(2500*time.Millisecond), chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o644); err != nil {
		b.Fatal(err)
	}
}

// TestPictures makes pictures of all views, for people to look at.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no pictures are wanted; give -web.pictures FOLDER")
	}
	f := office()
	f.writable = true
	small, large := serveFake(t, f), serveFake(t, rack(256, 20000))
	for _, test := range []struct {
		name, url, view string
		width, height   int64
		dark            bool
	}{
		{"switch", small.URL, "switch", 1280, 860, false},
		{"switch-dark", small.URL, "switch", 1280, 860, true},
		{"switch-phone", small.URL, "switch", 360, 760, false},
		{"rack", large.URL, "switch", 1280, 860, false},
		{"rack-phone", large.URL, "switch", 360, 760, true},
		{"ports", large.URL, "ports", 1280, 860, false},
		{"ports-phone", small.URL, "ports", 360, 760, false},
		{"port", small.URL, "port/br0/tap0", 1280, 860, false},
		{"port-dark", small.URL, "port/br0/eth1", 1280, 860, true},
		{"port-phone", small.URL, "port/br0/eth1", 360, 760, false},
		{"addresses", large.URL, "addresses", 1280, 860, false},
		{"addresses-phone", large.URL, "addresses", 360, 760, true},
		{"states", small.URL, "states", 1280, 860, false},
		{"states-phone", small.URL, "states", 360, 760, false},
		{"trace", small.URL, "trace", 1280, 860, false},
		{"trace-phone", small.URL, "trace", 360, 760, true},
		{"capture", small.URL, "capture", 1280, 860, false},
		{"events", small.URL, "events", 1280, 860, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := browser.New(t, test.width, test.height, test.dark)
			b.Open(test.url, test.view)
			b.Live()
			f.mu.Lock()
			for i, e := range []answer.Event{
				{Kind: "learned", Bridge: "br0", Port: "veth0", MAC: "02:00:00:00:00:01", VLAN: 10}, {Kind: "moved", Bridge: "br0", Port: "eth1", From: "veth1", MAC: "02:00:00:00:00:02", VLAN: 10},
				{Kind: "loop", Bridge: "br1", Port: "vnet-db", From: "vnet-web", MAC: "02:00:00:00:00:31"}, {Kind: "blocked", Bridge: "br1", Port: "vnet-db", For: 30},
				{Kind: "drops", Bridge: "br0", Port: "tap0", Reason: "pf", Count: 12}, {Kind: "refused", Bridge: "br0", Port: "tap0", MAC: "02:00:00:00:00:07", VLAN: 20, Reason: "full"},
				{Kind: "port-gone", Bridge: "br0", Port: "tap2"}, {Kind: "aged", Bridge: "br0", Port: "veth2", MAC: "02:00:00:00:00:05", VLAN: 20},
			} {
				e.Time = time.Now().Add(time.Duration(i-20) * 3 * time.Second)
				f.tell("monitor", e)
			}
			f.mu.Unlock()
			if strings.HasPrefix(test.name, "trace") {
				b.Type("#trace [name=dst]", "02:00:00:00:00:02")
				b.Press("#trace .primary")
				b.Run(chromedp.WaitVisible("#traced .steps"))
			}
			picture(b, test.name)
			if bad := b.Complaints(); len(bad) > 0 {
				t.Error(bad)
			}
		})
	}
}
