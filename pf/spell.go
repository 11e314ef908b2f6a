// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"strconv"
	"strings"
)

// Protocol returns the number of an IP protocol by its name or number.
func Protocol(name string) (number uint8, ok bool) {
	if n, err := strconv.ParseUint(name, 10, 8); err == nil {
		return uint8(n), true
	}
	number, ok = protocolNumbers[name]
	return number, ok
}

// ProtocolName returns the name of an IP protocol, or its number if it has
// none.
func ProtocolName(number uint8) string { return named(protocolNames, number, number) }

// String returns the name of the timeout, as `set timeout` takes it.
func (t TimeoutName) String() string { return timeoutNames[t] }

// String returns the name of the limit, as `set limit` takes it.
func (l LimitName) String() string { return limitNames[l] }

// GroupName returns the group of a port by its name: the name without the number at its
// end.
func GroupName(port string) string { return strings.TrimRight(port, "0123456789") }

// AnchorPath returns the path of an anchor with this name in rules of the anchor at
// path. It is below path, unless the name begins with a slash or ../.
func AnchorPath(path, name string) string { return anchorPath(path, name) }

// BodyPath returns the path of the anchor between the braces of a rule. index is the
// rule's index in the anchor at path.
func BodyPath(path string, index int, r *Rule) string {
	if r.Anchor.Name == "" {
		return unnamed(path, index)
	}
	return anchorPath(path, r.Anchor.Name)
}
