// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Calls for which the kernel is short of memory are repeated, and no others.
func TestWhileShort(t *testing.T) {
	for _, fails := range [][]error{{}, {unix.ENOMEM}, {unix.ENOMEM, fmt.Errorf("update: %w", unix.ENOMEM)}, {unix.E2BIG}, {unix.ENOMEM, unix.E2BIG}} {
		n := 0
		err := whileShort(func() error {
			if n++; n > len(fails) {
				return nil
			}
			return fails[n-1]
		})
		want, tries := error(nil), len(fails)+1
		if len(fails) > 0 && !errors.Is(fails[len(fails)-1], unix.ENOMEM) {
			want, tries = fails[len(fails)-1], len(fails)
		}
		if err != want || n != tries {
			t.Errorf("of %v it returns %v after %d tries, want %v after %d", fails, err, n, want, tries)
		}
	}
	n := 0
	if err := whileShort(func() error { n++; return unix.ENOMEM }); !errors.Is(err, unix.ENOMEM) || n < 2 {
		t.Errorf("without memory it returns %v after %d tries", err, n)
	}
}
