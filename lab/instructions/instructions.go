// SPDX-License-Identifier: BSD-2-Clause

// Package instructions reads how many instructions a machine has executed, which a
// virtual machine knows whose instructions QEMU counts (guests.Machine.Counting): its
// time stamp counter goes on by one for each. Anywhere else the counter means
// something else.
package instructions

import "fmt"

// Count is how many instructions were executed since the machine began, and how many
// nanoseconds it had nothing to do: the clock jumps over these.
func Count() uint64 { return count() }

// perTurn is how many instructions a turn of loop has: one that counts down, and one
// that jumps back.
const perTurn = 2

// Check finds out whether the counter counts the instructions of this machine, by loops
// of known length. An interrupt may come in between, so the least of many tries counts.
func Check() error {
	cost := func(turns uint64) uint64 {
		least := ^uint64(0)
		for range 100 {
			begin := count()
			loop(turns)
			least = min(least, count()-begin)
		}
		return least
	}
	const turns = 10_000
	// What is around the loop is the same in both.
	short, long := cost(turns), cost(3*turns)
	if got := long - short; got != 2*turns*perTurn {
		return fmt.Errorf("the counter does not count instructions: %d turns of %d instructions more, and it says %d", 2*turns, perTurn, got)
	}
	return nil
}
