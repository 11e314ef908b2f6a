// SPDX-License-Identifier: BSD-2-Clause

package boot

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bascule/datapath"
	"bascule/test/program"
)

// bootFormer installs this version's package after a version whose bridges have a former layout. The machine was set up
// as that version's page says, and has a guest behind a gateway with NAT.
func bootFormer(t *testing.T, im *image) {
	source := program.Former(t, int(datapath.Layout)-1)
	path := filepath.Join(t.TempDir(), "bascule")
	source.Build(t, path)
	page := filepath.Join(source.Dir, "docs/boot.md")
	all, commands := files(t, page, "The switch")
	own, more := files(t, page, "ifupdown")
	for path, text := range own {
		all[path] = text
	}
	switchFile, network := "/etc/bascule/switch.yaml", "/etc/network/interfaces"
	plain, routed := "host0: {type: host}", "host0: {type: host, route: on}"
	if !strings.Contains(all[switchFile], plain) {
		t.Fatalf("the page's switch is\n%s", all[switchFile])
	}
	all[switchFile] = strings.Replace(all[switchFile], plain, routed, 1) +
		"  br1:\n    ports:\n      guest:\n      gw: {type: host, route: on}\n"
	all["/etc/bascule/pf.conf"] += "pass in on enp1s0 inet proto udp to port 9\n" +
		"pass out on host0 inet proto tcp from 10.0.0.0/24 to any nat-to 192.0.2.2\n"
	all[network] += "\nauto gw\niface gw inet static\n    address 10.0.0.254/24\n"
	all["/etc/sysctl.d/forward.conf"] = "net.ipv4.ip_forward = 1\n"
	all["/former.deb"] = newPackage(t, source.Dir, path, "v0.0.1", "DATE="+source.Made.UTC().Format(time.RFC3339))
	disk := im.disk(t, all, "cp -r /etc/bascule /set; apt-get -qq purge -y bascule; rm -rf /etc/bascule; mv /set /etc/bascule\n"+
		"dpkg -i /former.deb; rm /former.deb\n"+commands+more)

	at := newStation(t, manager{unit: "networking"})
	m := im.start(t, at.Namespace, disk)
	at.plug()
	asked := at.answer()
	m.booted()
	at.ordered(m)
	was := at.judge(m)
	m.run(fmt.Sprintf("bascule version | grep -E '^ *layout +%d$'", datapath.Layout-1))
	m.run(`ip netns add guest
		ip link add guest type veth peer name eth0 netns guest
		ip -n guest link set lo up
		ip -n guest addr add 10.0.0.1/24 dev eth0
		ip -n guest link set eth0 up
		ip link set guest up
		ip -n guest route add default via 10.0.0.254
		for i in $(seq 600); do ip netns exec guest ping -c 1 -W 1 10.0.0.254 >/dev/null && break; done
		systemd-run --unit=talk ip netns exec guest python3 /test/talk.py`)
	asked.more(100)
	if by := asked.by.Load(); by != "192.0.2.2" {
		t.Errorf("the guest's questions come from %v, and so are not translated", by)
	}
	states := m.run("bascule pfctl -b br0 -s states | grep 10.0.0.1")
	at.upgrade(m, was)
	asked.more(100)
	if out := m.run("systemctl is-active talk; bascule pfctl -b br0 -s states | grep 10.0.0.1"); out != "active\n"+states {
		t.Errorf("after the upgrade the connection is\n%s\nand before\n%s", out, states)
	}
	for _, name := range []string{"br0", "br1"} {
		m.run("journalctl -b -u bascule --no-pager | grep 'another version of bascule has made it.* bridge=" + name + "$'")
	}
	// This version boots from the former version's files, too.
	m.reboot()
	at.ordered(m)
	if now := at.judge(m); now != was {
		t.Errorf("after a reboot it is %v, and it was %v", now, was)
	}
}

// An asked counts the requests that the station received by TCP.
type asked struct {
	t      *testing.T
	rounds atomic.Int64
	by     atomic.Value // the client's address
}

// answer answers the requests of the first connection.
func (at *station) answer() *asked {
	t := at.t
	t.Helper()
	a := &asked{t: t}
	var listener net.Listener
	must(t, at.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "192.0.2.1:7")
		return err
	}))
	over := make(chan struct{})
	go func() {
		defer close(over)
		conn, err := listener.Accept()
		if err != nil { // the test is over
			return
		}
		defer context.AfterFunc(t.Context(), func() { conn.Close() })()
		a.by.Store(conn.RemoteAddr().(*net.TCPAddr).IP.String())
		for question := make([]byte, 8); ; a.rounds.Add(1) {
			if _, err := io.ReadFull(conn, question); err != nil {
				return
			}
			if _, err := conn.Write(question); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-over
	})
	return a
}

// more waits for n more requests.
func (a *asked) more(n int64) {
	a.t.Helper()
	for begun, want := time.Now(), a.rounds.Load()+n; a.rounds.Load() < want; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > patience {
			a.t.Fatalf("no more than %d questions came", a.rounds.Load())
		}
	}
}
