// SPDX-License-Identifier: BSD-2-Clause

package answer

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"bascule/bridge"
)

// A Member is a member of an answer that has settings.
type Member struct {
	Key      string
	Value    any
	Optional bool // a zero value is left out
	Setting  bool
}

// MarshalJSON returns the bridge as one object with its settings.
func (b Bridge) MarshalJSON() ([]byte, error) { return marshalMembers(b.Members()) }

// MarshalJSON returns the port as one object with its settings, and with its counters if it has them.
func (p Port) MarshalJSON() ([]byte, error) { return marshalMembers(p.Members()) }

// Members returns the members of the answer, in their order.
func (b Bridge) Members() []Member {
	return membersOf(nil, reflect.ValueOf(b), settingMembers(bridge.BridgeSettings, b.Config))
}

// Members returns the members of the answer, in their order.
func (p Port) Members() []Member {
	return membersOf(nil, reflect.ValueOf(p), settingMembers(bridge.PortSettings, p.Config))
}

// settingMembers returns the settings in the order of answers.
func settingMembers[T any](settings []bridge.Setting[T], config T) (list []Member) {
	for _, s := range settings {
		list = append(list, Member{s.Answer(), s.Answered(config), s.Optional, true})
	}
	for _, s := range settings {
		if s.After == "" {
			continue
		}
		at := slices.IndexFunc(list, func(m Member) bool { return m.Key == s.Answer() })
		m := list[at]
		list = slices.Delete(list, at, at+1)
		list = slices.Insert(list, slices.IndexFunc(list, func(m Member) bool { return m.Key == s.After })+1, m)
	}
	return list
}

// membersOf appends the fields of a struct, with the settings instead of its field Config. A field with the tag
// after comes after the setting of that key. A pointer to a struct that is embedded adds its fields unless it is nil.
func membersOf(list []Member, v reflect.Value, settings []Member) []Member {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		m := Member{Key: key, Value: value.Interface(), Optional: options == "omitempty"}
		switch after := f.Tag.Get("after"); {
		case f.Anonymous:
			if !value.IsNil() {
				list = membersOf(list, value.Elem(), nil)
			}
		case f.Name == "Config":
			list = append(list, settings...)
		case after != "":
			at := slices.IndexFunc(list, func(m Member) bool { return m.Key == after })
			list = slices.Insert(list, at+1, m)
		default:
			list = append(list, m)
		}
	}
	return list
}

func marshalMembers(list []Member) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, m := range list {
		if m.Optional && empty(reflect.ValueOf(m.Value)) {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		for _, v := range []any{m.Key, m.Value} {
			if err := e.Encode(v); err != nil {
				return nil, err
			}
			b.Truncate(b.Len() - 1) // the encoder's newline
			b.WriteByte(':')
		}
		b.Truncate(b.Len() - 1)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// empty reports whether a value is one that package json omits.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}
