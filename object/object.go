// SPDX-License-Identifier: BSD-2-Clause

// Package object describes the objects that a switch has, such as bindings: their fields, and the values of fields.
// Commands, the API and files derive their arguments, requests, keys and checks from a description, so that they agree.
// The package knows nothing of a switch: package bridge has the descriptions, beside the work that they are about.
package object

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// A Source is a place where completion finds values of a kind.
type Source int

// The sources.
const (
	Nowhere  Source = iota
	Bridges         // the bridges
	Ports           // the ports of the bridge
	Stations        // the MAC addresses in the FDB of the bridge
	VLANs           // the VLANs of the bridge
	Present         // the values of the field in objects that are there
)

// A Form is the part of a kind that does not depend on the type of its values.
type Form struct {
	Word string // as usage lines and help call a value: "VLAN"
	From Source

	// JSON and files have a number without quotes. A request has one from Least to Most.
	Number      bool
	Least, Most int

	// JSON and files have a switch as true and false, and as on and off. Commands take its flag without a value.
	Switch bool

	// The length of a text in a request, in bytes. 0 is no limit.
	Shortest, Longest int

	Quoted bool   // files always have it in quotes
	Filed  string // the name of its definition in the schema of files; "" for a text

	// Alone means that an error names only the value, which says itself what it is, as an address does.
	Alone bool
}

// A Kind is a kind of value, such as a MAC address.
type Kind[V any] struct {
	Form
	Parse  func(string) (V, error) // the error is why, and what to do
	Format func(V) string          // as Parse takes it; "" for none
}

// A Field is one value of an object or of a request, for doors that know nothing of its type.
type Field struct {
	Form
	Name    string // as argument, flag and key, and in requests
	Help    string // in the API's document
	Flag    string // as help of the flag; "" for the words of Help
	As      string // in answers; "" for Name
	Needed  bool   // requests and files must have it, and answers always do
	Meaning string // in the API's document of answers
	Filing  string // in the schema of files

	set  func(object any, text string) error
	text func(object any) string
}

// Of makes a field of objects of type T; at finds the value in the object.
func Of[T, V any](f Field, k Kind[V], at func(*T) *V) Field {
	f.Form = k.Form
	f.set = func(object any, text string) error {
		v, err := k.Parse(text)
		if err == nil {
			*at(object.(*T)) = v
		}
		return err
	}
	f.text = func(object any) string { return k.Format(*at(object.(*T))) }
	return f
}

// Set parses a value into an object, a pointer to the type that the field was made for.
func (f Field) Set(object any, text string) error { return f.set(object, text) }

// Text returns the value in an object, in the form that Set takes; "" for none.
func (f Field) Text(object any) string { return f.text(object) }

// Answer returns the name in answers.
func (f Field) Answer() string {
	if f.As != "" {
		return f.As
	}
	return f.Name
}

// FlagHelp returns the help of the field's flag.
func (f Field) FlagHelp() string {
	if f.Flag != "" {
		return f.Flag
	}
	return f.Help
}

// SetJSON parses a value of a request into an object.
func (f Field) SetJSON(object any, raw json.RawMessage) error {
	text := string(raw)
	switch {
	case f.Switch:
		text = map[bool]string{false: "off", true: "on"}[text == "true"]
	case !f.Number:
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
	}
	return f.Set(object, text)
}

// Fields are the fields of an object, or of a request.
type Fields []Field

// Named returns the fields with these names, in their order. All must exist.
func (l Fields) Named(names ...string) Fields {
	list := make(Fields, len(names))
	for i, name := range names {
		found := false
		for _, f := range l {
			if f.Name == name {
				list[i], found = f, true
			}
		}
		if !found {
			panic("no field " + name) // a defect of a description
		}
	}
	return list
}

// A Row is the answer for an object: the given fields.
type Row struct {
	Fields Fields
	Object any
}

// MarshalJSON returns an object with the fields in their order, without the ones that have no value.
func (r Row) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for _, f := range r.Fields {
		text := f.Text(r.Object)
		if text == "" && !f.Needed {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(f.Answer()))
		b.WriteByte(':')
		switch {
		case f.Number:
			b.WriteString(text)
			continue
		case f.Switch:
			b.WriteString(strconv.FormatBool(text == "on"))
			continue
		}
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(text); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1) // the encoder's newline
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Heading returns the heading of a table with these fields.
func (l Fields) Heading() string {
	names := make([]string, len(l))
	for i, f := range l {
		names[i] = strings.ToUpper(f.Name)
	}
	return strings.Join(names, " ")
}

// A Verb is something that can be done to objects: a command, and a request of the API.
type Verb struct {
	Word                 string // "add"
	Short, Long, Example string // help of the command

	Summary string // of the request in the API's document
	Request string // the name of the request's type there; "" for a request without a body
	About   string // what that type is, after its name: "is a new binding."

	Args   int    // the first fields are arguments, the others flags
	Fields Fields // of the value that New returns
	New    func() any
}

// Usage returns the usage line of the command.
func (v Verb) Usage() string {
	words := []string{v.Word}
	for _, f := range v.Fields[:v.Args] {
		words = append(words, strings.ToUpper(f.Name))
	}
	return strings.Join(words, " ")
}
