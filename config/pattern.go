// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"path"
	"strings"
)

// Device returns the device name of a port; ok is false if the port's name is a pattern.
func (p *Port) Device() (name string, ok bool) {
	return plainName(p.Name)
}

// special reports whether a name contains a character with a meaning in patterns. In other names a
// backslash is an ordinary character, too.
func special(name string) bool { return strings.ContainsAny(name, "*?[") }

// plainName returns the name of a port in a file, and whether it is a name rather than a pattern.
// In a pattern a backslash removes the special meaning of the next character. If a backslash
// precedes every special character, the text is a name: the name of the device without the
// backslashes.
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
				return name, false // path.Match returns the error
			}
		}
		plain.WriteByte(name[i])
	}
	return plain.String(), true
}

// backwards returns the first range of a pattern whose end precedes its beginning, or "" if there
// is none. Such a range matches nothing, but path.Match accepts it. The pattern must be one that
// path.Match accepts.
func backwards(pattern string) string {
	letters := []rune(pattern)
	letter := func(i int) int { // the index of the character that begins at i, after a backslash
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

// quoteName returns a device's name in the format of a port name in a file.
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

// Port returns the port that the bridge's file has for a device: the one with its name, or the
// first port whose pattern matches, with the device's name.
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
