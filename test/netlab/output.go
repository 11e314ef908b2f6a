// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// An Output is what a program that runs has printed so far.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Reset forgets it.
func (o *Output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

// Lines returns how many lines have all the words.
func (o *Output) Lines(words ...string) (n int) {
	for line := range strings.Lines(o.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}
