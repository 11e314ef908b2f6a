// SPDX-License-Identifier: BSD-2-Clause

package bridge

// Trace is what a bridge would do with one frame, and why.
type Trace struct {
	Steps   []Step   // in the order in which they are taken
	Verdict string   // in a few words: "forwarded", "flooded", "dropped: same-port"
	Out     []string // ports that the frame leaves by; empty where it is dropped
}

// Step is one step of the decision on a frame.
type Step struct {
	Name string // of the step in the pipeline: "learn", "look up", ...
	Text string // what it found and did, in words, without a full stop
}
