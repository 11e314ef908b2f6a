// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"maps"
	"strings"
	"testing"
)

const someSymbols = `ffffffff81000000 T _text
ffffffff81000100 t veth_xmit	[veth]
ffffffff81000180 d a_variable
ffffffff81000200 W br_forward
ffffffffc0000000 t bpf_prog_7c262244c63fd5fa_bascule_tcx	[bpf]
`

// TestShare checks that each count is assigned to the function that contains its address.
func TestShare(t *testing.T) {
	s, err := parseSymbols(strings.NewReader(someSymbols))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.share(strings.NewReader("0 40\nffffffff81000100 20\nffffffff810001ff 30\nffffffff81000200 10\nffffffffc0000044 5\n"), 10)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]float64{User: 4, "veth_xmit": 5, "br_forward": 1, "bascule_tcx [bpf]": 0.5}; !maps.Equal(got, want) {
		t.Errorf("the shares are %v, want %v", got, want)
	}
	one, batches := "one-by-one:behind", "in-batches:frames=200000"
	for _, tt := range []struct {
		workload string
		counter  []float64
		agree    bool
	}{
		{one, []float64{10.4, 10.6, 90}, true}, {one, []float64{12, 12, 12}, false},
		{batches, []float64{12, 12, 12}, true}, {batches, []float64{13, 13, 13}, false},
	} {
		if err := agrees(got, tt.counter, mayDiffer(tt.workload)); (err == nil) != tt.agree {
			t.Errorf("%s: the machine counted %v: %v", tt.workload, tt.counter, err)
		}
	}
}

// TestShareErrors checks that an invalid profile is refused.
func TestShareErrors(t *testing.T) {
	s, err := parseSymbols(strings.NewReader(someSymbols))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                     "counted nothing",
		"veth_xmit 4\n":        `says "veth_xmit 4"`,
		"ffffffff80000000 1\n": "no function is at 0xffffffff80000000",
	} {
		if _, err := s.share(strings.NewReader(text), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	// What users other than root read.
	if _, err := parseSymbols(strings.NewReader("0000000000000000 T _text\n")); err == nil {
		t.Error("symbols without addresses are taken")
	}
}
