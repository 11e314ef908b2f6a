// SPDX-License-Identifier: BSD-2-Clause

package conformance

var vlanCases = []conformance{}
