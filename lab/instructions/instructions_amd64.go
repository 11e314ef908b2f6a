// SPDX-License-Identifier: BSD-2-Clause

package instructions

// count reads the time stamp counter.
func count() uint64

// loop goes round so many times, at least once: perTurn instructions each.
func loop(turns uint64)
