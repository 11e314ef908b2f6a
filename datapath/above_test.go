// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The device has to exist. The loopback interface has no device above it.
func TestUppers(t *testing.T) {
	if list, err := Uppers(1); err != nil || list != nil {
		t.Errorf("above the loopback interface are %+v, %v", list, err)
	}
	if _, err := Uppers(1 << 30); !errors.Is(err, unix.ENODEV) {
		t.Errorf("above a device that is not there: %v", fmt.Sprint(err))
	}
}
