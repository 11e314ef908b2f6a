// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"bytes"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// A Who is the author of a change.
type Who struct {
	User string // name of the user who logged in
	From string // origin of the login, "" if it is not known
	By   string // "agent" or another program, "" for a command
}

// String returns the author for lists and messages: "root from 192.0.2.1 by the agent".
func (w Who) String() string {
	s := w.User
	if w.From != "" {
		s += " from " + w.From
	}
	if w.By != "" {
		s = strings.TrimPrefix(s+" by the "+w.By, " by ")
	}
	return s
}

// Caller returns the author of this process's changes: the user who logged in, also if that
// user has become root since.
func Caller() Who {
	w := Who{User: os.Getenv("SUDO_USER")}
	if text, err := os.ReadFile("/proc/self/loginuid"); w.User == "" && err == nil {
		const none = "4294967295" // no user logged in (audit(7))
		if id := strings.TrimSpace(string(text)); id != none {
			w.User = nameOf(id)
		}
	}
	if w.User == "" {
		w.User = nameOf(strconv.Itoa(os.Getuid()))
	}
	if s, ok := CallersSession(); ok {
		w.From = s.Client.Addr().String()
	}
	return w
}

func nameOf(id string) string {
	u, err := user.LookupId(id)
	if err != nil {
		return id
	}
	return u.Username
}

// A Session is the connection of an ssh session.
type Session struct{ Client, Server netip.AddrPort }

// CallersSession returns the ssh session that this process belongs to. sshd sets it in the
// environment of the session's first process (ssh(1), SSH_CONNECTION). Commands such as
// sudo(8) remove it from their children's environment, so the processes above are searched,
// too.
func CallersSession() (Session, bool) {
	const name = "SSH_CONNECTION"
	if s, ok := parseSession(os.Getenv(name)); ok {
		return s, true
	}
	for pid, steps := os.Getppid(), 0; pid > 1 && steps < 64; steps++ {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ") // it may be another user's process
		for _, word := range bytes.Split(text, []byte{0}) {
			if value, ok := strings.CutPrefix(string(word), name+"="); ok {
				if s, ok := parseSession(value); ok {
					return s, true
				}
			}
		}
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			break
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent (proc(5))
		if len(fields) < 2 {
			break
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			break
		}
	}
	return Session{}, false
}

// parseSession parses the addresses and ports of the client and of the server.
func parseSession(text string) (s Session, ok bool) {
	words := strings.Fields(text)
	if len(words) != 4 {
		return s, false
	}
	for i, to := range []*netip.AddrPort{&s.Client, &s.Server} {
		a, err := netip.ParseAddr(words[2*i])
		port, wrong := strconv.ParseUint(words[2*i+1], 10, 16)
		if err != nil || wrong != nil {
			return s, false
		}
		*to = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	return s, true
}
