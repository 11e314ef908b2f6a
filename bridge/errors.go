// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
)

// errNoBridge is the cause of a refusal if there is no bridge of the name.
var errNoBridge = errors.New("no such bridge")

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

// A refusal says in one line which request was refused, why, and what to do
// about it.
type refusal struct {
	line  string
	cause error // nil if there is none below
}

func (r *refusal) Error() string { return r.line }
func (r *refusal) Unwrap() error { return r.cause }

func refused(what, why, remedy string) error {
	return &refusal{line: "cannot " + what + ": " + why + "; " + remedy}
}

// Refused reports whether an error says that a request does not fit the present state,
// rather than that it failed.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// Missing reports whether an error says that there is no bridge of the name.
func Missing(err error) bool { return errors.Is(err, errNoBridge) }

// because adds the cause of a refusal, for callers that look.
func because(err, cause error) error {
	return &refusal{err.Error(), cause}
}
