// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
)

// A UsageError is a request that could not be right whatever the state of the
// system: a malformed address, a number out of range.
type UsageError struct {
	Object string // what the request was about
	Err    error  // why, and what to do
}

func (e *UsageError) Error() string { return e.Object + ": " + e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

func usagef(object, format string, args ...any) error {
	return &UsageError{object, fmt.Errorf(format, args...)}
}

// refused says in one line what was not done, why, and what to do about it.
func refused(what, why, remedy string) error {
	return errors.New("cannot " + what + ": " + why + "; " + remedy)
}
