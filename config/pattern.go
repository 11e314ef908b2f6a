// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"path"
	"strings"
)

// Device returns the name of the device that a port is for; it is not ok where
// the port's name is a pattern.
func (p *Port) Device() (name string, ok bool) {
	return plainName(p.Name)
}

// special reports whether a name has a letter in it that patterns give a meaning.
// In others a backslash is a letter, too.
func special(name string) bool { return strings.ContainsAny(name, "*?[") }

// plainName returns the name of a file's port, and whether it is a name and not
// a pattern. A backslash in a pattern makes the letter behind it an ordinary
// one. If all special letters have a backslash, the text is a name: that of the
// device that is called so.
func plainName(name string) (string, bool) {
	if !special(name) {
		return name, true
	}
	var plain strings.Builder
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case '*', '?', '[':
			return name, false
		case '\\':
			if i++; i == len(name) {
				return name, false // path.Match says what is wrong
			}
		}
		plain.WriteByte(name[i])
	}
	return plain.String(), true
}

// backwards returns the first range of a pattern that begins after its end, "" if
// there is none. Such a range matches nothing, and path.Match takes it; the pattern
// is one that it takes.
func backwards(pattern string) string {
	letters := []rune(pattern)
	letter := func(i int) int { // where the letter is that begins at i
		if letters[i] == '\\' {
			return i + 1
		}
		return i
	}
	for i := 0; i < len(letters); i++ {
		if letters[i] != '[' {
			i = letter(i)
			continue
		}
		for i++; letters[i] != ']'; i++ {
			start := i
			i = letter(i)
			low := letters[i]
			if letters[i+1] != '-' {
				continue
			}
			i = letter(i + 2)
			if letters[i] < low {
				return string(letters[start : i+1])
			}
		}
	}
	return ""
}

// quoteName returns a device's name as a port of a file has it.
func quoteName(name string) string {
	if !special(name) {
		return name
	}
	var quoted strings.Builder
	for i := range len(name) {
		if strings.IndexByte(`*?[\`, name[i]) >= 0 {
			quoted.WriteByte('\\')
		}
		quoted.WriteByte(name[i])
	}
	return quoted.String()
}

// Port returns what the bridge's file says of a device: the port of its name,
// or else the first port whose pattern matches it, under the device's name.
func (b *Bridge) Port(device string) (Port, bool) {
	var found *Port
	for i := range b.Ports {
		p := &b.Ports[i]
		name, plain := plainName(p.Name)
		if plain && name == device {
			found = p
			break
		}
		if plain || found != nil {
			continue
		}
		if ok, err := path.Match(p.Name, device); ok && err == nil {
			found = p
		}
	}
	if found == nil {
		return Port{}, false
	}
	port := *found
	port.Name = device
	return port, true
}
