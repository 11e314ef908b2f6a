// SPDX-License-Identifier: BSD-2-Clause

// Package history keeps the states that were applied to the bridges of a network namespace,
// and takes changes back: to a state of before, or because nobody has confirmed one in time.
//
// A state is what [config.Export] gives. Each is a file, which can be applied as well. A
// change that waits to be confirmed is a file beside them, which is there before the change
// begins. So it is found by whoever comes next: the process that waits for its end, the
// agent, a command, after a restart of the machine, too.
package history

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/config"
	"bascule/files"

	"golang.org/x/sys/unix"
)

// Kept is how many states are kept.
const Kept = 20

// DefaultDir is the folder of the states of all network namespaces.
const DefaultDir = "/var/lib/bascule/states"

// DefaultRunDir is the folder of what a restart of the machine forgets: the agents' files.
const DefaultRunDir = "/run/bascule-agent"

// RunDir is DefaultRunDir, or what the environment variable BASCULE_AGENT_DIR says.
func RunDir() string { return cmp.Or(os.Getenv("BASCULE_AGENT_DIR"), DefaultRunDir) }

// Dir is DefaultDir, or what the environment variable BASCULE_STATE_DIR says.
func Dir() string { return cmp.Or(os.Getenv("BASCULE_STATE_DIR"), DefaultDir) }

// A History is that of one network namespace.
type History struct {
	s   *bridge.Switch
	dir string
}

// Open returns the history of the bridges of a switch, which was opened by this name. Nothing
// has to be there.
func Open(s *bridge.Switch, netns string) (*History, error) {
	place, err := placeOf(s, netns)
	if err != nil {
		return nil, err
	}
	return &History{s: s, dir: filepath.Join(Dir(), place)}, nil
}

// namesDir is where ip-netns(8) keeps the names of network namespaces.
const namesDir = "/run/netns"

// Words that the folder of a network namespace begins with.
const (
	firstPlace   = "init"     // that of the machine's, or container's, first process
	namedPlace   = "netns-"   // its name follows
	unnamedPlace = "unnamed-" // its cookie follows: no other has it until the machine restarts
)

// machinesCookie is the cookie of the network namespace that the kernel makes first.
const machinesCookie = 1

// placeOf returns a word for a network namespace that it has after a restart, too.
func placeOf(s *bridge.Switch, netns string) (place string, err error) {
	var self, other unix.Stat_t
	err = s.Inside(func() error { return unix.Stat("/proc/thread-self/ns/net", &self) })
	if err != nil {
		if unusable := bridge.Usable(); unusable != nil { // which says what to do about it
			return "", unusable
		}
		return "", fmt.Errorf("cannot look at the network namespace: %w", err)
	}
	is := func(path string) bool {
		return unix.Stat(path, &other) == nil && other.Dev == self.Dev && other.Ino == self.Ino
	}
	hidden := unix.Stat("/proc/1/ns/net", &other)
	if hidden == nil && other.Dev == self.Dev && other.Ino == self.Ino {
		return firstPlace, nil
	}
	if netns != "" && !strings.Contains(netns, "/") && is(filepath.Join(namesDir, netns)) {
		return namedPlace + netns, nil
	}
	entries, _ := os.ReadDir(namesDir) // there is none where no namespace has a name
	for _, e := range entries {
		if is(filepath.Join(namesDir, e.Name())) {
			return namedPlace + e.Name(), nil
		}
	}
	cookie, err := s.Cookie()
	if errors.Is(hidden, fs.ErrPermission) && cookie == machinesCookie { // a service with few capabilities
		return firstPlace, nil
	}
	return unnamedPlace + strconv.FormatUint(cookie, 10), err
}

// Name is the name by which others open the network namespace; "" if there is none.
func (h *History) Name() string {
	place := filepath.Base(h.dir)
	if place == firstPlace {
		return "/proc/1/ns/net"
	}
	name, _ := strings.CutPrefix(place, namedPlace)
	if name == place {
		return ""
	}
	return name
}

// A State is one that was applied.
type State struct {
	Time    time.Time `json:"time"`
	Who     string    `json:"who"`
	What    string    `json:"what"`
	Bridges []string  `json:"bridges,omitempty"` // that it was about; others were there besides
	Change  string    `json:"change,omitempty"`  // what was done, in short

	Files string `json:"files,omitempty"` // digest of what was applied, "" for a state that was found

	// Again are the put-backs to this very state, the last one first: they make no state of their own.
	Again []State `json:"again,omitempty"`

	again  bool // a put-back, to be noted at the last state where that is the same
	number int
	path   string
}

// header begins the first line of a state's file, which has the rest of a [State].
const header = "# bascule state: "

// suffix ends the names of states' files. Their numbers are before it.
const suffix = ".yaml"

// States are those that are kept, the last one first.
func (h *History) States() (list []State, err error) {
	entries, err := os.ReadDir(h.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, h.unread(err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		number, wrong := strconv.Atoi(name)
		if !ok || wrong != nil || number < 1 {
			continue
		}
		path := filepath.Join(h.dir, e.Name())
		text, err := readFile(path)
		if err != nil {
			continue // another command has removed it meanwhile
		}
		first, _, _ := strings.Cut(string(text), "\n")
		st := State{number: number, path: path}
		if about, ok := strings.CutPrefix(first, header); !ok || json.Unmarshal([]byte(about), &st) != nil {
			continue // it was cut off, or is somebody's own
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b State) int { return b.number - a.number })
	return list, nil
}

// A Return is that a state of before was made again: a change was put back, or somebody has gone back
// to it. What has come to the bridges since is gone from them.
type Return struct {
	At time.Time `json:"at"`
	Of time.Time `json:"of"` // when the state was
}

func (h *History) returnPath() string { return filepath.Join(h.dir, "returned.json") }

// Returned is the last return, the zero value for none.
func (h *History) Returned() (r Return) {
	text, err := readFile(h.returnPath())
	if err != nil || json.Unmarshal(text, &r) != nil {
		return Return{}
	}
	return r
}

// noteReturn has the agent know of a return.
func (h *History) noteReturn(of time.Time) {
	text, err := json.Marshal(Return{time.Now(), of})
	if err == nil {
		_ = files.Replace(h.returnPath(), text, 0o600) // the bridges are right without it
	}
}

// goodPath is where the agent's files are that were in force for good.
func (h *History) goodPath() string { return filepath.Join(h.dir, "files.yaml") }

// KeepGood has an agent that starts know which files were in force: their names and patterns of ports
// go on to hold when others were put back. Rules of pf are not in it.
func (h *History) KeepGood(f config.File) error {
	f.Netns, f.Bridges = "", slices.Clone(f.Bridges)
	for i := range f.Bridges {
		f.Bridges[i].PF = nil // they may be in a file elsewhere
	}
	if len(f.Bridges) == 0 {
		if err := os.Remove(h.goodPath()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		return err
	}
	if old, err := readFile(h.goodPath()); err == nil && bytes.Equal(old, b.Bytes()) {
		return nil
	}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return err
	}
	return files.Replace(h.goodPath(), b.Bytes(), 0o600)
}

// Good are the files that KeepGood has kept last, nil for none.
func (h *History) Good() *config.File {
	text, err := readFile(h.goodPath())
	if err != nil {
		return nil
	}
	f, err := asFile(h.goodPath(), text)
	if err != nil {
		return nil
	}
	return &f
}

// Changed is when something in the history has changed last, zero for never. It costs a look at one
// folder.
func (h *History) Changed() time.Time {
	info, err := os.Stat(h.dir)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// maxState is how large the file of a state may be, in bytes: as large as any, and its header.
const maxState = 9 << 20

func readFile(path string) ([]byte, error) {
	f, err := files.OpenPlain(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return files.ReadAll(f, maxState)
}

func (h *History) unread(err error) error {
	return fmt.Errorf("cannot read the states that are kept: %w; see %s", err, h.dir)
}

// file is a state as a file that can be applied.
func (st State) file() (config.File, string, error) {
	text, err := readFile(st.path)
	if err != nil {
		return config.File{}, "", fmt.Errorf("cannot read a state: %w", err)
	}
	f, err := asFile(st.path, text)
	return f, string(text), err
}

func asFile(name string, text []byte) (config.File, error) {
	list, err := config.ParseAlone(name, text)
	if err != nil {
		return config.File{}, err
	}
	var f config.File
	for _, one := range list {
		f.Bridges = append(f.Bridges, one.Bridges...)
	}
	f.Path = name
	return f, nil
}

// exported is the state that the bridges have, and the text of a file of it, which can be applied.
func (h *History) exported() (f config.File, text []byte, err error) {
	f, _, err = config.State(h.s)
	if err != nil {
		return f, nil, err
	}
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		return f, nil, err
	}
	if _, err := asFile("the state", b.Bytes()); err != nil {
		return f, nil, fmt.Errorf("the state that there is cannot be written as a file: %w", err)
	}
	return f, b.Bytes(), nil
}

// body is the text of a state's file without its header.
func body(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}

// keep keeps a state, unless the last one that is kept is the same. It returns that.
func (h *History) keep(st State, text []byte) (State, error) {
	list, err := h.States()
	if err != nil {
		return State{}, err
	}
	number := 1
	if len(list) > 0 {
		last := list[0]
		number = last.number + 1
		if _, old, err := last.file(); err == nil && body(old) == string(text) && (st.Files == "" || st.Files == last.Files) {
			if !st.again {
				return last, nil
			}
			last.Again = append([]State{st}, last.Again[:min(len(last.Again), Kept-1)]...)
			return last, last.write([]byte(body(old)))
		}
	}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return State{}, err
	}
	st.number, st.path = number, filepath.Join(h.dir, fmt.Sprintf("%06d%s", number, suffix))
	if err := st.write(text); err != nil {
		return State{}, err
	}
	if len(list) >= Kept {
		spared := ""
		if p, _ := h.Pending(); p != nil {
			spared = p.Before
		}
		for _, old := range list[Kept-1:] {
			if filepath.Base(old.path) != spared {
				_ = os.Remove(old.path) // the next one tries again
			}
		}
	}
	h.tidy()
	h.tidyDenied()
	return st, nil
}

// write writes the state's file, with the text of its bridges.
func (st State) write(text []byte) error {
	about, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return files.Replace(st.path, slices.Concat([]byte(header), about, []byte("\n"), text), 0o600)
}

// forgotten is after which time the states of a named network namespace go that is not there.
const forgotten = 30 * 24 * time.Hour

// tidy removes the states of other network namespaces that have ended, when nothing has changed
// there for long.
func (h *History) tidy() {
	root := filepath.Dir(h.dir)
	entries, err := os.ReadDir(root)
	if err != nil {
		return
	}
	unnamed := map[uint64]string{}
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if path == h.dir {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		if number, ok := strings.CutPrefix(e.Name(), unnamedPlace); ok {
			cookie, err := strconv.ParseUint(number, 10, 64)
			// from some places not all processes can be seen, and so which namespaces live
			if err == nil && time.Since(info.ModTime()) > MostConfirm {
				unnamed[cookie] = path
			}
			continue
		}
		name, ok := strings.CutPrefix(e.Name(), namedPlace)
		if !ok {
			continue
		}
		_, gone := os.Lstat(filepath.Join(namesDir, name))
		if errors.Is(gone, fs.ErrNotExist) && time.Since(info.ModTime()) > forgotten {
			_ = os.RemoveAll(path)
		}
	}
	if len(unnamed) == 0 {
		return
	}
	cookies := []uint64{}
	for cookie := range unnamed {
		cookies = append(cookies, cookie)
	}
	ended, err := bridge.Ended(cookies)
	if err != nil {
		return
	}
	for _, cookie := range ended {
		_ = os.RemoveAll(unnamed[cookie])
	}
}

// tidyDenied removes the files of denied changes but the newest.
func (h *History) tidyDenied() {
	paths, _ := filepath.Glob(filepath.Join(h.dir, deniedPrefix+"*.json")) // none where the name has a bracket
	changed := func(path string) time.Time {
		info, err := os.Lstat(path)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(paths, func(a, b string) int { return changed(b).Compare(changed(a)) })
	for _, path := range paths[min(len(paths), Kept):] {
		_ = os.Remove(path) // the next one tries again
	}
}

// digest tells files from others: what they say, and what the files of pf say that they name.
func digest(f config.File) string {
	sum := sha256.New()
	f.Netns = ""
	f.Bridges = slices.Clone(f.Bridges)
	slices.SortFunc(f.Bridges, func(a, b config.Bridge) int { return strings.Compare(a.Name, b.Name) })
	for i := range f.Bridges {
		b := &f.Bridges[i]
		if b.PF == nil || b.PF.File == "" {
			continue
		}
		path := b.PF.File
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(b.PF.At.Path), path)
		}
		text, _ := readFile(path) // who applies it says what is wrong with it
		fmt.Fprintf(sum, "%s %d\n%s", b.Name, len(text), text)
	}
	if err := f.Write(sum); err != nil {
		return "" // of a file that cannot be applied either
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// deniedPath is the file of a change that was taken back, since nobody had confirmed it. It is
// what the file of the [Pending] was, which needs no room on a disk.
func (h *History) deniedPath(digest string) string {
	return filepath.Join(h.dir, deniedPrefix+digest[:min(len(digest), 16)]+".json")
}

const deniedPrefix = "denied-"

// denied reports whether a file was taken back, since nobody had confirmed it. It is until it is
// confirmed, or applied by somebody who insists on it.
func (h *History) denied(digest string) bool {
	if digest == "" {
		return false
	}
	for _, path := range []string{h.deniedPath(digest), h.pendingPath()} { // that could not be removed
		p := &Pending{}
		text, err := readFile(path)
		if err == nil && json.Unmarshal(text, p) == nil && p.Files == digest && (path != h.pendingPath() || h.isSettled(p)) {
			return true
		}
	}
	return false
}

// forgive has a file be denied no more.
func (h *History) forgive(digest string) {
	if digest != "" {
		_ = os.Remove(h.deniedPath(digest)) // it can be applied all the same
	}
}

// names are the names of a file's bridges.
func names(f config.File) (list []string) {
	for _, b := range f.Bridges {
		if !slices.Contains(list, b.Name) {
			list = append(list, b.Name)
		}
	}
	slices.Sort(list)
	return list
}
