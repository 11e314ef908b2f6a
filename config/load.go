// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"bascule/bridge"
	"bascule/files"
	"bascule/pf"
)

// maxSize is the size limit of a file in bytes. A bridge with full tables of bindings and rules
// fits.
const maxSize = 8 << 20

// Load reads desired states. Each path is a file, or a folder whose *.yaml,
// *.yml and hostname.* are read in the order of their names. A YAML file may
// have several documents, each one a [File]. If files have mistakes, the error is an [Errors] with
// the mistakes of all files.
func Load(paths ...string) ([]File, error) { return load(paths, files.Open) }

// Reload is Load for a process that reads the same files repeatedly, such as the agent. It refuses
// pipes and standard input, whose text can be read only once.
func Reload(paths ...string) ([]File, error) { return load(paths, files.OpenPlain) }

func load(paths []string, open opener) ([]File, error) {
	var list []File
	var bad Errors
	for _, path := range paths {
		names, others, err := filesOf(path)
		if err != nil {
			return nil, err
		}
		for _, name := range others {
			list = append(list, File{Path: name, other: true})
		}
		for _, name := range names {
			text, err := read(name, open)
			if err != nil {
				return nil, err
			}
			more, wrong := parse(name, text)
			list, bad = append(list, more...), append(bad, wrong...)
		}
	}
	if bad == nil {
		bad = settle(list)
	}
	if bad != nil {
		return nil, bad
	}
	for i := range list {
		if f := &list[i]; f.other {
			f.Notes = []Error{{Position{Path: f.Path}, "not read: " + whyNotRead(list, f.Path)}}
		}
	}
	return list, nil
}

// whyNotRead returns the reason why a hostname.if(5) file in a folder is not read, and what the
// user still has to do for its interface.
func whyNotRead(list []File, path string) string {
	name, _ := kindOf(path)
	for _, f := range list {
		for _, b := range f.Bridges {
			for i := range b.Ports {
				p := &b.Ports[i]
				device, plain := p.Device()
				if matches, _ := filepath.Match(p.Name, name); f.Netns == "" && (device == name && plain || matches && !plain) {
					return fmt.Sprintf("%s is a port of %s, which is set up without it", name, b.Name)
				}
			}
		}
	}
	return "it " + otherInterface
}

// ParseAlone reads desired states from a single text of a sender who may not have this process's
// access to files: a reference to a file of pf rules is a mistake. Errors use name in place of a
// file name. Apply the result without Options.PF, because its pf rules could name files.
func ParseAlone(name string, text []byte) ([]File, error) {
	if len(text) > maxSize {
		return nil, tooLarge(name)
	}
	list, bad := parse(name, text)
	if bad == nil {
		bad = settle(list)
	}
	if bad == nil {
		var wrong faults
		for _, f := range list {
			for _, b := range f.Bridges {
				if b.PF != nil && b.PF.File != "" {
					wrong.add(b.PF.At, "pf names file %q, which cannot be read from here; give the rules themselves", b.PF.File)
				}
			}
		}
		bad = wrong.errors()
	}
	if bad != nil {
		return nil, bad
	}
	return list, nil
}

// Check reports why a text would be refused as a file in YAML or JSON on any machine. The error is
// the error of [Load], or of the first pf rules in the text.
func Check(path string, text []byte) error {
	if len(text) > maxSize {
		return tooLarge(path)
	}
	list, bad := parse(path, text)
	if bad == nil {
		bad = settle(list)
	}
	if bad != nil {
		return bad[0]
	}
	for _, f := range list {
		for _, b := range f.Bridges {
			if b.PF == nil {
				continue
			}
			if _, err := pf.Parse("pf of "+b.Name, []byte(b.PF.Rules), pf.Source{Kept: true}); err != nil {
				first, _, _ := strings.Cut(err.Error(), "\n") // without the line, which follows
				return errors.New(first)
			}
		}
	}
	return nil
}

func tooLarge(path string) error {
	return fmt.Errorf("%s: the file has more than %d bytes; give a smaller one, or several", path, maxSize)
}

// ByNetns merges files into one for each network namespace. A file without a namespace applies to
// home, in the format of [bridge.Open].
func ByNetns(files []File, home string) (list []File) {
	for _, f := range files {
		f.Netns = cmp.Or(f.Netns, home)
		i := slices.IndexFunc(list, func(other File) bool { return bridge.SameNetns(other.Netns, f.Netns) })
		if i < 0 {
			list = append(list, f)
			continue
		}
		list[i].Bridges = append(slices.Clip(list[i].Bridges), f.Bridges...)
	}
	return list
}

// hostnamePrefix begins the names of hostname.if(5) files.
const hostnamePrefix = "hostname."

// filesOf returns the files that a path stands for. For a folder it also returns the hostname.if(5)
// files for other interfaces.
func filesOf(path string) (names, others []string, err error) {
	if files.IsOwn(path) {
		return []string{path}, nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, cannotRead(path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, nil, cannotRead(path, err)
	}
	for _, e := range entries {
		name := e.Name()
		device, isHostname := strings.CutPrefix(name, hostnamePrefix)
		switch ext := filepath.Ext(name); {
		case strings.HasPrefix(name, "."):
		case ext == ".yaml", ext == ".yml",
			isHostname && !strings.ContainsAny(device, ".~"): // such names are left by editors and packages
			name = filepath.Join(path, name)
			// no folders, and no pipes, which may never have a writer
			if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
				continue
			}
			if _, kind := kindOf(name); isHostname && kind == 0 {
				others = append(others, name)
				continue
			}
			names = append(names, name)
		}
	}
	switch {
	case names == nil && others != nil:
		first := filepath.Base(others[0])
		if more := len(others) - 1; more > 0 {
			first += fmt.Sprintf(" (%d more)", more)
		}
		return nil, nil, fmt.Errorf("%s: the folder has no file that can be applied: %s %s; give another folder, or a file", path, first, otherInterface)
	case names == nil:
		return nil, nil, fmt.Errorf("%s: the folder has no *.yaml, *.yml or hostname.*; give another folder, or a file", path)
	}
	return names, others, nil
}

// opener opens a file that a user has named: files.Open or files.OpenPlain.
type opener func(name string) (*os.File, error)

// read returns the text of a file.
func read(path string, open opener) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, cannotRead(path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return nil, cannotRead(path, err)
	case len(text) > maxSize:
		return nil, tooLarge(path)
	}
	return text, nil
}

func cannotRead(path string, err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("%s: %w; give a file that can be read", path, err)
}

// lineBreaks converts all kinds of line breaks to "\n".
var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// parse reads the text of a file of either kind.
func parse(path string, text []byte) ([]File, Errors) {
	bad := &faults{path: path}
	lines := lineBreaks.Replace(string(text))
	if !utf8.ValidString(lines) {
		bad.add(invalidAt(path, lines), "not UTF-8; give a text file")
		return nil, bad.errors()
	}
	var files []File
	if strings.HasPrefix(filepath.Base(path), hostnamePrefix) {
		files = []File{parseHostname(bad, lines)}
	} else {
		files = parseYAML(bad, lines)
	}
	if bad.list != nil {
		return nil, bad.errors()
	}
	return files, nil
}

// invalidAt returns the place of the first byte that is not UTF-8.
func invalidAt(path, text string) Position {
	at := Position{path, 1, 1}
	for i, c := range text {
		if c == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			break
		}
		at.Column++
		if c == '\n' {
			at.Line, at.Column = at.Line+1, 1
		}
	}
	return at
}

// twice returns an error for each bridge that is defined more than once in the files.
func twice(list []File) Errors {
	var bad faults
	type key struct{ netns, bridge string }
	seen := map[key]Position{}
	for _, f := range list {
		for _, b := range f.Bridges {
			k := key{f.Netns, b.Name}
			if first, ok := seen[k]; ok {
				bad.add(b.At, "bridge %s is already defined at %s; put all of it there", b.Name, first)
				continue
			}
			seen[k] = b.At
		}
	}
	return bad.errors()
}
