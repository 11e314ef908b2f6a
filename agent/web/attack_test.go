// SPDX-License-Identifier: BSD-2-Clause

package web

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"bascule/agent/doors"
	"bascule/test/browser"

	"github.com/chromedp/chromedp"
)

// TestAttacks: a browser that can reach the agent visits pages of attackers. They try to
// read the switch and to change it, also with the token in the browser.
func TestAttacks(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdefghij"
	f := office()
	f.writable = true
	var answers []string
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", f)
	mux.Handle("/", Handler())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	guarded := doors.NewGuard(doors.Address{TCP: at}, nil, token).Protect(mux, func(r *http.Request) bool { return !strings.HasPrefix(r.URL.Path, "/api/") })
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &status{ResponseWriter: w, code: 200}
		guarded.ServeHTTP(rec, r)
		f.mu.Lock()
		answers = append(answers, fmt.Sprintf("%s %s%s %d", r.Method, r.Host, r.URL.Path, rec.code))
		f.mu.Unlock()
	})}}
	s.Start()
	defer func() { s.CloseClientConnections(); s.Close() }()
	seen := func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.Join(answers, "\n")
	}

	// meanwhile the owner uses the page, in the same browser
	own := browser.New(t, 1280, 900, false)
	own.Run(chromedp.Navigate(s.URL + "/#" + token))
	own.Live()

	// another name for this host, as a rebound DNS gives it
	b := browser.New(t, 1280, 900, false)
	rebound := fmt.Sprintf("http://attacker.test:%d/", at.Port())
	b.Run(chromedp.Navigate(rebound))
	b.Until("document.body.innerText.includes('another name')")

	// a page of another site
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<body><iframe name=f></iframe><iframe id=framed src="%[1]s/"></iframe>
			<form id=form method=post target=f enctype=text/plain action="%[1]s/api/v1/pf/kill-states"><input name='{"bridge":"br0","all":true,"x":"' value='"}'></form>`, s.URL)
	}))
	defer evil.Close()
	_, evilPort, _ := net.SplitHostPort(evil.Listener.Addr().String())
	b.Run(chromedp.Navigate("http://attacker.test:" + evilPort + "/"))
	var got []string
	b.Run(chromedp.Evaluate(fmt.Sprintf(`(async () => {
		const at = %q, out = []
		const attempt = async (what, f) => { try { out.push(what + ': ' + await f()) } catch (e) { out.push(what + ': failed') } }
		await attempt('read', async () => (await fetch(at + '/api/v1/fdb/show')).text())
		await attempt('read with the browser\'s cookies', async () => (await fetch(at + '/api/v1/fdb/show', {credentials: 'include'})).text())
		await attempt('simple POST', async () => (await fetch(at + '/api/v1/pf/kill-states', {method: 'POST', mode: 'no-cors', body: '{"bridge":"br0","all":true}'})).type)
		await attempt('POST with a guess', async () => (await fetch(at + '/api/v1/pf/kill-states', {method: 'POST', headers: {Authorization: 'Bearer x', 'Content-Type': 'application/json'}, body: '{"bridge":"br0","all":true}'})).status)
		await attempt('stream', () => new Promise((ok, no) => { const e = new EventSource(at + '/api/v1/rates'); e.onmessage = m => ok(m.data); e.onerror = no }))
		await attempt('websocket', () => new Promise((ok, no) => { const w = new WebSocket(at.replace('http', 'ws') + '/api/v1/rates'); w.onopen = () => ok('open'); w.onerror = no }))
		await attempt('script', () => new Promise((ok, no) => { const s = document.createElement('script'); s.src = at + '/app.js'; s.type = 'module'; s.onload = () => ok('loaded'); s.onerror = no; document.body.append(s) }))
		await attempt('frame', () => { if (document.querySelector('#framed').contentDocument) return 'seen'; throw 0 })
		document.querySelector('#form').submit()
		return out
	})()`, s.URL), &got, browser.Awaited))
	for _, line := range got {
		if !strings.HasSuffix(line, ": failed") && line != "simple POST: opaque" {
			t.Errorf("the other site's page got something: %s", line)
		}
	}
	own.Run(chromedp.Navigate("about:blank"))
	b.Until("true")
	for _, line := range strings.Split(seen(), "\n") {
		if strings.Contains(line, "/api/") && strings.HasSuffix(line, " 200") && !strings.HasPrefix(line, "GET 127.0.0.1") {
			t.Errorf("answered: %s", line)
		}
	}
	for _, want := range []string{"GET attacker.test", "POST 127.0.0.1"} {
		if !strings.Contains(seen(), want) {
			t.Errorf("the attempts did not get as far as %q:\n%s", want, seen())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) != 0 || len(f.states) != 7 {
		t.Errorf("the switch was asked for %q, and has %d states", f.asked, len(f.states))
	}
}

// status records the status of an answer.
type status struct {
	http.ResponseWriter
	code int
}

func (s *status) WriteHeader(code int) { s.code = code; s.ResponseWriter.WriteHeader(code) }

func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }
