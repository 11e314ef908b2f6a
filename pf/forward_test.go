// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// forwarding are rules with words for a packet's way. The key is the last word of the list
// that the datapath gets.
var forwarding = map[string]string{
	"nat-to":               "match out nat-to 10.0.0.1",
	"rdr-to":               "match in rdr-to 10.0.0.1",
	"af-to":                "pass in inet6 af-to inet from 10.0.0.1",
	"bitmask":              "match out nat-to 10.0.0.0/24 bitmask",
	"random":               "match in rdr-to 10.0.0.0/24 random",
	"source-hash":          "match out nat-to 10.0.0.0/24 source-hash",
	"round-robin":          "match out nat-to <t>",
	"least-states":         "match in rdr-to <t> least-states",
	"sticky-address":       "match out nat-to 10.0.0.1 sticky-address",
	"static-port":          "match out nat-to 10.0.0.1 static-port",
	"endpoint-independent": "match out nat-to 10.0.0.1 endpoint-independent",
	"weight":               "match out nat-to 10.0.0.1 weight 2",
	"table":                "match out nat-to <t> random",
	"route-to":             "pass in route-to 10.0.0.1",
	"reply-to":             "pass in reply-to 10.0.0.1",
	"dup-to":               "pass in dup-to 10.0.0.1",
	"divert-to":            "pass in divert-to 127.0.0.1 port 8021",
	"divert-reply":         "pass out divert-reply",
	"divert-packet":        "pass in divert-packet port 700",
}

// A word that the datapath does not carry out is refused when rules are compiled for it,
// wherever the rule is, and not when rules are only checked. Each word is refused on its own:
// the others do not allow it.
func TestMissing(t *testing.T) {
	before := maps.Clone(carried)
	defer func() { carried = before }()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(carried)), slices.Sorted(maps.Keys(forwarding))); diff != "" {
		t.Fatalf("words and examples: (-carried +examples)\n%s", diff)
	}
	for word, rule := range forwarding {
		carried = map[string]bool{}
		for w := range before {
			carried[w] = w != word
		}
		in := Input{Main: parse(t, "table <t> persist\n\t"+rule+" # comment\n"), Table: func(string, string) (int, error) { return 3, nil }}
		_, err := Compile(in)
		var list ErrorList
		if !errors.As(err, &list) || len(list) != 1 {
			t.Errorf("%s: %v", rule, err)
			continue
		}
		if e := list[0]; !strings.HasPrefix(e.Message, word+": ") || e.Pos.Line != 2 || e.Line != "\t"+rule+" # comment" ||
			!strings.Contains(rule[e.Pos.Column-2:], "-to") && !strings.Contains(rule[e.Pos.Column-2:], "divert-") {
			t.Errorf("%s: %v", rule, e)
		}
		in.Check = true
		if _, err := Compile(in); err != nil {
			t.Errorf("%s: checked: %v", rule, err)
		}
		for w := range carried {
			carried[w] = true
		}
		in.Check = false
		if _, err := Compile(in); err != nil {
			t.Errorf("%s: carried out: %v", rule, err)
		}
	}
}

// Words that the datapath will never carry out have another error than words that are missing
// so far, and are refused, too.
func TestMissingDivertPacket(t *testing.T) {
	want := "pf.conf:1:9: divert-packet: " + notDiverted + "\n    pass in divert-packet port 700\n            ^"
	if _, err := Compile(Input{Main: parse(t, "pass in divert-packet port 700\n")}); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// Uncalled rules are refused, too: they can be called later.
func TestMissingInAnchors(t *testing.T) {
	before := carried
	defer func() { carried = before }()
	carried = map[string]bool{"round-robin": true}
	nat := parse(t, "match out \\\n on em0 \\\n\tnat-to { 10.0.0.1, 10.0.0.2 }\n")
	want := "pf.conf:3:2: nat-to: is read, but not carried out yet; leave it out, or have nft(8) of a host do it\n" +
		"    \tnat-to { 10.0.0.1, 10.0.0.2 }\n    \t^"
	for name, in := range map[string]Input{
		"main":   {Main: nat},
		"loaded": {Main: &Ruleset{}, Anchors: map[string]*Ruleset{"x": nat}},
		"body":   {Main: &Ruleset{Rules: []Rule{{Action: CallAnchor, Anchor: &Anchor{Body: nat}}}}},
		"deep": {Main: &Ruleset{}, Anchors: map[string]*Ruleset{"x/y": {Rules: []Rule{
			{Action: CallAnchor, Anchor: &Anchor{Body: nat}}, {Action: CallAnchor, Anchor: &Anchor{Body: nat}}}}}},
	} {
		if _, err := Compile(in); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", name, err, want)
		}
	}
	loads := &Ruleset{Loads: []AnchorLoad{{Name: "x", Ruleset: nat}}}
	if got := loads.Missing().Error(); got != want {
		t.Errorf("load: %s", got)
	}
	many := parse(t, strings.Repeat("match out nat-to 10.0.0.1\n", 50))
	if n := len(many.Missing()); n != maxErrors {
		t.Errorf("%d errors, want %d", n, maxErrors)
	}
}

// The datapath gets the translations of each rule, the current addresses of an interface, and
// the numbers of tables.
func TestCompileTranslations(t *testing.T) {
	main := parse(t, `
pass
match out on em0 inet nat-to (em0)
match in rdr-to 10.0.0.1 port 80 nat-to (em0:network)
anchor "a" in tag x
match out inet6 nat-to (em0)/64 random
match in on { em0, em1 } rdr-to <pool>
`)
	inner := parse(t, "pass in to 64:ff9b::/96 af-to inet from (em0:0) to <pool>\n")
	prog, err := Compile(Input{
		Main: main, Anchors: map[string]*Ruleset{"a": inner}, Check: true,
		Table: func(anchor, name string) (int, error) { return map[string]int{"": 5, "a": 6}[anchor], nil },
		Addresses: func(name string, modes []string) ([]netip.Prefix, error) {
			list := map[string][]string{
				"":        {"192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128", "fe80::1/128"},
				"0":       {"192.0.2.1/32", "2001:db8::1/128"},
				"network": {"192.0.2.0/24", "2001:db8::/64"},
			}[strings.Join(modes, ":")]
			var prefixes []netip.Prefix
			for _, s := range list {
				prefixes = append(prefixes, netip.MustParsePrefix(s))
			}
			return prefixes, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, list := range prog.Translations {
		for _, tr := range list {
			line := prog.Source[i].Anchor + ": " + tr.Kind.String()
			for _, p := range []Pool{tr.Pool, tr.To} {
				for _, a := range p.Addrs {
					line += " " + a.String()
				}
				if p.Table != "" {
					line += " <" + p.Table + ">"
				}
				line += ";"
			}
			got = append(got, line)
		}
	}
	want := []string{
		": nat-to 192.0.2.1/32 192.0.2.2/32;;",
		": rdr-to 10.0.0.1/32;;", ": nat-to 192.0.2.0/24;;",
		"a: af-to 192.0.2.1/32; <pool>;",
		": nat-to 2001:db8::/64;;",
		": rdr-to <pool>;;", ": rdr-to <pool>;;",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[TableRef]int{{"", "pool"}: 5, {"a", "pool"}: 6}, prog.PoolTables); diff != "" {
		t.Errorf("tables: (-want +got)\n%s", diff)
	}
	if len(prog.Translations) != len(prog.Rules) {
		t.Errorf("%d lists of translations for %d rules", len(prog.Translations), len(prog.Rules))
	}
	if main.Rules[1].Translations[0].Pool.Addrs != nil {
		t.Error("the ruleset was changed")
	}
	if prog, err := Compile(Input{Main: parse(t, "pass\n")}); err != nil || prog.Translations != nil {
		t.Errorf("without a translation: %v, %v", prog.Translations, err)
	}
}

// A table as a pool has the addresses of the table: the smallest of nested entries decides,
// and no address is there twice.
func TestTablePool(t *testing.T) {
	for _, test := range []struct{ entries, want string }{
		{"", ""},
		{"10.0.0.9 10.0.0.1", "10.0.0.1/32 10.0.0.9/32"},
		{"10.0.0.0/30 !10.0.0.1", "10.0.0.0/32 10.0.0.2/31"},
		{"10.0.0.0/30 !10.0.0.0/31 10.0.0.1", "10.0.0.1/32 10.0.0.2/31"},
		{"10.0.0.0/30 10.0.0.1", "10.0.0.0/32 10.0.0.1/32 10.0.0.2/31"},
		{"!10.0.0.0/30 10.0.0.1 192.0.2.0/24", "10.0.0.1/32 192.0.2.0/24"},
		{"10.0.0.0/31 !10.0.0.0 !10.0.0.1", ""},
		{"fd00::/126 !fd00::3 192.0.2.1", "192.0.2.1/32 fd00::/127 fd00::2/128"},
	} {
		var entries []TableEntry
		for _, word := range strings.Fields(test.entries) {
			text, not := strings.CutPrefix(word, "!")
			p, err := netip.ParsePrefix(text)
			if err != nil {
				a := netip.MustParseAddr(text)
				p = netip.PrefixFrom(a, a.BitLen())
			}
			entries = append(entries, TableEntry{Not: not, Prefix: p})
		}
		var got []string
		pool := tablePool(entries)
		slices.SortFunc(pool, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		for _, p := range pool {
			got = append(got, p.String())
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: %s, want %s", test.entries, text, test.want)
		}
	}
}
