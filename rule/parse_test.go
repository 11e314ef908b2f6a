// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

var long = strings.Repeat("x", MaxTag)

func TestParseRule(t *testing.T) {
	tests := []struct {
		text, port string
		want       string // the output of String
	}{
		{"block on em0", "", "block on em0"},
		{"pass in on em0", "", "pass in on em0"},
		{"block out on em0", "", "block out on em0"},
		{"block in/out on em0", "", "block on em0"},
		{"rule block in on em0", "", "block in on em0"},
		{"block", "em0", "block on em0"},
		{"block in", "em0", "block in on em0"},
		{"block in on em0", "em0", "block in on em0"},
		{"block src 02:00:00:00:00:01", "em0", "block on em0 src 02:00:00:00:00:01"},
		{"block on src src 02:00:00:00:00:01", "", "block on src src 02:00:00:00:00:01"},
		{"pass in on em0 dst 2:0:0:0:0:1 src FF:FF:FF:FF:FF:FF", "", "pass in on em0 src ff:ff:ff:ff:ff:ff dst 02:00:00:00:00:01"},
		{"pass on em0 src 02-00-00-00-00-0a dst 0200.0000.000b", "", "pass on em0 src 02:00:00:00:00:0a dst 02:00:00:00:00:0b"},
		{"pass on em0 tag arp", "", "pass on em0 tag arp"},
		{"pass on em0 tag " + long, "", "pass on em0 tag " + long},
		{"block on em0 arp", "", "block on em0 arp"},
		{"block on em0 rarp reply", "", "block on em0 rarp reply"},
		{"block on em0 arp spa 0.0.0.0 request", "", "block on em0 arp request spa 0.0.0.0"},
		{`block in on "#c" src 02:00:00:00:00:01`, "", `block in on "#c" src 02:00:00:00:00:01`},
		{`block in on "#c"`, "#c", `block in on "#c"`},
		{"block in", "#c", `block in on "#c"`},
		{`block in on "em0"`, "em0", "block in on em0"},
		{"block in", `"a"`, `block in on ""a""`},
		{`block in on ""a""`, `"a"`, `block in on ""a""`},
		{`block in on ""`, `""`, `block in on """"`},
		{"block on em0 rarp tpa 255.255.255.255", "", "block on em0 rarp tpa 255.255.255.255"},
		{"block on em0 arp tag a src 02:00:00:00:00:01", "", "block on em0 src 02:00:00:00:00:01 tag a arp"},
		// the format of OpenBSD's bridge_showrule
		{
			"block in/out on em0 src 02:00:00:00:00:01 dst 02:00:00:00:00:02 tag a arp request " +
				"sha 02:00:00:00:00:03 tha 02:00:00:00:00:04 spa 192.0.2.1 tpa 192.0.2.2", "",
			"block on em0 src 02:00:00:00:00:01 dst 02:00:00:00:00:02 tag a arp request " +
				"sha 02:00:00:00:00:03 spa 192.0.2.1 tha 02:00:00:00:00:04 tpa 192.0.2.2",
		},
	}
	for _, test := range tests {
		r, err := ParseRule(strings.Fields(test.text), test.port)
		if err != nil || r.String() != test.want {
			t.Errorf("%q for port %q is read as %q, %v, want %q", test.text, test.port, r, err, test.want)
		}
	}
}

func TestParseRuleErrors(t *testing.T) {
	const mac = "; give six bytes such as 02:00:00:00:00:01"
	const ip = "; give one such as 192.0.2.1"
	const tag = "; give a name of 1 to 63 bytes"
	tests := []struct {
		text, port string // words are separated by one space
		column     int
		want       string
	}{
		{"", "", 1, "the rule ends too early; give block or pass"},
		{"rule", "", 6, "the rule ends too early; give block or pass"},
		{"deny on em0", "", 1, "deny: not expected here; give block or pass"},
		{"Block on em0", "", 1, "Block: not expected here; give block or pass"},
		{"block", "", 7, "the rule ends too early; give in, out or on PORT"},
		{"block in", "", 10, "the rule ends too early; give on PORT"},
		{"block in out on em0", "", 10, "out: not expected here; give on PORT"},
		{"block src 02:00:00:00:00:01 on em0", "", 7, "src: not expected here; give in, out or on PORT"},
		{"block on", "", 10, "on: nothing follows it; give the name of a port"},
		{"block on ", "", 10, "\"\": no name for on; give the name of a port"},
		{"block on em1", "em0", 10, "em1: the rule is for port em0; give on em0, or leave it out"},
		{"block inn", "em0", 7, "inn: not expected here; give in, out, on PORT, src, dst, tag, arp or rarp"},
		{"block in src 02:00:00:00:00:01 on em0", "em0", 32, "on: not expected here; give dst, tag, arp or rarp"},
		{"block on em0 from", "", 14, "from: not expected here; give src, dst, tag, arp or rarp"},
		{"block on em0 arp request foo", "", 26, "foo: not expected here; give src, dst, tag, sha, spa, tha or tpa"},
		{
			"block on em0 src 2:0:0:0:0:1 dst 2:0:0:0:0:1 tag a arp reply sha 2:0:0:0:0:1 spa 1.2.3.4 tha 2:0:0:0:0:1 tpa 1.2.3.4 foo", "", 118,
			"foo: not expected here; the rule is complete without it",
		},
		{"block on em0 src", "", 18, "src: nothing follows it" + mac},
		{"block on em0 src zz", "", 18, "zz: not a MAC address for src" + mac},
		{"block on em0 src ", "", 18, "\"\": not a MAC address for src" + mac},
		{"block on em0 dst 02:00:00:00:00", "", 18, "02:00:00:00:00: not a MAC address for dst" + mac},
		{"block on em0 dst 02:00:00:00:00:001", "", 18, "02:00:00:00:00:001: not a MAC address for dst" + mac},
		{"block on em0 dst 02:00:00:00:00:00:00:01", "", 18, "02:00:00:00:00:00:00:01: not a MAC address for dst" + mac},
		{"block on em0 arp sha 02:00:00:00:00:0g", "", 22, "02:00:00:00:00:0g: not a MAC address for sha" + mac},
		{"block on em0 arp spa 192.0.2", "", 22, "192.0.2: not an IPv4 address for spa" + ip},
		{"block on em0 arp tpa", "", 22, "tpa: nothing follows it" + ip},
		{"block on em0 arp spa fe80::1", "", 22, "fe80::1: an IPv6 address, and ARP has IPv4 only" + ip},
		{"block on em0 arp spa ::ffff:192.0.2.1", "", 22, "::ffff:192.0.2.1: an IPv6 address, and ARP has IPv4 only" + ip},
		{"block on em0 sha 02:00:00:00:00:01 arp", "", 14, "sha: only after arp or rarp; give one of them before it"},
		{"block on em0 request", "", 14, "request: only after arp or rarp; give one of them before it"},
		{"block on em0 src 02:00:00:00:00:01 src 02:00:00:00:00:01", "", 36, "src: the rule has src already; give one only"},
		{"block on em0 tag a tag b", "", 20, "tag: the rule has tag already; give one only"},
		{"block on em0 arp rarp", "", 18, "rarp: the rule has arp already; give one only"},
		{"block on em0 rarp rarp", "", 19, "rarp: the rule has rarp already; give one only"},
		{"block on em0 arp reply request", "", 24, "request: the rule has reply already; give one only"},
		{"block on em0 arp spa 0.0.0.0 spa 0.0.0.0", "", 30, "spa: the rule has spa already; give one only"},
		{"block on em0 tag", "", 18, "tag: nothing follows it" + tag},
		{"block on em0 tag ", "", 18, "\"\": no name for tag" + tag},
		{"block on em0 tag " + long + "x", "", 18, long + "x: a tag of 64 bytes is too long" + tag},
		{"block on em0 tag #a", "", 18, "#a: # begins a comment, not the name for tag" + tag},
		{"block on em0 tag a\tb", "", 18, "a\tb: the name for tag has a character that is no letter, digit or sign" + tag},
		{"block on e\x1b[0m", "", 10, "e\ufffd[0m: the name for on has a character that is no letter, digit or sign; give the name of a port"},
		{"pass on ö0 foo", "", 12, "foo: not expected here; give src, dst, tag, arp or rarp"},
	}
	for _, test := range tests {
		var words []string
		if test.text != "" {
			words = strings.Split(test.text, " ")
		}
		r, err := ParseRule(words, test.port)
		want := Error{Column: test.column, Text: test.text, Msg: test.want}
		if err != want {
			t.Errorf("%q for port %q is read as %q, error %#v, want %#v", test.text, test.port, r, err, want)
		}
		if err != nil && err.Error() != test.want {
			t.Errorf("%q for port %q: the error prints %q, want %q", test.text, test.port, err, test.want)
		}
	}
}

func TestParseFile(t *testing.T) {
	const file = `# what the printer may do
  # and who may be it

rule pass in on em0 src 02:00:00:00:00:01	# the printer
	block in on em0 arp spa 192.0.2.1#2
pass out on em1 tag a#b
`
	_, err := ParseFile("rules", strings.NewReader(file), "")
	const want = "rules:5:26: 192.0.2.1#2: not an IPv4 address for spa; give one such as 192.0.2.1"
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	rules, err := ParseFile("rules", strings.NewReader(strings.Replace(file, ".1#2", ".1 #2", 1)), "")
	got := fmt.Sprint(rules)
	if want := "[pass in on em0 src 02:00:00:00:00:01 block in on em0 arp spa 192.0.2.1 pass out on em1 tag a#b]"; err != nil || got != want {
		t.Errorf("rules %s, %v, want %s", got, err, want)
	}
	rules, err = ParseFile("rules", strings.NewReader("block\r\npass in"), "em0")
	if want := "[block on em0 pass in on em0]"; err != nil || fmt.Sprint(rules) != want {
		t.Errorf("rules %s, %v, want %s", rules, err, want)
	}
}

// TestDetail checks that the caret is below the place, also after tabs, after multibyte characters,
// and if a word is missing before a comment.
func TestDetail(t *testing.T) {
	const file = "block in on em0\n" +
		"\tblock\ton em0 src zz\n" +
		"pass on ö0 \x1b[31m\n" +
		"pass on # em0\n" +
		"pass in \t # comment\n"
	const detail = "rules:2:19: zz: not a MAC address for src; give six bytes such as 02:00:00:00:00:01\n" +
		"    \tblock\ton em0 src zz\n" +
		"    \t     \t           ^\n" +
		"rules:3:12: \ufffd[31m: not expected here; give src, dst, tag, arp or rarp\n" +
		"    pass on ö0 \ufffd[31m\n" +
		"               ^\n" +
		"rules:4:8: on: nothing follows it; give the name of a port\n" +
		"    pass on # em0\n" +
		"           ^\n" +
		"rules:5:8: the rule ends too early; give on PORT\n" +
		"    pass in \t # comment\n" +
		"           ^\n"
	_, err := ParseFile("rules", strings.NewReader(file), "")
	var list Errors
	if !errors.As(err, &list) {
		t.Fatalf("error %v", err)
	}
	if got := list.Detail(); got != detail {
		t.Errorf("detail:\n%s\nwant:\n%s", got, detail)
	}
	first, _, _ := strings.Cut(detail, "\n")
	if got, want := err.Error(), first+" (and 3 more errors)"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	if got, want := list[:2].Error(), first+" (and 1 more error)"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	_, err = ParseRule([]string{"block", "on", "em0", "arp", "sha"}, "")
	const word = "sha: nothing follows it; give six bytes such as 02:00:00:00:00:01\n" +
		"    block on em0 arp sha\n" +
		"                         ^\n"
	if e := (Error{}); !errors.As(err, &e) || e.Detail() != word {
		t.Errorf("detail:\n%s\nwant:\n%s", e.Detail(), word)
	}
}

// TestManyErrors checks that ten lines are reported for a file without any rules.
func TestManyErrors(t *testing.T) {
	_, err := ParseFile("rules", strings.NewReader(strings.Repeat("x\n", 11)), "")
	var list Errors
	if !errors.As(err, &list) || len(list) != 10 || list[9].Line != 10 {
		t.Errorf("errors %#v", err)
	}
}

func TestParseFileReadErrors(t *testing.T) {
	failed := errors.New("the disk is gone")
	r := io.MultiReader(strings.NewReader("block on em0\n"), iotest.ErrReader(failed))
	if rules, err := ParseFile("rules", r, ""); !errors.Is(err, failed) || rules != nil {
		t.Errorf("rules %s, %v, want %v", rules, err, failed)
	}
	_, err := ParseFile("rules", strings.NewReader("block on em0\n"+strings.Repeat("x", 1<<20)), "")
	const want = "rules:2:1: the line is too long; give one rule on each line"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestNever(t *testing.T) {
	tests := []struct{ text, want string }{
		{"block on em0", ""},
		{"block on em0 src 02:00:00:00:00:01 dst 01:00:5e:00:00:01", ""},
		{"block on em0 src 00:00:00:00:00:00", "no frame comes from the zero address"},
		{"block on em0 src 01:00:5e:00:00:01", "no frame comes from a group address"},
		{"block on em0 src ff:ff:ff:ff:ff:ff", "no frame comes from a group address"},
	}
	for _, test := range tests {
		if got := parsed(t, test.text).Never(); got != test.want {
			t.Errorf("%q never matches: %q, want %q", test.text, got, test.want)
		}
	}
}

// parsed parses the rule in a text.
func parsed(t testing.TB, text string) Rule {
	t.Helper()
	r, err := ParseRule(strings.Fields(text), "")
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return r
}

// FuzzParseFile parses files, including its own output, by lines and by words.
func FuzzParseFile(f *testing.F) {
	f.Add("block in on em0 src 02:00:00:00:00:01 # comment\nrule pass on em1\n", "")
	f.Add("\tpass out tag a rarp reply sha 2:0:0:0:0:1 spa 192.0.2.1 tha 0200.0000.0002 tpa 0.0.0.0", "em0")
	f.Add("block in/out on em0 arp request\r\nblock on\x80 \n", "em0")
	f.Fuzz(func(t *testing.T, text, port string) {
		rules, err := ParseFile("rules", strings.NewReader(text), port)
		if list := (Errors{}); errors.As(err, &list) {
			checkPlaces(t, text, list)
		}
		var again strings.Builder
		for _, r := range rules {
			fmt.Fprintln(&again, r)
			if port == "" {
				sameWords(t, r)
			}
		}
		if port != "" { // it may be an invalid name
			return
		}
		got, err := ParseFile("printed", strings.NewReader(again.String()), "")
		if err != nil || !reflect.DeepEqual(got, rules) {
			t.Errorf("%q prints\n%s\nwhich is read as %v, %v", text, &again, got, err)
		}
	})
}

// FuzzParseRule parses the words of a command line, here separated by zeros.
func FuzzParseRule(f *testing.F) {
	f.Add("block\x00in\x00on\x00em0\x00tag\x00a")
	f.Add("pass\x00on\x00em0\x00tag\x00a b")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(strings.Split(text, "\x00"), "")
		if err != nil {
			return
		}
		sameWords(t, r)
		got, err := ParseFile("printed", strings.NewReader(r.String()), "")
		if err != nil || !reflect.DeepEqual(got, []Rule{r}) {
			t.Errorf("%q prints %q, which is read as %v, %v", text, r, got, err)
		}
	})
}

// sameWords checks that a printed rule is parsed as the same rule.
func sameWords(t rapid.TB, r Rule) {
	t.Helper()
	got, err := ParseRule(strings.Split(r.String(), " "), "")
	if err != nil || !reflect.DeepEqual(got, r) || got.String() != r.String() {
		t.Errorf("%q is read as %q, %v", r, got, err)
	}
}

// checkPlaces checks that the places of errors are within the text, and that their details have
// three lines each.
func checkPlaces(t *testing.T, text string, list Errors) {
	if len(list) == 0 || len(list) > maxErrors {
		t.Errorf("%d errors", len(list))
	}
	lines := strings.Split(text, "\n")
	for _, e := range list {
		if e.Line < 1 || e.Line > len(lines) || e.Text != strings.TrimSuffix(lines[e.Line-1], "\r") {
			t.Errorf("the error %#v is not of line %d", e, e.Line)
		}
		if last := len([]rune(e.Text)) + 1; e.Column < 1 || e.Column > last {
			t.Errorf("the error %#v is outside of the line, which ends before %d", e, last)
		}
		if n := strings.Count(e.Detail(), "\n"); n != 3 {
			t.Errorf("the detail of %#v has %d lines", e, n)
		}
	}
}
