// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
)

// builtPrefix begins the name of a folder in a generation's folder. The name identifies
// the build of bascule that loaded the generation's programs. (A BPF file system has no
// files.)
const builtPrefix = "built-"

// build identifies this build: by the objects that programs are loaded from, and by the
// Go command's build information of the loader, which specialises them.
var build = sync.OnceValue(func() string {
	var info string
	if i, ok := debug.ReadBuildInfo(); ok {
		info = i.String()
	}
	sum := sha256.Sum256([]byte(info + objectsSum))
	return fmt.Sprintf("%s%x", builtPrefix, sum[:8])
})

// Ours reports whether the bridge's programs were loaded by this build of
// bascule.
func (b *Bridge) Ours() bool {
	_, err := os.Stat(b.pin(b.gen, build()))
	return err == nil
}
