// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bascule/client"
	"bascule/test/netlab"
)

// A given is the text of a field of a binding, as a user gives it.
type given struct{ field, text string }

// TestBindingDoors: the command, the file and the API agree about each value of each field of a binding. All make the
// same binding, or all refuse the value, name it or its field, and make nothing.
func TestBindingDoors(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	port := l.NewEnds(1)[0].Port
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", port)
	w := newWebRack(t, l, "--web-write")
	ctx := t.Context()

	number := regexp.MustCompile(`^(0|-?[1-9]\d*)$`)
	// each returns the error, or "" for success
	doors := []struct {
		name string
		bind func(fields []given) string
	}{
		{"command", func(fields []given) string {
			args := []string{"binding", "add", "br0"}
			for _, name := range []string{"port", "mac", "address"} {
				for _, f := range fields {
					if f.field == name {
						args = append(args, f.text)
					}
				}
			}
			for _, f := range fields {
				if f.field == "vlan" {
					args = append(args, "--vlan", f.text)
				}
			}
			r, err := l.Run(args...)
			must(t, err)
			if (r.Exit == 0) != (r.Stderr == "") {
				t.Errorf("%v", r)
			}
			return r.Stderr
		}},
		{"file", func(fields []given) string {
			var keys []string
			for _, f := range fields {
				text := f.text
				if !number.MatchString(text) {
					text = fmt.Sprintf("%q", text)
				}
				keys = append(keys, f.field+": "+text)
			}
			text := fmt.Sprintf("bridges: {br0: {ports: {%s: }, bindings: [{%s}]}}\n", port, strings.Join(keys, ", "))
			r, err := l.Run("apply", w.file("bindings.yaml", text))
			must(t, err)
			if (r.Exit == 0) != (r.Stderr == "") {
				t.Errorf("%v", r)
			}
			return r.Stderr
		}},
		{"API", func(fields []given) string {
			keys := []string{`"bridge":"br0"`}
			for _, f := range fields {
				text := f.text
				if f.field != "vlan" || !number.MatchString(text) {
					quoted, err := json.Marshal(text)
					must(t, err)
					text = string(quoted)
				}
				keys = append(keys, fmt.Sprintf("%q:%s", f.field, text))
			}
			r, err := w.raw.Post("http://localhost/api/v1/binding/add", "application/json", strings.NewReader("{"+strings.Join(keys, ",")+"}"))
			must(t, err)
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			must(t, err)
			if r.StatusCode == http.StatusOK {
				return ""
			}
			return string(text)
		}},
	}

	const mac, address = "02:00:00:00:00:01", "192.0.2.1"
	for _, test := range []struct {
		field string
		texts []string // more than one: the field is given so often
		want  string   // as `binding show -j` has it; "" if it is refused
	}{
		{"port", []string{"0"}, ""},
		{"port", []string{""}, ""},
		{"port", []string{port, port}, ""},
		{"port", []string{strings.Repeat("p", 65)}, ""},
		{"port", []string{strings.ToUpper(port)}, ""}, // names of devices have a case
		{"port", []string{port}, port},

		{"mac", []string{"0"}, ""},
		{"mac", []string{"00:00:00:00:00:00"}, ""},
		{"mac", []string{""}, ""},
		{"mac", []string{mac, mac}, ""},
		{"mac", []string{"01:00:5e:00:00:01"}, ""},
		{"mac", []string{"02:00:00:00:00:01:02:03"}, ""},
		{"mac", []string{"02:00:00:00:00:AB"}, "02:00:00:00:00:ab"},
		{"mac", []string{"02-00-00-00-00-ab"}, "02:00:00:00:00:ab"},
		{"mac", []string{"0200.0000.00ab"}, "02:00:00:00:00:ab"},

		{"address", []string{"0"}, ""},
		{"address", []string{"0.0.0.0"}, ""},
		{"address", []string{""}, ""},
		{"address", []string{address, address}, ""},
		{"address", []string{"192.0.2.256"}, ""},
		{"address", []string{"192.0.2.1/24"}, ""},
		{"address", []string{"ff02::1"}, ""},
		{"address", []string{"2001:DB8::1"}, "2001:db8::1"},
		{"address", []string{"2001:db8:0::1"}, "2001:db8::1"},

		{"vlan", []string{"0"}, ""},
		{"vlan", []string{""}, ""},
		{"vlan", []string{"10", "10"}, ""},
		{"vlan", []string{"4095"}, ""},
		{"vlan", []string{"65546"}, ""},
		{"vlan", []string{"-1"}, ""},
		{"vlan", []string{"10-20"}, ""},
		{"vlan", []string{"10-10"}, ""},
		{"vlan", []string{"10,10"}, ""},
		{"vlan", []string{"none"}, ""},
		{"vlan", []string{"1"}, "1"},
		{"vlan", []string{"4094"}, "4094"},
	} {
		fields := []given{{"port", port}, {"mac", mac}, {"address", address}}
		fields = slices.DeleteFunc(fields, func(f given) bool { return f.field == test.field })
		for _, text := range test.texts {
			fields = append(fields, given{test.field, text})
		}
		for _, door := range doors {
			what := fmt.Sprintf("%s %q by %s", test.field, test.texts, door.name)
			refusal := door.bind(fields)
			list, err := w.socket.BindingShow(ctx, client.BindingShowParams{Bridge: "br0"})
			must(t, err)
			switch {
			case test.want == "":
				if refusal == "" || len(list) > 0 {
					t.Errorf("%s is taken: %+v", what, list)
				} else if word := test.texts[0]; len(test.texts) > 1 && strings.Contains(refusal, "one argument too many") {
					continue
				} else if !strings.Contains(strings.ToLower(refusal), test.field) && (word == "" || !strings.Contains(refusal, word)) {
					t.Errorf("%s: the error names neither field nor value: %s", what, refusal)
				}
			case refusal != "" || len(list) != 1:
				t.Errorf("%s is not taken: %s %+v", what, refusal, list)
			default:
				b := list[0]
				got := map[string]string{"port": b.Name, "mac": b.MAC, "address": b.Address}
				if b.VLAN != nil {
					got["vlan"] = fmt.Sprint(*b.VLAN)
				}
				want := map[string]string{"port": port, "mac": mac, "address": address, test.field: test.want}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s makes %v, not %v", what, got, want)
				}
			}
			if len(list) > 0 {
				_, _, err = w.socket.BindingFlush(ctx, client.BindingFlushParams{}, client.FlushBindings{Bridge: "br0"})
				must(t, err)
			}
		}
	}
}
