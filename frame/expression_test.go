// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// needLibpcap skips a test of expressions if libpcap is missing.
func needLibpcap(t *testing.T) {
	t.Helper()
	if _, err := purego.Dlopen(libraries[0], purego.RTLD_NOW); err != nil {
		t.Skipf("compiles expressions, which takes libpcap (Debian's package libpcap0.8): %v", err)
	}
}

func TestCompile(t *testing.T) {
	needLibpcap(t)
	code, err := Compile("arp", 96)
	want := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x0806, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 96},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	if err != nil || !slices.Equal(code, want) {
		t.Errorf("arp: %v, %v; want %v", code, err, want)
	}
	code, err = Compile("", 96)
	if err != nil || len(code) != 1 || code[0].K == 0 {
		t.Errorf("no expression: %v, %v; want all frames", code, err)
	}
}

func TestCompileRefused(t *testing.T) {
	needLibpcap(t)
	for _, test := range []struct{ expression, why string }{
		{"tcp prot 80", "syntax error"},
		{"host 1.2.3.4.5", "1.2.3.4.5"},
		{"ip broadcast", "netmask not known"},
		{"port 70000", "70000"},
		{"tcp and arp", "rejects all packets"},
		{"inbound", "more than is in the frame"},
		{"not outbound and arp", "more than is in the frame"},
		{"ip6 protochain 6", "takes a loop"},
		{"arp\x00", "zero byte"},
		{strings.Repeat("(", 20000) + "arp" + strings.Repeat(")", 20000), ""},
	} {
		code, err := Compile(test.expression, MaxSnaplen)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), test.why) || !strings.Contains(err.Error(), "expression") {
			t.Errorf("%.40q: %v, %v; want a syntax error with %q", test.expression, code, err, test.why)
		}
	}
}

// On a machine without libpcap, the error names the package to install.
func TestNoLibrary(t *testing.T) {
	had := libraries
	t.Cleanup(func() { libraries = had })
	libraries = []string{"libnone.so.0"}
	_, err := Compile("arp", MaxSnaplen)
	if err == nil || !strings.Contains(err.Error(), "libnone.so.0") || !strings.Contains(err.Error(), "libpcap0.8") {
		t.Errorf("error %v; want what is missing and its package", err)
	}
	if errors.As(err, new(*SyntaxError)) {
		t.Error("the expression is blamed for it")
	}
	if _, err := Compile("", MaxSnaplen); err != nil {
		t.Errorf("no expression needs it too: %v", err)
	}
}
