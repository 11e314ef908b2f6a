// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"

	"github.com/rogpeppe/go-internal/txtar"
)

// A manner is a file like files in real use: testdata/manner/NAME.txtar. Its parts are
//
//	pf.conf          the file
//	interfaces       of the host, as the file names them: "em0 192.0.2.1/24" or "em0 group egress"
//	anchor:PATH      what is loaded into an anchor
//	table:NAME       what is added to a table
//	/A/FILE          that pf.conf names
//	notes            of its load: "LINE:COLUMN idle|never WORD MORE"
//	probes           packets: see [probe]
//	traffic          of real hosts, for test/rulesets
type manner struct {
	parts      map[string]string
	interfaces map[string][]netip.Prefix
	groups     map[string][]string // of interfaces
}

func readManner(t *testing.T, path string) *manner {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &manner{map[string]string{}, map[string][]netip.Prefix{}, map[string][]string{}}
	for _, f := range archive.Files {
		m.parts[f.Name] = string(f.Data)
	}
	for line := range strings.Lines(m.parts["interfaces"]) {
		switch words := strings.Fields(line); {
		case len(words) == 3 && words[1] == "group":
			m.groups[words[0]] = append(m.groups[words[0]], words[2])
		case len(words) == 2:
			m.interfaces[words[0]] = append(m.interfaces[words[0]], netip.MustParsePrefix(words[1]))
		default:
			t.Fatalf("%s: %q", path, line)
		}
	}
	return m
}

// addresses returns the addresses of an interface or a group.
func (m *manner) addresses(name string, modes []string) (list []netip.Prefix) {
	first := map[bool]bool{} // by family
	for _, device := range slices.Sorted(func(yield func(string) bool) {
		for device := range m.interfaces {
			if !yield(device) {
				return
			}
		}
	}) {
		if device != name && name != "self" && pf.GroupName(device) != name && !slices.Contains(m.groups[device], name) {
			continue
		}
		for _, p := range m.interfaces[device] {
			is4 := p.Addr().Is4()
			if slices.Contains(modes, "0") && first[is4] {
				continue
			}
			first[is4] = true
			if !slices.Contains(modes, "network") {
				p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
			}
			list = append(list, p)
		}
	}
	return list
}

func (m *manner) source() pf.Source {
	return pf.Source{
		Open: func(name string) ([]byte, error) {
			text, ok := m.parts[name]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return []byte(text), nil
		},
		Lookup: func(name string, modes []string) ([]netip.Prefix, error) {
			list := m.addresses(name, modes)
			if list == nil {
				return nil, errors.New("no such name")
			}
			return list, nil
		},
	}
}

// notes returns the notes of a load, one on a line.
func notes(set *pf.Ruleset) (lines []string) {
	for kind, list := range map[string][]pf.Idle{"idle": set.Idle(), "never": set.Never()} {
		for _, i := range list {
			lines = append(lines, fmt.Sprintf("%d:%d %s %s %d", i.Pos.Line, i.Pos.Column, kind, i.Word, i.More))
		}
	}
	slices.SortFunc(lines, func(a, b string) int {
		number := func(s string) int { n, _ := strconv.Atoi(s[:strings.IndexByte(s, ':')]); return n }
		return number(a) - number(b)
	})
	return lines
}

// probe parses a packet that begins a connection, and its fate at an interface:
//
//	in|out INTERFACE PROTO SRC[:PORT] DST[:PORT] pass|block [from SRC[:PORT]] [to DST[:PORT]]
//
// Behind pass are the packet's addresses after translation, as far as they are given.
func probe(t *testing.T, m *manner, line string) (p reference.Packet, passes bool, from, to string) {
	t.Helper()
	words := strings.Fields(line)
	if len(words) < 6 || len(words)%2 != 0 {
		t.Fatalf("probe %q", line)
	}
	p.Direction = map[string]pf.Direction{"in": pf.In, "out": pf.Out}[words[0]]
	p.Port = reference.Port{Name: words[1], Groups: append(slices.Clone(m.groups[words[1]]), pf.GroupName(words[1]))}
	if p.Direction == pf.In {
		p.ReceivedOn = p.Port
	}
	p.Proto, _ = pf.Protocol(words[2])
	var err1, err2 error
	p.Src, p.SrcPort, err1 = endpoint(words[3], p.Proto)
	p.Dst, p.DstPort, err2 = endpoint(words[4], p.Proto)
	if err := errors.Join(err1, err2); err != nil || p.Proto == 0 || p.Direction == pf.Both {
		t.Fatalf("probe %q: %v", line, err)
	}
	p.Family = pf.Inet
	if p.Src.Is6() {
		p.Family = pf.Inet6
	}
	switch p.Proto {
	case reference.TCP:
		p.Flags = pf.SYN
	case reference.ICMP:
		p.ICMPType = 8
	case reference.ICMPv6:
		p.ICMPType = 128
	}
	for i := 6; i < len(words); i += 2 {
		switch words[i] {
		case "from":
			from = words[i+1]
		case "to":
			to = words[i+1]
		}
	}
	return p, words[5] == "pass", from, to
}

// endpoint reads an address, with a port behind the last colon if the protocol has ports.
func endpoint(text string, proto uint8) (netip.Addr, uint16, error) {
	if proto != reference.TCP && proto != reference.UDP {
		a, err := netip.ParseAddr(text)
		return a, 0, err
	}
	i := strings.LastIndexByte(text, ':')
	a, err := netip.ParseAddr(text[:max(i, 0)])
	port, err2 := strconv.ParseUint(text[i+1:], 10, 16)
	return a, uint16(port), errors.Join(err, err2)
}

// Files like real ones load unchanged and report words that have no effect here. They are
// printed with the same meaning, and pass and translate packets as OpenBSD's or FreeBSD's pf
// would.
func TestManner(t *testing.T) {
	paths, err := filepath.Glob("testdata/manner/*.txtar")
	if err != nil || len(paths) < 40 {
		t.Fatal(len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			m := readManner(t, path)
			set, err := pf.Parse("pf.conf", []byte(m.parts["pf.conf"]), m.source())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := notes(set), strings.FieldsFunc(m.parts["notes"], func(r rune) bool { return r == '\n' }); !slices.Equal(got, want) {
				t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			printed := set.String()
			again, err := pf.Parse("pf.conf", []byte(printed), m.source())
			if err != nil {
				t.Fatalf("what is printed is refused: %v\n%s", err, printed)
			}
			if twice := again.String(); twice != printed {
				t.Errorf("is printed\n%s\nand then\n%s", printed, twice)
			}
			anchors := reference.Loaded(set)
			tables := map[string][]pf.TableEntry{}
			for name, text := range m.parts {
				if path, ok := strings.CutPrefix(name, "anchor:"); ok {
					if anchors[path], err = pf.Parse(name, []byte(text), m.source()); err != nil {
						t.Fatal(err)
					}
				}
				if table, ok := strings.CutPrefix(name, "table:"); ok {
					for _, word := range strings.Fields(text) {
						p, err := pf.ParsePrefix(word)
						if err != nil {
							t.Fatal(err)
						}
						tables[table] = append(tables[table], pf.TableEntry{Prefix: p})
					}
				}
			}
			number := map[string]int{}
			_, err = pf.Compile(pf.Input{
				Main: set, Anchors: anchors, Ports: []pf.CompilePort{{Slot: 1, Name: "em0", Host: true}, {Slot: 2, Name: "em1"}},
				Table: func(anchor, name string) (int, error) {
					if _, ok := number[anchor+"/"+name]; !ok {
						number[anchor+"/"+name] = len(number)
					}
					return number[anchor+"/"+name], nil
				},
				Addresses: func(name string, modes []string) ([]netip.Prefix, error) { return m.addresses(name, modes), nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(m.parts["probes"]) {
				if strings.TrimSpace(line) == "" {
					continue
				}
				p, passes, from, to := probe(t, m, line)
				for _, rules := range []*pf.Ruleset{set, again} {
					router := reference.Router{Evaluator: &reference.Evaluator{Rules: rules, Anchors: anchors, Tables: tables, Addresses: m.addresses}}
					j := router.Judge(p)
					got := j.Action == pf.Pass && !j.Translate && !j.NoHop
					is := func(a netip.Addr, port uint16, want string) bool {
						return want == "" || want == a.String() || want == fmt.Sprintf("%v:%d", a, port)
					}
					if got != passes || passes && (!is(j.Packet.Src, j.Packet.SrcPort, from) || !is(j.Packet.Dst, j.Packet.DstPort, to)) {
						t.Errorf("%s\tpasses: %v, from %v:%d to %v:%d, by %v", line, got, j.Packet.Src, j.Packet.SrcPort, j.Packet.Dst, j.Packet.DstPort, j.Rule)
					}
				}
			}
		})
	}
}
