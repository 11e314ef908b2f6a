// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestReadJSON checks that keys which are duplicates, or differ in case, are refused: other readers
// might interpret them in another way.
func TestReadJSON(t *testing.T) {
	type base struct {
		Name string `json:"name"`
	}
	type into struct {
		base
		Bridge string                     `json:"bridge,omitempty"`
		Raw    json.RawMessage            `json:"raw"`
		Any    any                        `json:"any"`
		List   []*base                    `json:"list"`
		Map    map[string]base            `json:"map"`
		Labels map[string]string          `json:"labels"`
		Other  map[string]json.RawMessage `json:"other"`
		None   string                     `json:"-"`
	}
	for text, want := range map[string]string{
		`{"name":"a","bridge":"b","unknown":{"x":[1,{"y":null}]}}`:          "",
		`{"list":[{"name":"a"},null]}`:                                      "",
		`{"labels":{"a":"1","A":"2"},"raw":{"name":1,"Name":2},"None":"x"}`: "", // keys of other programs
		`null`:                                 "",
		`{"bridge":"a","bridge":"b"}`:          `"bridge" occurs twice`,
		`{"bridge":"a","Bridge":"b"}`:          `"Bridge" is not a key; write bridge`,
		`{"Bridge":"b"}`:                       `"Bridge" is not a key; write bridge`,
		`{"Name":"b"}`:                         `write name`,
		`{"list":[{"name":"a"},{"NAME":"b"}]}`: `write name`,
		`{"map":{"x":{"Name":"b"}}}`:           `write name`,
		`{"map":{"x":{},"x":{}}}`:              `"x" occurs twice`,
		`{"labels":{"a":"1","a":"2"}}`:         `"a" occurs twice`,
		`{"any":{"a":1,"a":2}}`:                `"a" occurs twice`,
		`{"other":{"a":[{"b":1,"\u0062":2}]}}`: `"b" occurs twice`,
		`{"bridge":1}`:                         "give a string",
		`{`:                                    "not JSON",
	} {
		err := ReadJSON([]byte(text), new(into))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	var got into
	if err := ReadAnyJSON([]byte(`{"bridge":"a","bridge":"b"}`), &got); err != nil || got.Bridge != "b" {
		t.Errorf("%+v, %v", got, err)
	}
}
