// SPDX-License-Identifier: BSD-2-Clause

package web

import (
	"testing"

	"bascule/test/browser"

	"github.com/chromedp/chromedp"
)

// watchFrames starts to record the time between frames, and tasks of 50 ms and longer
// (W3C Long Tasks).
const watchFrames = `window.seen = {frames: [], tasks: []};
new PerformanceObserver(l => l.getEntries().forEach(e => seen.tasks.push(e.duration))).observe({type: 'longtask'});
{ let last = performance.now(); const f = () => { const n = performance.now(); seen.frames.push(n - last); last = n; requestAnimationFrame(f) }; requestAnimationFrame(f) }`

// BenchmarkPage measures the page in Chromium with 256 ports and 20 000 addresses, and
// samples each second: its first paint, and the longest pause while a user scrolls,
// searches and sorts.
func BenchmarkPage(b *testing.B) {
	s := serveFake(b, rack(256, 20000))
	for b.Loop() {
		t := browser.New(b, 1280, 900, false)
		t.Open(s.URL, "switch")
		t.Live()
		t.Until("document.querySelectorAll('.picture .port').length === 256")
		var paint, drawn, sent float64
		t.Until("performance.getEntriesByName('first-contentful-paint').length === 1")
		t.Eval("performance.getEntriesByName('first-contentful-paint')[0].startTime", &paint)
		t.Eval("performance.now()", &drawn)
		t.Eval("performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation')).filter(e => !e.name.includes('/api/')).reduce((a, e) => a + e.transferSize, 0)", &sent)
		pause := func(what, js string) {
			var most, tasks float64
			t.Eval(watchFrames, nil)
			t.Run(chromedp.Evaluate(js, nil, browser.Awaited))
			t.Eval("Math.max(...seen.frames)", &most)
			t.Eval("Math.max(0, ...seen.tasks)", &tasks)
			b.ReportMetric(max(most, tasks), what+"-pause-ms")
			b.ReportMetric(tasks, what+"-task-ms")
		}
		pause("watch", "new Promise(f => setTimeout(f, 4000))")
		t.Open(s.URL, "addresses")
		t.Until("document.querySelector('#n-addresses').innerText.startsWith('20 000 addresses')")
		pause("scroll", `(async () => { const v = document.querySelector('#t-addresses .vt')
			for (let i = 0; i < 120; i++) { v.scrollTop += i < 60 ? 90 : 7000; await new Promise(requestAnimationFrame) } })()`)
		pause("search", `(async () => { const q = document.querySelector('#q-addresses')
			for (const text of ['0', '02', '02:0', '02:00:03', 'veth1', 'veth12', 'veth12 vlan 1', 'nothing', '']) {
				q.value = text; q.dispatchEvent(new Event('input')); await new Promise(f => setTimeout(f, 60)) } })()`)
		pause("sort", `(async () => { for (const h of document.querySelectorAll('#t-addresses .head button')) { h.click(); await new Promise(f => setTimeout(f, 150)) } })()`)
		b.ReportMetric(paint, "first-paint-ms")
		b.ReportMetric(drawn, "drawn-ms")
		b.ReportMetric(sent/1000, "kB")
		t.Fine()
	}
}
