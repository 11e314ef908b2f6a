// SPDX-License-Identifier: BSD-2-Clause

package netlab

import "golang.org/x/sys/unix"

// callNumbers are the system calls that RunWatched supports.
var callNumbers = map[string]uint32{
	"bpf": unix.SYS_BPF, "mount": unix.SYS_MOUNT, "mkdirat": unix.SYS_MKDIRAT, "mkdir": unix.SYS_MKDIR,
	"rename": unix.SYS_RENAME, "renameat": unix.SYS_RENAMEAT, "renameat2": unix.SYS_RENAMEAT2,
	"unlink": unix.SYS_UNLINK, "unlinkat": unix.SYS_UNLINKAT, "rmdir": unix.SYS_RMDIR, "symlinkat": unix.SYS_SYMLINKAT,
	"sendto": unix.SYS_SENDTO, "sendmsg": unix.SYS_SENDMSG, "setns": unix.SYS_SETNS, "ioctl": unix.SYS_IOCTL,
	"flock": unix.SYS_FLOCK,
}
