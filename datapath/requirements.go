// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var errNoPrograms = errors.New("the kernel refuses to load BPF programs")

// explain turns the kernel's error of a load into one that a user can act on.
func explain(err error) error {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return fmt.Errorf("the kernel's verifier refuses the switch program: %-3v", verifier)
	}
	if errors.Is(err, unix.EPERM) { // of which the library says that it may be RLIMIT_MEMLOCK, as before Linux 5.11
		return fmt.Errorf("%w: %w", errNoPrograms, unix.EPERM)
	}
	return err
}

// MinKernel is the first kernel that has all that the datapath needs (tcx).
var MinKernel = [2]int{6, 6}

// CheckKernel returns an error that says so where the kernel is too old.
func CheckKernel() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	release := unix.ByteSliceToString(u.Release[:])
	if !newEnough(release) {
		return fmt.Errorf("kernel %s is too old: it has no tcx hook", release)
	}
	return nil
}

func newEnough(release string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return true // a kernel that counts in another way; let it try
	}
	return major > MinKernel[0] || major == MinKernel[0] && minor >= MinKernel[1]
}
