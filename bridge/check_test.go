// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/datapath"

	"github.com/google/go-cmp/cmp"
)

// rowsOf maps the names of findings to their verdicts and first words.
func rowsOf(found []Finding) map[string]string {
	rows := map[string]string{}
	for _, f := range found {
		rows[f.Name] = string(f.State) + " " + f.Text
	}
	return rows
}

// A check finds other users of the machine's devices by their files.
func TestCheckFiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		look  func(*checker)
		row   string
		want  string // prefix of the row, "" for no row
	}{
		{"nobody", nil, (*checker).network, "NetworkManager", ""},
		{"NetworkManager", map[string]string{"run/NetworkManager/no-stub-resolv.conf": ""}, (*checker).network, "NetworkManager", "no it runs"},
		{"NetworkManager kept off", map[string]string{
			"run/NetworkManager/x": "", "usr/lib/NetworkManager/conf.d/10-bascule.conf": "",
		}, (*checker).network, "NetworkManager", "note name ports"},
		{"networkd", map[string]string{"run/systemd/netif/state": ""}, (*checker).network, "systemd-networkd", "no it runs"},
		{"networkd that is installed", map[string]string{"run/systemd/netif/leases/x": ""}, (*checker).network, "systemd-networkd", ""},
		{"networkd kept off", map[string]string{
			"run/systemd/netif/state": "", "etc/systemd/network/10-bascule.network": "",
		}, (*checker).network, "systemd-networkd", "note name ports"},
		{"dhcpcd", map[string]string{"run/dhcpcd/x": ""}, (*checker).network, "dhcpcd", "note it requests"},
		{"dhcpcd that names", map[string]string{
			"run/dhcpcd/x": "", "etc/dhcpcd.conf": "denyinterfaces tap*\n",
		}, (*checker).network, "dhcpcd", "note its configuration"},
		{"libvirt", map[string]string{"run/libvirt/libvirt-sock": ""}, (*checker).network, "libvirt", "note names that begin with vnet"},
		{"br_netfilter", map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "1\n"}, (*checker).network, "br_netfilter", "note iptables sees"},
		{"br_netfilter off", map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "0\n"}, (*checker).network, "br_netfilter", ""},
		{"no routing", map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n"}, (*checker).network, "IPv4 routing", "note off"},
		{"routing", map[string]string{"proc/sys/net/ipv4/ip_forward": "1\n"}, (*checker).network, "IPv4 routing", "yes"},
		{"no IPv6", nil, (*checker).network, "IPv6 routing", "no the kernel has no net.ipv6.conf.all.forwarding"},
		{"RCU", map[string]string{"sys/kernel/rcu_expedited": "0", "sys/kernel/rcu_normal": "0"}, (*checker).kernel, "RCU", "yes"},
		{"RCU without hurry", map[string]string{"sys/kernel/rcu_expedited": "0", "sys/kernel/rcu_normal": "1"}, (*checker).kernel, "RCU", "note it cannot be expedited"},
		{"no RCU", nil, (*checker).kernel, "RCU", "note no /sys"},
		{"processes", map[string]string{"proc/1/ns/pid": "-> pid:[4026531836]"}, (*checker).processes, "processes", "yes"},
		{"hidden processes", nil, (*checker).processes, "processes", "note not all can be read"},
		{"processes of a container", map[string]string{"proc/1/ns/pid": "-> pid:[4026532000]"}, (*checker).processes, "processes", "note not all"},
		{"no JIT", map[string]string{"proc/sys/net/core/bpf_jit_enable": "0"}, (*checker).kernel, "JIT", "no programs are interpreted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				target, link := strings.CutPrefix(text, "-> ")
				err := os.WriteFile(path, []byte(text), 0o644)
				if link {
					err = errors.Join(os.Remove(path), os.Symlink(target, path))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			k := &checker{root: root}
			c.look(k)
			got, ok := rowsOf(k.found)[c.row]
			if ok != (c.want != "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("%s: %q, should begin with %q", c.row, got, c.want)
			}
		})
	}
}

// A feature's row lists what the kernel lacks. Bridges without the feature still work.
func TestCheckAbility(t *testing.T) {
	k := &checker{root: t.TempDir()}
	for _, a := range []datapath.Ability{
		{For: "every bridge", Missing: []string{"bpf_loop()"}},
		{For: "XDP", XDP: []string{"bpf_redirect_map()"}},
		{For: "a filter", Types: errors.New("no BTF")},
		{For: "pf", XDP: []string{"bpf_a()", "bpf_b()"}},
		{For: "top"},
		{For: "a trace", Err: errors.New("not permitted")},
		{For: "a veth into another network namespace"},
	} {
		k.ability(a)
	}
	want := map[string]string{
		"helpers": "no no bpf_loop()",
		"XDP":     "no no bpf_redirect_map()",
		"filter":  "no the kernel does not describe its types (BTF): no BTF",
		"pf":      "note only with tcx; in XDP there is no bpf_a(), bpf_b()",
		"top":     "yes ",
		"trace":   "unknown the kernel does not report it: not permitted",
		"veth":    "yes ",
	}
	if diff := cmp.Diff(want, rowsOf(k.found)); diff != "" {
		t.Error(diff)
	}
	for _, f := range k.found {
		if f.Needed != (f.Name == "helpers") {
			t.Errorf("%s: needed is %t", f.Name, f.Needed)
		}
	}
}

// A check of this machine, which has bridges, finds everything that bridges need.
func TestCheck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("asks the kernel, which takes root")
	}
	s, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.Check()
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(found)
	for _, name := range []string{"tcx", "helpers", "XDP", "pf", "routed host port", "rights", "bpffs", "memory"} {
		if _, ok := rows[name]; !ok {
			t.Errorf("nothing about %s in %v", name, rows)
		}
	}
	for _, f := range found {
		if f.Needed && f.State != VerdictYes {
			t.Errorf("%s: %s %s", f.Name, f.State, f.Text)
		}
	}
}
