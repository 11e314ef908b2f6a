// SPDX-License-Identifier: BSD-2-Clause

package netlab

import "golang.org/x/sys/unix"

// callNumbers are the system calls that RunWatched supports.
var callNumbers = map[string]uint32{
	"bpf": unix.SYS_BPF, "mount": unix.SYS_MOUNT, "mkdirat": unix.SYS_MKDIRAT,
	"renameat": unix.SYS_RENAMEAT, "renameat2": unix.SYS_RENAMEAT2, "unlinkat": unix.SYS_UNLINKAT,
	"symlinkat": unix.SYS_SYMLINKAT, "sendto": unix.SYS_SENDTO, "sendmsg": unix.SYS_SENDMSG, "setns": unix.SYS_SETNS,
	"ioctl": unix.SYS_IOCTL, "flock": unix.SYS_FLOCK,
}
