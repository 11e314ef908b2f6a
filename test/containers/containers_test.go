// SPDX-License-Identifier: BSD-2-Clause

// Package containers tests the programs that attach containers to the switch, with the real
// program and, if Debian has them, with the real runtimes that call it.
package containers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

// reference is the folder of Debian's reference plugins.
const reference = "/usr/lib/cni"

// A host is a network namespace with a switch, in which plugins are called.
type host struct {
	*netlab.Lab
	t    testing.TB
	path string // folder with a link to the program under each of its names
	data string // ipam's folder

	plugins string // folder with reference plugins
}

func newHost(t testing.TB) *host {
	l := netlab.New(t)
	h := &host{l, t, t.TempDir(), t.TempDir(), reference}
	for _, name := range []string{"bascule-cni", "bascule-netavark"} {
		h.must(os.Symlink(netlab.Program(), filepath.Join(h.path, name)))
	}
	h.must(l.Switch.Do(func() error { // As on a host.
		return errors.Join(ends.Sysctl("net.ipv6.conf.all.disable_ipv6", "0"), ends.Sysctl("net.ipv6.conf.default.disable_ipv6", "0"))
	}))
	t.Cleanup(func() { // before the lab looks for remains
		for _, name := range h.bridges() {
			h.Bascule("bridge", "del", name)
		}
	})
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) bridges() (names []string) {
	var list []netlab.BridgeInfo
	h.JSON(&list, "bridge", "show")
	for _, b := range list {
		names = append(names, b.Ifname)
	}
	return names
}

// plugged returns the ports of a bridge that have an owner, by its ID.
func (h *host) plugged(bridge string) map[string]netlab.PortInfo {
	h.t.Helper()
	ports := map[string]netlab.PortInfo{}
	for _, p := range h.Ports(bridge) {
		if p.Owner != nil {
			ports[p.Owner.ID] = p
		}
	}
	return ports
}

// devices returns the names of the namespace's devices.
func devices(t testing.TB, ns *ends.Namespace) (names []string) {
	t.Helper()
	list, err := ns.Netlink().LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		names = append(names, l.Attrs().Name)
	}
	return names
}

func needs(t testing.TB, files ...string) {
	t.Helper()
	for _, f := range files {
		if _, err := exec.LookPath(f); err != nil {
			t.Skipf("there is no %s", f)
		}
	}
}

// path returns the file of a namespace, as runtimes pass it.
func path(ns *ends.Namespace) string { return "/run/netns/" + ns.Name }

// An answer is the output of a plugin.
type answer struct {
	text []byte
	says string // standard error
	exit int
	failure
}

// A failure is an error of CNI.
type failure struct {
	Code uint   `json:"code"`
	Msg  string `json:"msg"`
}

// A call is one request to a plugin of CNI.
type call struct {
	plugin, command, container, ifname string
	space                              *ends.Namespace // nil for none
	conf                               any
	env                                []string
}

// text returns the configuration as it is sent.
func (c call) text(t testing.TB) []byte {
	switch conf := c.conf.(type) {
	case string:
		return []byte(conf)
	case nil:
		return nil
	default:
		text, err := json.Marshal(conf)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
}

// process returns the process of a request in the host's namespace.
func (h *host) process(c call) *exec.Cmd {
	file := filepath.Join(h.path, "bascule-cni")
	if c.plugin != "" {
		file = filepath.Join(h.plugins, c.plugin)
	}
	cmd := exec.Command("nsenter", "--net="+path(h.Switch), file)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_PATH=" + h.path + ":" + h.plugins}
	for name, value := range map[string]string{"CNI_COMMAND": c.command, "CNI_CONTAINERID": c.container, "CNI_IFNAME": c.ifname} {
		if value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	if c.space != nil {
		cmd.Env = append(cmd.Env, "CNI_NETNS="+path(c.space))
	}
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Stdin = bytes.NewReader(c.text(h.t))
	return cmd
}

func (h *host) try(c call) (a answer, err error) {
	cmd := h.process(c)
	var out, says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &says
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		a.exit, err = exit.ExitCode(), nil
	}
	a.text, a.says = out.Bytes(), says.String()
	if err == nil && a.exit != 0 {
		if bad := json.Unmarshal(a.text, &a.failure); bad != nil {
			err = fmt.Errorf("%s fails, and says no error: %w: %q %q", c.command, bad, a.text, a.says)
		}
	}
	return a, err
}

// do makes a request that succeeds.
func (h *host) do(c call) answer {
	h.t.Helper()
	a, err := h.try(c)
	h.must(err)
	if a.exit != 0 {
		h.t.Fatalf("%s of %s: code %d: %s (%s)", c.command, c.container, a.Code, a.Msg, a.says)
	}
	return a
}

// refused makes a request that is refused with a code and words.
func (h *host) refused(c call, code uint, words ...string) {
	h.t.Helper()
	a, err := h.try(c)
	h.must(err)
	if a.exit == 0 {
		h.t.Errorf("%s of %.200v is done, and should be refused", c.command, c.conf)
		return
	}
	if a.Code != code || strings.Contains(a.Msg, "\n") {
		h.t.Errorf("%s of %.200v: code %d, %q; should be code %d, in one line", c.command, c.conf, a.Code, a.Msg, code)
	}
	for _, w := range words {
		if !strings.Contains(a.Msg, w) {
			h.t.Errorf("%s of %.200v: %q lacks %q", c.command, c.conf, a.Msg, w)
		}
	}
}

// A conf is a configuration of a network.
type conf map[string]any

func (c conf) with(more conf) conf {
	n := conf{}
	for _, m := range []conf{c, more} {
		for k, v := range m {
			n[k] = v
		}
	}
	return n
}

// bare returns a network without addresses.
func (h *host) bare(more conf) conf {
	return conf{"cniVersion": "1.1.0", "name": "net", "type": "bascule-cni"}.with(more)
}

// space makes the namespace of a container, with IPv6.
func (h *host) space() *ends.Namespace {
	h.t.Helper()
	ns := h.NewNamespace()
	h.must(ns.Do(func() error {
		return errors.Join(ends.Sysctl("net.ipv6.conf.all.disable_ipv6", "0"), ends.Sysctl("net.ipv6.conf.default.disable_ipv6", "0"))
	}))
	return ns
}

// routed returns a network with addresses from Debian's host-local, which supports CNI 1.0.0.
func (h *host) routed(more conf) conf {
	needs(h.t, reference+"/host-local")
	return conf{"cniVersion": "1.0.0", "name": "net", "type": "bascule-cni", "ipam": conf{"type": "host-local", "dataDir": h.data,
		"ranges": [][]conf{{{"subnet": "10.77.0.0/16"}}, {{"subnet": "fd77::/64"}}}}}.with(more)
}

// ping pings another station from a container until it answers.
func ping(ns *ends.Namespace, to string) error { return pingFor(ns, to, "60") }

// unheard reports whether a station does not answer for a second.
func unheard(ns *ends.Namespace, to string) bool { return pingFor(ns, to, "1") != nil }

func pingFor(ns *ends.Namespace, to, seconds string) error {
	out, err := exec.Command("nsenter", "--net="+path(ns), "ping", "-n", "-c", "1", "-w", seconds, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ping %s: %w: %s", to, err, out)
	}
	return nil
}
