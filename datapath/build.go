// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime/debug"
	"sync"
)

// builtPrefix begins the name of a folder in a generation's that says which
// build of bascule has loaded its programs. (A BPF file system has no files.)
const builtPrefix = "built-"

// build names this build: the object that programs are loaded from, and the Go
// command's note of the loader, which specialises them.
var build = sync.OnceValue(func() string {
	var info string
	if i, ok := debug.ReadBuildInfo(); ok {
		info = i.String()
	}
	sum := ""
	// The processor has instructions for these sums, which matters as each command
	// asks.
	for _, polynomial := range []uint32{crc32.Castagnoli, crc32.IEEE} {
		h := crc32.New(crc32.MakeTable(polynomial))
		io.WriteString(h, info)
		h.Write(_KernelBytes)
		h.Write(_PlainBytes)
		sum += fmt.Sprintf("%08x", h.Sum32())
	}
	return builtPrefix + sum
})

// Ours reports whether the bridge's programs were loaded by this build of
// bascule.
func (b *Bridge) Ours() bool {
	_, err := os.Stat(b.pin(b.gen, build()))
	return err == nil
}
