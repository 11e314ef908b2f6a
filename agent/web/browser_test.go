// SPDX-License-Identifier: BSD-2-Clause

package web

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

var pictures = flag.String("web.pictures", "", "write pictures of the page to this `folder`")

// hang is how long a browser may take for one thing before the test counts as hung.
const hang = 90 * time.Second

// started is the one browser of all tests, which have a tab each.
var started = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("proxy-server", "direct://"), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.WSURLReadTimeout(hang))
	ctx, endBrowser := chromedp.NewExecAllocator(context.Background(), opts...)
	// the library logs events of newer browsers, which it does not know
	ctx, endTab := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	ends = append(ends, endTab, endBrowser)
	return ctx, chromedp.Run(ctx)
})

var ends []func()

func TestMain(m *testing.M) {
	code := m.Run()
	for _, end := range ends {
		end()
	}
	os.Exit(code)
}

// A tab is a tab of the browser, with the page in it.
type tab struct {
	testing.TB
	ctx context.Context
	url string
	mu  sync.Mutex
	bad []string // what the browser complains of
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

// newTab opens an empty tab of that size.
func newTab(t testing.TB, width, height int64, dark bool) *tab {
	t.Helper()
	browser, err := started()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("chromium is not installed; apt-get install chromium")
	}
	if err != nil {
		t.Fatal(err)
	}
	// a window of its own, since a tab behind another is not drawn
	var id target.ID
	if err := chromedp.Run(browser, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		id, err = target.CreateTarget("about:blank").WithNewWindow(true).Do(cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser))
		return err
	})); err != nil {
		t.Fatal(err)
	}
	ctx, end := chromedp.NewContext(browser, chromedp.WithTargetID(id))
	ctx, cancel := context.WithTimeout(ctx, 2*hang)
	b := &tab{TB: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		end()
	})
	chromedp.ListenTarget(ctx, func(e any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			b.bad = append(b.bad, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError {
				b.bad = append(b.bad, e.Entry.Text+" "+e.Entry.URL)
			}
		}
	})
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	size := []chromedp.EmulateViewportOption{}
	if width < 500 {
		size = append(size, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	b.run(log.Enable(), chromedp.EmulateViewport(width, height, size...), emulation.SetFocusEmulationEnabled(true), page.BringToFront(),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
	return b
}

func (b *tab) run(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// open goes to a view of the page.
func (b *tab) open(url, view string) {
	b.Helper()
	b.url = url
	b.run(chromedp.Navigate(url + "/#/" + view))
}

// eval evaluates an expression of JavaScript.
func (b *tab) eval(js string, into any) {
	b.Helper()
	b.run(chromedp.Evaluate(js, into))
}

// awaited has the value of a promise as that of an expression.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// until waits until an expression is true.
func (b *tab) until(js string) {
	b.Helper()
	if err := chromedp.Run(b.ctx, chromedp.Poll(js, nil, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(hang))); err != nil {
		var text string
		chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.Fatalf("%s does not become true: %v\nthe page:\n%s\ncomplaints: %v", js, err, text, b.complaints())
	}
}

func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.bad...)
}

// text is the text of an element.
func (b *tab) text(selector string) (text string) {
	b.Helper()
	b.eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector), &text)
	return text
}

// live waits until the page shows what the switch does now.
func (b *tab) live() {
	b.Helper()
	b.until("document.querySelector('#lamp').dataset.state === 'live'")
}

// picture writes a picture of the tab, where such are wanted.
func (b *tab) picture(name string) {
	b.Helper()
	if *pictures == "" {
		return
	}
	var png []byte
	b.run(chromedp.Sleep(2500*time.Millisecond), chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o644); err != nil {
		b.Fatal(err)
	}
}

// TestPictures makes pictures of all views, for people to look at.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no pictures are wanted; give -web.pictures FOLDER")
	}
	small, large := serveFake(t, func() *fakeSwitch { f := office(); f.writable = true; return f }()), serveFake(t, rack(256, 20000))
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
			b := newTab(t, test.width, test.height, test.dark)
			b.open(test.url, test.view)
			b.live()
			if strings.HasPrefix(test.name, "trace") {
				b.run(chromedp.SetValue("#trace [name=dst]", "02:00:00:00:00:02"), chromedp.Click("#trace .primary"), chromedp.WaitVisible("#traced .steps"))
			}
			b.picture(test.name)
			if bad := b.complaints(); len(bad) > 0 {
				t.Error(bad)
			}
		})
	}
}
