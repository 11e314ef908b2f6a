// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/test/cards/inside"
	"bascule/test/machines"
)

// Cards are chosen by the beginning of their names.
func TestChoose(t *testing.T) {
	for words, want := range map[string]string{
		"":    "virtio-net virtio-net/offloads virtio-net/2-queues virtio-net/no-offloads vmxnet3 igb e1000e",
		"igb": "igb", "igb e1000e": "igb e1000e", "virtio-net/o": "virtio-net/offloads", "e1000e igb e": "-", "nosuch": "-",
	} {
		list, err := choose(words)
		got := "-"
		if err == nil {
			var names []string
			for _, c := range list {
				names = append(names, c.name)
			}
			got = strings.Join(names, " ")
		}
		if got != want {
			t.Errorf("%q chooses %s, error %v, want %s", words, got, err, want)
		}
	}
}

// A card has the same properties at first and when it is put in again.
func TestDevices(t *testing.T) {
	c := card{kind: "virtio-net-pci", taps: true, queues: 2, set: map[string]any{"csum": false}}
	args := c.devices()
	for _, want := range []string{
		"virtio-net-pci,bus=slot1,csum=off,disable-legacy=on,duplex=full,id=card1,mac=02:b5:c1:00:00:11,mq=on,netdev=near1,romfile=,speed=1000,vectors=6",
		"tap,id=near1,ifname=near1,script=no,downscript=no,queues=2",
		"tap,id=far1,ifname=far1,script=no,downscript=no",
		"virtio-net-pci,netdev=far2,mac=02:b5:c1:00:01:12,romfile=,disable-legacy=on,bus=pcie.0,speed=1000,duplex=full",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("there is no %s in\n%s", want, strings.Join(args, "\n"))
		}
	}
	if args := (card{kind: "igb"}).devices(); !slices.Contains(args, "hubport,id=near2,hubid=2") || !slices.Contains(args, "igb,bus=slot2,id=card2,mac=02:b5:c1:00:00:12,netdev=near2,romfile=") {
		t.Errorf("of a card without taps there are\n%s", strings.Join(args, "\n"))
	}
}

// The page has the cards in the order of the list, and drops removed ones.
func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cards.md")
	if err := os.WriteFile(path, []byte("<!-- made by make test-cards -->\n<!-- end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"igb", "former", "vmxnet3"} {
		if err := page(path).Update(name, map[string]machines.Result{cases[0].Test: "`xdp`", kernelRow: "7.3.4", machines.BasculeRow: "v1"}, known); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| | case | vmxnet3 | igb |\n", "`TestCard/hooks` | `xdp` | `xdp` |\n", "| Linux |  | 7.3.4 | 7.3.4 |\n", "| bascule |  | v1 | v1 |\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// Each case of the machine has a row.
func TestCases(t *testing.T) {
	var names []string
	for _, c := range cases {
		names = append(names, strings.TrimPrefix(c.Test, "TestCard/"))
	}
	if !slices.Equal(names, inside.Cases) {
		t.Errorf("the rows are %q, should be %q", names, inside.Cases)
	}
}
