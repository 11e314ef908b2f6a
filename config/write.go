// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"bascule/bridge"
	"bascule/pattern"
	"bascule/rule"

	"github.com/goccy/go-yaml/token"
)

// Write writes the file as YAML that [Load] reads, without mirrors that copy
// nothing any more. It refuses mirrors with port names that Load would read as several names.
func (f File) Write(w io.Writer) error {
	for i := range f.Bridges {
		if err := writable(&f.Bridges[i]); err != nil {
			return err
		}
	}
	y := &yamlWriter{out: bufio.NewWriter(w)}
	if f.Netns != "" {
		y.line(0, "netns: "+scalarText(f.Netns))
	}
	if len(f.Bridges) == 0 {
		y.line(0, "bridges: {}")
		return y.out.Flush()
	}
	y.line(0, "bridges:")
	for _, b := range f.Bridges {
		b.Mirrors = slices.DeleteFunc(slices.Clone(b.Mirrors), func(m Mirror) bool { return m.Emptied })
		for _, s := range sections {
			s.keep(&b, func(i item) bool { return !i.idle })
		}
		y.bridge(&b)
	}
	return y.out.Flush()
}

// writable returns an error if a bridge has a value that a file cannot contain there.
func writable(b *Bridge) error {
	for _, m := range b.Mirrors {
		for _, p := range m.Ports {
			if strings.Contains(p, ",") {
				return fmt.Errorf("cannot write span port %s of %s: port %s would be read as two; give it another name", m.Device, b.Name, p)
			}
		}
	}
	for _, r := range b.Rules {
		if _, err := rule.ParseRule(strings.Fields(r.Text), ""); err != nil {
			return fmt.Errorf("cannot write a rule of %s: %w", b.Name, err)
		}
	}
	return nil
}

type yamlWriter struct{ out *bufio.Writer }

func (y *yamlWriter) line(depth int, text string) {
	fmt.Fprintf(y.out, "%s%s\n", strings.Repeat("  ", depth), text)
}

// plainWord matches text that YAML reads as a string or a number in any context, also between
// braces. Load uses the text.
var plainWord = pattern.New(`^[A-Za-z0-9_./][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*$`)

// otherMeaning matches text that YAML reads as something else.
var otherMeaning = pattern.New(`(?i)^(null|~|true|false|\.inf|\.nan|<<)$`)

// decimal matches a number that every YAML reader keeps as the same text, also after a conversion
// to JSON. 010 and 1e3 do not match.
var decimal = pattern.New(`^(0|[1-9][0-9]*)$`)

// scalarText returns text as a YAML scalar.
func scalarText(s string) string {
	if plainWord().MatchString(s) && !otherMeaning().MatchString(s) && (decimal().MatchString(s) || token.ToNumber(s) == nil) {
		return s
	}
	return quoted(s)
}

// quoted returns text in YAML's double quotes.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// A pair is a key with its value, in YAML.
type pair struct{ key, value string }

// flow returns pairs between braces.
func flow(pairs []pair) string {
	words := make([]string, len(pairs))
	for i, p := range pairs {
		words[i] = p.key + ": " + p.value
	}
	return "{" + strings.Join(words, ", ") + "}"
}

func settingPairs(changes []bridge.Change) (pairs []pair) {
	for _, c := range changes {
		pairs = append(pairs, pair{c.Name, scalarText(c.Value)})
	}
	return pairs
}

func (y *yamlWriter) bridge(b *Bridge) {
	empty := len(b.Settings)+len(b.Ports)+len(b.Private)+len(b.Rules)+len(b.Bindings)+len(b.Mirrors)+len(b.Entries) == 0 && b.PF == nil
	if empty {
		y.line(1, scalarText(b.Name)+": {}")
		return
	}
	y.line(1, scalarText(b.Name)+":")
	for _, p := range settingPairs(b.Settings) {
		y.line(2, p.key+": "+p.value)
	}
	if len(b.Ports) > 0 {
		y.line(2, "ports:")
	}
	for i := range b.Ports {
		p := &b.Ports[i]
		y.line(3, scalarText(p.Name)+": "+flow(portPairs(p)))
	}
	if len(b.Private) > 0 {
		y.line(2, "private-vlans:")
	}
	for _, p := range b.Private {
		var pairs []pair
		if len(p.Isolated) > 0 {
			pairs = append(pairs, pair{bridge.KindIsolated, vlanList(p.Isolated)})
		}
		if len(p.Community) > 0 {
			pairs = append(pairs, pair{bridge.KindCommunity, vlanList(p.Community)})
		}
		y.line(3, fmt.Sprintf("%d: %s", p.Primary, flow(pairs)))
	}
	if len(b.Rules) > 0 {
		y.line(2, "rules:")
	}
	for _, r := range b.Rules {
		y.line(3, "- "+quoted(r.Text))
	}
	for _, s := range beforeMirrors {
		y.section(s, b)
	}
	y.mirrors(b)
	for _, s := range afterMirrors {
		y.section(s, b)
	}
	y.pf(b.PF)
}

// vlanList returns VLANs as a scalar. A comma would end a value between braces.
func vlanList(ids []uint16) string {
	return scalarText(bridge.FormatVLANs(slices.Sorted(slices.Values(ids))))
}

func portPairs(p *Port) (pairs []pair) {
	o := p.Options
	for _, f := range []pair{{"type", o.Type}, {"peer", o.Peer}, {"hook", o.Hook}} {
		if f.value != "" {
			pairs = append(pairs, pair{f.key, scalarText(f.value)})
		}
	}
	if o.Force {
		pairs = append(pairs, pair{"force", switchWord(true)})
	}
	pairs = append(pairs, settingPairs(o.Changes)...)
	switch {
	case p.MAC != nil:
		pairs = append(pairs, pair{"mac", quoted(p.MAC.String())})
	case p.OwnMAC:
		pairs = append(pairs, pair{"mac", bridge.Auto})
	}
	if p.MTU != 0 {
		pairs = append(pairs, pair{"mtu", fmt.Sprint(p.MTU)})
	}
	if p.Addresses != nil {
		words := make([]string, len(p.Addresses))
		for i, a := range p.Addresses {
			words[i] = quoted(a.String())
		}
		pairs = append(pairs, pair{"addresses", "[" + strings.Join(words, ", ") + "]"})
	}
	if p.Up != nil {
		pairs = append(pairs, pair{"up", switchWord(*p.Up)})
	}
	if p.Description != nil {
		pairs = append(pairs, pair{"description", quoted(*p.Description)})
	}
	if p.VLANs == nil {
		return pairs
	}
	pvid, untagged, tagged := vlanWords(p.VLANs)
	vlans := []pair{}
	for _, f := range []pair{{"pvid", pvid}, {"untagged", untagged}, {"tagged", tagged}} {
		if f.value != "none" {
			vlans = append(vlans, pair{f.key, scalarText(f.value)})
		}
	}
	if len(vlans) == 0 { // otherwise it would be in the default VLAN
		vlans = append(vlans, pair{"pvid", "none"})
	}
	return append(pairs, vlans...)
}

func (y *yamlWriter) mirrors(b *Bridge) {
	if len(b.Mirrors) > 0 {
		y.line(2, "mirrors:")
	}
	for _, m := range b.Mirrors {
		var pairs []pair
		if len(m.Ports) > 0 {
			words := make([]string, len(m.Ports))
			for i, p := range m.Ports {
				words[i] = scalarText(p)
			}
			pairs = append(pairs, pair{"ports", "[" + strings.Join(words, ", ") + "]"})
		}
		if len(m.VLANs) > 0 {
			pairs = append(pairs, pair{"vlans", vlanList(m.VLANs)})
		}
		if m.Direction != "" {
			pairs = append(pairs, pair{"direction", m.Direction})
		}
		if m.Force {
			pairs = append(pairs, pair{"force", switchWord(true)})
		}
		y.line(3, scalarText(m.Device)+": "+flow(pairs))
	}
}

// pf writes the desired state of pf. Rules are written as a block if the last line has an end and
// the first one does not begin with a space.
func (y *yamlWriter) pf(p *PF) {
	switch {
	case p == nil:
		return
	case p.File == "" && p.Rules == "":
		y.line(2, "pf: "+switchWord(p.Enabled))
		return
	}
	y.line(2, "pf:")
	y.line(3, "enabled: "+switchWord(p.Enabled))
	if p.File != "" {
		y.line(3, "file: "+scalarText(p.File))
	}
	text := strings.TrimSuffix(p.Rules, "\n")
	switch {
	case p.Rules == "":
	case text == p.Rules, strings.HasPrefix(text, " "), strings.ContainsFunc(text, func(c rune) bool { return c < 0x20 && c != '\n' && c != '\t' || c > 0x7e }), strings.HasSuffix(text, "\n"), text == "":
		y.line(3, "rules: "+quoted(p.Rules))
	default:
		y.line(3, "rules: |")
		for _, line := range strings.Split(text, "\n") {
			if line == "" {
				fmt.Fprintln(y.out)
				continue
			}
			y.line(4, line)
		}
	}
}
