// SPDX-License-Identifier: BSD-2-Clause

// Package browser drives Debian's Chromium for tests of pages.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
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

// hang is the time limit of a browser's action. A test fails after it.
const hang = 90 * time.Second

// started is the one browser of all tests. Each test has a tab of its own.
var started = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("proxy-server", "direct://"), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("host-resolver-rules", "MAP attacker.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.WSURLReadTimeout(hang))
	ctx, endBrowser := chromedp.NewExecAllocator(context.Background(), opts...)
	// The library logs an error for each event that it does not support; newer browsers send some.
	ctx, endTab := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	ends = append(ends, endTab, endBrowser)
	return ctx, chromedp.Run(ctx)
})

var ends []func()

// Close ends the browser. Packages that use it call Close after their tests.
func Close() {
	for _, end := range ends {
		end()
	}
}

// A Tab is a tab of the browser, in a window of its own.
type Tab struct {
	testing.TB
	ctx context.Context
	mu  sync.Mutex
	bad []string // complaints of the browser
}

// New opens an empty tab of the given size in pixels.
func New(t testing.TB, width, height int64, dark bool) *Tab {
	t.Helper()
	browser, err := started()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("chromium is not installed; apt-get install chromium")
	}
	if err != nil {
		t.Fatal(err)
	}
	// It has a window of its own, since a tab behind another is not drawn.
	var id target.ID
	if err := chromedp.Run(browser, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		id, err = target.CreateTarget("about:blank").WithNewWindow(true).Do(cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser))
		return err
	})); err != nil {
		t.Fatal(err)
	}
	ctx, end := chromedp.NewContext(browser, chromedp.WithTargetID(id))
	ctx, cancel := context.WithTimeout(ctx, 2*hang)
	b := &Tab{TB: t, ctx: ctx}
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
	b.Run(log.Enable(), chromedp.EmulateViewport(width, height, size...), emulation.SetFocusEmulationEnabled(true), page.BringToFront(),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
	return b
}

// Run runs actions in the tab.
func (b *Tab) Run(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// Open goes to a view of the page.
func (b *Tab) Open(url, view string) {
	b.Helper()
	b.Run(chromedp.Navigate(url + "/#/" + view))
}

// Eval evaluates an expression of JavaScript. It stores the value in into.
func (b *Tab) Eval(js string, into any) {
	b.Helper()
	b.Run(chromedp.Evaluate(js, into))
}

// Awaited has an expression that is a promise evaluate to the promise's value.
func Awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// Until waits until an expression is true. An expression that cannot be evaluated, such as during a load of the page,
// is not true yet.
func (b *Tab) Until(js string) {
	b.Helper()
	var err error
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var holds bool
		if err = chromedp.Run(b.ctx, chromedp.Evaluate("!!("+js+")", &holds)); err == nil && holds {
			return
		}
	}
	var text string
	chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
	b.Fatalf("%s does not become true: %v\nthe page:\n%s\ncomplaints: %v", js, err, text, b.Complaints())
}

// within waits until an element is visible and enabled, and evaluates an expression at the same moment, with the
// element as e. The page may be redrawn meanwhile: that cannot remove the element, or replace it with another one.
func (b *Tab) within(selector, js string) {
	b.Helper()
	b.Until(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q)
		if (!e || e.disabled || !e.checkVisibility()) return false
		e.scrollIntoView({ block: 'nearest' })
		const at = e.getBoundingClientRect(), top = document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2)
		if (!top || !e.contains(top)) return false
		%s
		return true
	})()`, selector, js))
}

// Press clicks an element.
func (b *Tab) Press(selector string) {
	b.Helper()
	b.within(selector, "e.click()")
}

// Type replaces the text of a field, or chooses an option. A newline at the end submits the field's form.
func (b *Tab) Type(selector, text string) {
	b.Helper()
	text, send := strings.CutSuffix(text, "\n")
	js := fmt.Sprintf("e.focus(); e.value = %[1]q; if (e.value !== %[1]q) return false; e.dispatchEvent(new Event('input', { bubbles: true })); e.dispatchEvent(new Event('change', { bubbles: true }));", text)
	if send {
		js += " e.form.requestSubmit()"
	}
	b.within(selector, js)
}

// Complaints returns the errors that the browser has reported: errors of scripts and of requests.
func (b *Tab) Complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.bad...)
}

// Text returns the text of an element.
func (b *Tab) Text(selector string) (text string) {
	b.Helper()
	b.Eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector), &text)
	return text
}

// Live waits until the page shows the current state of the switch.
func (b *Tab) Live() {
	b.Helper()
	b.Until("document.querySelector('#lamp').dataset.state === 'live'")
}

// Fine fails the test if the browser has reported an error.
func (b *Tab) Fine() {
	b.Helper()
	if bad := b.Complaints(); len(bad) > 0 {
		b.Errorf("the browser complains: %s", strings.Join(bad, "\n"))
	}
}
