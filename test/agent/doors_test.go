// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bascule/client"
	"bascule/test/netlab"
)

// A given is the text of a field of an object, as a user gives it.
type given struct{ field, text string }

// A fieldCase is a value of a field that is given to each door.
type fieldCase struct {
	field string
	texts []string // more than one: the field is given so often
	want  string   // as the object has it; "" if it is refused
}

// described is a kind of object that users can make by a command, in a file, and by the API.
type described struct {
	word, section string
	args          []string          // the fields that are arguments of its command; others are flags
	made          map[string]string // the fields of an object that all doors make
	list          func(*client.Client) ([]map[string]string, error)
	flush         func(*client.Client) error
}

// TestDoors: the command, the file and the API agree about each value of each field of a binding, and of an FDB entry.
// All make the same object, or all refuse the value, name it or its field, and make nothing.
func TestDoors(t *testing.T) {
	const mac, address = "02:00:00:00:00:01", "192.0.2.1"
	vlanOf := func(m map[string]string, id *uint64) map[string]string {
		if id != nil {
			m["vlan"] = fmt.Sprint(*id)
		}
		return m
	}
	for _, kind := range []described{
		{
			word: "binding", section: "bindings", args: []string{"port", "mac", "address"}, made: map[string]string{"mac": mac, "address": address},
			list: func(c *client.Client) (made []map[string]string, err error) {
				list, err := c.BindingShow(t.Context(), client.BindingShowParams{Bridge: "br0"})
				for _, b := range list {
					made = append(made, vlanOf(map[string]string{"port": b.Name, "mac": b.MAC, "address": b.Address}, b.VLAN))
				}
				return made, err
			},
			flush: func(c *client.Client) error {
				_, _, err := c.BindingFlush(t.Context(), client.BindingFlushParams{}, client.FlushBindings{Bridge: "br0"})
				return err
			},
		},
		{
			word: "fdb", section: "fdb", args: []string{"mac", "port"}, made: map[string]string{"mac": mac},
			list: func(c *client.Client) (made []map[string]string, err error) {
				list, err := c.FDBShow(t.Context(), client.FDBShowParams{Bridge: "br0", Static: true})
				for _, e := range list {
					made = append(made, vlanOf(map[string]string{"port": e.Name, "mac": e.MAC}, e.VLAN))
				}
				return made, err
			},
			flush: func(c *client.Client) error {
				_, _, err := c.FDBFlush(t.Context(), client.FDBFlushParams{}, client.FlushEntries{Bridge: "br0", Static: true})
				return err
			},
		},
	} {
		t.Run(kind.word, func(t *testing.T) {
			t.Parallel()
			agree(t, kind)
		})
	}
}

func agree(t *testing.T, kind described) {
	l := netlab.New(t)
	port := l.NewEnds(1)[0].Port
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", port)
	w := newWebRack(t, l, "--web-write")

	number := regexp.MustCompile(`^(0|-?[1-9]\d*)$`)
	run := func(args ...string) string {
		r, err := l.Run(args...)
		must(t, err)
		if (r.Exit == 0) != (r.Stderr == "") {
			t.Errorf("%v", r)
		}
		return r.Stderr
	}
	doors := []struct {
		name string
		make func(fields []given) (refusal string)
	}{
		{"command", func(fields []given) string {
			args, flags := []string{kind.word, "add", "br0"}, []string{}
			for _, name := range kind.args {
				for _, f := range fields {
					if f.field == name {
						args = append(args, f.text)
					}
				}
			}
			for _, f := range fields {
				if !slices.Contains(kind.args, f.field) {
					flags = append(flags, "--"+f.field, f.text)
				}
			}
			return run(append(args, flags...)...)
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
			text := fmt.Sprintf("bridges: {br0: {ports: {%s: }, %s: [{%s}]}}\n", port, kind.section, strings.Join(keys, ", "))
			return run("apply", w.file("objects.yaml", text))
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
			r, err := w.raw.Post("http://localhost/api/v1/"+kind.word+"/add", "application/json", strings.NewReader("{"+strings.Join(keys, ",")+"}"))
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

	usual := maps.Clone(kind.made)
	usual["port"] = port
	for _, test := range fieldCases(port) {
		if _, ok := usual[test.field]; !ok && test.field != "vlan" {
			continue
		}
		var fields []given
		for _, name := range kind.args {
			if name != test.field {
				fields = append(fields, given{name, usual[name]})
			}
		}
		for _, text := range test.texts {
			fields = append(fields, given{test.field, text})
		}
		want := maps.Clone(usual)
		want[test.field] = test.want
		for _, door := range doors {
			what := fmt.Sprintf("%s %q by %s", test.field, test.texts, door.name)
			refusal := door.make(fields)
			made, err := kind.list(w.socket)
			must(t, err)
			switch {
			case test.want != "" && (refusal != "" || len(made) != 1 || !maps.Equal(made[0], want)):
				t.Errorf("%s makes %v, not %v: %s", what, made, want, refusal)
			case test.want == "" && (refusal == "" || len(made) > 0):
				t.Errorf("%s is taken: %v", what, made)
			case test.want == "" && !names(refusal, test):
				t.Errorf("%s: the error names neither field nor value: %s", what, refusal)
			}
			if len(made) > 0 {
				must(t, kind.flush(w.socket))
			}
		}
	}
}

// names reports whether an error names the field or the value, or says that an argument is too many.
func names(refusal string, of fieldCase) bool {
	value := of.texts[0]
	return strings.Contains(strings.ToLower(refusal), of.field) || value != "" && strings.Contains(refusal, value) ||
		len(of.texts) > 1 && strings.Contains(refusal, "one argument too many")
}

func fieldCases(port string) []fieldCase {
	return []fieldCase{
		{"port", []string{"0"}, ""},
		{"port", []string{""}, ""},
		{"port", []string{port, port}, ""},
		{"port", []string{strings.Repeat("p", 65)}, ""},
		{"port", []string{strings.ToUpper(port)}, ""}, // names of devices have a case
		{"port", []string{port}, port},

		{"mac", []string{"0"}, ""},
		{"mac", []string{"00:00:00:00:00:00"}, ""},
		{"mac", []string{""}, ""},
		{"mac", []string{"02:00:00:00:00:01", "02:00:00:00:00:01"}, ""},
		{"mac", []string{"01:00:5e:00:00:01"}, ""},
		{"mac", []string{"02:00:00:00:00:01:02:03"}, ""},
		{"mac", []string{"02:00:00:00:00:AB"}, "02:00:00:00:00:ab"},
		{"mac", []string{"02-00-00-00-00-ab"}, "02:00:00:00:00:ab"},
		{"mac", []string{"0200.0000.00ab"}, "02:00:00:00:00:ab"},

		{"address", []string{"0"}, ""},
		{"address", []string{"0.0.0.0"}, ""},
		{"address", []string{""}, ""},
		{"address", []string{"192.0.2.1", "192.0.2.1"}, ""},
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
	}
}
