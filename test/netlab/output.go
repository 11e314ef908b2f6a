// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// An Output has the output of a running program so far.
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

// Lines returns the number of lines that contain all the words.
func (o *Output) Lines(words ...string) int { return lines(o.String(), words) }

// An OutputFile is a file with the output of a running program so far. It contains everything
// that the program printed before its later, visible actions.
type OutputFile struct{ *os.File }

// NewOutputFile makes a file for the output of programs.
func NewOutputFile(t testing.TB) OutputFile {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "output"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return OutputFile{f}
}

func (o OutputFile) String() string {
	text, err := io.ReadAll(io.NewSectionReader(o, 0, math.MaxInt64))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Lines returns the number of lines that contain all the words.
func (o OutputFile) Lines(words ...string) int { return lines(o.String(), words) }

func lines(text string, words []string) (n int) {
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}
