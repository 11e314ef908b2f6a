// SPDX-License-Identifier: BSD-2-Clause

// Package history keeps the states that were applied to the bridges of a network namespace. It takes
// changes back: it returns to an earlier state, or puts back a change that was not confirmed in time.
//
// A state is what [config.Export] returns. Each state is a file, which can be applied as well. A
// change that waits for its confirmation is a file in the same folder, written before the change
// begins. So every later process finds it: the process that waits for its end, the agent, a command,
// also after a restart of the machine.
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

// Kept is the number of states that are kept.
const Kept = 20

// DefaultDir is the folder of the states of all network namespaces.
const DefaultDir = "/var/lib/bascule/states"

// DefaultRunDir is the folder of the agents' files. A restart of the machine empties it.
const DefaultRunDir = "/run/bascule-agent"

// The environment variables that name other folders.
const (
	stateVariable = "BASCULE_STATE_DIR"
	runVariable   = "BASCULE_AGENT_DIR"
)

// RunDir is DefaultRunDir, or the value of the environment variable BASCULE_AGENT_DIR.
func RunDir() string { return cmp.Or(os.Getenv(runVariable), DefaultRunDir) }

// Dir is DefaultDir, or the value of the environment variable BASCULE_STATE_DIR.
func Dir() string { return cmp.Or(os.Getenv(stateVariable), DefaultDir) }

// A History is the history of one network namespace.
type History struct {
	s   *bridge.Switch
	dir string
}

// Open returns the history of the bridges of a switch. netns is the name by which the switch was
// opened. The history may be empty.
func Open(s *bridge.Switch, netns string) (*History, error) {
	place, err := placeOf(s, netns)
	if err != nil {
		return nil, err
	}
	return &History{s: s, dir: filepath.Join(Dir(), place)}, nil
}

// namesDir is where ip-netns(8) keeps the names of network namespaces.
const namesDir = "/run/netns"

// Prefixes of the folders' names, by kind of network namespace.
const (
	firstPlace   = "init"     // the namespace of the first process of the machine, or container
	namedPlace   = "netns-"   // its name follows
	unnamedPlace = "unnamed-" // its cookie follows, which is unique until the machine restarts
)

// machinesCookie is the cookie of the network namespace that the kernel makes first.
const machinesCookie = 1

// placeOf returns a word for a network namespace that stays the same after a restart.
func placeOf(s *bridge.Switch, netns string) (place string, err error) {
	var self, other unix.Stat_t
	err = s.Inside(func() error { return unix.Stat("/proc/thread-self/ns/net", &self) })
	if err != nil {
		if unusable := bridge.Usable(); unusable != nil { // the error says what to do about it
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
	entries, _ := os.ReadDir(namesDir) // the folder is missing if no namespace has a name
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

// Name returns the name by which other processes open the network namespace; "" if there is none.
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

// A State is a state that was applied.
type State struct {
	Time    time.Time `json:"time"`
	Who     string    `json:"who"`
	What    string    `json:"what"`
	Bridges []string  `json:"bridges,omitempty"` // the bridges that it changed; there were others as well
	Change  string    `json:"change,omitempty"`  // summary of the change

	Files string `json:"files,omitempty"` // digest of the applied files, "" for a state that was found

	// Again are the put-backs to this very state, the last one first. A put-back makes no state
	// of its own.
	Again []State `json:"again,omitempty"`

	Sum string `json:"sum,omitempty"` // of the bridges' text, as the file may be cut off; "" by an earlier version

	again  bool // a put-back, which is noted at the last state if the two are equal
	number int
	path   string
}

// header begins the first line of a state's file. The [State] follows it as JSON.
const header = "# bascule state: "

// suffix ends the names of states' files. A number precedes it.
const suffix = ".yaml"

// States returns the states that are kept, the last one first.
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
		st, _, err := readState(filepath.Join(h.dir, e.Name()))
		if err != nil {
			continue // another command has removed it meanwhile, it is damaged, or it is not one of ours
		}
		st.number = number
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b State) int { return b.number - a.number })
	return list, nil
}

// errDamaged means that a state's file was cut off, or overwritten.
var errDamaged = errors.New("the file is damaged")

// readState reads a state's file.
func readState(path string) (st State, text []byte, err error) {
	if text, err = readFile(path); err != nil {
		return State{}, nil, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	about, ok := strings.CutPrefix(first, header)
	if !ok || json.Unmarshal([]byte(about), &st) != nil || st.Sum != "" && st.Sum != sumOf([]byte(body(string(text)))) {
		return State{}, nil, errDamaged
	}
	st.path = path
	return st, text, nil
}

// sumOf returns the checksum of a state's text.
func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// A Return records that an earlier state was restored: a change was put back, or a user went back to
// that state. Everything that was added to the bridges since then is gone from them.
type Return struct {
	At    time.Time `json:"at"`
	Of    time.Time `json:"of"`              // time of the restored state
	Ports []string  `json:"ports,omitempty"` // names of the ports that it removed
}

func (h *History) returnPath() string { return filepath.Join(h.dir, "returned.json") }

// Returned returns the last return, or the zero value if there was none.
func (h *History) Returned() (r Return) {
	text, err := readFile(h.returnPath())
	if err != nil || json.Unmarshal(text, &r) != nil {
		return Return{}
	}
	return r
}

// noteReturn records a return for the agent.
func (h *History) noteReturn(of time.Time, actions []config.Action) {
	text, err := json.Marshal(Return{time.Now(), of, config.RemovedPorts(actions)})
	if err == nil {
		_ = files.Replace(h.returnPath(), text, 0o600) // the bridges are right without it
	}
}

// goodPath returns the path of the agent's files that were last in force for good.
func (h *History) goodPath() string { return filepath.Join(h.dir, "files.yaml") }

// KeepGood stores which files are in force, for the agent's next start: their names and patterns of
// ports remain valid when later files were put back. It leaves out rules of pf.
func (h *History) KeepGood(f config.File) error {
	f.Netns, f.Bridges = "", slices.Clone(f.Bridges)
	for i := range f.Bridges {
		f.Bridges[i].PF = nil // they may be in a separate file
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

// Good returns the files that KeepGood stored last, nil for none.
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

// Changed returns the time of the last change of the history, zero if it has none. It costs one stat
// of a folder.
func (h *History) Changed() time.Time {
	info, err := os.Stat(h.dir)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// maxState is the largest size of a state's file, in bytes: the largest file, and the header.
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

// file returns the state as a file that can be applied, and its text.
func (st State) file() (config.File, string, error) {
	_, text, err := readState(st.path)
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

// exported returns the current state of the bridges as a file that can be applied, and its text.
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
		return f, nil, fmt.Errorf("the present state cannot be written as a file: %w", err)
	}
	return f, b.Bytes(), nil
}

// body returns the text of a state's file without its header.
func body(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}

// keep stores a state, unless the last stored state is the same, and returns the stored one.
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
	st.Sum = sumOf(text)
	about, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return files.Replace(st.path, slices.Concat([]byte(header), about, []byte("\n"), text), 0o600)
}

// forgotten is the age after which the states of a named network namespace are removed, if no
// namespace has that name.
const forgotten = 30 * 24 * time.Hour

// tidy removes the states of other network namespaces that have ended and have not changed for a long
// time.
func (h *History) tidy() {
	files.Sweep(h.dir)
	files.Sweep(RunDir())
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
			// not every namespace sees all processes, so a living namespace can look dead
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

// tidyDenied removes all files of denied changes but the newest.
func (h *History) tidyDenied() {
	paths, _ := filepath.Glob(filepath.Join(h.dir, deniedPrefix+"*.json")) // none if the name has a bracket
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

// digest returns a hash of files: of their contents, and of the pf files that they name.
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
		text, _ := readFile(path) // the apply reports what is wrong with it
		fmt.Fprintf(sum, "%s %d\n%s", b.Name, len(text), text)
	}
	if err := f.Write(sum); err != nil {
		return "" // such a file cannot be applied either
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// deniedPath returns the path of the record of a change that was put back because it was not
// confirmed. It is the renamed file of the [Pending]: a rename needs no room on the disk.
func (h *History) deniedPath(digest string) string {
	return filepath.Join(h.dir, deniedPrefix+digest[:min(len(digest), 16)]+".json")
}

const deniedPrefix = "denied-"

// Denied reports whether files with this digest were put back because they were not confirmed. They are denied until
// they are confirmed, or applied with --yes.
func (h *History) Denied(digest string) bool {
	if digest == "" {
		return false
	}
	for _, path := range []string{h.deniedPath(digest), h.pendingPath()} { // a file that could not be removed
		p := &Pending{}
		text, err := readFile(path)
		if err == nil && json.Unmarshal(text, p) == nil && p.Files == digest && (path != h.pendingPath() || h.isSettled(p)) {
			return true
		}
	}
	return false
}

// forgive removes the record that files were denied.
func (h *History) forgive(digest string) {
	if digest != "" {
		_ = os.Remove(h.deniedPath(digest)) // they can be applied anyway
	}
}

// names returns the names of a file's bridges.
func names(f config.File) (list []string) {
	for _, b := range f.Bridges {
		if !slices.Contains(list, b.Name) {
			list = append(list, b.Name)
		}
	}
	slices.Sort(list)
	return list
}
