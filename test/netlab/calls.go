// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An Answer is the decision about a system call. The zero value lets the call continue.
type Answer struct {
	Kill  bool       // the process is killed, and the call is not executed
	Errno unix.Errno // the call is not executed, and returns this error
}

// RunWatched runs a command to its end. It calls at before each system call with one of the names:
// the n-th with that name, from 1, in any thread of the command. The thread waits for the answer.
// Other calls do not stop. strace(1), which stops a command at all calls, takes more time than the
// command itself, and counts the calls of each thread separately.
//
// The command runs without the signals of Go's scheduler: a signal makes the kernel's verifier return
// EAGAIN, and the library loads the program again, which would be one more call.
func RunWatched(cmd *exec.Cmd, names []string, at func(call string, n int) Answer) (Result, error) {
	calls := map[uint32]string{}
	for _, name := range names {
		if number, ok := callNumbers[name]; ok {
			calls[number] = name
		}
	}
	if len(calls) == 0 {
		return Result{}, fmt.Errorf("none of the system calls %v has a number here", names)
	}
	cmd.Env = append(cmd.Environ(), "GODEBUG=asyncpreemptoff=1")
	started, watched := make(chan int, 1), make(chan error, 1)
	r, err := runStarted(cmd, watchedTime, func() error {
		ended := make(chan error, 1)
		go func() {
			// The thread has the filter, which the command inherits. It ends with the
			// goroutine.
			runtime.LockOSThread()
			listener, err := listen(slices.Collect(maps.Keys(calls)))
			if err == nil {
				own := unix.Gettid()
				go func() { watched <- watchCalls(listener, own, calls, at, started) }()
				if err = cmd.Start(); err == nil {
					started <- cmd.Process.Pid
				} else {
					started <- 0
				}
			} else {
				watched <- nil
			}
			ended <- err
		}()
		return <-ended
	})
	return r, errors.Join(err, <-watched)
}

// RunCounted runs a command to its end and counts its system calls with these names.
func RunCounted(cmd *exec.Cmd, names ...string) (r Result, count map[string]int, err error) {
	count = map[string]int{}
	r, err = RunWatched(cmd, names, func(call string, n int) Answer {
		count[call] = n
		return Answer{}
	})
	return r, count, err
}

// RunKilled runs a command to its end, or kills it as it enters the n-th system call with a name.
func RunKilled(cmd *exec.Cmd, call string, n int) (Result, error) {
	return RunWatched(cmd, []string{call}, func(_ string, at int) Answer { return Answer{Kill: at == n} })
}

// RunFailing runs a command to its end. Its n-th system call with a name fails, or all of them if
// n is 0.
func RunFailing(cmd *exec.Cmd, call string, n int, errno unix.Errno) (Result, error) {
	return RunWatched(cmd, []string{call}, func(_ string, at int) Answer {
		if n == 0 || at == n {
			return Answer{Errno: errno}
		}
		return Answer{}
	})
}

// RunPaused runs a command to its end. As it enters the n-th system call with a name, the command
// waits while do runs. reached is false if the command made fewer of these calls.
func RunPaused(cmd *exec.Cmd, call string, n int, do func()) (r Result, reached bool, err error) {
	there, done, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		r, err = RunWatched(cmd, []string{call}, func(_ string, at int) Answer {
			if at == n {
				close(there)
				<-done
			}
			return Answer{}
		})
	}()
	select {
	case <-there:
		reached = true
		func() {
			defer close(done) // even if do ends the test
			do()
		}()
	case <-ended:
	}
	<-ended
	return r, reached, err
}

// listen installs a filter in the calling thread and its children that reports each system call
// with one of the numbers (seccomp_unotify(2)). The returned file receives the reports.
func listen(numbers []uint32) (int, error) {
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // The number of the system call.
	for i, n := range numbers {
		toAsk := uint8(len(numbers) - i)
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: toAsk, K: n})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// Go's scheduler sends signals. A signal that does not kill would otherwise restart the
	// call, which would be reported twice.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return -1, fmt.Errorf("listen to system calls: %w", errno)
	}
	return int(fd), nil
}

// watchCalls answers for the system calls of the process that started sends. It returns when no
// process has the filter any more. The calls of the thread own are let through.
func watchCalls(listener, own int, calls map[uint32]string, at func(call string, n int) Answer, started <-chan int) error {
	defer unix.Close(listener)
	// struct seccomp_notif and struct seccomp_notif_resp (linux/seccomp.h)
	type question struct {
		id         uint64
		pid, flags uint32
		number     uint32
		data       [60]byte
	}
	type answer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
	count, process := map[string]int{}, -1
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return fmt.Errorf("wait for system calls: %w", err)
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return nil // POLLHUP
		}
		var q question
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&q)))
		if errno == unix.ENOENT || errno == unix.EINTR { // the caller has ended
			continue
		}
		if errno != 0 {
			return fmt.Errorf("read of a system call: %w", errno)
		}
		var becomes Answer
		if int(q.pid) != own {
			call := calls[q.number]
			count[call]++
			becomes = at(call, count[call])
		}
		if becomes.Kill {
			if process < 0 {
				process = <-started
			}
			if process > 0 {
				if err := unix.Kill(process, unix.SIGKILL); err != nil && err != unix.ESRCH {
					return fmt.Errorf("kill process %d: %w", process, err)
				}
				continue // the call is never executed
			}
		}
		a := answer{id: q.id, errno: -int32(becomes.Errno)}
		if becomes.Errno == 0 {
			a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
		if errno != 0 && errno != unix.ENOENT {
			return fmt.Errorf("let a system call go on: %w", errno)
		}
	}
}
