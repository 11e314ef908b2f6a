// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// A capture keeps at least MinSnaplen bytes of a frame, its header and its tag, and at
// most MaxSnaplen, which is also as far as an expression can look.
const (
	MinSnaplen = 18
	MaxSnaplen = 16384
)

// A SyntaxError reports an expression that libpcap does not accept.
type SyntaxError struct {
	Expression string
	Why        string // in libpcap's words
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("expression %q: %s", e.Expression, e.Why) }

// Names of the library: on Debian, and on other systems.
var libraries = []string{"libpcap.so.0.8", "libpcap.so.1"}

// From pcap/dlt.h and pcap/pcap.h.
const (
	ethernet       = 1 // DLT_EN10MB
	netmaskUnknown = ^uint32(0)
)

// program is libpcap's struct bpf_program.
type program struct {
	length uint32
	code   *unix.SockFilter
}

// library has the functions of libpcap that are used, see pcap(3).
type library struct {
	openDead func(linktype, snaplen int32) uintptr
	compile  func(handle uintptr, p *program, expression string, optimize int32, netmask uint32) int32
	geterr   func(handle uintptr) string
	freecode func(p *program)
	close    func(handle uintptr)
}

// load loads libpcap, at run time: bascule runs without it, captures with expressions
// do not.
func load() (*library, error) {
	for _, name := range libraries {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW)
		if err != nil {
			continue
		}
		var l library
		purego.RegisterLibFunc(&l.openDead, handle, "pcap_open_dead")
		purego.RegisterLibFunc(&l.compile, handle, "pcap_compile")
		purego.RegisterLibFunc(&l.geterr, handle, "pcap_geterr")
		purego.RegisterLibFunc(&l.freecode, handle, "pcap_freecode")
		purego.RegisterLibFunc(&l.close, handle, "pcap_close")
		return &l, nil
	}
	return nil, fmt.Errorf("cannot read expressions: there is no %s; install libpcap (Debian's package libpcap0.8)", libraries[0])
}

// Compile translates an expression in the language of pcap-filter(7) into classic BPF,
// whose result is not 0 for Ethernet frames that match. "" matches all frames, and does
// not need libpcap. Tags are expected in the frame. The error is a *SyntaxError, or
// that libpcap is missing.
func Compile(expression string, snaplen int) ([]unix.SockFilter, error) {
	if expression == "" {
		return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(snaplen)}}, nil
	}
	refuse := func(why string) error { return &SyntaxError{expression, why} }
	if strings.ContainsRune(expression, 0) {
		return nil, refuse("there is a zero byte in it")
	}
	l, err := load()
	if err != nil {
		return nil, err
	}
	handle := l.openDead(ethernet, int32(snaplen))
	if handle == 0 {
		return nil, errors.New("cannot read expressions: libpcap has no memory")
	}
	defer l.close(handle)

	var p program
	if l.compile(handle, &p, expression, 1, netmaskUnknown) != 0 {
		return nil, refuse(l.geterr(handle))
	}
	defer l.freecode(&p)
	code := append([]unix.SockFilter(nil), unsafe.Slice(p.code, p.length)...)
	for _, in := range code {
		switch {
		case aside(in):
			return nil, refuse("it asks for more than is in the frame (inbound, outbound, ifindex)")
		case in.Code == unix.BPF_JMP|unix.BPF_JA && int32(in.K) < 0:
			return nil, refuse("it takes a loop (protochain), which the kernel does not run")
		}
	}
	return code, nil
}

// aside reports whether an instruction reads the kernel's metadata of a packet, at the
// offsets of socket filters (linux/filter.h, SKF_AD_OFF).
func aside(in unix.SockFilter) bool {
	const first, count = 0xfffff000, 64
	return in.Code&(0x07|0xe0) == unix.BPF_LD|unix.BPF_ABS && in.K >= first && in.K < first+count
}
