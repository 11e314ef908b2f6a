// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bascule/test/browser"
	"bascule/test/netlab"

	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"
)

// pageOf starts an agent with a page at a socket, and returns its address for a browser.
func pageOf(t testing.TB, r *runner, args ...string) string {
	t.Helper()
	path := filepath.Join(r.dir, "web.sock")
	r.start(append(args, "--web", "unix:"+path)...)
	// Unix sockets have no network namespace, unlike the agent's addresses.
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "localhost"})
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	s := httptest.NewServer(proxy)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// TestPageShows: the page agrees with the output of commands, and with the switch.
func TestPageShows(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	ends := l.NewEnds(3)
	l.AddBridge("br0", "tcx", ends, "--vlan-filtering")
	l.Bascule("vlan", "add", "br0", ends[0].Port, "10", "--untagged", "--pvid")
	l.Bascule("bridge", "add", "br1")
	l.Bascule("port", "add", "br0", "up", "--type", "patch", "--peer", "br1/down")
	l.Bascule("fdb", "add", "br0", "02:00:00:00:00:77", ends[1].Port, "--vlan", "1")
	r := newRunner(t, l)
	at := pageOf(t, r, "--web-write")
	b := browser.New(t, 1280, 900, false)
	b.Open(at, "switch")
	b.Live()
	b.Until("document.querySelectorAll('.picture .port').length === 5 && document.querySelectorAll('.picture .cord').length === 1")
	for _, p := range append(l.Ports("br0"), l.Ports("br1")...) {
		label := fmt.Sprintf("document.querySelector('[data-key=\"%s/%s\"]').getAttribute('aria-label')", p.Master, p.Ifname)
		b.Until(fmt.Sprintf("%s.includes(%q)", label, p.State))
	}
	b.Until(fmt.Sprintf("document.querySelector('[data-key=\"br0/%s\"]').getAttribute('aria-label').includes('VLAN 1 untagged 10 untagged')", ends[0].Port))

	// Addresses: the output of fdb show, in the page's order.
	var fdb []struct{ MAC, Ifname string }
	l.JSON(&fdb, "fdb", "show", "br0")
	var want []string
	for _, e := range fdb {
		want = append(want, e.MAC)
	}
	slices.Sort(want)
	b.Open(at, "addresses")
	b.Until("document.querySelector('#n-addresses').innerText.includes('address')")
	var rows []string
	b.Eval("[...document.querySelectorAll('#t-addresses .body .row:not([hidden])')].map(e => e.firstChild.innerText)", &rows)
	if strings.Join(rows, " ") != strings.Join(want, " ") {
		t.Errorf("the page has %v, fdb show has %v", rows, want)
	}

	// A trace agrees with the command's output.
	b.Open(at, "trace")
	b.Until("document.querySelector('#trace [name=in]').options.length === 4")
	b.Type("#trace [name=in]", ends[1].Port)
	b.Type("#trace [name=dst]", "02:00:00:00:00:02")
	b.Type("#trace [name=vlan]", "40\n")
	b.Until("document.querySelector('#traced .verdict')?.innerText.startsWith('dropped: vlan')")
	var steps []string
	b.Eval("[...document.querySelectorAll('#traced li')].map(e => e.innerText.replace(/\\n/g, '  '))", &steps)
	told := strings.Join(strings.Fields(l.Bascule("trace", "br0", "--in", ends[1].Port, "--dst", "02:00:00:00:00:02", "--vlan", "40")), " ")
	for _, s := range steps {
		if !strings.Contains(told, strings.Join(strings.Fields(s), " ")) {
			t.Errorf("the page says %q, trace says %q", s, told)
		}
	}

	// Dropped frames are shown, with the reason and the port.
	b.Open(at, "switch")
	b.Live()
	l.Bascule("port", "set", "br0", ends[2].Port, "--locked", "--learn=off")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				l.Send(ends[2], l.Frames(5, netlab.MAC{2, 0, 0, 0, 0, 1}, netlab.MAC{2, 0, 0, 0, 0, 2})...)
			}
		}
	}()
	b.Until(fmt.Sprintf("/locked[^]*%s/.test(document.querySelector('#drops').innerText)", ends[2].Port))
	close(stop)
	<-done
	b.Open(at, "port/br0/"+ends[2].Port)
	b.Until("document.querySelectorAll('#port canvas').length === 3")
	dropped := l.Port("br0", ends[2].Port).Drops["locked"]
	b.Until(fmt.Sprintf("document.querySelector('#port').innerText.replace(/\\u2009| /g, '').includes('%d')", dropped))

	// A removed port disappears. The page of a port requests it as long as it is shown.
	b.Open(at, "switch")
	b.Until("document.querySelectorAll('.picture .port').length === 5")
	l.Bascule("port", "del", "br0", ends[2].Port)
	b.Until("document.querySelectorAll('.picture .port').length === 4")

	// pf's states, and the end of a state.
	l.Bascule("pfctl", "-q", "-b", "br0", "-e")
	b.Open(at, "states")
	b.Until("document.querySelector('#mode').innerText === 'can kill states' && document.querySelector('#pf').innerText.includes('pf of br0 is on')")
	b.Fine()

	// The agent stops and starts.
	r.stop()
	b.Until("document.querySelector('#lamp').dataset.state === 'gone'")
	r.start("--web", "unix:"+filepath.Join(r.dir, "web.sock"))
	b.Live()
	b.Until("document.querySelector('#mode').innerText === 'read only'")
}

// TestPageKills: the page ends a state of real hosts, and pfctl no longer lists it. A user who may not
// change anything sees the state without a button.
func TestPageKills(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	list := l.NewEnds(2)
	hosts := []*netlab.Host{list[0].Host(), list[1].Host()}
	l.AddBridge("br0", "tcx", list)
	l.Bascule("pfctl", "-q", "-b", "br0", "-e")
	l.Bascule("pfctl", "-q", "-b", "br0", "-f", file(t, "pf.conf", "block\npass proto tcp to port 7 flags S/SA\n"))
	var server net.Listener
	must(t, hosts[1].Namespace.Do(func() (err error) {
		server, err = net.Listen("tcp", netip.AddrPortFrom(hosts[1].IPv4, 7).String())
		return err
	}))
	defer server.Close()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	var client net.Conn
	must(t, hosts[0].Namespace.Do(func() (err error) {
		client, err = net.DialTimeout("tcp", server.Addr().String(), patience)
		return err
	}))
	defer client.Close()
	echoed := func(within time.Duration) error {
		client.SetDeadline(time.Now().Add(within))
		if _, err := client.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(client, make([]byte, 1))
		return err
	}
	must(t, echoed(patience))
	states := func() string { return l.Bascule("pfctl", "-b", "br0", "-s", "states") }
	if said := states(); !strings.Contains(said, ":7") || !strings.Contains(said, "ESTABLISHED:ESTABLISHED") {
		t.Fatalf("pfctl -s states:\n%s", said)
	}

	r := newRunner(t, l)
	at := pageOf(t, r)
	b := browser.New(t, 1280, 900, false)
	b.Open(at, "states")
	b.Until("document.querySelector('#n-states').innerText === '1 state' && document.querySelector('#mode').innerText === 'read only'")
	var buttons int
	if b.Eval("document.querySelectorAll('#t-states .body button').length", &buttons); buttons != 0 {
		t.Errorf("%d buttons in a page that may not kill", buttons)
	}
	r.stop()
	must(t, echoed(patience)) // without an agent, too
	r.start("--web", "unix:"+filepath.Join(r.dir, "web.sock"), "--web-write")
	b.Run(chromedp.Reload())
	b.Until("document.querySelectorAll('#t-states .body button').length === 1")
	b.Press("#t-states .body button")
	b.Until("document.querySelector('#ask').open")
	b.Press("#ask [value=no]")
	b.Until("!document.querySelector('#ask').open")
	if said := states(); !strings.Contains(said, "ESTABLISHED:ESTABLISHED") {
		t.Errorf("a kill that was called off has killed: %q", said)
	}
	b.Press("#t-states .body button")
	b.Press("#ask-yes")
	b.Until("document.querySelector('#said').innerText === '1 state killed' && document.querySelector('#n-states').innerText === '0 states'")
	if said := states(); strings.Contains(said, ":7") {
		t.Errorf("pfctl -s states:\n%s", said)
	}
	if err := echoed(100 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on without a state: %v", err)
	}
	r.stop()
}

// pagesOpen is the number of pages that BenchmarkPages opens.
const pagesOpen = 10

// BenchmarkPages measures the CPU time and memory of an idle, large switch's agent with ten open
// pages, for 20 seconds. Clients send the requests of a page, at the same rate: two streams, and all
// settings every 30 seconds.
func BenchmarkPages(b *testing.B) {
	for b.Loop() {
		l := netlab.New(b)
		manyDevices(b, l)
		r := newRunner(b, l)
		l.Setenv("WATCHDOG_USEC", "10000000") // as in the unit
		at := pageOf(b, r, "--log-level", "info", "-f", r.file("many.yaml", manyFile("off")))
		forwarding(l, "br0", manyPorts)
		ctx, cancel := context.WithCancel(b.Context())
		var samples, read atomic.Int64
		get := func(path string, each func([]byte)) error {
			req, err := http.NewRequestWithContext(ctx, "GET", at+"/api/v1/"+path, nil)
			if err != nil {
				return err
			}
			answer, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", path, answer.Status)
			}
			for lines := bufio.NewReaderSize(answer.Body, 1<<20); ; {
				line, err := lines.ReadBytes('\n')
				read.Add(int64(len(line)))
				each(line)
				if err != nil {
					return nil
				}
			}
		}
		var all errgroup.Group
		for i := range pagesOpen {
			for _, path := range []string{"rates", "monitor"} {
				all.Go(func() error {
					return get(path, func(line []byte) {
						if bytes.HasPrefix(line, []byte("data: [")) {
							samples.Add(1)
						}
					})
				})
			}
			all.Go(func() error {
				time.Sleep(time.Duration(i) * 3 * time.Second)
				for ctx.Err() == nil {
					for _, path := range []string{"agent/status", "bridge/show", "port/show?stats=true", "vlan/show"} {
						if err := get(path, func([]byte) {}); err != nil && ctx.Err() == nil {
							return err
						}
					}
					select {
					case <-ctx.Done():
					case <-time.After(30 * time.Second):
					}
				}
				return nil
			})
		}
		time.Sleep(5 * time.Second) // the start continues for a while
		pid := r.cmd.Process.Pid
		samples.Store(0)
		read.Store(0)
		begin, before := time.Now(), cpuTime(b, pid)
		time.Sleep(20 * time.Second)
		share := (cpuTime(b, pid) - before).Seconds() / time.Since(begin).Seconds()
		seconds := time.Since(begin).Seconds()
		b.ReportMetric(100*share, "%core")
		b.ReportMetric(rss(b, pid), "MiB")
		b.ReportMetric(float64(samples.Load())/pagesOpen/seconds, "samples/s")
		b.ReportMetric(float64(read.Load())/pagesOpen/seconds/1000, "kB/s")
		b.ReportMetric(0, "ns/op")
		cancel()
		if err := all.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			b.Fatal(err)
		}
		r.stop()
	}
}
