// SPDX-License-Identifier: BSD-2-Clause

package object

import (
	"encoding/json"
	"errors"
	"strconv"
	"testing"
)

type thing struct {
	name string
	size int
	on   bool
}

var (
	text   = Kind[string]{Form: Form{Word: "NAME"}, Parse: func(s string) (string, error) { return s, nil }, Format: func(s string) string { return s }}
	number = Kind[int]{Form: Form{Word: "N", Number: true}, Parse: strconv.Atoi, Format: func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}}
	toggle = Kind[bool]{Form: Form{Word: "on|off", Switch: true}, Parse: func(s string) (bool, error) { return s == "on", nil }, Format: func(on bool) string {
		return map[bool]string{true: "on"}[on]
	}}
	fields = Fields{
		Of(Field{Name: "name", As: "ifname", Needed: true}, text, func(t *thing) *string { return &t.name }),
		Of(Field{Name: "size", Help: "how large", Flag: "make it as large as this"}, number, func(t *thing) *int { return &t.size }),
		Of(Field{Name: "on", Help: "whether it is on"}, toggle, func(t *thing) *bool { return &t.on }),
	}
)

// TestFields sets values as commands, files and requests do, and reads them.
func TestFields(t *testing.T) {
	for _, test := range []struct{ field, text, raw, want string }{
		{"name", "p1", `"p1"`, "p1"},
		{"name", "", `""`, ""},
		{"name", "a\"<b", `"a\"<b"`, "a\"<b"},
		{"size", "12", "12", "12"},
		{"size", "0", "0", ""},
		{"on", "on", "true", "on"},
		{"on", "off", "false", ""},
	} {
		f := fields.Named(test.field)[0]
		var by, sent thing
		if err := errors.Join(f.Set(&by, test.text), f.SetJSON(&sent, json.RawMessage(test.raw))); err != nil {
			t.Errorf("%s %s: %v", test.field, test.text, err)
		}
		if got, other := f.Text(&by), f.Text(&sent); got != test.want || other != test.want {
			t.Errorf("%s: %q by %s, %q by %s; want %q", test.field, got, test.text, other, test.raw, test.want)
		}
	}

	it := thing{size: 5}
	if err := fields[1].Set(&it, "many"); err == nil || it.size != 5 {
		t.Errorf("what is no number makes %+v, %v", it, err)
	}
	if err := fields[0].SetJSON(&it, json.RawMessage("5")); err == nil || it.name != "" {
		t.Errorf("a number as text makes %+v, %v", it, err)
	}
}

// TestWords: names and help, which doors have in their own words.
func TestWords(t *testing.T) {
	for i, want := range [][2]string{{"ifname", ""}, {"size", "make it as large as this"}, {"on", "whether it is on"}} {
		if got := [2]string{fields[i].Answer(), fields[i].FlagHelp()}; got != want {
			t.Errorf("%s has %q, not %q", fields[i].Name, got, want)
		}
	}
	some := fields.Named("on", "name")
	if got := some.Heading(); got != "ON NAME" {
		t.Errorf("the heading is %q", got)
	}
	if got := (Verb{Word: "add", Args: 1, Fields: some}).Usage(); got != "add ON" {
		t.Errorf("the usage is %q", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("an unknown field is found")
		}
	}()
	fields.Named("none")
}

// TestRow: an answer has its fields in their order, the ones that must be there even if they are empty.
func TestRow(t *testing.T) {
	for _, test := range []struct {
		it   thing
		want string
	}{
		{thing{}, `{"ifname":""}`},
		{thing{name: "a\"<b", size: 3, on: true}, `{"size":3,"on":true,"ifname":"a\"<b"}`},
	} {
		got, err := Row{fields.Named("size", "on", "name"), &test.it}.MarshalJSON()
		if err != nil || string(got) != test.want {
			t.Errorf("%+v: %s, %v; want %s", test.it, got, err, test.want)
		}
	}
}
