// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestResolver resolves hosts in another network namespace like a program there: with the
// namespace's hosts file, its server, and a socket in it.
func TestResolver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	ns, server := serveNames(t)
	// the files that ip-netns(8) uses for a name
	names, etc := filepath.Join(dir, "run"), filepath.Join(dir, "etc")
	for _, d := range []string{names, filepath.Join(etc, "lab")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(ns, filepath.Join(names, "lab")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"hosts": "192.0.2.1 here\n", "resolv.conf": "nameserver " + server + " # ours\n"} {
		if err := os.WriteFile(filepath.Join(etc, "lab", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := newResolver(ns, names, etc)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, test := range []struct{ name, want string }{{"here", "192.0.2.1"}, {"asked.test.", "192.0.2.53"}} {
		got, err := r.lookup(ctx, test.name)
		if err != nil || len(got) != 1 || got[0].Unmap() != netip.MustParseAddr(test.want) {
			t.Errorf("%s is %v, %v, want %s", test.name, got, err, test.want)
		}
	}
}

// serveNames makes a network namespace with a server that answers each query for an IPv4 address
// with 192.0.2.53, and returns its file and the server.
func serveNames(t *testing.T) (path, server string) {
	t.Helper()
	cmd := exec.Command("unshare", "--net", "--kill-child", "sleep", "infinity")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	path = filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "ns/net")
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for is := own; is == own; time.Sleep(time.Millisecond) { // until the thread has its own
		if is, err = os.Readlink(path); err != nil {
			t.Fatal(err)
		}
	}
	opened := make(chan net.PacketConn)
	go func() {
		defer close(opened)
		runtime.LockOSThread() // until the goroutine ends
		ns, err := netns.GetFromPath(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			t.Error(err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Error(err)
			return
		}
		conn, err := net.ListenPacket("udp", "127.0.0.99:53")
		if err != nil {
			t.Error(err)
			return
		}
		opened <- conn
	}()
	conn := <-opened
	if conn == nil {
		t.FailNow()
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if answer := answerA(b[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return path, "127.0.0.99"
}

// answerA answers a DNS query (RFC 1035, 4.1): 192.0.2.53 for an IPv4 address, nothing for other
// types.
func answerA(question []byte) []byte {
	const header = 12
	end := bytes.IndexByte(question[min(header, len(question)):], 0) // of the name
	if end < 0 || len(question) < header+end+5 {
		return nil
	}
	answer := bytes.Clone(question[:header+end+5])
	answer[2] |= 0x80 // a response
	copy(answer[6:header], make([]byte, 6))
	if answer[header+end+2] == 1 { // type A
		answer[7] = 1
		answer = append(answer, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 192, 0, 2, 53)
	}
	return answer
}

// TestOwnThread checks that no goroutine runs on the process's first thread. If one entered another
// network namespace there, /proc/self would refer to that namespace.
func TestOwnThread(t *testing.T) {
	tids := make(chan int)
	for range 100 {
		go func() {
			runtime.LockOSThread()
			tids <- unix.Gettid()
			runtime.UnlockOSThread()
		}()
	}
	for range 100 {
		if tid := <-tids; tid == os.Getpid() {
			t.Fatal("a goroutine has run on the process's own thread")
		}
	}
}
