// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
)

// errNoBridge is the cause of a refusal if no bridge has the name.
var errNoBridge = errors.New("no such bridge")

// A UsageError is a request that is wrong in any state of the system, such as a malformed address
// or a number out of range.
type UsageError struct {
	Object string // what the request was about
	Err    error  // the reason, and what to do
}

func (e *UsageError) Error() string { return e.Object + ": " + e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

func usagef(object, format string, args ...any) error {
	return &UsageError{object, fmt.Errorf(format, args...)}
}

// A refusal is a line with the refused request, the reason and the remedy.
type refusal struct {
	line  string
	cause error // nil if there is no cause below
}

func (r *refusal) Error() string { return r.line }
func (r *refusal) Unwrap() error { return r.cause }

func refused(what, why, remedy string) error {
	return &refusal{line: "cannot " + what + ": " + why + "; " + remedy}
}

// Refused reports whether err is a refusal, because the request conflicts with the present state,
// and not a failure.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// Missing reports whether err means that no bridge has the name.
func Missing(err error) bool { return errors.Is(err, errNoBridge) }

// because adds the cause to a refusal, for callers that examine it.
func because(err, cause error) error {
	return &refusal{err.Error(), cause}
}
