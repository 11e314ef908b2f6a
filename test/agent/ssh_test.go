// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bascule/test/netlab"
)

// TestSSH manages a switch over the switch itself, from a station behind its port p1, through
// Debian's sshd. Changes that would cut the session off are refused, based on sshd's environment. A
// session that cuts itself off with --confirm, and ends, is followed by another one.
func TestSSH(t *testing.T) {
	const sshd = "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		t.Skipf("%v; it is of openssh-server", err)
	}
	l := netlab.New(t)
	l.NewEnds(3)
	setFolders(t, l)
	client := l.Ends[0]
	in := func(ns string, args ...string) *exec.Cmd {
		return exec.Command("ip", append([]string{"netns", "exec", ns}, args...)...)
	}
	do := func(ns string, args ...string) string {
		t.Helper()
		out, err := in(ns, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	for _, ns := range []string{l.Switch.Name, client.Namespace.Name} {
		do(ns, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.default.accept_dad=0")
	}
	apply(t, l, file(t, "good.yaml", "bridges: {br0: {ports: {p1: , p2: , h0: {type: host, addresses: 192.0.2.9/24}}}}"))
	do(client.Namespace.Name, "ip", "address", "add", "192.0.2.7/24", "dev", client.Ifname)
	do(client.Namespace.Name, "ip", "address", "add", "fe80::7/64", "dev", client.Ifname, "nodad")
	do(l.Switch.Name, "ip", "address", "add", "fe80::9/64", "dev", "h0", "nodad")

	dir := t.TempDir()
	for _, name := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	must(t, os.MkdirAll("/run/sshd", 0o755)) // as the service does
	conf := file(t, "sshd_config", fmt.Sprintf(`Port 2222
ListenAddress 0.0.0.0
ListenAddress ::
HostKey %[1]s/host
PidFile none
AuthorizedKeysFile %[1]s/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv BASCULE_STATE_DIR=%[2]s BASCULE_AGENT_DIR=%[3]s
`, dir, filepath.Dir(ofLab(l)), t.TempDir()))
	server := in(l.Switch.Name, sshd, "-D", "-e", "-f", conf)
	said := netlab.NewOutputFile(t)
	server.Stderr = said.File
	must(t, server.Start())
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		pids, _ := exec.Command("ip", "netns", "pids", l.Switch.Name).Output()
		for _, word := range strings.Fields(string(pids)) { // of sessions that hang
			pid, _ := strconv.Atoi(word)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	session := func(to string, command ...string) *exec.Cmd {
		return in(client.Namespace.Name, append([]string{"ssh", "-F", "none", "-i", filepath.Join(dir, "user"), "-p", "2222", "-o", "BatchMode=yes",
			"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=2", "-o", "ServerAliveInterval=5", "root@" + to}, command...)...)
	}
	const plain = "192.0.2.9"
	link := "fe80::9%" + client.Ifname
	for _, to := range []string{plain, link} {
		l.Wait("a session to "+to, func() bool { return session(to, "true").Run() == nil })
	}

	cut := file(t, "cut.yaml", "bridges: {br0: {ports: {p2: , h0: {type: host, addresses: 192.0.2.9/24}}}}")
	export := func() string { // In any order.
		return strings.Join(slices.Sorted(strings.Lines(l.Bascule("export"))), "")
	}
	before := export()
	bascule := l.Binary()
	for _, c := range []struct{ to, command, words string }{
		{plain, "port del br0 p1", "this ssh session comes through port p1, which would be removed; if that is intended, give --yes"},
		{link, "port del br0 p1", "this ssh session comes through port p1, which would be removed; if that is intended, give --yes"},
		{plain, "port del br0 h0", "this ssh session uses the address 192.0.2.9 of port h0, which would be removed"},
		{link, "port del br0 h0", "this ssh session uses the address fe80::9%h0 of port h0, which would be removed"},
		{plain, "bridge del --all", "this ssh session"},
		{plain, "apply " + cut, "this ssh session comes through port p1, which would be removed"},
		{link, "apply --confirm 1h " + cut, "this ssh session comes through port p1, which would be removed"},
	} {
		out, err := session(c.to, bascule+" "+c.command).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.words) {
			t.Fatalf("from %s, %s: %v: %s", c.to, c.command, err, out)
		}
	}
	if after := export(); after != before {
		t.Fatalf("what was refused has changed\n%sto\n%s", before, after)
	}

	for _, end := range []string{
		"cat",           // it stays alive and receives nothing more
		"kill -9 $PPID", // the session's process of sshd
	} {
		lost := session(plain, bascule+" apply --yes --confirm 3s "+cut+" && "+end)
		input, err := lost.StdinPipe() // The input stays open.
		must(t, err)
		defer input.Close()
		must(t, lost.Start())
		l.Wait("the change", func() bool { return waiting(l) })
		l.Wait("a session after the one that has cut itself off", func() bool { return session(plain, "true").Run() == nil })
		_ = lost.Process.Kill()
		_ = lost.Wait()
		if after := export(); after != before || waiting(l) {
			t.Errorf("%s: there is\n%sand was\n%s", end, after, before)
		}
		out, err := session(plain, bascule+" apply --history").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "root from 192.0.2.7") || !strings.Contains(string(out), "put back, not confirmed: "+cut) {
			t.Errorf("%s: %v: %s", end, err, out)
		}
	}
}
