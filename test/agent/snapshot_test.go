// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"os"
	"syscall"
	"testing"

	"bascule/bridge"
	"bascule/test/netlab"
)

// TestSnapshotEnds: a bridge that is deleted after its agent has ended, or meanwhile, leaves no
// snapshot.
func TestSnapshotEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		del  func(l *netlab.Lab, r *runner)
	}{
		{"after it was killed", func(l *netlab.Lab, r *runner) {
			r.kill()
			l.Bascule("bridge", "del", "br0")
		}},
		{"after it ended, with all bridges", func(l *netlab.Lab, r *runner) {
			r.stop()
			l.Bascule("bridge", "del", "--all")
		}},
		{"while it ends", func(l *netlab.Lab, r *runner) {
			must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
			l.Wait("its process is stopped", func() bool { return bridge.Stopped(r.cmd.Process.Pid) })
			l.Bascule("bridge", "del", "br0")
			must(t, r.cmd.Process.Signal(syscall.SIGTERM))
			must(t, r.cmd.Process.Signal(syscall.SIGCONT))
			must(t, r.cmd.Wait())
			r.cmd = nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := netlab.New(t)
			r := newRunner(t, l)
			l.Bascule("bridge", "add", "br0", "--stp", "rstp")
			l.Bascule("bridge", "add", "br.1")
			r.start()
			r.serves(2, "br0")
			l.Wait("a snapshot", func() bool { _, err := os.Lstat(r.at("-br0.stp")); return err == nil })
			c.del(l, r)
			if _, err := os.Lstat(r.at("-br0.stp")); err == nil {
				t.Error("the snapshot is left")
			}
			l.Bascule("bridge", "del", "--all")
		})
	}
}
