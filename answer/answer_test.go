// SPDX-License-Identifier: BSD-2-Clause

package answer

import (
	"encoding/json"
	"reflect"
	"testing"

	"bascule/bridge"
)

// TestSettingsAsJSON checks that each setting that changes also changes the output of `show -j`.
func TestSettingsAsJSON(t *testing.T) {
	t.Run("bridge", func(t *testing.T) {
		var b bridge.Info
		everySetting(t, reflect.ValueOf(&b.Config).Elem(), func() any { return OfBridge(b) })
	})
	t.Run("port", func(t *testing.T) {
		var p bridge.Port
		everySetting(t, reflect.ValueOf(&p.Config).Elem(), func() any { return OfPort(p) })
	})
}

// everySetting changes each field of the settings, which must not be empty before, and checks that
// the result of show changes.
func everySetting(t *testing.T, settings reflect.Value, show func() any) {
	eachField(settings, "", func(_ string, v reflect.Value) { fill(v, 0x88a8) })
	eachField(settings, "", func(name string, v reflect.Value) {
		before := printed(t, show())
		fill(v, 0x8100)
		if printed(t, show()) == before {
			t.Errorf("%s is not shown", name)
		}
		fill(v, 0x88a8) // another field may depend on it
	})
}

func printed(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// eachField calls do for each field that is not a struct itself.
func eachField(v reflect.Value, name string, do func(name string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachField(v.Field(i), name+"."+v.Type().Field(i).Name, do)
		}
	case reflect.Array:
		for i := range v.Len() {
			eachField(v.Index(i), name, do)
		}
	default:
		do(name, v)
	}
}

// fill gives a field a value that depends on n.
func fill(v reflect.Value, n int64) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(n == 0x88a8)
	case reflect.String:
		v.SetString(string(rune(n)))
	case reflect.Int, reflect.Int64:
		v.SetInt(n * 1e9)
	default:
		v.SetUint(uint64(n) & (1<<v.Type().Bits() - 1))
	}
}
