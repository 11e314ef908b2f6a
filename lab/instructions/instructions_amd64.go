// SPDX-License-Identifier: BSD-2-Clause

package instructions

// count reads the time stamp counter.
func count() uint64

// Begin tells a plug-in of QEMU that what follows counts.
func Begin()

// End tells the plug-in that what follows no longer counts.
func End()

// loop goes round so many times, at least once: perTurn instructions each.
func loop(turns uint64)
