// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"strings"
	"testing"

	"bascule/test/peak"
)

// TestMemory reads files that are made to take memory, and large realistic
// ones.
func TestMemory(t *testing.T) {
	if !peak.Alone(t) {
		return
	}
	most := peak.Bound{Each: 150, Any: 8 << 20}
	// a rule takes some hundred bytes however short its text, and the
	// number of rules is at most MaxRules
	ruled := peak.Bound{Each: 150, Any: 64 << 20}
	type text struct {
		name, begin, repeat, end string
		file                     bool // a table's file
	}
	list := []text{
		{"macro", `a = "`, "b ", "\"\n", false},
		{"list", "pass from { ", "10.0.0.1 ", "}\n", false},
		{"ports", "pass proto tcp to port { ", "1 ", "}\n", false},
		{"interfaces", "pass on { ", "a ", "}\n", false},
		{"protocols", "pass proto { ", "6 ", "}\n", false},
		{"table", "table <t> { ", "10.0.0.1 ", "}\n", false},
		{"short table", "table <t> { ", "1 ", "}\n", false},
		{"flags", "pass flags ", "S", "/SA\n", false},
		{"anchors", "", "anchor a {\n", "", false},
		{"names", "pass from ", "a", "\n", false},
		{"options", "pass keep state (", "max 1, ", "max 1)\n", false},
		{"nested", "pass from ", "{ ", "\n", false},
		{"ether", "", "ether block\n", "", false},
		{"pool", "match out nat-to { ", "10.0.0.1 ", "}\n", false},
		{"pool weights", "match out nat-to { ", "10.0.0.1 weight 2 ", "}\n", false},
		{"pools", "", "match out nat-to 1::\n", "", false},
		{"binat", "", "match from 1:: binat-to 1::\n", "", false},
		{"pool in rules", "match out proto { 1 2 3 4 5 6 7 8 } nat-to { ", "10.0.0.1 ", "}\n", false},
		{"pool in many rules", "match out proto { " + strings.Repeat("1 ", 250) + "} from { " + strings.Repeat("10.0.0.1 ", 250) + "} nat-to { ", "10.0.0.1 ", "}\n", false},
		{"nat", "", "nat -> 1::\n", "", false},
		{"no nat", "", "no nat\n", "", false},
		{"nat list", "nat from { ", "10.0.0.1 ", "} -> 10.0.0.2\n", false},
		{"routes", "", "pass in route-to 1::\n", "", false},
		{"continued", "pass in ", "\\\n", "route-to 1::\n", false},
		{"continued rules", "", "match out nat-to \\\n \\\n1::\n", "", false},
	}
	for _, repeat := range []string{"x", "x ", "x\n", "\n", " ", "\t", "#", "#\n", "\x00", "\x00\n", "\xff", "\r\n", "\\\n", "\"", "'", "\"\"", "\"\" ", "$a ", "{", "}", "(", "!", "=", "a=b\n",
		"a=\"b\"\n", "pass\n", "block\n", "pass quick\n", "match\n", "table <t>\n", "table <t> {1}\n", "anchor a\n", "set limit states 1\n", "set skip on a\n",
		"include \"a\"\n", "pass from 10.0.0.1\n", "antispoof for a\n", "0", "1 ", "<", "<t> ", "é", "_"} {
		list = append(list, text{name: fmt.Sprintf("%.20q", repeat), repeat: repeat})
	}
	for _, repeat := range []string{"1\n", "1 ", "::\n", "10.0.0.1\n", "10.0.0.0/8 ", "!1\n", "x\n", "\n", "#\n", " ", "x", "\x00", "é\n"} {
		list = append(list, text{name: fmt.Sprintf("file %q", repeat), repeat: repeat, file: true})
	}
	var rules strings.Builder
	for i := range 36_000 {
		fmt.Fprintf(&rules, "pass in quick proto tcp from 10.%d.%d.%d to 192.0.2.1 port 80\n", i>>16, i>>8&255, i&255)
	}
	most.Check(t, "36000 rules", rules.Len(), func() {
		if _, err := Parse("pf.conf", []byte(rules.String()), Source{}); err != nil {
			t.Error(err)
		}
	})
	for _, c := range list {
		const size = 1 << 19
		text := c.begin + strings.Repeat(c.repeat, size/len(c.repeat)) + c.end
		source := Source{Open: func(string) ([]byte, error) { return []byte(text), nil }}
		bound := most
		if strings.HasSuffix(c.repeat, "\n") && !c.file || c.name == "list" {
			bound = ruled
		}
		bound.Check(t, c.name, size, func() {
			if c.file {
				_, _ = Parse("pf.conf", []byte("table <t> persist file \"a\"\n"), source)
			} else {
				_, _ = Parse("pf.conf", []byte(text), source)
			}
		})
	}
}
