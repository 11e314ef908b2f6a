// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"bascule/answer"
	"bascule/bridge"
	"bascule/object"

	"github.com/danielgtaylor/huma/v2"
)

// given has the values of a request by the names of fields. They are parsed after the library has checked them against
// the request's schema.
type given map[string]json.RawMessage

// A row is the answer for an object.
type row struct{ object.Row }

// Schema describes a row to the library. Each operation has the schema of its object.
func (row) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeObject} }

// objects adds the operations of the objects that are described once.
func (a *API) objects() {
	for _, o := range bridge.Objects {
		rows := &huma.Schema{Type: huma.TypeArray, Items: a.define(o.Type, o.About, o.Answers, answerSchema)}
		operation(a, huma.Operation{
			Method: http.MethodGet, Path: "/" + o.Word + "/" + o.Show.Word, Summary: o.Show.Summary,
			Responses: map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{"application/json": {Schema: rows}}}},
		}, onSwitch(a, func(s *bridge.Switch, in *OfPort) ([]row, []string, error) {
			if err := portNeedsBridge(*in); err != nil {
				return nil, nil, err
			}
			list, err := o.List(s, in.Bridge, in.Port)
			return answer.List(list, func(it any) row { return row{object.Row{Fields: o.Answers, Object: it}} }), nil, err
		}))
		for _, v := range o.Verbs {
			a.verb(o, v)
		}
	}
}

// verb adds the operation of a verb.
func (a *API) verb(o *bridge.Object, v bridge.Verb) {
	op := huma.Operation{
		Method: http.MethodPost, Path: "/" + o.Word + "/" + v.Word, Summary: v.Summary, MaxBodyBytes: maxEdit,
		Metadata: map[string]any{isEdit: true},
		RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{
			"application/json": {Schema: a.define(v.Request, v.About, v.Fields, requestSchema)},
		}},
	}
	do := func(s *bridge.Switch, in *BodyOf[given]) (n int, err error) {
		it := v.New()
		for _, f := range v.Fields {
			if raw, ok := in.Body[f.Name]; ok && string(raw) != "null" { // as if it were missing
				if err := setField(f, it, raw); err != nil {
					return 0, err
				}
			}
		}
		return v.Do(s, it)
	}
	if v.Counts {
		operation(a, op, onSwitch(a, func(s *bridge.Switch, in *BodyOf[given]) ([]answer.Flushed, []string, error) {
			n, err := do(s, in)
			var name string
			if err == nil {
				err = json.Unmarshal(in.Body["bridge"], &name)
			}
			return []answer.Flushed{{Bridge: name, Removed: n}}, nil, err
		}))
		return
	}
	operation(a, op, onSwitch(a, func(s *bridge.Switch, in *BodyOf[given]) (Nothing, []string, error) {
		_, err := do(s, in)
		return Nothing{}, nil, err
	}))
}

// setField parses a value of a request. The schema takes 1e1 and 10.0, too, which are whole numbers in JSON; a field
// takes digits only, as in all other requests.
func setField(f object.Field, it any, raw json.RawMessage) error {
	err := f.SetJSON(it, raw)
	var usage *bridge.UsageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	message := fmt.Sprintf("%s %s: %v", f.Name, raw, err)
	if f.Number {
		message = fmt.Sprintf("%s is %s; give a whole number, 0 or more", f.Name, raw)
	}
	return huma.Error422UnprocessableEntity(message, &huma.ErrorDetail{Message: message, Location: "body"})
}

// define adds the schema of an object with fields to the document, and returns a reference to it.
func (a *API) define(name, about string, fields object.Fields, of func(object.Field) (string, *huma.Schema)) *huma.Schema {
	s := &huma.Schema{
		Type: huma.TypeObject, Description: name + " " + about, AdditionalProperties: false, Properties: map[string]*huma.Schema{},
	}
	for _, f := range fields {
		key, p := of(f)
		s.Properties[key] = p
		if f.Needed {
			s.Required = append(s.Required, key)
		}
	}
	s.PrecomputeMessages()
	a.huma.OpenAPI().Components.Schemas.Map()[name] = s
	return &huma.Schema{Ref: schemas + name}
}

// requestSchema returns the key and the schema of a field in requests.
func requestSchema(f object.Field) (string, *huma.Schema) {
	s := formSchema(f)
	s.Description = f.Help
	switch {
	case f.Number:
		least, most := float64(f.Least), float64(f.Most)
		s.Minimum, s.Maximum = &least, &most
	case f.Longest > 0:
		s.MaxLength = &f.Longest
		if f.Shortest > 0 {
			s.MinLength = &f.Shortest
		}
	}
	return f.Name, s
}

// answerSchema returns the key and the schema of a field in answers.
func answerSchema(f object.Field) (string, *huma.Schema) {
	s := formSchema(f)
	s.Description = f.Meaning
	if f.Number {
		s.Minimum = new(float64)
	}
	return f.Answer(), s
}

// formSchema returns the schema of a form without its limits.
func formSchema(f object.Field) *huma.Schema {
	switch {
	case f.Number:
		return &huma.Schema{Type: huma.TypeInteger, Format: "int32"}
	case f.Switch:
		return &huma.Schema{Type: huma.TypeBoolean}
	}
	return &huma.Schema{Type: huma.TypeString}
}
