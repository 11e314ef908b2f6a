// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"
	"testing"

	"bascule/object"
)

// TestKinds: each kind takes these values and refuses others, and formats a value as it takes it.
func TestKinds(t *testing.T) {
	var b Binding
	var f flush
	var e Entry
	del, flush := BindingObject.Verbs[1].Fields, BindingObject.Verbs[2].Fields
	for _, test := range []struct {
		name    string
		field   object.Field
		of      any
		takes   map[string]string // with the text of the value
		refuses []string
	}{
		{"port", bindingFields.Named("port")[0], &b, map[string]string{"p1": "p1", "": ""}, nil},
		{"only one port", flush.Named("port")[0], &f, map[string]string{"p1": "p1"}, []string{""}},
		{"MAC", bindingFields.Named("mac")[0], &b, map[string]string{"02-00-00-00-00-AB": "02:00:00:00:00:ab"},
			[]string{"", "0", "00:00:00:00:00:00", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:01:02:03"}},
		{"address", bindingFields.Named("address")[0], &b, map[string]string{"192.0.2.1": "192.0.2.1", "2001:DB8::1": "2001:db8::1"},
			[]string{"", "0", "0.0.0.0", "::", "ff02::1", "127.0.0.1", "192.0.2.1/24", "fe80::1%p1", "::ffff:192.0.2.1"}},
		{"VLAN", bindingFields.Named("vlan")[0], &b, map[string]string{"1": "1", "4094": "4094"},
			[]string{"", "0", "-1", "4095", "65546", "10-20", "10-10", "10,20", "none", " 10"}},
		{"VLAN or none", del.Named("vlan")[0], &b, map[string]string{"0": "", "4094": "4094"}, []string{"", "-1", "4095", "65546", "10-20"}},
		{"any VLAN", flush.Named("vlan")[0], &f, map[string]string{"0": "0", "4094": "4094"}, []string{"", "-1", "4095", "65546"}},
		{"switch", entryFields.Named("sticky")[0], &e, map[string]string{"on": "on", "off": ""}, []string{"", "yes", "1"}},
	} {
		for text, want := range test.takes {
			if err := test.field.Set(test.of, text); err != nil || test.field.Text(test.of) != want {
				t.Errorf("%s %q is %q, %v; want %q", test.name, text, test.field.Text(test.of), err, want)
			}
		}
		for _, text := range test.refuses {
			if err := test.field.Set(test.of, text); err == nil {
				t.Errorf("%s %q is taken", test.name, text)
			}
		}
	}
}

// TestObjects: a request needs what its command has as arguments, and its first field is the bridge.
func TestObjects(t *testing.T) {
	for _, o := range Objects {
		for _, v := range o.Verbs {
			for i, f := range v.Fields {
				if arg := i < v.Args; arg != f.Needed {
					t.Errorf("%s %s: %s is an argument: %v, is needed in requests: %v", o.Word, v.Word, f.Name, arg, f.Needed)
				}
			}
			if v.Fields[0].Name != "bridge" {
				t.Errorf("%s %s: %s is the first field", o.Word, v.Word, v.Fields[0].Name)
			}
		}
	}
	for _, f := range []Filing{BindingObject.Filing, EntryFiling} {
		it := f.New()
		port, vlan := f.Place(it)
		*port, *vlan = "p1", 7
		other := f.Copy(it)
		*port, *vlan = "p2", 8
		if p, v := f.Place(other); *p != "p1" || *v != 7 {
			t.Errorf("%s: a copy has changed with its original: %s %d", f.Section, *p, *v)
		}
		if !slices.ContainsFunc(f.Filed, func(of object.Field) bool { return of.Name == f.Key.Name && of.Needed }) {
			t.Errorf("%s: a file need not give the key %s", f.Section, f.Key.Name)
		}
	}
}
