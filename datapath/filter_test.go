// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"bascule/frame"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

const filterSize = 2048 // bytes of the tests' buffer

// A filterBench runs filters in the kernel, on frames that user space puts into a
// buffer as the datapath would.
type filterBench struct {
	buffer *ebpf.Map
	frame  *ebpf.Map // its captured bytes, and its length
}

func newFilterBench(t *testing.T) *filterBench {
	t.Helper()
	needRoot(t)
	array := func(size uint32) *ebpf.Map {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	return &filterBench{array(filterSize), array(8)}
}

// caller is a program that calls filterFunction, which rejects every frame.
func (b *filterBench) caller(linkage btf.FuncLinkage) *ebpf.ProgramSpec {
	number := &btf.Int{Name: "unsigned int", Size: 4}
	signed := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	bytes := &btf.Array{Index: number, Type: &btf.Int{Name: "unsigned char", Size: 1}, Nelems: filterSize}
	buffer := &btf.Struct{Name: "capture_buffer", Size: filterSize, Members: []btf.Member{{Name: "data", Type: bytes}}}
	function := func(name string, linkage btf.FuncLinkage, params ...btf.FuncParam) *btf.Func {
		return &btf.Func{Name: name, Linkage: linkage, Type: &btf.FuncProto{Return: signed, Params: params}}
	}
	main := function("bench", btf.GlobalFunc, btf.FuncParam{Name: "ctx", Type: &btf.Pointer{Target: &btf.Void{}}})
	stub := function(filterFunction, linkage,
		btf.FuncParam{Name: "b", Type: &btf.Pointer{Target: buffer}},
		btf.FuncParam{Name: "captured", Type: number}, btf.FuncParam{Name: "len", Type: number})

	look := func(m *ebpf.Map, keep asm.Register) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Reg(keep, asm.R0),
		}
	}
	line := btf.WithFuncMetadata
	ins := asm.Instructions{line(asm.Mov.Imm(asm.R6, 0).WithSymbol("bench"), main).WithSource(asm.Comment("begin"))}
	ins = append(ins, look(b.buffer, asm.R6)...)
	ins = append(ins, look(b.frame, asm.R7)...)
	ins = append(ins,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMem(asm.R2, asm.R7, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R7, 4, asm.Word),
		asm.Call.Label(filterFunction),
		asm.Mov.Imm(asm.R6, 0).WithSymbol("out"), // the result stays in R0
		asm.Return(),
		line(asm.Mov.Imm(asm.R0, 0).WithSymbol(filterFunction), stub).WithSource(asm.Comment("filter")),
		asm.Return(),
	)
	return &ebpf.ProgramSpec{Name: "bench", Type: ebpf.SchedCLS, License: "GPL", Instructions: ins}
}

// load loads a filter and returns a function that runs it on a captured part of a frame
// of len bytes.
func (b *filterBench) load(t *testing.T, code []unix.SockFilter, linkage btf.FuncLinkage) func(captured []byte, length int) uint32 {
	t.Helper()
	spec := b.caller(linkage)
	if err := setFilter(spec, code, filterSize); err != nil {
		t.Fatal(err)
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { prog.Close() })
	return func(captured []byte, length int) uint32 {
		value := slices.Repeat([]byte{0x08}, filterSize) // remains of an earlier frame
		copy(value, captured)
		if err := b.buffer.Put(uint32(0), value); err != nil {
			t.Fatal(err)
		}
		if err := b.frame.Put(uint32(0), [2]uint32{uint32(len(captured)), uint32(length)}); err != nil {
			t.Fatal(err)
		}
		got, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

// libpcapFilter is bpf_filter() of libpcap, which tcpdump runs over a file.
func libpcapFilter(t *testing.T) func(code []unix.SockFilter, captured []byte, length int) uint32 {
	t.Helper()
	lib, err := purego.Dlopen("libpcap.so.0.8", purego.RTLD_NOW)
	if err != nil {
		t.Skipf("compares with libpcap, which is not installed (Debian's package libpcap0.8): %v", err)
	}
	var filter func(code *unix.SockFilter, packet *byte, wire, captured uint32) uint32
	purego.RegisterLibFunc(&filter, lib, "bpf_filter")
	return func(code []unix.SockFilter, captured []byte, length int) uint32 {
		room := append(captured[:len(captured):len(captured)], 0) // so that there is a first byte
		return filter(&code[0], &room[0], uint32(length), uint32(len(captured)))
	}
}

// layers of frames to be filtered
var (
	etherIPv4 = []byte{0x08, 0x00}
	etherARP  = []byte{0x08, 0x06}
	etherIPv6 = []byte{0x86, 0xdd}
)

func vlanTag(vid uint16) []byte { return binary.BigEndian.AppendUint16([]byte{0x81, 0x00}, vid) }

// ipv4 is an IPv4 header with the given number of bytes of options, followed by rest.
func ipv4(protocol byte, options int, fragment uint16, rest ...[]byte) []byte {
	h := append([]byte{0x45 + byte(options/4), 0, 0, 100, 0, 1, byte(fragment >> 8), byte(fragment), 64, protocol, 0, 0},
		10, 0, 0, 1, 192, 0, 2, 7)
	h = append(h, slices.Repeat([]byte{1}, options)...)
	return append(h, slices.Concat(rest...)...)
}

func ipv6(next byte, rest ...[]byte) []byte {
	h := []byte{0x60, 0, 0, 0, 0, 40, next, 64}
	h = append(h, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
	h = append(h, 0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2)
	return append(h, slices.Concat(rest...)...)
}

// ports is the beginning of a TCP or UDP header, with made-up bytes behind the ports.
func ports(src, dst uint16) []byte {
	h := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
	return append(h, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 1, 0, 0, 0, 0, 0)
}

func filterFrames() [][]byte {
	head := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	broad := []byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1}
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2}
	large := make([]byte, filterSize)
	copy(large, slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_UDP, 0, 0, ports(53, 1024))))
	return [][]byte{
		slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_TCP, 0, 0, ports(51000, 443))),
		slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_TCP, 40, 0, ports(443, 51000))),
		slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_TCP, 0, 0x2001, ports(443, 51000))), // a fragment
		slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_UDP, 4, 0, ports(443, 53), make([]byte, 60))),
		slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_ICMP, 0, 0, []byte{8, 0, 0, 0, 0, 1, 0, 1})),
		slices.Concat(head, etherIPv4, ipv4(unix.IPPROTO_ICMP, 8, 0, []byte{0, 0, 0, 0, 0, 1, 0, 1})),
		slices.Concat(head, etherIPv6, ipv6(unix.IPPROTO_TCP, ports(443, 9))),
		slices.Concat(head, etherIPv6, ipv6(unix.IPPROTO_ICMPV6, []byte{135, 0, 0, 0})),
		slices.Concat(broad, etherARP, arp, make([]byte, 18)),
		slices.Concat(head, vlanTag(10), etherIPv4, ipv4(unix.IPPROTO_TCP, 0, 0, ports(51000, 443))),
		slices.Concat(head, vlanTag(0x600a), etherARP, arp),
		slices.Concat(head, vlanTag(11), etherIPv4, ipv4(unix.IPPROTO_UDP, 0, 0, ports(1, 2))),
		slices.Concat(head, []byte{0x88, 0xa8, 0, 100}, vlanTag(10), etherIPv6, ipv6(unix.IPPROTO_UDP, ports(1, 443))),
		slices.Concat(head, []byte{0, 40}, make([]byte, 40)), // a length: 802.3
		large,
	}
}

var filterExpressions = []string{
	"",
	"tcp port 443",
	"not tcp port 443",
	"arp",
	"vlan",
	"vlan 10 and ip",
	"vlan 100 and vlan 10",
	"vlan 10 and tcp dst port 443",
	"host 10.0.0.1",
	"src net 192.0.2.0/24 or arp host 10.0.0.2",
	"ip6",
	"ip6 host fe80::1 and not icmp6",
	"ether host 02:00:00:00:00:02",
	"ether broadcast",
	"ether multicast",
	"greater 100",
	"less 60",
	"len == 60",
	"icmp[0]=8",
	"icmp[icmptype] == icmp-echoreply",
	"not icmp[0]=8",
	"tcp[tcpflags] & (tcp-syn|tcp-ack) != 0",
	"udp portrange 50-60",
	"ip[2:2] - ((ip[0] & 0xf) << 2) > 30",
	"ip[0] % 7 = 6 or ip[8] / 3 = 21 or (ip[9] ^ 3) * 5 > 20",
	"ether[len - 1] = 0",
	"ether[ether[14]] = 10",
	"ether[2044:4] = 0",
	"ether[2045:4] = 0",
	"ether[0x7fffffff] = 0",
	"ether[4294967295 - 3] = 0",
	"10 / (len - 60) = 0",
	"1 << (len - 30) != 0",
	"ether[0:4] >> ether[18] != 0",
	"ether proto 0x88a8",
	"ip proto 17 and not port 53",
	"ip multicast or ip6 multicast",
	"port 443 and (host 192.0.2.7 or ip6) and not vlan",
}

// For every expression, the kernel and libpcap give the same result: on the whole
// frame, and on every captured part of it.
func TestFilterExpressions(t *testing.T) {
	b := newFilterBench(t)
	libpcap := libpcapFilter(t)
	frames := filterFrames()
	wanted, unwanted := 0, 0
	for _, expression := range filterExpressions {
		t.Run(strings.ReplaceAll(expression, "/", "|"), func(t *testing.T) {
			code, err := frame.Compile(expression, filterSize)
			if err != nil {
				t.Fatal(err)
			}
			for _, linkage := range []btf.FuncLinkage{btf.GlobalFunc, btf.StaticFunc} {
				run := b.load(t, code, linkage)
				for i, frame := range frames {
					for _, n := range cuts(frame) {
						want, got := libpcap(code, frame[:n], len(frame)) != 0, run(frame[:n], len(frame)) != 0
						if got != want {
							t.Errorf("%v: frame %d, %d bytes of it: wanted %t, libpcap says %t", linkage, i, n, got, want)
						}
						if want {
							wanted++
						} else {
							unwanted++
						}
					}
				}
			}
		})
	}
	if wanted == 0 || unwanted == 0 {
		t.Errorf("%d frames wanted, %d not: there must be both", wanted, unwanted)
	}
}

// cuts are lengths at which a frame is truncated, and its full length.
func cuts(frame []byte) []int {
	list := []int{len(frame)}
	for n := range min(len(frame), 90) {
		list = append(list, n)
	}
	return list
}

// Every instruction has the same effect in the kernel as in libpcap, with numbers at
// the ends of their range.
func TestFilterInstructions(t *testing.T) {
	b := newFilterBench(t)
	libpcap := libpcapFilter(t)
	rng := rand.New(rand.NewPCG(1, 2))
	frame := make([]byte, 64)
	for i := range frame {
		frame[i] = byte(rng.Uint32())
	}
	copy(frame, []byte{0, 0, 0, 31, 0, 0, 0, 32, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x80, 0, 0, 0})

	const k, x = unix.BPF_K, unix.BPF_X
	stmt := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	numbers := []uint32{0, 1, 31, 32, 0x7fffffff, 0x80000000, 0xffffffff}
	cases := map[string][]unix.SockFilter{
		"ld imm":     {stmt(unix.BPF_LD|unix.BPF_IMM, 0x89abcdef)},
		"ld len":     {stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_LEN, 0)},
		"ldx len":    {stmt(unix.BPF_LDX|unix.BPF_W|unix.BPF_LEN, 0), stmt(unix.BPF_MISC|unix.BPF_TXA, 0)},
		"ldx msh":    {stmt(unix.BPF_LDX|unix.BPF_B|unix.BPF_MSH, 21), stmt(unix.BPF_MISC|unix.BPF_TXA, 0)},
		"st, ld mem": {stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 24), stmt(unix.BPF_ST, 15), stmt(unix.BPF_LD|unix.BPF_IMM, 0), stmt(unix.BPF_LD|unix.BPF_MEM, 15)},
		"stx, ldx mem": {stmt(unix.BPF_LDX|unix.BPF_IMM, 7), stmt(unix.BPF_STX, 0), stmt(unix.BPF_LDX|unix.BPF_IMM, 0),
			stmt(unix.BPF_LDX|unix.BPF_MEM, 0), stmt(unix.BPF_MISC|unix.BPF_TXA, 0)},
		"neg": {stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 24), stmt(unix.BPF_ALU|unix.BPF_NEG, 0)},
		"ja": {stmt(unix.BPF_LD|unix.BPF_IMM, 1), {Code: unix.BPF_JMP | unix.BPF_JEQ | k, K: 2, Jt: 0, Jf: 1},
			stmt(unix.BPF_JMP|unix.BPF_JA, 1), stmt(unix.BPF_LD|unix.BPF_IMM, 5)},
	}
	for name, size := range map[string]uint16{"w": unix.BPF_W, "h": unix.BPF_H, "b": unix.BPF_B} {
		for _, at := range []uint32{0, 13, 59, 60, 61, 62, 63, 64, filterSize - 1, filterSize, 0x7fffffff} {
			cases[fmt.Sprintf("ld %s at %d", name, at)] = []unix.SockFilter{stmt(unix.BPF_LD|size|unix.BPF_ABS, at)}
			for _, index := range []uint32{0, 1, 31, 0x7fffffff, 0xffffffff} {
				cases[fmt.Sprintf("ld %s at %d + %d", name, at, index)] = []unix.SockFilter{
					stmt(unix.BPF_LDX|unix.BPF_IMM, index), stmt(unix.BPF_LD|size|unix.BPF_IND, at),
				}
			}
		}
	}
	for name, op := range map[string]uint16{
		"add": unix.BPF_ADD, "sub": unix.BPF_SUB, "mul": unix.BPF_MUL, "div": unix.BPF_DIV, "mod": unix.BPF_MOD,
		"and": unix.BPF_AND, "or": unix.BPF_OR, "xor": unix.BPF_XOR, "lsh": unix.BPF_LSH, "rsh": unix.BPF_RSH,
	} {
		for _, n := range numbers {
			load := stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 24)
			cases[fmt.Sprint(name, " index ", n)] = []unix.SockFilter{load, stmt(unix.BPF_LDX|unix.BPF_IMM, n), stmt(unix.BPF_ALU|op|x, 0)}
			if (op == unix.BPF_LSH || op == unix.BPF_RSH) && n > 31 {
				continue // in libpcap the result depends on the C compiler
			}
			if (op == unix.BPF_DIV || op == unix.BPF_MOD) && n == 0 {
				continue // libpcap does not run that
			}
			cases[fmt.Sprint(name, " ", n)] = []unix.SockFilter{load, stmt(unix.BPF_ALU|op|k, n)}
		}
	}
	for name, op := range map[string]uint16{"jeq": unix.BPF_JEQ, "jgt": unix.BPF_JGT, "jge": unix.BPF_JGE, "jset": unix.BPF_JSET} {
		for _, n := range numbers {
			for at := uint32(0); at < 20; at += 4 {
				end := []unix.SockFilter{stmt(unix.BPF_RET|k, 1), stmt(unix.BPF_RET|k, 0xffffffff)}
				load := stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at)
				cases[fmt.Sprintf("%s %d of word %d", name, n, at)] =
					append([]unix.SockFilter{load, {Code: unix.BPF_JMP | op | k, K: n, Jf: 1}}, end...)
				cases[fmt.Sprintf("%s index %d of word %d", name, n, at)] =
					append([]unix.SockFilter{load, stmt(unix.BPF_LDX|unix.BPF_IMM, n), {Code: unix.BPF_JMP | op | x, Jt: 1}}, end...)
			}
		}
	}
	for name, code := range cases {
		if code[len(code)-1].Code&0x07 != unix.BPF_RET {
			code = append(code, stmt(unix.BPF_RET|unix.BPF_A, 0))
		}
		if got, want := b.load(t, code, btf.GlobalFunc)(frame, 1500), libpcap(code, frame, 1500); got != want {
			t.Errorf("%s: %#x, libpcap says %#x", name, got, want)
		}
	}
}

// Invalid filters are refused before they reach the kernel.
func TestFilterRefused(t *testing.T) {
	yes := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	for name, code := range map[string][]unix.SockFilter{
		"does not return":   {{Code: unix.BPF_LD | unix.BPF_IMM}},
		"jumps out":         {{Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, yes},
		"jumps back":        {{Code: unix.BPF_JMP | unix.BPF_JA, K: 0xffffffff}, yes},
		"unknown code":      {{Code: unix.BPF_MISC | 0x40}, yes},
		"code out of range": {{Code: 0x100}, yes},
		"memory":            {{Code: unix.BPF_ST, K: unix.BPF_MEMWORDS}, yes},
		"load of memory":    {{Code: unix.BPF_LD | unix.BPF_MEM, K: unix.BPF_MEMWORDS}, yes},
		"size":              {{Code: unix.BPF_LD | unix.BPF_ABS | 0x18}, yes},
		"condition":         {{Code: unix.BPF_JMP | 0x50}, yes},
		"operation":         {{Code: unix.BPF_ALU | 0xb0}, yes},
	} {
		if _, err := translate(code, filterSize); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
	yesAlone := []unix.SockFilter{yes}
	for _, size := range []int{-1, 0, 1 << 15} {
		if _, err := translate(yesAlone, size); err == nil {
			t.Errorf("a buffer of %d bytes: not refused", size)
		}
	}
	if err := setFilter(&ebpf.ProgramSpec{Name: "none"}, yesAlone, filterSize); err == nil {
		t.Error("a program without the function: not refused")
	}
}
