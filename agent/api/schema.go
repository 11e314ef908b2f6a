// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"bascule/answer"
	"bascule/bridge"
	"bascule/config"

	"github.com/danielgtaylor/huma/v2"
)

// schemas is the path of the document's schemas.
const schemas = "#/components/schemas/"

// Schema, Receiver and OnParamSet describe an Optional to the library.
func (o Optional[T]) Schema(r huma.Registry) *huma.Schema {
	return huma.SchemaFromType(r, reflect.TypeFor[T]())
}

// Receiver returns the field into which the library puts the value.
func (o *Optional[T]) Receiver() reflect.Value { return reflect.ValueOf(o).Elem().Field(0) }

// OnParamSet records whether the request has the parameter.
func (o *Optional[T]) OnParamSet(set bool, _ any) { o.Set = set }

// BridgeChanges and PortChanges are settings by the names of their flags, in the order of
// the settings.
type (
	BridgeChanges []bridge.Change
	PortChanges   []bridge.Change
)

// Schema returns an object schema with a property for each setting.
func (BridgeChanges) Schema(huma.Registry) *huma.Schema { return settingsSchema(bridge.BridgeSettings) }

// Schema returns an object schema with a property for each setting.
func (PortChanges) Schema(huma.Registry) *huma.Schema { return settingsSchema(bridge.PortSettings) }

// UnmarshalJSON parses an object of settings.
func (c *BridgeChanges) UnmarshalJSON(text []byte) (err error) {
	*c, err = changesOf(bridge.BridgeSettings, text)
	return err
}

// UnmarshalJSON parses an object of settings.
func (c *PortChanges) UnmarshalJSON(text []byte) (err error) {
	*c, err = changesOf(bridge.PortSettings, text)
	return err
}

func settingsSchema[T any](settings []bridge.Setting[T]) *huma.Schema {
	s := &huma.Schema{
		Type: huma.TypeObject, Properties: map[string]*huma.Schema{}, AdditionalProperties: false,
		Description: "settings by the names of their flags, with values as the flags take them",
	}
	for _, setting := range settings {
		p := &huma.Schema{Type: huma.TypeString, Description: setting.Help, MaxLength: new(int)}
		*p.MaxLength = 255
		if setting.Value == bridge.OnOff {
			p.Enum = []any{"on", "off"}
		}
		s.Properties[setting.Name] = p
	}
	s.PrecomputeMessages()
	return s
}

func changesOf[T any](settings []bridge.Setting[T], text []byte) (list []bridge.Change, err error) {
	var values map[string]string
	if err := json.Unmarshal(text, &values); err != nil {
		return nil, err
	}
	for _, s := range settings {
		if v, ok := values[s.Name]; ok {
			list = append(list, bridge.Change{Name: s.Name, Value: v})
			delete(values, s.Name)
		}
	}
	for name := range values {
		return nil, fmt.Errorf("there is no setting %q", name)
	}
	return list, nil
}

// finish corrects the library's schemas of types: the fields of an embedded pointer are
// optional, and a nil pointer without omitempty is null.
func (a *API) finish() {
	r := a.huma.OpenAPI().Components.Schemas
	for name, s := range r.Map() {
		t := r.TypeFromRef(schemas + name)
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t != nil && t.Kind() == reflect.Struct {
			mendSchema(s, t, false)
			s.Description = cmp.Or(s.Description, words[typeName(t)])
		}
	}
	addSettings(r, "Bridge", bridge.BridgeSettings, answer.Bridge{}.Members())
	addSettings(r, "Port", bridge.PortSettings, answer.Port{}.Members())
}

// addSettings adds the settings to the schema of an answer, whose members are in the given order.
func addSettings[T any](r huma.Registry, name string, settings []bridge.Setting[T], order []answer.Member) {
	s := r.Map()[name]
	for _, setting := range settings {
		var config T
		p := huma.SchemaFromType(r, reflect.TypeOf(setting.Answered(config)))
		p.Description = setting.Meaning
		s.Properties[setting.Answer()] = p
	}
	var required []string
	for _, m := range order {
		if m.Setting && !m.Optional || slices.Contains(s.Required, m.Key) {
			required = append(required, m.Key)
		}
	}
	s.Required = required
}

// typeName returns the key of a type's comments in words.
func typeName(t reflect.Type) string { return path.Base(t.PkgPath()) + "." + t.Name() }

func mendSchema(s *huma.Schema, t reflect.Type, optional bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		under := f.Type
		if under.Kind() == reflect.Pointer {
			under = under.Elem()
		}
		if f.Anonymous && name == "" && under.Kind() == reflect.Struct {
			mendSchema(s, under, optional || f.Type.Kind() == reflect.Pointer)
			continue
		}
		if name == "" {
			name = f.Name
		}
		p := s.Properties[name]
		if p == nil {
			continue
		}
		if w := words[typeName(t)+"."+name]; w != "" && p.Description == "" && p.Ref == "" {
			p.Description = w
		}
		if optional {
			s.Required = without(s.Required, name)
		}
		nilable := f.Type.Kind() == reflect.Pointer || f.Type.Kind() == reflect.Map
		if nilable && !strings.Contains(options, "omitempty") && f.Tag.Get("nullable") != "false" && p.Ref != "" {
			s.Properties[name] = &huma.Schema{Description: words[typeName(t)+"."+name], AnyOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}}
		}
	}
}

func without(list []string, word string) (rest []string) {
	for _, w := range list {
		if w != word {
			rest = append(rest, w)
		}
	}
	return rest
}

// A File is the answer of /export: a file for /apply. Its schema is the schema of all such
// files.
type File map[string]any

// Schema adds config.Schema to the document's schemas, with its parts under names that
// begin with File.
func (File) Schema(r huma.Registry) *huma.Schema {
	var whole map[string]any
	if err := json.Unmarshal(config.Schema(), &whole); err != nil {
		panic(err) // the schema consists of the program's own settings
	}
	parts, _ := whole["$defs"].(map[string]any)
	delete(whole, "$defs")
	delete(whole, "$schema")
	add := func(name string, part any) {
		r.Map()[name] = &huma.Schema{Extensions: refer(part).(map[string]any)}
	}
	add("File", whole)
	for name, part := range parts {
		add(filePart(name), part)
	}
	return &huma.Schema{Ref: schemas + "File"}
}

// filePart returns the name of a part of a file's schema, such as FilePrivateVlan.
func filePart(name string) string {
	text := "File"
	for word := range strings.SplitSeq(name, "-") {
		text += strings.ToUpper(word[:1]) + word[1:]
	}
	return text
}

// refer makes the references of a schema point to the document's schemas.
func refer(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, of := range v {
			if at, ok := of.(string); ok && key == "$ref" {
				v[key] = schemas + filePart(strings.TrimPrefix(at, "#/$defs/"))
				continue
			}
			v[key] = refer(of)
		}
	case []any:
		for i := range v {
			v[i] = refer(v[i])
		}
	}
	return v
}
