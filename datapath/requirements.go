// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	probes "github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// A need has the kernel functions that programs of a type call.
type need struct {
	in      ebpf.ProgramType
	by      kernelFeature // features; each of them calls the functions. 0 is every bridge
	who     string        // the caller, for messages
	helpers []asm.BuiltinFunc
}

// needs are all helpers that the programs call, with their callers. Versions of the
// kernel are not compared: distributions port functions to older kernels.
var needs = []need{
	{ebpf.SchedCLS, 0, "every bridge", []asm.BuiltinFunc{
		asm.FnMapLookupElem, asm.FnKtimeGetNs, asm.FnLoop, asm.FnCheckMtu, asm.FnRedirect, asm.FnCloneRedirect, asm.FnSkbLoadBytes,
		asm.FnTimerInit, asm.FnTimerSetCallback, asm.FnTimerStart, // the clock program
	}},
	{ebpf.Syscall, 0, "every bridge", []asm.BuiltinFunc{ // the control program
		asm.FnMapLookupElem, asm.FnMapDeleteElem, asm.FnKtimeGetNs, asm.FnLoop,
	}},
	{ebpf.XDP, 0, "XDP", []asm.BuiltinFunc{
		asm.FnMapLookupElem, asm.FnLoop, asm.FnCheckMtu, asm.FnRedirectMap, asm.FnXdpGetBuffLen,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_PEER, "a veth into another network namespace", []asm.BuiltinFunc{asm.FnRedirectPeer}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_VLANS, "VLAN filtering", []asm.BuiltinFunc{
		asm.FnSkbVlanPush, asm.FnSkbVlanPop, asm.FnSkbPullData,
	}},
	{ebpf.XDP, kernelFeatureFEATURE_VLANS, "VLAN filtering", []asm.BuiltinFunc{asm.FnXdpAdjustHead}},
	{ebpf.SchedCLS, kernelFeatureFEATURES_JUDGE, "a filter", []asm.BuiltinFunc{asm.FnSkbPullData}},
	{ebpf.XDP, kernelFeatureFEATURES_JUDGE, "a filter", []asm.BuiltinFunc{asm.FnXdpLoadBytes}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_SUPPRESS, "neigh-suppress", []asm.BuiltinFunc{
		asm.FnSkbLoadBytes, asm.FnSkbPullData, asm.FnSkbStoreBytes, asm.FnSkbChangeTail, asm.FnCsumDiff,
		asm.FnProbeReadKernel,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_PATCH, "a patch cable", []asm.BuiltinFunc{
		asm.FnTailCall, asm.FnSkbVlanPush, asm.FnSkbVlanPop,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_ROUTE, "a routed host port", []asm.BuiltinFunc{
		asm.FnFibLookup, asm.FnRedirectNeigh, asm.FnProbeReadKernel, asm.FnSkbLoadBytes, asm.FnSkbStoreBytes, asm.FnSkbChangeTail,
		asm.FnSetHashInvalid, asm.FnJiffies64,
	}},
	{ebpf.XDP, kernelFeatureFEATURE_ROUTE, "a routed host port", []asm.BuiltinFunc{
		asm.FnFibLookup, asm.FnProbeReadKernel, asm.FnXdpLoadBytes, asm.FnXdpAdjustTail, asm.FnJiffies64,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_BACKUP, "a backup port", []asm.BuiltinFunc{asm.FnProbeReadKernel}},
	{ebpf.XDP, kernelFeatureFEATURE_BACKUP, "a backup port", []asm.BuiltinFunc{asm.FnProbeReadKernel}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_CONTROL, "spanning tree", []asm.BuiltinFunc{
		asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnRingbufDiscard, asm.FnSkbLoadBytes,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_CAPTURE, "a capture", []asm.BuiltinFunc{asm.FnSkbLoadBytes, asm.FnRingbufOutput}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_TALKERS, "top", []asm.BuiltinFunc{asm.FnMapUpdateElem}},
	{ebpf.XDP, kernelFeatureFEATURE_TALKERS, "top", []asm.BuiltinFunc{asm.FnMapUpdateElem, asm.FnKtimeGetNs}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_SAMPLE, "sFlow", []asm.BuiltinFunc{asm.FnSkbLoadBytes, asm.FnGetPrandomU32}},
	{ebpf.XDP, kernelFeatureFEATURE_SAMPLE, "sFlow", []asm.BuiltinFunc{asm.FnXdpLoadBytes, asm.FnGetPrandomU32}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_TRACE, "a trace", []asm.BuiltinFunc{
		asm.FnSkbLoadBytes, asm.FnSkbVlanPush, asm.FnSkbVlanPop,
	}},
	{ebpf.SchedCLS, pfFeatures, "pf", []asm.BuiltinFunc{
		asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnGetPrandomU32, asm.FnSkbLoadBytes, asm.FnSkbStoreBytes, asm.FnSkbPullData,
		asm.FnSkbChangeHead, asm.FnSkbChangeTail, asm.FnCsumDiff, asm.FnL3CsumReplace, asm.FnL4CsumReplace,
		asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnRingbufDiscard, asm.FnForEachMapElem, // of the clock
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_PF_FAMILY, "af-to of pf", []asm.BuiltinFunc{
		asm.FnSkbChangeProto, asm.FnSkbAdjustRoom, asm.FnTailCall, asm.FnRedirectNeigh, asm.FnFibLookup, asm.FnLoop,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_PF_FIB, "no-route and urpf-failed of pf", []asm.BuiltinFunc{
		asm.FnTailCall, asm.FnFibLookup, asm.FnLoop,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_PF_HOPS, "route-to and divert-to of pf", []asm.BuiltinFunc{
		asm.FnTailCall, asm.FnRedirectNeigh, asm.FnFibLookup, asm.FnCheckMtu, asm.FnLoop, asm.FnCloneRedirect,
		asm.FnSkcLookupTcp, asm.FnSkLookupUdp, asm.FnSkAssign, asm.FnSkRelease,
	}},
	{ebpf.SchedCLS, kernelFeatureFEATURE_PF_REASSEMBLE, "scrub (reassemble tcp) of pf", []asm.BuiltinFunc{
		asm.FnTailCall, asm.FnLoop, asm.FnKtimeGetNs,
	}},
	{ebpf.XDP, pfFeatures, "pf", []asm.BuiltinFunc{
		asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnGetPrandomU32, asm.FnKtimeGetNs, asm.FnXdpLoadBytes,
	}},
	{ebpf.XDP, kernelFeatureFEATURE_PF_FIRST, "pf of a routed host port", []asm.BuiltinFunc{
		asm.FnTailCall, asm.FnFibLookup, asm.FnXdpAdjustTail, asm.FnJiffies64,
	}},
	{ebpf.Syscall, pfFeatures, "pf", []asm.BuiltinFunc{asm.FnMapUpdateElem, asm.FnForEachMapElem}},
	{ebpf.RawTracepoint, pfFeatures, "pf", []asm.BuiltinFunc{ // the program that changes tables
		asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnForEachMapElem, asm.FnLoop,
	}},
}

// tcxHook is the name of the hook that every port uses.
const tcxHook = "tcx hook"

// A MissingError reports what the kernel lacks and which feature needs it.
type MissingError struct {
	line string
	err  error // the kernel's error
}

func (e *MissingError) Error() string { return e.line }
func (e *MissingError) Unwrap() error { return e.err }

// missing makes a MissingError of things, each with the feature that needs it.
func missing(release string, err error, things ...[2]string) error {
	words := make([]string, len(things))
	for i, t := range things {
		words[i] = fmt.Sprintf("no %s, which %s needs", t[0], t[1])
	}
	return &MissingError{"kernel " + release + " has " + strings.Join(words, ", and "), err}
}

// A kernel has functions that test its features.
type kernel struct {
	release  string
	queryTCX func() error // queries the programs on a device
	helper   func(ebpf.ProgramType, asm.BuiltinFunc) error
}

// running returns the running kernel.
func running() kernel {
	var u unix.Utsname
	_ = unix.Uname(&u) // it cannot fail here; the release is only for messages
	return kernel{unix.ByteSliceToString(u.Release[:]), queryTCX, probes.HaveProgramHelper}
}

// queryTCX queries the programs on the loopback device, which each network namespace has
// at index 1, with one system call.
func queryTCX() error {
	_, err := programsAt(1)
	return err
}

// CheckKernel returns a MissingError if the kernel has no tcx: without it there are no
// ports. It costs one system call.
func CheckKernel() error { return running().check() }

func (k kernel) check() error {
	switch err := k.queryTCX(); {
	case err == nil, errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return missing(k.release, err, [2]string{tcxHook, "every bridge"})
	default:
		return fmt.Errorf("the kernel refuses to say whether it has tcx: %w", err)
	}
}

// load makes the tables and programs of a specification for c. Its errors help a user.
func load(spec *ebpf.CollectionSpec, opts ebpf.CollectionOptions, c *Config) (*ebpf.Collection, error) {
	err := checkTypes()
	if err == nil {
		var coll *ebpf.Collection
		if coll, err = ebpf.NewCollectionWithOptions(spec, opts); err == nil {
			return coll, nil
		}
	}
	return nil, explainLoad(err, spec, c)
}

// typesKept is set once the library has loaded a program with its types.
var typesKept atomic.Bool

// checkTypes tests whether the library gives programs their types (BTF). Without them, or without
// the linkage of functions, the kernel verifies each function anew at each call, and refuses the
// switch program because it is too large. The library leaves the types out if the kernel refuses
// one of its tests, and does not report it.
func checkTypes() error {
	if typesKept.Load() {
		return nil
	}
	first := asm.Mov.Imm(asm.R0, 0)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "types", Type: ebpf.SchedCLS, License: "BSD",
		Instructions: asm.Instructions{btf.WithFuncMetadata(first.WithSymbol("types"), &btf.Func{
			Name: "types", Type: &btf.FuncProto{Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}}, Linkage: btf.GlobalFunc,
		}), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return err
	}
	if _, has := info.BTFID(); !has || btf.KernelMarshalOptions().StripFuncLinkage {
		return unix.EPERM
	}
	typesKept.Store(true)
	return nil
}

// explain turns the kernel's error about a load of programs for c into one that helps a
// user.
func explain(err error, c *Config) error { return running().explain(err, c) }

// explainLoad is explain for a load of a whole specification. The library may have hidden
// that there was no room for more open files: it tests the kernel's features, and takes
// each error for a missing one.
func explainLoad(err error, spec *ebpf.CollectionSpec, c *Config) error {
	if few := fewFiles(len(spec.Maps) + len(spec.Programs) + libraryFiles); few != nil {
		err = few
	}
	return explain(err, c)
}

func (k kernel) explain(err error, c *Config) error {
	// A lack of resources does not concern the programs, even if the verifier had already
	// begun with them.
	if err := short(err); err != nil {
		return err
	}
	var verifier *ebpf.VerifierError
	refused := errors.As(err, &verifier) && !(errors.Is(err, unix.EPERM) && len(verifier.Log) == 0)
	if refused || errors.Is(err, unix.EINVAL) {
		if things := k.lacks(c); things != nil {
			return missing(k.release, err, things...)
		}
	}
	if refused {
		return fmt.Errorf("the kernel's verifier refuses the switch program: %-3v", verifier)
	}
	if errors.Is(err, unix.EPERM) { // the library suspects RLIMIT_MEMLOCK, as before Linux 5.11
		return fmt.Errorf("the kernel refuses to load BPF programs: %w", unix.EPERM)
	}
	return err
}

// short returns the resource that the process or the machine lacks, if a load failed for
// that reason, and nil otherwise.
func short(err error) error {
	for _, s := range []struct {
		is   unix.Errno
		text string
	}{
		{unix.EMFILE, "the process may have no more open files%s: %w; raise its limit ('ulimit -n', LimitNOFILE of a service)"},
		{unix.ENFILE, "the machine may have no more open files%s: %w; raise its limit ('sysctl fs.file-max')"},
		{unix.ENOMEM, "the kernel has no memory left for programs and tables%s: %w; see what takes it, and the limit of the control group"},
	} {
		if errors.Is(err, s.is) {
			return fmt.Errorf(s.text, fileLimit(s.is), s.is)
		}
	}
	return nil
}

// fileLimit returns words about the limit of open files, if that is the reason.
func fileLimit(why unix.Errno) string {
	var limit unix.Rlimit
	if why != unix.EMFILE || unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return ""
	}
	return fmt.Sprintf(" than %d", limit.Cur)
}

// libraryFiles is the number of files that the library may have open in addition to the
// maps and programs of a load: BTF, and its tests of the kernel.
const libraryFiles = 8

// fewFiles returns EMFILE if there is no room for that many more open files.
func fewFiles(more int) error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 1<<12 {
		return nil
	}
	open := 0
	for fd := range int(limit.Cur) {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			open++
		}
	}
	if open+more > int(limit.Cur) {
		return unix.EMFILE
	}
	return nil
}

// lacks returns the helpers that programs for c call and the kernel lacks, each with
// its caller. It loads a program for each helper, so it is for a load that has failed.
func (k kernel) lacks(c *Config) (things [][2]string) {
	for _, n := range needs {
		if n.by != 0 && uint64(n.by)&(c.Features|c.Pf.Features) == 0 || n.in == ebpf.XDP && !anyXDP(c) {
			continue
		}
		for _, h := range n.helpers {
			known := slices.ContainsFunc(things, func(t [2]string) bool { return t[0] == helperName(h)+"()" })
			if !known && errors.Is(k.helper(n.in, h), ebpf.ErrNotSupported) {
				things = append(things, [2]string{helperName(h) + "()", n.who})
			}
		}
	}
	return things
}

// helperName returns the kernel's name of a helper: the library's is FnRedirectPeer for
// bpf_redirect_peer.
func helperName(h asm.BuiltinFunc) string {
	var name strings.Builder
	name.WriteString("bpf")
	for _, r := range strings.TrimPrefix(h.String(), "Fn") {
		if 'A' <= r && r <= 'Z' {
			name.WriteByte('_')
			r += 'a' - 'A'
		}
		name.WriteRune(r)
	}
	return name.String()
}
