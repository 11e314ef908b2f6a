// SPDX-License-Identifier: BSD-2-Clause

package instructions

// count reads the time stamp counter.
func count() uint64

// Begin marks for a QEMU plug-in that the following instructions count.
func Begin()

// End marks for the plug-in that the following instructions do not count.
func End()

// loop makes the given number of iterations, at least one, with perTurn instructions each.
func loop(turns uint64)
