// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"testing"

	"bascule/frame"
)

func TestCaptureSnaplen(t *testing.T) {
	for _, n := range []int{-1, 0, frame.MinSnaplen - 1, frame.MaxSnaplen + 1} {
		_, err := new(Switch).Capture(t.Context(), "br0", CaptureOptions{Snaplen: n, Buffer: DefaultCaptureBuffer})
		if !errors.As(err, new(*UsageError)) {
			t.Errorf("%d bytes of each frame: %v, want an error of usage", n, err)
		}
	}
}
