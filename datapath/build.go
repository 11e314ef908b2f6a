// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"crypto/sha256"
	"encoding/hex"
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
	h := sha256.New()
	if info, ok := debug.ReadBuildInfo(); ok {
		h.Write([]byte(info.String()))
	}
	h.Write(_KernelBytes)
	return builtPrefix + hex.EncodeToString(h.Sum(nil)[:8])
})

// Ours reports whether the bridge's programs were loaded by this build of
// bascule.
func (b *Bridge) Ours() bool {
	_, err := os.Stat(b.pin(b.gen, build()))
	return err == nil
}
