// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"html/template"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func htmlOf(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWriteHTML(t *testing.T) {
	text := htmlOf(t, realistic(len(manyFabrics), 7, 4))
	for _, want := range []string{
		"<title>Lab report: everything, 2 January 2026, 03:04 UTC</title>",
		`<a href="#sizes-2">frames of many sizes, one core</a>`, `<section id="sizes-2">`,
		`<h3>TCP, 1 stream, offloads off at the ends <a class="anchor" href="#tcp-stream-1">tcp-stream-1</a></h3>`,
		"<p>TCP, 1 stream, offloads off at the ends (tso, gso, gro: 1500-byte packets) <span",
		`<a href="#claims-1">Some vendor&#39;s data sheet, 2021</a>`, "<h3>Some vendor&#39;s data sheet, 2021</h3>",
		`<span class="verdict holds">`, `<span class="verdict fails">`, `<span class="verdict open">`, `<span class="verdict none">`,
		"&lt;b&gt;XDP&lt;/b&gt; is 5 % faster",
		"</svg> does not hold</span>", "</svg> cannot be tested</span>", "</svg> not measured</span>", "<td>not measured</td>",
		"this kernel has no openvswitch module",
		`<th scope="col">imix</th>`,
		`<span class="hop filter"><b>nftables</b><small>filter</small></span>`,
		"End to end: 3 devices and switches", "From the host: 2 devices and switches",
		"Retpolines",
		"p99.9 ",
		"Mann-Whitney",
		"<dt>Claims</dt><dd>1 holds, 1 does not hold, 1 is not shown, 1 cannot be tested here, 1 was not measured</dd>",
		"<dt>Figures</dt><dd>1 reaches the aim, 1 was not measured</dd>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not in the page: %s", want)
		}
	}
	for _, not := range []string{"<script", "NaN", "%!", "ZgotmplZ", "Inf"} {
		if strings.Contains(text, not) {
			t.Errorf("in the page: %s", not)
		}
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if ids[m[1]] {
			t.Errorf("two elements are called %s", m[1])
		}
		ids[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?:href="|url\()#([^")]*)`).FindAllStringSubmatch(text, -1) {
		if !ids[m[1]] {
			t.Errorf("a link to %s, which is not there", m[1])
		}
	}
}

// TestSummary checks the sentences with the counts of verdicts.
func TestSummary(t *testing.T) {
	r := &Report{}
	for verdict, n := range map[string]int{"holds": 2, "does not hold": 3, "not shown": 5, "cannot be tested": 32, "odd": 1} {
		for range n {
			r.Claims = append(r.Claims, Claim{Verdict: verdict, Here: &Spread{}})
		}
	}
	got := r.summary()
	want := fact{"Claims", "2 hold, 3 do not hold, 5 are not shown, 32 cannot be tested here, 1: odd"}
	if diff := cmp.Diff(want, got[len(got)-1]); diff != "" {
		t.Errorf("the last of the summary (-want +got):\n%s", diff)
	}
}

func TestTitles(t *testing.T) {
	r := &Report{}
	var want []string
	for _, test := range []struct{ about, want string }{
		{"TCP: short", "TCP: short"},
		{"", "name"},
		{"OpenBSD veb(4) against bridge(4): TCP, 1 stream, each packet alone, end to end", "OpenBSD veb(4) against bridge(4)"},
		{"TCP, 1 stream, offloads off at the ends (tso, gso, gro: 1500-byte packets)", "TCP, 1 stream, offloads off at the ends"},
		{"64-byte frames on one core, while another learns 100 000 addresses", "64-byte frames on one core, while another learns 100 000 addresses"},
		{"A bridge against another, under a hypervisor with guests: small MTU", "A bridge against another, under a hypervisor with guests: small MTU"},
		{"A bridge against another, under a hypervisor with guests: large MTU", "A bridge against another, under a hypervisor with guests: large MTU"},
	} {
		r.Groups = append(r.Groups, &Group{Name: "name", About: test.about})
		want = append(want, test.want)
	}
	if diff := cmp.Diff(want, r.titles()); diff != "" {
		t.Errorf("the titles (-want +got):\n%s", diff)
	}
}

func TestAnchors(t *testing.T) {
	ids := anchors{"machine": true}
	for _, test := range []struct{ name, want string }{
		{"veb-1", "veb-1"}, {"veb-1", "veb-1-2"}, {"machine", "machine-2"}, {"pps:size=64 x", "pps-size-64-x"}, {"µs", "-s"}, {"", "-2"},
	} {
		if got := ids.of(test.name); got != test.want {
			t.Errorf("%q is at %q, want %q", test.name, got, test.want)
		}
	}
}

// TestWriteHTMLOfLittle checks that missing parts of a report take no room in the page.
func TestWriteHTMLOfLittle(t *testing.T) {
	text := htmlOf(t, &Report{Groups: []*Group{{Name: "g", Cases: []*Case{{Label: "a w", Fabric: "a", Workload: "w", Unit: "s"}}}}})
	for _, not := range []string{`id="figures"`, `id="claims"`, `id="sizes"`, `id="fabrics"`, "faster", "NaN", "Inf"} {
		if strings.Contains(text, not) {
			t.Errorf("in a page of nothing: %s", not)
		}
	}
	for _, want := range []string{"The run was ended early", "the run was ended before", "not measured"} {
		if !strings.Contains(text, want) {
			t.Errorf("not in a page of nothing: %s", want)
		}
	}
}

// TestColours checks that a fabric has the same colour and hatch in the whole page, and that no
// other fabric has them while there are enough.
func TestColours(t *testing.T) {
	p := newPalette(realistic(len(manyFabrics), 1, 1))
	seen := map[string]string{}
	for _, f := range manyFabrics {
		key := string(p.key(f))
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s look the same", f, other)
		}
		seen[key] = f
	}
}

func TestScaleTo(t *testing.T) {
	for _, test := range []struct {
		most float64
		want []float64
	}{
		{1, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{11.7, []float64{0, 2.5, 5, 7.5, 10, 12.5}},
		{97, []float64{0, 20, 40, 60, 80, 100}},
		{0, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{math.NaN(), []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
	} {
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if diff := cmp.Diff(test.want, scaleTo(test.most).ticks, cmp.Comparer(near)); diff != "" {
			t.Errorf("to %v (-want +got):\n%s", test.most, diff)
		}
	}
}

func TestFrameSize(t *testing.T) {
	for _, test := range []struct {
		workload, size, kind string
		ok                   bool
	}{
		{"pps", "64", "", true},
		{"pps:size=128", "128", "", true},
		{"pps:size=imix", "imix", "", true},
		{"pps:cores=2,size=512", "512", "cores=2", true},
		{"pps-2cores", "", "", false},
		{"udp:size=128", "", "", false},
	} {
		size, kind, ok := frameSize(test.workload)
		if size != test.size || kind != test.kind || ok != test.ok {
			t.Errorf("%s: %q, %q, %v", test.workload, size, kind, ok)
		}
	}
}

// TestDrawingsAreXML checks that drawings are complete XML documents, so that they can be copied
// out of the page.
func TestDrawingsAreXML(t *testing.T) {
	r := realistic(11, 6, 2)
	r.Groups[2].Cases[0].Fabric = `<a> & "b"`
	p := newPalette(r)
	var all []template.HTML
	take := func(c chart) {
		all = append(all, c.Axis)
		for _, m := range c.Legend {
			all = append(all, m.Sign)
		}
		for _, row := range c.Rows {
			all = append(all, row.Drawing)
		}
	}
	for _, g := range r.Groups {
		for _, b := range g.blocks() {
			take(bars(b, p))
			take(cores(b, p, 2))
			for _, draw := range []func(*block, palette) (chart, bool){intervals, latencies} {
				if c, ok := draw(b, p); ok {
					take(c)
				}
			}
		}
	}
	if len(all) < 100 {
		t.Fatalf("%d drawings", len(all))
	}
	for _, d := range all {
		for dec := xml.NewDecoder(strings.NewReader(string(d))); ; {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, d)
			}
		}
	}
}

// TestNoisy checks that the page shows the load of other programs with the results.
func TestNoisy(t *testing.T) {
	r := example()
	r.Groups[0].Cases[0].Samples[0].CPU.Others = 7 * noisy
	for name, want := range map[string]string{"text": "  NOISY: ", "Markdown": "- NOISY: ", "HTML": `<p class="warning">NOISY: `} {
		var b strings.Builder
		if err := forms(r)[name](&b); err != nil || strings.Count(b.String(), want) != 1 {
			t.Errorf("%s has %d warnings, error %v", name, strings.Count(b.String(), want), err)
		}
	}
	before := example()
	before.Complete, r.Complete = true, true
	if w := Compare(before, r).Warnings; len(w) != 1 || w[0] != "group tcp of the new report is NOISY" {
		t.Errorf("a comparison with it warns of %q", w)
	}
}

// seen is a browser's layout of a page.
type seen struct {
	Overflow   float64   // pixels by which the page is wider than the window
	Drawings   int       // SVGs with a size
	Flat       int       // SVGs without one
	Outside    []string  // addresses outside the page, except data
	Cut        []string  // texts of charts that do not fit
	Bars       []float64 // the widths of the first chart's bars, as fractions
	Background string
	Claim      string // the layout of a row of claims
}

const look = `<!DOCTYPE html><body><iframe id="f" style="border:0;width:%dpx;height:800px" srcdoc="%s"></iframe><pre id="out"></pre><script>
document.getElementById("f").onload = function () {
  var d = this.contentDocument, root = d.documentElement, s = {Drawings: 0, Flat: 0, Outside: [], Cut: [], Bars: []};
  s.Overflow = Math.max(root.scrollWidth, d.body.scrollWidth) - this.clientWidth;
  s.Background = this.contentWindow.getComputedStyle(root).backgroundColor;
  d.querySelectorAll("svg:not(.defs):not(svg svg)").forEach(function (e) {
    var b = e.getBoundingClientRect();
    if (b.width > 0 && b.height > 0) s.Drawings++; else s.Flat++;
  });
  var outside = function (t) { return /^\s*([a-z]+:)?\/\//i.test(t) || /url\(\s*["']?(?!#|data:)/i.test(t) || /@import/i.test(t); };
  d.querySelectorAll("*").forEach(function (e) {
    for (var a of e.attributes) if (a.name.indexOf("xmlns") < 0 && outside(a.value)) s.Outside.push(a.value);
    if (e.localName == "style" && outside(e.textContent)) s.Outside.push("in the style");
  });
  this.contentWindow.performance.getEntriesByType("resource").forEach(function (r) { s.Outside.push(r.name); });
  var claim = d.querySelector(".claims tbody tr");
  if (claim) s.Claim = this.contentWindow.getComputedStyle(claim).display;
  d.querySelectorAll(".rows .name, .rows .value, .hop, figcaption, .claims th, .claims td").forEach(function (e) {
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0) s.Cut.push(e.textContent);
    var b = e.getBoundingClientRect();
    if (b.left < 0 || b.right > root.clientWidth + 1) s.Cut.push(e.textContent);
  });
  d.querySelectorAll("text").forEach(function (e) {
    var b = e.getBoundingClientRect(), o = e.ownerSVGElement.getBoundingClientRect();
    if (b.left < o.left - 2 || b.right > o.right + 2) s.Cut.push(e.textContent);
  });
  var chart = d.querySelector(".rows");
  if (chart) chart.querySelectorAll("svg[role=img]").forEach(function (e) {
    var bar = e.querySelector(".bar");
    s.Bars.push(bar ? bar.getBoundingClientRect().width / e.getBoundingClientRect().width : 0);
  });
  document.getElementById("out").textContent = JSON.stringify(s);
};
</script>`

// browse opens a page in a window with a width, in the light or dark style.
func browse(t *testing.T, page string, width int, dark bool) (s seen) {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed; apt-get install chromium")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "page.html")
	if err := os.WriteFile(file, fmt.Appendf(nil, look, width, html.EscapeString(page)), 0o644); err != nil {
		t.Fatal(err)
	}
	scheme := "1"
	if dark {
		scheme = "0"
	}
	// Chromium sometimes crashes or hangs on a busy machine with any page, and then does not
	// print the element that exists without a page.
	var m [][]byte
	for try := 1; m == nil; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--user-data-dir="+filepath.Join(dir, fmt.Sprint("profile", try)),
			"--blink-settings=preferredColorScheme="+scheme, "--window-size=1400,900", "--dump-dom", "file://"+file)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = 10 * time.Second
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		cancel()
		if err == nil {
			m = regexp.MustCompile(`(?s)<pre id="out">(.*?)</pre>`).FindSubmatch(out)
		}
		if m == nil {
			t.Logf("chromium: %v, %d bytes: %s", err, len(out), stderr.String())
			if try == 3 {
				t.Fatalf("chromium printed no page in %d tries", try)
			}
		}
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(m[1]))), &s); err != nil {
		t.Fatalf("what the page's inspection said: %v: %q", err, m[1])
	}
	return s
}

// TestBrowseSees checks that the inspection detects mistakes in a page.
func TestBrowseSees(t *testing.T) {
	s := browse(t, `<!DOCTYPE html><style>body{background:url("//a.example/x")}</style><div style="width:900px">wide</div><img src="http://b.example/y">`+
		`<svg width="0" height="5"></svg><ul class="rows"><li><div class="name" style="width:20px;overflow:hidden">aaaaaaaaaaaa</div>`+
		`<svg width="30" height="9"><text x="25" y="8">bbbbbb</text></svg></ul>`, 390, false)
	if s.Overflow < 500 || s.Flat != 1 || s.Drawings != 1 || len(s.Outside) < 2 || len(s.Cut) < 2 {
		t.Errorf("of a bad page it said %+v", s)
	}
}

func TestPageInBrowser(t *testing.T) {
	r := realistic(len(manyFabrics), 7, 4)
	page := htmlOf(t, r)
	var medians []float64
	most := 0.0
	for _, row := range r.Groups[0].blocks()[0].Rows {
		if row.N > 0 {
			most = max(most, row.Max)
			medians = append(medians, row.Median)
		} else {
			medians = append(medians, 0)
		}
	}
	for i := range medians {
		medians[i] /= scaleTo(most).max
	}
	background := map[string]bool{}
	for _, test := range []struct {
		name  string
		width int
		dark  bool
		claim string
	}{{"phone", 390, false, "block"}, {"small phone", 320, true, "block"}, {"tablet", 640, false, "table-row"}, {"desktop", 1200, false, "table-row"}} {
		t.Run(test.name, func(t *testing.T) {
			s := browse(t, page, test.width, test.dark)
			background[s.Background] = true
			if s.Overflow > 0 {
				t.Errorf("the page is %v pixels wider than the window", s.Overflow)
			}
			if s.Drawings < 1000 || s.Flat > 0 {
				t.Errorf("%d drawings have a size, %d have none", s.Drawings, s.Flat)
			}
			if len(s.Outside) > 0 {
				t.Errorf("the page refers to %q", s.Outside)
			}
			if s.Claim != test.claim {
				t.Errorf("a claim is laid out as %s, want %s", s.Claim, test.claim)
			}
			if len(s.Cut) > 0 {
				t.Errorf("texts that do not fit: %q", s.Cut)
			}
			// A bar's border is outside its width.
			near := func(a, b float64) bool { return math.Abs(a-b) < 0.02 }
			if diff := cmp.Diff(medians, s.Bars, cmp.Comparer(near)); diff != "" {
				t.Errorf("the lengths of the bars (-want +got):\n%s", diff)
			}
		})
	}
	if len(background) == 1 {
		t.Errorf("the page is %v by light and in the dark", background)
	}
}
