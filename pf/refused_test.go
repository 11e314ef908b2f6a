// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// refused has a statement for each entry of the list of refused words in docs/pf.md.
// The keys are the list's.
var refused = map[string]string{
	"queue":     "queue std on em0 bandwidth 10M",
	"set queue": "pass set (queue std, prio 3)",
	"altq":      "altq on em0 priq",
	"dnpipe":    "pass dnpipe 1",
	"dnqueue":   "pass dnqueue (1, 2)",
	"dummynet":  "dummynet in proto tcp pipe 1",
	"rtable":    "antispoof for lo0 rtable 1",
	"rdomain":   "pass on rdomain 1",
	"route":     "pass from route \"label\"",

	"os":                     "block proto tcp from any os \"Linux\"",
	"set delay":              "pass set delay 100",
	"pktdelay-pkts":          "set limit pktdelay-pkts 100",
	"max-pkt-rate":           "pass max-pkt-rate 100/10",
	"max-pkt-size":           "pass max-pkt-size 1000",
	"set syncookies":         "set syncookies adaptive",
	"set timeout sctp.first": "set timeout { interval 10, sctp.first 60 }",
	"ether anchor":           "ether anchor a",
	"prefer-ipv6-nexthop":    "pass in route-to 192.0.2.1 prefer-ipv6-nexthop",
	"map-e-portset":          "nat on em0 -> 192.0.2.1 map-e-portset 6/8/0x34",
	"bridge-to":              "pass bridge-to em0",

	"nat-to 192.0.2.1 port 90:80": "match out nat-to 192.0.2.1 port 90:80",
	"nat-to { 192.0.2.1, <t> }":   "match out nat-to { 192.0.2.1, <t> }",
	"nat-to fe80::1":              "match out nat-to fe80::1",
	"binat-to":                    "match from ! 192.0.2.1 binat-to 192.0.2.2",
}

// The words that docs/pf.md lists as refused are refused, with that text, and words
// that are refused as meaningless on a bridge are in the list.
func TestRefusedAsListed(t *testing.T) {
	text, err := os.ReadFile("../docs/pf.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Refused\n")
	section, _, _ = strings.Cut(section, "\n## ")
	code := regexp.MustCompile("`[^`]+`")
	listed := map[string]string{}
	for _, line := range strings.Split(section, "\n") {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") && len(cells) == 2 {
			for _, words := range strings.Split(cells[0], "`, `") {
				word := strings.Trim(code.FindString("`"+strings.TrimLeft(words, "| `")+"`"), "`")
				listed[word] = strings.TrimSuffix(strings.ReplaceAll(cells[1], "`", ""), " |")
			}
		}
	}
	if len(listed) < 20 {
		t.Fatalf("docs/pf.md lists %d words", len(listed))
	}
	for _, word := range slices.Sorted(maps.Keys(outside)) {
		if listed[word] == "" {
			t.Errorf("docs/pf.md does not list %s: %s", word, outside[word])
		}
	}
	for _, word := range slices.Sorted(maps.Keys(refused)) {
		if listed[word] == "" {
			t.Errorf("docs/pf.md does not list %s", word)
		}
	}
	for word, why := range listed {
		statement, ok := refused[word]
		if !ok {
			t.Errorf("docs/pf.md lists %q, and there is no statement here that has it", word)
			continue
		}
		_, err := Parse("pf.conf", []byte(statement), source)
		var list ErrorList
		if !errors.As(err, &list) || !slices.ContainsFunc(list, func(e Error) bool {
			named := outside[word] == "" || strings.HasPrefix(e.Message, word+": ")
			return named && strings.Contains(strings.ReplaceAll(e.Message, "`", ""), why)
		}) {
			t.Errorf("%s: docs/pf.md says: %s; the error is: %v", statement, why, err)
		}
	}
}
