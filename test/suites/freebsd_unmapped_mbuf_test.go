// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// sendsFile sends a file with sendfile(2) from the router to a station, through a rule's next
// hop.
func (r *router) sendsFile(six bool) {
	r.t.Helper()
	a := r.stations[0]
	to := a.v4
	if six {
		to = a.v6
	}
	r.load("pass out on em0 route-to (em0 " + to.String() + ") all")
	const size = 1 << 16
	path := filepath.Join(r.t.TempDir(), "file")
	content := make([]byte, size)
	for n := range content {
		content[n] = byte(n * 7)
	}
	r.must(os.WriteFile(path, content, 0o644))
	var l net.Listener
	r.must(a.ns.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(to, 2345).String())
		return err
	}))
	defer l.Close()
	r.must(l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	sent := make(chan error, 1)
	go func() {
		sent <- r.Switch.Do(func() error {
			c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
			if err != nil {
				return err
			}
			defer c.Close()
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = c.(*net.TCPConn).ReadFrom(f) // with sendfile(2)
			return err
		})
	}()
	c, err := l.Accept()
	r.must(err)
	defer c.Close()
	r.must(c.SetDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(c)
	r.must(err)
	r.must(<-sent)
	r.shows([]string{"-vv", "-s", "states"}, "route-to")
	if string(got) != string(content) {
		r.t.Errorf("%d bytes have come, and not those that were sent", len(got))
	}
}

var _ = freeBSD.has("unmapped_mbuf", cases{
	"v4": func(r *router) { r.sendsFile(false) },
	"v6": func(r *router) { r.sendsFile(true) },
})
