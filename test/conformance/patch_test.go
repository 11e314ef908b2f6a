// SPDX-License-Identifier: BSD-2-Clause

package conformance

var patchCases = []conformance{}
