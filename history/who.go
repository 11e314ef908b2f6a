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

// A Who is somebody who changes something.
type Who struct {
	User string // name of the user who logged in
	From string // where from, "" where that is not known
	By   string // "agent" and the like, "" for a command
}

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

// Caller is who has started this process: the user who logged in, who may have become root
// since.
func Caller() Who {
	w := Who{User: os.Getenv("SUDO_USER")}
	if text, err := os.ReadFile("/proc/self/loginuid"); w.User == "" && err == nil {
		const none = "4294967295" // nobody logged in (audit(7))
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

// CallersSession is the ssh session that this process belongs to, as sshd says it to the first
// process of the session (ssh(1), SSH_CONNECTION). Commands such as sudo(8) take it away from
// those below, so it is searched among the processes above, too.
func CallersSession() (Session, bool) {
	const name = "SSH_CONNECTION"
	if s, ok := parseSession(os.Getenv(name)); ok {
		return s, true
	}
	for pid, steps := os.Getppid(), 0; pid > 1 && steps < 64; steps++ {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ") // it may be another user's
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

// parseSession reads an address and a port, of the client and of the server.
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
