// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"slices"
	"testing"
)

// Words that are accepted but have no effect have one note for each word and reason, and so have
// rules that never match, with their number.
func TestNotes(t *testing.T) {
	tests := []struct {
		text string
		want []string
	}{
		{"set reassemble yes\nset reassemble no\nset fail-policy drop\nset require-order no\nset syncookies never\npass", nil},
		{"set reassemble yes no-df\nset keepcounters\nset fail-policy return", []string{
			"pf.conf:1:1 set reassemble 0", "pf.conf:3:1 set fail-policy 0"}},
		{"scrub in\nscrub out fragment crop\nscrub out on em0 max-mss 1440\nscrub on em1 fragment no reassemble", []string{
			"pf.conf:1:1 fragment reassemble 1", "pf.conf:2:11 fragment crop 0", "pf.conf:3:1 scrub 1"}},
		{"set ignore queue\naltq on em0 priq\nqueue a\npass queue a\npass set queue a\npass dnpipe 1\ndummynet-anchor x", []string{
			"pf.conf:2:1 altq 0", "pf.conf:3:1 queue 2", "pf.conf:6:6 dnpipe 0", "pf.conf:7:1 dummynet-anchor 0"}},
		{"pass user unknown\npass user != root\nblock group > 5\nanchor {\n block user { 5 6 } group unknown\n}\npass", []string{
			"pf.conf:3:1 group 2"}},
		{"pass user != unknown", []string{"pf.conf:1:1 user 0"}},
		{"pass in on em0 inet proto tcp to port 80 rdr-to 10.0.0.1 synproxy state\npass out modulate state\npass out proto tcp synproxy state", []string{
			"pf.conf:1:1 synproxy state 0", "pf.conf:3:1 synproxy state 0"}},
		{"pass out on em0 inet nat-to 10.0.0.1 modulate state\npass in on em0 inet route-to 10.0.0.1 modulate state\nblock in", []string{
			"pf.conf:1:1 modulate state 0", "pf.conf:2:1 modulate state 0"}},
		{"antispoof for { em0 em9 nosuch0 (em9) lo0 }\nantispoof for em1 inet6", []string{
			"pf.conf:1:21 antispoof for em9 0", "pf.conf:1:25 antispoof for nosuch0 0", "pf.conf:2:15 antispoof for em1 0"}},
	}
	for _, test := range tests {
		set := parse(t, test.text)
		var got []string
		for _, i := range slices.Concat(set.Idle(), set.Never()) {
			got = append(got, fmt.Sprint(i.Pos, " ", i.Word, " ", i.More))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s\ngives  %q\nwanted %q", test.text, got, test.want)
		}
	}
}

// Rules that never match are not in the program. A call of a whole anchor does not try parts of
// it that FreeBSD's lines have called.
func TestCompiledParts(t *testing.T) {
	anchor := parse(t, "rdr on em0 proto tcp to port 80 -> 10.0.0.1\nnat on em0 from 10/8 -> 192.0.2.1\nscrub in no-df\npass user root\nblock in")
	tests := []struct {
		text string
		want []string
	}{
		{"anchor a", []string{"match", "pass", "match rdr-to", "pass", "match nat-to", "block"}},
		{"nat-anchor a", []string{"pass", "match nat-to"}},
		{"rdr-anchor a", []string{"pass", "match rdr-to"}},
		{"binat-anchor a", []string{"pass", "match rdr-to", "pass", "match nat-to"}},
		{"scrub-anchor '*'\nnat-anchor a\npass\nanchor '*'", []string{"match", "pass", "match nat-to", "pass", "pass", "match rdr-to", "block"}},
		{"nat-anchor a\nrdr-anchor a\nscrub-anchor a\nanchor a", []string{"match", "pass", "match rdr-to", "pass", "match nat-to", "block"}},
		{"nat-anchor b\nanchor a on em0 user root", nil},
	}
	for _, test := range tests {
		program, err := Compile(Input{Main: parse(t, test.text), Anchors: map[string]*Ruleset{"a": anchor}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ref := range program.Source {
			what := actionNames[ref.Rule.Action]
			for i := range ref.Rule.Translations {
				what += " " + ref.Rule.Translations[i].Kind.String()
			}
			got = append(got, what)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s\ngives  %q\nwanted %q", test.text, got, test.want)
		}
	}
}
