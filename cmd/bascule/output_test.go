// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
	"testing"

	"bascule/bridge"
)

// TestPrinter checks that control characters in device names do not reach the terminal, since other
// users can set these names.
func TestPrinter(t *testing.T) {
	const text = "p1\x1b[31m\tup\r\n\xfftap\x7f é – ok\x00\n"
	const want = "p1�[31m\tup�\n�tap� é – ok�\n"
	for piece := 1; piece <= len(text); piece++ {
		var out bytes.Buffer
		p := &printer{to: &out}
		for rest := []byte(text); len(rest) > 0; {
			n := min(piece, len(rest))
			if wrote, err := p.Write(rest[:n]); wrote != n || err != nil {
				t.Fatal(wrote, err)
			}
			rest = rest[n:]
		}
		if out.String() != want {
			t.Errorf("in pieces of %d bytes it prints %q, want %q", piece, out.String(), want)
		}
	}
}

// TestRow checks that a name with a newline makes no further line of a table.
func TestRow(t *testing.T) {
	var out bytes.Buffer
	p := &program{out: bufio.NewWriter(&out)}
	list := []string{"a.yaml\n1  2026-01-01  root", "b\tc\rd é"}
	if err := printList(p, list, func(s string) string { return s }, "N WHAT", func(s string) []string { return []string{"0", s} }); err != nil {
		t.Fatal(err)
	}
	if err := p.out.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "N  WHAT\n0  a.yaml\ufffd1  2026-01-01  root\n0  b\ufffdc\ufffdd é\n"; out.String() != want {
		t.Errorf("it prints %q, want %q", out.String(), want)
	}
}

// oddNames is a switch whose device names have control characters.
type oddNames struct{ switcher }

func (oddNames) Ports(string) ([]bridge.Port, error) {
	return []bridge.Port{{Bridge: "br0", Name: "p\x1b[2J"}, {Bridge: "br0", Name: "p2"}}, nil
}

func (oddNames) Talkers(string) ([]bridge.Talker, error) {
	return []bridge.Talker{{Port: "p\x1b[2J"}, {Port: "p2"}}, nil
}

// TestTopNames checks that top, which draws by itself, gets printable names.
func TestTopNames(t *testing.T) {
	source := topSource{oddNames{}, ""}
	ports, err := source.Ports()
	if err != nil || ports[0].Name != "p\ufffd[2J" || ports[1].Name != "p2" {
		t.Errorf("ports are %+v, %v", ports, err)
	}
	talkers, err := source.Talkers()
	if err != nil || talkers[0].Port != "p\ufffd[2J" || talkers[1].Port != "p2" {
		t.Errorf("talkers are %+v, %v", talkers, err)
	}
}
