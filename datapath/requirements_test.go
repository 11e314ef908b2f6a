// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// lacking returns a kernel that has everything but the helpers with those names.
func lacking(names ...string) kernel {
	return kernel{
		release:  "5.14.0-test",
		queryTCX: func() error { return nil },
		helper: func(_ ebpf.ProgramType, h asm.BuiltinFunc) error {
			if slices.Contains(names, helperName(h)) {
				return fmt.Errorf("as the library says it: %w", ebpf.ErrNotSupported)
			}
			return nil
		},
	}
}

// Each feature that a kernel lacks a function for is listed, separately for tcx and XDP.
// TestNeedsAreAll checks the table of needs itself against the programs.
func TestAbilities(t *testing.T) {
	lacks := []asm.BuiltinFunc{asm.FnFibLookup, asm.FnXdpLoadBytes}
	k := lacking(helperName(lacks[0]), helperName(lacks[1]))
	told := map[string]bool{}
	for _, a := range k.abilities() {
		var want, wantXDP []string
		for _, n := range needs {
			for _, h := range lacks {
				if n.who != a.For || !slices.Contains(n.helpers, h) {
					continue
				}
				into := &want
				if n.in == ebpf.XDP {
					into = &wantXDP
				}
				if name := helperName(h) + "()"; !slices.Contains(*into, name) {
					*into = append(*into, name)
				}
			}
		}
		if !slices.Equal(a.Missing, want) || !slices.Equal(a.XDP, wantXDP) || a.Err != nil {
			t.Errorf("%s: lacks %q, in XDP %q (%v), want %q and %q", a.For, a.Missing, a.XDP, a.Err, want, wantXDP)
		}
		told[a.For] = len(a.Missing) > 0
	}
	for who, want := range map[string]bool{"every bridge": false, "pf": false, "a routed host port": true} {
		if got, is := told[who]; !is || got != want {
			t.Errorf("%s: told %v, lacks something by tcx %v, want %v", who, is, got, want)
		}
	}
	k = lacking()
	k.helper = func(ebpf.ProgramType, asm.BuiltinFunc) error { return unix.EPERM }
	for _, a := range k.abilities() {
		if !errors.Is(a.Err, unix.EPERM) {
			t.Errorf("%s of a kernel that refuses to say: %v", a.For, a.Err)
		}
	}
}

// The check tests for tcx itself, and not for the kernel's version.
func TestKernelHasTCX(t *testing.T) {
	for _, tt := range []struct {
		says error
		want string
	}{
		{nil, ""},
		{unix.ENODEV, ""}, // the query is supported
		{unix.EINVAL, "kernel 5.14.0-test has no tcx hook, which every bridge needs"},
		{unix.ENOSYS, "kernel 5.14.0-test has no tcx hook, which every bridge needs"},
		{unix.EPERM, "the kernel refuses to say whether it has tcx: operation not permitted"},
	} {
		k := lacking()
		k.queryTCX = func() error { return tt.says }
		err := k.check()
		if got := fmt.Sprint(err); err != nil && got != tt.want || err == nil && tt.want != "" {
			t.Errorf("a kernel that says %v: %v, want %q", tt.says, err, tt.want)
		}
		if missing := new(MissingError); errors.As(err, &missing) != (tt.says == unix.EINVAL || tt.says == unix.ENOSYS) {
			t.Errorf("a kernel that says %v: %v is of the wrong kind", tt.says, err)
		}
	}
	needRoot(t)
	if err := CheckKernel(); err != nil {
		t.Errorf("this kernel, on which the other tests run: %v", err)
	}
}

// The error of a refused load names each missing function, and its caller.
func TestExplainMissing(t *testing.T) {
	verifier := &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"invalid func bpf_loop#181"}}
	peer := kernelFeatureFEATURE_PEER
	for _, tt := range []struct {
		name     string
		kernel   kernel
		features kernelFeature
		xdp      bool
		err      error
		want     string
		missing  bool
	}{
		{"one", lacking("bpf_loop"), 0, false, verifier, "kernel 5.14.0-test has no bpf_loop(), which every bridge needs", true},
		{"two", lacking("bpf_loop", "bpf_redirect_peer"), peer, false, unix.EINVAL,
			"kernel 5.14.0-test has no bpf_loop(), which every bridge needs, and no bpf_redirect_peer(), which a veth into another network namespace needs", true},
		{"of a feature that is off", lacking("bpf_redirect_peer"), 0, false, unix.EINVAL, "invalid argument", false},
		{"of XDP", lacking("bpf_xdp_get_buff_len"), 0, true, unix.EINVAL, "kernel 5.14.0-test has no bpf_xdp_get_buff_len(), which XDP needs", true},
		{"of XDP that is off", lacking("bpf_xdp_get_buff_len"), 0, false, unix.EINVAL, "invalid argument", false},
		{"nothing", lacking(), peer, true, verifier, "the kernel's verifier refuses the switch program", false},
		{"not asked for", lacking("bpf_loop"), 0, false, unix.EPERM, "refuses to load BPF programs", false},
		{"too many files", lacking("bpf_loop"), 0, false, &ebpf.VerifierError{Cause: unix.EMFILE, Log: []string{"0: (b7) r0 = 0"}},
			"the process may have no more open files", false},
		{"too many files of all", lacking("bpf_loop"), 0, false, unix.ENFILE, "the machine may have no more open files", false},
		{"no memory to verify", lacking("bpf_loop"), 0, false, &ebpf.VerifierError{Cause: unix.ENOMEM, Log: []string{"0: (b7) r0 = 0"}},
			"the kernel has no memory left", false},
		{"not allowed", lacking("bpf_loop"), 0, false, &ebpf.VerifierError{Cause: unix.EPERM}, "refuses to load BPF programs", false},
		{"nor here", lacking("bpf_loop"), 0, false, unix.ENOMEM, "the kernel has no memory left", false},
	} {
		var c Config
		c.Features = uint64(tt.features)
		if p := NewPort(&c, "p"); tt.xdp {
			p.Notes |= PortXDPRx
		}
		err := tt.kernel.explain(tt.err, &c)
		if missing := new(MissingError); errors.As(err, &missing) != tt.missing || !strings.HasPrefix(err.Error(), strings.TrimSuffix(tt.want, "refuses to load BPF programs")) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: it says %q, want %q", tt.name, err, tt.want)
		}
		if tt.missing && !errors.Is(err, tt.err) {
			t.Errorf("%s: %v does not tell what the kernel said, %v", tt.name, err, tt.err)
		}
	}
}

// The error for a kernel without bpf_cast_to_kern_ctx() names that function.
func TestMissingKernelFunction(t *testing.T) {
	skb := &btf.Struct{Name: "sk_buff", Size: 8}
	b, err := btf.NewBuilder([]btf.Type{skb}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	_, err = findChecksum(spec)
	if missing := new(MissingError); !errors.As(err, &missing) || !strings.HasSuffix(err.Error(), " has no bpf_cast_to_kern_ctx(), which a filter needs") {
		t.Errorf("it says %v", err)
	}
}

// Every helper that the programs call is in the table, for the programs that call it.
func TestNeedsAreAll(t *testing.T) {
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		told := map[asm.BuiltinFunc]bool{}
		for _, ins := range p.Instructions {
			h := asm.BuiltinFunc(ins.Constant)
			if !ins.IsBuiltinCall() || told[h] {
				continue
			}
			told[h] = true
			if !slices.ContainsFunc(needs, func(n need) bool { return n.in == p.Type && slices.Contains(n.helpers, h) }) {
				t.Errorf("%s calls %s, which is in no row for programs of its type", name, helperName(h))
			}
		}
	}
}

var called = regexp.MustCompile(`(?m)^\d+: \(85\) call (bpf_\w+)#`)

// A row of the table is right about the callers of a helper: the verifier checks only code that
// they reach.
func TestNeedsAreTrue(t *testing.T) {
	needRoot(t)
	features := map[kernelFeature]map[ebpf.ProgramType]bool{}
	for _, n := range needs { // any of a row's features will do
		one := n.by & -n.by
		if features[one] == nil {
			features[one] = map[ebpf.ProgramType]bool{}
		}
		features[one][n.in] = true
	}
	var all Config
	all.Features = uint64(kernelFeatureFEATURE_END - 1)
	if err := findPlaces(&all); err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Sorted(maps.Keys(features)) {
		var c Config
		c.FdbMax, c.CaptureRing = 1, 4096
		c.Skb, c.DeviceAt, c.DeviceState, c.Route, c.Ways = all.Skb, all.DeviceAt, all.DeviceState, all.Route, all.Ways
		specialise(&c)
		c.Features = uint64(f)
		if f&pfFeatures != 0 {
			c.Flags = uint32(BridgePF)
			c.Features |= uint64(kernelFeatureFEATURE_PF)
			c.Pf.Features = c.Features
			c.Pf.Rules, c.Pf.Groups, c.Pf.Dims, c.Pf.Asks, c.Pf.Buckets = 10, 3, 1<<8-1, 1<<7-1, 1
		}
		object, err := new(Store).programs(&c)
		if err != nil {
			t.Fatal(err)
		}
		spec := object.spec
		if err := c.setIn(spec); err != nil {
			t.Fatal(err)
		}
		delete(spec.Programs, kernelProgBasculePatch) // as long as tcx's, and mostly the same
		leaveOut(spec, &c)
		for name, p := range spec.Programs {
			if !features[f][p.Type] {
				delete(spec.Programs, name)
				continue
			}
			if err := object.linker(&c).make(p, programFeatures(name, &c)); err != nil {
				t.Fatal(err)
			}
		}
		fit(spec, &making{Config: &c})
		types := map[string]ebpf.ProgramType{}
		for name, p := range spec.Programs {
			types[name] = p.Type
		}
		coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
			Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelInstruction, LogSizeStart: 16 << 20},
		})
		if err != nil {
			t.Fatalf("features %#x: %v", f, err)
		}
		for name, p := range coll.Programs {
			for _, m := range called.FindAllStringSubmatch(p.VerifierLog, -1) {
				ok := slices.ContainsFunc(needs, func(n need) bool {
					return n.in == types[name] && (n.by == 0 || n.by&kernelFeature(c.Features) != 0) &&
						slices.ContainsFunc(n.helpers, func(h asm.BuiltinFunc) bool { return helperName(h) == m[1] })
				})
				if !ok && m[1] != castFunction && m[1] != readFunction { // for these see findPlaces()
					t.Errorf("features %#x: %s calls %s, which is in no row for them", c.Features, name, m[1])
				}
			}
		}
		coll.Close()
	}
}
