// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// ReadJSON parses a JSON text. Its errors use the names of keys and values instead of Go types. A
// duplicate or misspelt key is an error: see [CheckKeys].
func ReadJSON(text []byte, into any) error {
	if err := ReadAnyJSON(text, into); err != nil {
		return err
	}
	return CheckKeys(text, into)
}

// ReadAnyJSON is ReadJSON for callers that must accept any text, such as a removal: of duplicate
// keys, the last one applies.
func ReadAnyJSON(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if is := new(json.UnmarshalTypeError); errors.As(err, &is) {
		key := is.Field
		if key == "" {
			key = "it"
		}
		return fmt.Errorf("%.80s is %.40s; give %s", key, valueWord(is.Value), typeWord(is.Type))
	}
	if bad := new(json.SyntaxError); errors.As(err, &bad) {
		return fmt.Errorf("it is not JSON: byte %d: %w", bad.Offset, err)
	}
	return err
}

// CheckKeys refuses a JSON text with duplicate keys in an object, or with a key that differs only
// in case from a key of the target value. Package json accepts both, and the last one applies.
func CheckKeys(text []byte, of any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	return checkKeys(d, reflect.TypeOf(of))
}

// checkKeys checks a value of a type; nil means any type.
func checkKeys(d *json.Decoder, of reflect.Type) error {
	for of != nil && of.Kind() == reflect.Pointer {
		if of = of.Elem(); reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			of = nil // it has its own format
		}
	}
	if of != nil && reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		of = nil
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	inner := func(kinds ...reflect.Kind) reflect.Type {
		if of != nil && slices.Contains(kinds, of.Kind()) {
			return of.Elem()
		}
		return nil
	}
	switch token {
	case json.Delim('['):
		for of := inner(reflect.Slice, reflect.Array); d.More(); {
			if err := checkKeys(d, of); err != nil {
				return err
			}
		}
	case json.Delim('{'):
		has, known := map[string]bool{}, keysOf(of)
		for each := inner(reflect.Map); d.More(); {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key, _ := token.(string)
			if has[key] {
				return fmt.Errorf("%.40q occurs twice; remove one", key)
			}
			has[key] = true
			of, is := known[key]
			for name := range known {
				if !is && strings.EqualFold(name, key) {
					return fmt.Errorf("%.40q is not a key; write %s", key, name)
				}
			}
			if !is {
				of = each
			}
			if err := checkKeys(d, of); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = d.Token() // the closing delimiter
	return err
}

// keysOf returns the keys of a struct, with the types of their values.
func keysOf(of reflect.Type) map[string]reflect.Type {
	if of == nil || of.Kind() != reflect.Struct {
		return nil
	}
	keys := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Tag.Get("json") == "-", !f.IsExported(), f.Anonymous && name == "":
		case name == "":
			keys[f.Name] = f.Type
		default:
			keys[name] = f.Type
		}
	}
	return keys
}

// valueWord names JSON's kind of value in other words; a number keeps its text if the error
// includes it.
func valueWord(value string) string {
	if number, ok := strings.CutPrefix(value, "number "); ok {
		return number
	}
	for from, to := range map[string]string{"string": "a string", "number": "a number", "bool": "true or false", "array": "a list", "object": "an object"} {
		if value == from {
			return to
		}
	}
	return value
}

func typeWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeWord(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number, 0 or more"
	}
	return "a whole number"
}

// Near returns the word that an unknown word was probably meant to be, "" for none. The shorter the
// word, the fewer wrong letters it accepts.
func Near(word string, words []string) string {
	const longest = 64 // that may be a misspelt word
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	best, least := "", min(2, len(word)/3)+1
	for _, w := range words {
		if d := levenshtein.Distance(plain(word[:min(len(word), longest)]), plain(w), nil); d < least {
			best, least = w, d
		}
	}
	return best
}
