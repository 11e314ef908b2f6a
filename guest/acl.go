// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bascule/bridge"
	"bascule/files"
)

// ACL is the path of the helper's access list for taps on bridges.
const ACL = "/etc/bascule/bridge.conf"

// maxACL is the size limit of the file in bytes.
const maxACL = 1 << 20

// A Caller is the user who runs the helper.
type Caller struct {
	UID    int
	Groups []int // with the primary group
}

// A Grant is a caller's permission for a bridge.
type Grant struct {
	VLAN     uint16          // 0 for the VLANs of a new port
	Settings []bridge.Change // of the port
}

// Allowed parses an access list, and returns a caller's permission for a bridge. A line has one of
// these forms:
//
//	allow BRIDGE|all [user NAME | group NAME] [vlan N] [SETTING=VALUE ...]
//	deny BRIDGE|all [user NAME | group NAME]
//
// The first line that matches the bridge and the caller decides. Without a match, access is denied.
// An invalid line is always an error, even after the deciding line.
func Allowed(name string, text []byte, on string, who Caller) (*Grant, error) {
	var decided bool
	var found *Grant
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		grant, allow, matches, err := readLine(words, on, who)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if matches && !decided {
			decided = true
			if allow {
				found = grant
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if found == nil {
		return nil, fmt.Errorf("%s does not allow user %d a tap on bridge %s; root can, in that file", name, who.UID, on)
	}
	return found, nil
}

func readLine(words []string, on string, who Caller) (grant *Grant, allow, matches bool, err error) {
	switch words[0] {
	case "allow":
		allow = true
	case "deny":
	default:
		return nil, false, false, fmt.Errorf("unknown word %q; a line begins with allow or deny", words[0])
	}
	if len(words) < 2 {
		return nil, false, false, errors.New("the bridge is missing; give its name, or all")
	}
	matches = words[1] == "all" || words[1] == on
	rest := words[2:]
	if len(rest) > 0 && (rest[0] == "user" || rest[0] == "group") {
		if len(rest) < 2 {
			return nil, false, false, fmt.Errorf("the name of the %s is missing", rest[0])
		}
		is, err := who.is(rest[0], rest[1])
		if err != nil {
			return nil, false, false, err
		}
		matches = matches && is
		rest = rest[2:]
	}
	grant = &Grant{}
	given := map[string]bool{}
	for len(rest) > 0 {
		if !allow {
			return nil, false, false, fmt.Errorf("%q: not expected after deny", rest[0])
		}
		word, _, _ := strings.Cut(rest[0], "=")
		if given[word] {
			return nil, false, false, fmt.Errorf("%s occurs twice; remove one", word)
		}
		given[word] = true
		if rest[0] == "vlan" {
			n := 0
			if len(rest) > 1 {
				n, _ = strconv.Atoi(rest[1])
			}
			if n < 1 || n > 4094 {
				return nil, false, false, errors.New("vlan: give 1 to 4094")
			}
			grant.VLAN = uint16(n)
			rest = rest[2:]
			continue
		}
		setting, value, ok := strings.Cut(rest[0], "=")
		if !ok {
			return nil, false, false, fmt.Errorf("%q: give user NAME, group NAME, vlan N, or SETTING=VALUE of 'bascule port set'", rest[0])
		}
		if err := bridge.CheckPortSetting(setting, value); err != nil {
			return nil, false, false, err
		}
		grant.Settings = append(grant.Settings, bridge.Change{Name: setting, Value: value})
		rest = rest[1:]
	}
	return grant, allow, matches, nil
}

// is reports whether the caller is the named user, or a member of the named group; the name may be
// a number.
func (c Caller) is(kind, name string) (bool, error) {
	id, err := strconv.Atoi(name)
	if kind == "user" {
		if err != nil {
			u, failed := user.Lookup(name)
			if failed != nil {
				return false, fmt.Errorf("there is no user %.40q", name)
			}
			id, err = strconv.Atoi(u.Uid)
		}
		return err == nil && id == c.UID, err
	}
	if err != nil {
		g, failed := user.LookupGroup(name)
		if failed != nil {
			return false, fmt.Errorf("there is no group %.40q", name)
		}
		id, err = strconv.Atoi(g.Gid)
	}
	return err == nil && slices.Contains(c.Groups, id), err
}

// rootsAlone refuses a file or folder that users other than root can write.
func rootsAlone(path string, st fs.FileInfo) error {
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Uid != 0 || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("cannot use the list of users who may have a tap: users other than root can write %s; run 'chown root %s; chmod go-w %s'", path, path, path)
	}
	return nil
}

// ReadACL reads the access list. Only root may have permission to write or replace the file.
func ReadACL(path string) ([]byte, error) {
	f, err := files.OpenPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s, so no user may have a tap; root can allow some with a line such as 'allow br0 group kvm'", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read who may have a tap: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil {
		err = rootsAlone(path, st)
	}
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if st, err = os.Stat(dir); err == nil {
		err = rootsAlone(dir, st)
	}
	if err != nil {
		return nil, err
	}
	text, err := files.ReadAll(f, maxACL)
	if err != nil {
		return nil, fmt.Errorf("cannot read who may have a tap: %s: %w", path, err)
	}
	return text, nil
}

// self returns the caller of this process, even if the program's file is setuid root.
func self() (Caller, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return Caller{}, fmt.Errorf("cannot tell whose groups these are: %w", err)
	}
	return Caller{UID: os.Getuid(), Groups: append(groups, os.Getgid())}, nil
}
