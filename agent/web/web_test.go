// SPDX-License-Identifier: BSD-2-Clause

package web

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/answer"
	"bascule/test/browser"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// maxPage is the largest size of the page, in bytes.
const maxPage = 200 << 10

// TestFiles: the page is small, refers to no other site, and has no script, style or
// markup that its own policy forbids.
func TestFiles(t *testing.T) {
	all, sum := files(), 0
	outside := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]`)
	for name, f := range all {
		sum += len(f.text)
		if name == "uplot-LICENSE" {
			continue
		}
		for _, line := range strings.Split(string(f.text), "\n") {
			line = strings.TrimPrefix(line, "/*! https://github.com/leeoniya/uPlot") // its address
			if outside.MatchString(strings.ReplaceAll(line, "http://www.w3.org/2000/svg", "")) {
				t.Errorf("%s names something outside: %.120s", name, line)
			}
		}
		if forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`).Find(f.text); forbidden != nil {
			t.Errorf("%s has %s", name, forbidden)
		}
	}
	if sum > maxPage {
		t.Errorf("the page has %d bytes, more than %d", sum, maxPage)
	}
	t.Logf("%d files, %d bytes", len(all), sum)
	html := string(all["index.html"].text)
	if m := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script(>|[^>]*>[^<])`).FindString(html); m != "" {
		t.Errorf("index.html has something inline: %s", m)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([a-z][^"#]*)"`).FindAllStringSubmatch(html, -1) {
		if _, ok := all[m[1]]; !ok {
			t.Errorf("index.html wants %s, which is not there", m[1])
		}
	}
}

// TestHandler: the server has nothing but the page, which is read-only.
func TestHandler(t *testing.T) {
	h := Handler()
	for _, test := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 200}, {"GET", "/index.html", 200}, {"HEAD", "/page.css", 200}, {"GET", "/uplot.js", 200},
		{"POST", "/", 405}, {"PUT", "/index.html", 405}, {"OPTIONS", "/", 405},
		{"GET", "/web.go", 404}, {"GET", "/page/", 404}, {"GET", "/page/index.html", 404}, {"GET", "//index.html", 404},
		{"GET", "/../web.go", 404}, {"GET", "/..%2fweb.go", 404}, {"GET", "/%2e%2e/%2e%2e/etc/passwd", 404},
		{"GET", "/..\\web.go", 404}, {"GET", "/index.html/", 404}, {"GET", "/index.html%00.js", 404}, {"GET", "/etc/passwd", 404},
	} {
		r := httptest.NewRequest(test.method, "/", nil)
		u, err := r.URL.Parse(test.path)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Path, r.URL.RawPath = test.path, ""
		if u.RawPath != "" || strings.Contains(test.path, "%") {
			r.URL.Path = u.Path
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("%s %s: %d, want %d", test.method, test.path, w.Code, test.want)
		}
		if !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: the answer does not say how to be treated: %v", test.method, test.path, w.Header())
		}
	}
	r := httptest.NewRequest("GET", "/page.css", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	r.Header.Set("If-None-Match", w.Header().Get("Etag"))
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusNotModified {
		t.Errorf("a file that the browser has: %d", w.Code)
	}
}

// TestShows: the page shows the state of the switch, and follows its changes.
func TestShows(t *testing.T) {
	t.Parallel()
	f := office()
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "switch")
	b.Live()
	b.Until("document.querySelectorAll('.picture .port').length === 14")
	var labels []string
	b.Eval("[...document.querySelectorAll('.picture .port')].map(e => e.getAttribute('aria-label'))", &labels)
	all := strings.Join(labels, "\n")
	for _, want := range []string{
		"eth1 of br0, forwarding, VLAN 1 untagged 10 20-30", "eth2 of br0, discarding, alternate", "tap1 of br0, disabled", "tap2 of br0, gone",
		"up of br0, patch, forwarding, cord to br1/down", "vnet-db of br1, blocked by its loop guard", "host0 of br0, host", "mon0 of br0, span",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no port is %q in:\n%s", want, all)
		}
	}
	var cords int
	if b.Eval("document.querySelectorAll('.picture .cord').length", &cords); cords != 1 {
		t.Errorf("%d cords, want 1", cords)
	}
	b.Until("document.querySelector('#legend').innerText.includes('20')")
	b.Press("#legend [data-vlan='10']")
	var lit []string
	b.Eval("[...document.querySelectorAll('.port.lit')].map(e => e.dataset.key)", &lit)
	if got := strings.Join(lit, " "); got != "br0/eth1 br0/eth2 br0/veth0 br0/veth1 br0/up" {
		t.Errorf("VLAN 10 lights up %s", got)
	}
	b.Until("document.querySelector('#drops').innerText.includes('spanning tree keeps the port from forwarding')")
	b.Until("/tap0/.test(document.querySelector('#drops').innerText)")

	// events are shown, and a new port is drawn
	f.mu.Lock()
	f.port("br0", "late0", nil, untagged(10))
	f.tell("monitor", answer.Event{Time: time.Now(), Kind: "port-added", Bridge: "br0", Port: "late0"})
	f.tell("monitor", answer.Event{Time: time.Now(), Kind: "moved", Bridge: "br0", Port: "veth1", From: "<img src=x>", MAC: "02:00:00:00:00:01", VLAN: 10})
	f.mu.Unlock()
	b.Until("document.querySelectorAll('.picture .port').length === 15")
	b.Until("document.querySelector('#last').innerText.includes('from <img src=x>')")
	b.Press(".top nav a[href='#/events']")
	b.Until("document.querySelectorAll('#t-events .body .row:not([hidden])').length === 2")

	b.Press(".top nav a[href='#/ports']")
	b.Until("document.querySelector('#n-ports').innerText === '15 ports'")
	b.Type("#q-ports", "vlan discarding")
	b.Until("document.querySelector('#n-ports').innerText === '1 of 15 ports'")

	// a port, its counters and its charts
	b.Open(s.URL, "port/br0/tap0")
	b.Until("document.querySelectorAll('#port canvas').length === 3")
	b.Until("document.querySelector('#port').innerText.includes('the two ports share a protected domain')")
	b.Until("document.querySelector('.facts-grid').innerText.replace(/\\s+/g, ' ').includes('Addresses 1 of 8')")
	b.Until("/bits a second, last 30 s: in: now [0-9.]+ kbit/i.test(document.querySelector('#about-rxBits').textContent)")
	b.Fine()
}

// TestFirstAnswer: the page shows nothing about a switch before the first answer.
func TestFirstAnswer(t *testing.T) {
	t.Parallel()
	claims := regexp.MustCompile(`(?i)there is no|no port|read only|writable|can kill|no frame has|nothing has happened|no state|no address|no bridge|\b0 \w+|agent \d`)
	b := browser.New(t, 1280, 900, false)
	for _, view := range []string{"switch", "ports", "port/br0/eth1", "addresses", "states", "trace", "capture", "events"} {
		f := office()
		f.held = make(chan struct{})
		s := serveFake(t, f) // the browser keeps connections to a server for the page that was left
		b.Open(s.URL, view)
		for f.waiting.Load() < 4 { // the page's first requests
			time.Sleep(10 * time.Millisecond)
		}
		b.Until("document.querySelector('.top nav [aria-current]')")
		// the page has now drawn what it draws once its size is known
		b.Run(chromedp.Evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))", nil, browser.Awaited))
		var text string
		b.Eval("document.body.innerText", &text)
		if got := claims.FindAllString(text, -1); got != nil {
			t.Errorf("%s says %q before the first answer:\n%s", view, got, text)
		}
		close(f.held)
		b.Live()
		if view == "events" {
			b.Until("document.querySelector('#n-events').innerText === '0 events'")
		}
		if got := b.Text("#mode"); got != "read only" {
			t.Errorf("%s says %q after the first answer", view, got)
		}
	}
	b.Press(".top nav a[href='#/switch']")
	b.Until("document.querySelectorAll('.picture .port').length === 14")
	b.Fine()
}

// TestOne: texts about one thing are in the singular.
func TestOne(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.bridge("br0", func(b *answer.Bridge) { b.FDBCount = 1 })
	f.port("br0", "veth0", func(p *answer.Port) { p.FDBCount = 1 }, untagged(10))
	f.fdb = append(f.fdb, answer.Entry{MAC: "02:00:00:00:00:01", Port: "veth0", Bridge: "br0", State: "static", Flags: []string{}})
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "switch")
	b.Live()
	b.Until("document.querySelectorAll('.picture .port').length === 1")
	b.Eval("document.querySelector('.picture .port').focus()", nil)
	b.Until("document.querySelector('#told').innerText.includes('1 address')")
	var all string
	b.Eval("document.documentElement.outerHTML", &all)
	if got := regexp.MustCompile(`\b1 (addresses|ports|bridges|states)\b`).FindAllString(all, -1); got != nil {
		t.Errorf("the page says %q", got)
	}
	b.Until("document.querySelector('#facts').innerText.startsWith('1 bridge, 1 port ')")
	// "static" is there once for a static entry
	b.Press(".top nav a[href='#/addresses']")
	b.Until("document.querySelector('#t-addresses .body .row')?.innerText.includes('02:00:00:00:00:01')")
	var cells []string
	b.Eval("[...document.querySelectorAll('#t-addresses .body .row:not([hidden]) > *')].map(e => e.innerText)", &cells)
	if got := strings.Join(cells, "|"); got != "02:00:00:00:00:01|veth0|–|br0|static|–" {
		t.Errorf("a static entry is shown as %s", got)
	}
	b.Press("#r-addresses")
	b.Until("document.querySelector('#said').innerText === '1 address read'")
	b.Fine()
}

// TestAxis: the axis of a port's graphs is as long as the page has been open, and ten
// minutes at most.
func TestAxis(t *testing.T) {
	t.Parallel()
	f := office()
	f.past = time.Minute
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "port/br0/tap0")
	b.Live()
	b.Until("document.querySelectorAll('#port canvas').length === 3")
	// the line of received traffic begins at the left of the plot, not at a place for
	// ten minutes ago
	left := `(() => {
		const c = document.querySelector('#port canvas'), p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data
		for (let x = 0; x < c.width; x++) for (let y = 0; y < c.height; y++) {
			const i = 4 * (y * c.width + x)
			if (p[i] < 40 && Math.abs(p[i + 1] - 114) < 30 && Math.abs(p[i + 2] - 178) < 30 && p[i + 3] > 200) return x / c.width
		}
		return 1
	})()`
	b.Until("/^last [6-9]\\d s$|min$/.test(document.querySelector('#port figure small').innerText)")
	b.Until(left + " < 0.2")
	b.Fine()
}

// TestVLANColours: VLANs have different signs, as far as there are enough signs.
func TestVLANColours(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.bridge("br0", func(b *answer.Bridge) { b.Config.VLANFiltering = true })
	for i := range 70 {
		f.port("br0", fmt.Sprintf("veth%d", i), nil, untagged(uint16(100+i)))
	}
	f.port("br0", "trunk", nil, untagged(100), answer.VLAN{VLAN: 2, End: 99})
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "switch")
	b.Live()
	b.Until("document.querySelectorAll('.picture .port').length === 71")
	look := `[...document.querySelectorAll('%s')].map((e) => {
		const all = [...e.querySelectorAll('g > rect')], x = (r) => Number(r.getAttribute('x'))
		const w = Number(all[0].getAttribute('width'))
		return all[0].getAttribute('class') + ' ' + all.slice(1).map((r) => Math.round(10 * (x(r) - x(all[0])) / w)).join(' ')
	})`
	var bands, keys []string
	b.Eval(fmt.Sprintf(look, ".picture .port"), &bands)
	count := map[string]int{}
	for _, band := range bands[:70] {
		count[band]++
	}
	if len(count) != 65 || count["k-rest "] != 6 {
		t.Errorf("70 VLANs look like %d: %v", len(count), count)
	}
	if bands[70] != bands[0] {
		t.Errorf("VLAN 100 looks like %q and like %q", bands[0], bands[70])
	}
	// the legend lists the VLANs of the bands before VLANs that only a trunk carries
	b.Eval(fmt.Sprintf(look, "#legend button"), &keys)
	if len(keys) != 40 || !slices.Equal(keys, bands[:40]) {
		t.Errorf("the legend has %q", keys)
	}
	b.Fine()
}

// TestAddresses: 20 000 addresses are searched and sorted, and only the rows in sight
// exist.
func TestAddresses(t *testing.T) {
	t.Parallel()
	s := serveFake(t, rack(256, 20000))
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "addresses")
	b.Live()
	b.Until("document.querySelector('#n-addresses').innerText.startsWith('20 000 addresses')")
	var rows int
	if b.Eval("document.querySelectorAll('#t-addresses .body .row').length", &rows); rows < 10 || rows > 100 {
		t.Errorf("%d rows are elements", rows)
	}
	b.Type("#q-addresses", "veth77 VLAN 60")
	b.Until("document.querySelector('#n-addresses').innerText.startsWith('26 of 20 000 addresses')")
	b.Run(chromedp.SendKeys("#q-addresses", kb.Escape))
	b.Type("#q-addresses", "02:00:05:00:4e:1d")
	b.Until("document.querySelector('#n-addresses').innerText.startsWith('1 of 20 000')")
	b.Until("document.querySelector('#t-addresses .body .row:not([hidden])').innerText.replace(/\\s+/g, ' ').startsWith('02:00:05:00:4e:1d veth29 60 br0 learned')")
	b.Run(chromedp.SendKeys("#q-addresses", kb.Escape))
	b.Type("#q-addresses", "no such thing")
	b.Until("document.querySelector('#t-addresses').innerText.includes('Nothing matches “no such thing”')")
	b.Run(chromedp.SendKeys("#q-addresses", kb.Escape))
	b.Until("document.querySelector('#n-addresses').innerText.startsWith('20 000')")
	b.Press("#t-addresses [role=columnheader]:nth-child(2) button")
	b.Until("document.querySelector('#t-addresses .body .row').innerText.includes('veth0')")
	b.Press("#t-addresses [role=columnheader]:nth-child(2) button")
	b.Until("document.querySelector('#t-addresses .body .row').innerText.includes('veth255')")
	b.Fine()
}

// TestKill: states are killed if that is allowed and was confirmed, and not otherwise.
func TestKill(t *testing.T) {
	t.Parallel()
	f := office()
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "states")
	b.Live()
	b.Until("document.querySelector('#n-states').innerText === '7 states'")
	var buttons int
	if b.Eval("document.querySelectorAll('#t-states .body button').length", &buttons); buttons != 0 || b.Text("#mode") != "read only" {
		t.Errorf("%d buttons to kill states in a page that is %q", buttons, b.Text("#mode"))
	}
	b.Type("#q-states", "[2001:db8::1]")
	b.Until("document.querySelector('#n-states').innerText === '1 of 7 states'")

	f.mu.Lock()
	f.writable = true
	f.mu.Unlock()
	b.Run(chromedp.Reload())
	b.Until("document.querySelectorAll('#t-states .body button').length === 7")
	if got := b.Text("#mode"); got != "can kill states" {
		t.Errorf("a page that can end states, and change nothing else, is %q", got)
	}
	kill := "#t-states [aria-label='Kill udp [2001:db8::1]:5353 to [2001:db8::53]:53']"
	b.Press(kill)
	b.Until("document.querySelector('#ask').open && document.activeElement.value === 'no'")
	b.Run(chromedp.KeyEvent(kb.Escape))
	b.Until("!document.querySelector('#ask').open")
	// the next question's yes does not answer a question that was answered with no,
	// however soon it follows
	b.Press(kill)
	b.Until("document.querySelector('#ask').open && document.activeElement.value === 'no'")
	b.Eval(fmt.Sprintf(`document.querySelector('#ask').close(); document.querySelector(%q).click(); document.querySelector('#ask-yes').click()`, kill), nil)
	b.Until("document.querySelector('#n-states').innerText === '6 states'")
	b.Until("document.querySelector('#said').innerText === '1 state killed'")
	b.Type("#kill-host [name=host]", "192.0.2.1\n")
	b.Until("document.querySelector('#ask').open && document.querySelector('#ask-text').innerText.includes('2 states')")
	b.Press("#ask-yes")
	b.Until("document.querySelector('#n-states').innerText === '4 states'")
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := `{"bridge":"br0","id":"00000000000000ff"}`; len(f.asked) != 7 || f.asked[0] != want {
		t.Errorf("asked for %q", f.asked)
	}
	b.Fine()
}

// TestTrace: the form requests a trace of the frame that it shows, and shows the answer.
func TestTrace(t *testing.T) {
	t.Parallel()
	f := office()
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "trace")
	b.Live()
	b.Until("document.querySelector('#trace [name=in]').options.length === 11")
	b.Type("#trace [name=in]", "veth0")
	b.Type("#trace [name=dst]", "02:00:00:00:00:02")
	b.Type("#trace [name=vlan]", "40")
	b.Type("#trace [name=kind]", "tcp")
	b.Type("#trace [name=ip]", "192.0.2.1")
	b.Type("#trace [name=to]", "192.0.2.2\n")
	b.Until("document.querySelectorAll('#traced .steps li').length === 3")
	if got := b.Text("#traced .verdict"); got != "dropped: vlan: the port is not in the frame's VLAN" {
		t.Errorf("verdict %q", got)
	}
	f.mu.Lock()
	asked := strings.Join(f.asked, "\n")
	f.mu.Unlock()
	if want := "bridge=br0&in=veth0&dst=02%3A00%3A00%3A00%3A00%3A02&vlan=40&ip=192.0.2.1&to=192.0.2.2&tcp=443"; asked != want {
		t.Errorf("asked for %s, want %s", asked, want)
	}
	b.Type("#trace [name=dst]", "bad")
	b.Press("#trace .primary")
	b.Until("document.querySelector('#traced [role=alert]')?.innerText.includes('not a MAC address; give six bytes')")
}

// TestCapture: a capture becomes a file.
func TestCapture(t *testing.T) {
	t.Parallel()
	f := office()
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "capture")
	b.Live()
	b.Until("document.querySelector('#capture [name=port]').options.length === 12")
	b.Press("#capture [name=dropped]")
	b.Press("#capture .primary")
	b.Until("/^Saved as br0-\\d{8}T\\d{6}\\.pcapng, 17 B\\.$/.test(document.querySelector('#captured').innerText)")
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := "bridge=br0&dropped=true&count=1000&seconds=60"; f.asked[0] != want {
		t.Errorf("asked for %s, want %s", f.asked[0], want)
	}
}

// TestLost: the page shows that the agent is gone, and recovers by itself. Without the
// token it says so, and accepts one.
func TestLost(t *testing.T) {
	t.Parallel()
	f := office()
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "switch")
	b.Live()
	f.mu.Lock()
	f.refuse = 503
	f.mu.Unlock()
	s.CloseClientConnections()
	b.Until("document.querySelector('#alarm').innerText.startsWith('The agent does not answer. Nothing here is newer than')")
	b.Until("document.querySelectorAll('.picture .port').length === 14") // the last known state stays
	f.mu.Lock()
	f.refuse = 0
	f.mu.Unlock()
	b.Live()
	b.Until("document.querySelector('#alarm').hidden")
	f.mu.Lock()
	f.token = "0123456789abcdef"
	f.mu.Unlock()
	s.CloseClientConnections()
	b.Until("document.querySelector('#alarm').innerText.startsWith('No access.')")
	b.Type("#alarm [name=token]", "0123456789abcdef\n")
	b.Live()
	// the address that the agent logs contains the token, too, and the token does not
	// stay visible
	b.Run(chromedp.Evaluate("sessionStorage.clear()", nil), chromedp.Navigate("about:blank"), chromedp.Navigate(s.URL+"/#0123456789abcdef"))
	b.Live()
	var address string
	if b.Eval("location.href", &address); strings.Contains(address, "0123") {
		t.Errorf("the address is %s", address)
	}
}

// TestKeyboard: the keyboard reaches and leaves everything; a bridge's ports are one tab
// stop.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	f := office()
	f.writable = true
	s := serveFake(t, f)
	b := browser.New(t, 1280, 900, false)
	b.Open(s.URL, "switch")
	b.Live()
	b.Until("document.querySelectorAll('.picture .port').length === 14")
	b.Eval("document.body.focus()", nil)
	where := func() (at string) {
		b.Eval("(e => e.dataset.key || e.id || e.getAttribute('href') || e.className || e.tagName)(document.activeElement)", &at)
		return at
	}
	seen := map[string]int{}
	for range 60 {
		b.Run(chromedp.KeyEvent(kb.Tab))
		seen[where()]++
	}
	for _, want := range []string{"#main", "#/switch", "#/events", "pause", "theme", "br0/host0", "br1/down"} {
		if seen[want] == 0 {
			t.Errorf("Tab does not reach %s; it reaches %v", want, seen)
		}
	}
	if seen["br0/eth1"] > 0 {
		t.Error("Tab stops at each port")
	}
	b.Eval("document.querySelector('[data-key=\"br0/host0\"]').focus()", nil)
	for _, step := range []struct{ key, want string }{
		{kb.ArrowRight, "br0/eth1"}, {kb.ArrowRight, "br0/eth2"}, {kb.ArrowLeft, "br0/eth1"}, {kb.End, "br0/up"}, {kb.Home, "br0/host0"}, {kb.ArrowDown, "br0/mon0"}, {kb.ArrowUp, "br0/host0"},
	} {
		b.Run(chromedp.KeyEvent(step.key))
		if got := where(); got != step.want {
			t.Errorf("%q leads to %s, want %s", step.key, got, step.want)
		}
	}
	b.Run(chromedp.KeyEvent(kb.Enter))
	b.Until("location.hash === '#/port/br0/host0' && document.activeElement.id === 'h-port'")
	b.Open(s.URL, "ports")
	b.Until("document.querySelector('#n-ports').innerText === '14 ports'")
	b.Run(chromedp.KeyEvent("/"))
	if got := where(); got != "q-ports" {
		t.Errorf("/ leads to %s", got)
	}
	b.Run(chromedp.KeyEvent(kb.ArrowDown))
	if got := where(); got != "vt" {
		t.Errorf("the arrow down leads to %s", got)
	}
	// every control has a name
	for _, view := range []string{"switch", "ports", "port/br0/eth1", "addresses", "states", "trace", "capture", "events"} {
		b.Open(s.URL, view)
		b.Live()
		var nameless []string
		b.Eval(`[...document.querySelectorAll('button, input, select, textarea, a[href], [role=table], [role=img], section')].filter(e => {
			const by = e.getAttribute('aria-labelledby')
			return !(e.getAttribute('aria-label') || (by && document.getElementById(by)) || e.labels?.length || e.textContent.trim() || e.title)
		}).map(e => e.outerHTML.slice(0, 100))`, &nameless)
		if len(nameless) > 0 {
			t.Errorf("%s: without a name: %q", view, nameless)
		}
	}
}

// TestPhone: no view is wider than a phone, and the colours follow the system.
func TestPhone(t *testing.T) {
	t.Parallel()
	for _, size := range []struct {
		name string
		fake *fakeSwitch
	}{{"office", office()}, {"rack", rack(256, 2000)}} {
		s := serveFake(t, size.fake)
		b := browser.New(t, 360, 740, true)
		for _, view := range []string{"switch", "ports", "port/br0/tap0", "addresses", "states", "trace", "capture", "events"} {
			b.Open(s.URL, view)
			b.Live()
			var wide []string
			b.Eval(`[...(document.documentElement.scrollWidth > 360 ? [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 360).map(e => e.tagName + '.' + e.className + ' ' + e.innerText) : []), ...[...document.querySelectorAll('.vt')].filter(e => e.clientWidth && e.scrollWidth > e.clientWidth).map(e => e.getAttribute('aria-label') + ' ' + e.scrollWidth)].filter(Boolean)`, &wide)
			if len(wide) > 0 {
				t.Errorf("%s, %s: too wide: %v", size.name, view, wide)
			}
		}
		var colour string
		b.Eval("getComputedStyle(document.documentElement).backgroundColor", &colour)
		if colour != "rgb(19, 22, 26)" {
			t.Errorf("the background is %s in the dark", colour)
		}
		b.Press("#theme")
		if b.Eval("getComputedStyle(document.documentElement).backgroundColor", &colour); colour != "rgb(246, 247, 248)" {
			t.Errorf("the background is %s where light is chosen", colour)
		}
		b.Fine()
	}
}

// TestContrast: text has the contrast that WCAG 2.2 requires (1.4.3, 4.5 to 1), in both
// themes.
func TestContrast(t *testing.T) {
	css := string(files()["page.css"].text)
	number := regexp.MustCompile(`--([a-z0-9-]+): #([0-9a-f]{3,6});`)
	for i, theme := range regexp.MustCompile(`color-scheme: (light|dark);`).Split(css, -1)[1:] {
		theme, _, _ = strings.Cut(theme, "}")
		colours := map[string]float64{}
		for _, m := range number.FindAllStringSubmatch(theme, -1) {
			colours[m[1]] = luminance(m[2])
		}
		for _, pair := range [][2]string{
			{"ink", "bg"}, {"ink", "panel"}, {"ink", "faint"}, {"soft", "bg"}, {"soft", "panel"}, {"soft", "faint"}, {"accent", "panel"}, {"accent", "bg"},
			{"on-accent", "accent"}, {"bad", "panel"}, {"bad", "bg"}, {"bad", "bad-bg"}, {"good", "panel"}, {"warn", "panel"},
		} {
			a, b := colours[pair[0]]+0.05, colours[pair[1]]+0.05
			if ratio := max(a, b) / min(a, b); ratio < 4.5 {
				t.Errorf("theme %d: %s on %s has a contrast of %.2f", i, pair[0], pair[1], ratio)
			}
		}
	}
}

// luminance returns the relative luminance of a colour (WCAG 2.2).
func luminance(hex string) float64 {
	if len(hex) == 3 {
		hex = hex[:1] + hex[:1] + hex[1:2] + hex[1:2] + hex[2:] + hex[2:]
	}
	var c [3]uint8
	fmt.Sscanf(hex, "%02x%02x%02x", &c[0], &c[1], &c[2])
	var l float64
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v := float64(c[i]) / 255
		if v <= 0.04045 {
			v /= 12.92
		} else {
			v = math.Pow((v+0.055)/1.055, 2.4)
		}
		l += weight * v
	}
	return l
}

// TestMotion: users who prefer no motion get none.
func TestMotion(t *testing.T) {
	t.Parallel()
	s := serveFake(t, office())
	b := browser.New(t, 1280, 900, false)
	b.Run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}}))
	b.Open(s.URL, "switch")
	b.Live()
	b.Until("document.querySelectorAll('.picture .port').length === 14")
	var moving int
	b.Eval("document.getAnimations().length + [...document.querySelectorAll('*')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length", &moving)
	if moving != 0 {
		t.Errorf("%d elements move", moving)
	}
}
