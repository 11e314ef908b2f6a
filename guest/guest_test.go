// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/bridge"
	"bascule/plug"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestAllowed(t *testing.T) {
	who := Caller{UID: 1000, Groups: []int{100, 7}}
	for _, test := range []struct {
		text string
		want *Grant
		err  string
	}{
		{"allow br0", &Grant{}, ""},
		{"# comment\n\nallow all # too\n", &Grant{}, ""},
		{"allow br0 user 1000 vlan 10 source-guard=on fdb-max=4", &Grant{VLAN: 10, Settings: []bridge.Change{{Name: "source-guard", Value: "on"}, {Name: "fdb-max", Value: "4"}}}, ""},
		{"allow br0 group 7", &Grant{}, ""},
		{"allow br0 group 8", nil, "does not allow user 1000"},
		{"allow br0 user 0", nil, "does not allow user 1000"},
		{"deny all user 1000\nallow br0", nil, "does not allow user 1000"},
		{"deny br1\nallow br0", &Grant{}, ""},
		{"allow br0 vlan 10\nallow br0 vlan 20", &Grant{VLAN: 10}, ""},
		{"", nil, "does not allow user 1000"},
		{"allow br01", nil, "does not allow user 1000"},
		// an invalid line is an error, even after the deciding line
		{"allow br0\nallw br1", nil, `acl:2: unknown word "allw"`},
		{"allow", nil, "acl:1: the bridge is missing"},
		{"allow br0 user", nil, "the name of the user is missing"},
		{"allow br0 user no-such-user", nil, `there is no user "no-such-user"`},
		{"allow br0 group no-such-group", nil, `there is no group "no-such-group"`},
		{"allow br0 vlan", nil, "vlan: give 1 to 4094"},
		{"allow br0 vlan 10 vlan 20", nil, "vlan occurs twice"},
		{"allow br0 fdb-max=3 vlan 10 fdb-max=4", nil, "fdb-max occurs twice"},
		{"allow br0 vlan 4095", nil, "vlan: give 1 to 4094"},
		{"allow br0 nonsense", nil, `"nonsense": give user NAME`},
		{"allow br0 nonsense=on", nil, `"nonsense" is not a setting of a port`},
		{"allow br0 fdb-max=much", nil, "fdb-max=much: "},
		{"deny br0 vlan 10", nil, `"vlan": not expected after deny`},
	} {
		got, err := Allowed("acl", []byte(test.text), "br0", who)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q: %v, want %s", test.text, err, test.err)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%q: %v, %s", test.text, err, diff)
		}
	}
}

func TestReadACL(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a file of root's wants root")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "acl")
	if _, err := ReadACL(path); err == nil || !strings.Contains(err.Error(), "no user may have a tap") {
		t.Errorf("no file: %v", err)
	}
	os.WriteFile(path, []byte("allow br0\n"), 0o644)
	if text, err := ReadACL(path); err != nil || string(text) != "allow br0\n" {
		t.Errorf("%q, %v", text, err)
	}
	os.Chmod(path, 0o664)
	if _, err := ReadACL(path); err == nil || !strings.Contains(err.Error(), "users other than root can write "+path) {
		t.Errorf("a file that a group can write: %v", err)
	}
	os.Chmod(path, 0o644)
	os.Chown(path, 65534, 65534)
	if _, err := ReadACL(path); err == nil || !strings.Contains(err.Error(), "users other than root can write "+path) {
		t.Errorf("another user's file: %v", err)
	}
	os.Chown(path, 0, 0)
	os.Chmod(dir, 0o777) // any user can replace the file with another one of root's
	if _, err := ReadACL(path); err == nil || !strings.Contains(err.Error(), "users other than root can write "+dir) {
		t.Errorf("a file in a folder that all can write: %v", err)
	}
	os.Chmod(dir, 0o755)
	if _, err := ReadACL(path); err != nil {
		t.Error(err)
	}
}

func TestReadRequest(t *testing.T) {
	want := request{true, 7, "br0"}
	for _, args := range []string{"--use-vnet --fd=7 --br=br0", "--br br0 --use-vnet --fd 7"} {
		if got, err := readRequest(strings.Fields(args)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", args, got, err)
		}
	}
	for _, args := range []string{"", "--fd=7", "--br=br0", "--fd=-1 --br=br0", "--fd=x --br=br0", "--fd", "--fd=7 --br=br0 more", "--fd=7 --br=br/0", "--fd=7 --br=br0 --acl=x"} {
		if got, err := readRequest(strings.Fields(args)); err == nil {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestCaller(t *testing.T) {
	want := Caller{UID: 1000, Groups: []int{1000, 7}}
	if got, err := parseCaller(want.String()); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "1000", ":7", "1000:", "1000:x", "root:0"} {
		if got, err := parseCaller(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	// an untrusted caller cannot act for another one
	if exit, err := serve([]string{"--for=0:0", "--fd=3", "--br=br0"}, "/nonexistent", false, io.Discard); !errors.Is(err, errUsage) {
		t.Errorf("%d, %v", exit, err)
	}
}

func TestCgroupPlaces(t *testing.T) {
	for _, test := range []struct{ mount, root, path, want string }{
		{"/sys/fs/cgroup", "/", "/user.slice/x", "/sys/fs/cgroup/user.slice/x"},
		{"/sys/fs/cgroup", "/", "/", "/sys/fs/cgroup"},
		{"/sys/fs/cgroup", "/docker/1", "/docker/1/x", "/sys/fs/cgroup/x"},
		{"/sys/fs/cgroup", "/docker/1", "/docker/12", ""},
		{"/sys/fs/cgroup", "/docker/1", "/", ""},
	} {
		if got := (hierarchy{mount: test.mount, root: test.root}).place(test.path); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
	if got := controllersOf("rw,cpu,cpuacct"); got != "cpu,cpuacct" {
		t.Error(got)
	}
	if got := controllersOf("rw,xattr,name=systemd"); got != "name=systemd" {
		t.Error(got)
	}
}

const guestXML = `<domain type='qemu'><name>web</name><uuid>c7a5fdbd-edaf-9455-926a-d65c16db1809</uuid>
<metadata><other xmlns='urn:x'><interface mac='zz'/></other>
<b:guest xmlns:b='urn:bascule:guest:1'>INTERFACES</b:guest></metadata>
<devices><interface type='ethernet'><mac address='52:54:00:00:00:01'/><target dev='guest0'/></interface>
<interface type='bridge'><mac address='52:54:00:00:00:02'/><target dev='guest1'/></interface>
<interface type='ethernet'><mac address='52:54:00:00:00:03'/></interface></devices></domain>`

func TestPlugs(t *testing.T) {
	read := func(interfaces string) ([]plug.Plug, error) {
		_, list, _, err := plugs(strings.NewReader(strings.Replace(guestXML, "INTERFACES", interfaces, 1)))
		return list, err
	}
	got, err := read(`<b:interface mac='52:54:00:00:00:01' bridge='br0' vlan='10' tagged='20-21'>
		<b:set name='source-guard'> on </b:set><b:binding address='192.0.2.7'/><b:binding mac='52:54:00:00:00:09' address='2001:db8::7'/>
		<b:pf>block in proto udp to port 67</b:pf></b:interface>`)
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := plug.Plug{
		Owner:  bridge.Owner{ID: "libvirt/c7a5fdbd-edaf-9455-926a-d65c16db1809/52:54:00:00:00:01", By: "libvirt", Container: "c7a5fdbd-edaf-9455-926a-d65c16db1809", Network: "br0"},
		Bridge: "br0", Device: "guest0", VLANs: plug.VLANs(10, []uint16{20, 21}), Settings: []bridge.Change{{Name: "source-guard", Value: "on"}},
	}
	if diff := cmp.Diff(want, got[0], cmpopts.IgnoreFields(plug.Plug{}, "Bindings", "PF")); diff != "" {
		t.Error(diff)
	}
	if b := got[0].Bindings; len(b) != 2 || b[0].MAC.String() != "52:54:00:00:00:01" || b[1].MAC.String() != "52:54:00:00:00:09" || b[0].VLAN != 10 {
		t.Errorf("bindings %+v", b)
	}
	if p := got[0].PF; p == nil || p.Source.Open != nil || p.Source.Lookup != nil || !strings.Contains(string(p.Text), "block in") {
		t.Errorf("pf %+v", p)
	}
	if got, err := read(""); err != nil || len(got) != 0 {
		t.Errorf("without interfaces: %+v, %v", got, err)
	}
	for interfaces, want := range map[string]string{
		`<b:interface bridge='br0'/>`:                                                                                                    "not a MAC address",
		`<b:interface mac='52:54:00:00:00:09' bridge='br0'/>`:                                                                            "no interface with this address",
		`<b:interface mac='52:54:00:00:00:02' bridge='br0'/>`:                                                                            `it is of type "bridge"`,
		`<b:interface mac='52:54:00:00:00:03' bridge='br0'/>`:                                                                            "its tap has no name",
		`<b:interface mac='52:54:00:00:00:01'/>`:                                                                                         "the bridge is missing",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0' vlan='0'/>`:                                                                   "not a VLAN",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0' tagged='x'/>`:                                                                 "not a VLAN",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:binding address='::'/></b:interface>`:                                      "::",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'/><b:interface mac='52:54:00:00:00:01' bridge='br1'/>`:                         "has it twice",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:binding mac='no' address='192.0.2.1'/></b:interface>`:                      "not a MAC address",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'>`:                                                                             "cannot read the guest's description",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0' vlna='10'/>`:                                                                  `<interface> has no attribute "vlna"`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:limit/></b:interface>`:                                                     "<interface> takes no <limit>",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><set name='isolated'>on</set></b:interface>`:                                  "<interface> takes no <set>",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:set name='fdb-mx'>4</b:set></b:interface>`:                                 `"fdb-mx" is not a setting`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:set name='fdb-max'>lots</b:set></b:interface>`:                             "fdb-max=lots",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:set nme='fdb-max'>4</b:set></b:interface>`:                                 `<set> has no attribute "nme"`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:binding adress='192.0.2.7'/></b:interface>`:                                `<binding> has no attribute "adress"`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:set name='fdb-max'>4</b:set><b:set name='fdb-max'>5</b:set></b:interface>`: "fdb-max occurs twice",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0' bridge='br1'/>`:                                                               "attribute bridge of <interface> occurs twice",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:pf/><b:pf/></b:interface>`:                                                 "<pf> occurs twice",
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:pf>pass <b:x/></b:pf></b:interface>`:                                       "<pf> takes no <x>",
		`<b:interfaces mac='52:54:00:00:00:01' bridge='br0'/>`:                                                                           "<guest> takes no <interfaces>",
		`</b:guest><gest xmlns='urn:bascule:guest:1'/><b:guest xmlns:b='urn:bascule:guest:1'>`:                                           "the metadata has <gest>",
		`</b:guest><guest xmlns='urn:bascule:guest:2'/><b:guest xmlns:b='urn:bascule:guest:1'>`:                                          `"urn:bascule:guest:2"`,
		`</b:guest><b:guest xmlns:b='urn:bascule:guest:1' bridge='br0'>`:                                                                 `<guest> has no attribute "bridge"`,
	} {
		if got, err := read(interfaces); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %+v, %v, want %s", interfaces, got, err, want)
		}
	}
	for _, text := range []string{"", "<domain/>", "<domain><uuid>a b</uuid></domain>", strings.Repeat("<a>", 100000)} {
		if _, _, _, err := plugs(strings.NewReader(text)); err == nil {
			t.Errorf("%.40q is read", text)
		}
	}
}

// TestBandwidth checks that the limits of an interface become its port's, unless the metadata has
// others.
func TestBandwidth(t *testing.T) {
	for bandwidth, want := range map[string]struct {
		settings []bridge.Change
		set      string // settings in the metadata
		notes    []string
		wrong    string
	}{
		"": {},
		`<bandwidth><inbound average='1000'/><outbound average='12500' burst='8192'/></bandwidth>`: {
			settings: []bridge.Change{{Name: "rate-out", Value: "8mbit"}, {Name: "rate-in", Value: "100mbit:8mb"}}},
		`<bandwidth><outbound average='125' peak='250' burst='32'/></bandwidth>`: {
			settings: []bridge.Change{{Name: "rate-in", Value: "1mbit"}}, notes: []string{"guest0: peak of <outbound>"}},
		`<bandwidth><inbound average='125' floor='10'/></bandwidth>`: {
			settings: []bridge.Change{{Name: "rate-out", Value: "1mbit"}}, notes: []string{"guest0: floor of <inbound>"}},
		`<bandwidth><inbound average='125'/><outbound average='125'/></bandwidth>`: {
			set: `<b:set name='rate-in'>5mbit</b:set>`, settings: []bridge.Change{{Name: "rate-in", Value: "5mbit"}, {Name: "rate-out", Value: "1mbit"}}},
		`<bandwidth><inbound burst='64'/></bandwidth>`:                     {wrong: "<inbound>: a burst"},
		`<bandwidth><inbound average='-1'/></bandwidth>`:                   {wrong: "cannot read the guest's description"},
		`<bandwidth><inbound average='9999999999'/></bandwidth>`:           {wrong: "<inbound>"},
		`<bandwidth><outbound average='1152921504606846976'/></bandwidth>`: {wrong: "<outbound> is above the highest limit"},
	} {
		text := strings.Replace(guestXML, "INTERFACES", `<b:interface mac='52:54:00:00:00:01' bridge='br0'>`+want.set+`</b:interface>`, 1)
		text = strings.Replace(text, "<target dev='guest0'/>", "<target dev='guest0'/>"+bandwidth, 1)
		_, list, notes, err := plugs(strings.NewReader(text))
		if want.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), want.wrong) {
				t.Errorf("%s: %+v, %v, want %s", bandwidth, list, err, want.wrong)
			}
			continue
		}
		if err != nil || len(list) != 1 || len(notes) != len(want.notes) {
			t.Errorf("%s: %+v, %q, %v", bandwidth, list, notes, err)
			continue
		}
		if diff := cmp.Diff(want.settings, list[0].Settings); diff != "" {
			t.Errorf("%s: %s", bandwidth, diff)
		}
		for i, n := range want.notes {
			if !strings.HasPrefix(notes[i], n) {
				t.Errorf("%s: %q, want %s", bandwidth, notes[i], n)
			}
		}
	}
}
