// SPDX-License-Identifier: BSD-2-Clause

package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// MapMemory returns the memory of the maps pinned below dir, as the kernel reports it,
// in bytes and by map name: the memlock line of their fdinfo. A map that is pinned
// under two names is counted once.
func MapMemory(dir string) (map[string]uint64, error) {
	seen := map[ebpf.MapID]bool{}
	out := map[string]uint64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			m, err = ebpf.LoadPinnedMap(path, nil)
		}
		if err != nil {
			// A pinned program or link, or a file that is not a pin.
			return nil
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("memory of map %s: %w", path, err)
		}
		id, ok := info.ID()
		if ok && seen[id] {
			return nil
		}
		seen[id] = true
		n, _ := info.Memlock()
		out[info.Name] += n
		return nil
	})
	return out, err
}
