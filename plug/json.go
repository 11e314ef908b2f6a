// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/agext/levenshtein"
)

// ReadJSON reads a JSON text. Errors speak of keys and values, and not of types of Go.
func ReadJSON(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if is := new(json.UnmarshalTypeError); errors.As(err, &is) {
		key := is.Field
		if key == "" {
			key = "it"
		}
		return fmt.Errorf("%.80s is %.40s; give %s", key, valueWord(is.Value), typeWord(is.Type))
	}
	if bad := new(json.SyntaxError); errors.As(err, &bad) {
		return fmt.Errorf("it is no JSON: byte %d: %w", bad.Offset, err)
	}
	return err
}

// valueWord is what JSON calls a value, in other words; that of a number is as it is, if it is
// told.
func valueWord(value string) string {
	if number, ok := strings.CutPrefix(value, "number "); ok {
		return number
	}
	for from, to := range map[string]string{"string": "a text", "number": "a number", "bool": "true or false", "array": "a list", "object": "an object"} {
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
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 on"
	}
	return "a whole number"
}

// Near returns the one of some words that an unknown word is by all likelihood meant to be, ""
// for none. The shorter a word, the fewer letters may be wrong.
func Near(word string, words []string) string {
	const longest = 64 // that somebody can have meant
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	best, least := "", min(2, len(word)/3)+1
	for _, w := range words {
		if d := levenshtein.Distance(plain(word[:min(len(word), longest)]), plain(w), nil); d < least {
			best, least = w, d
		}
	}
	return best
}
