// SPDX-License-Identifier: BSD-2-Clause

// Package instructions reads how many instructions a machine has executed, if it is a virtual
// machine with QEMU's instruction counting (guests.Machine.Counting): its time stamp counter
// advances by one for each instruction. On other machines the counter has another meaning.
package instructions

import "fmt"

// Count returns the number of instructions executed since the machine started, plus its idle time
// in nanoseconds, which the clock skips.
func Count() uint64 { return count() }

// perTurn is the number of instructions in an iteration of loop: a decrement and a jump.
const perTurn = 2

// Check checks whether the counter counts the instructions of this machine, with loops of known
// length. Interrupts can add instructions, so the minimum of many tries counts.
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
	// The overhead of the loop is the same in both.
	short, long := cost(turns), cost(3*turns)
	if got := long - short; got != 2*turns*perTurn {
		return fmt.Errorf("the counter does not count instructions: %d turns of %d instructions more, and it says %d", 2*turns, perTurn, got)
	}
	return nil
}
