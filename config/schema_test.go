// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestSchema compares docs/bascule.schema.json with the output of Schema and validates the tests'
// YAML files with it: the schema accepts what Load accepts, and refuses keys that Load refuses.
func TestSchema(t *testing.T) {
	const file = "../docs/bascule.schema.json"
	if *update {
		if err := os.WriteFile(file, Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, Schema()) {
		t.Errorf("%s is not what Schema makes; run go generate ./config", file)
	}
	schema := compile(t, committed)
	_, files := cases(t)
	good, unknown := 0, 0
	for name, text := range files {
		if isHostname(name) {
			continue
		}
		_, bad := parse(name, []byte(text))
		var refused error
		for _, doc := range documents(t, name, text, bad == nil) {
			if err := schema.Validate(doc); err != nil {
				refused = err
			}
		}
		switch {
		case bad == nil && refused != nil:
			t.Errorf("%s can be read, and the schema refuses it: %v", name, refused)
		case bad == nil:
			good++
		case strings.Contains(bad.Error(), " has no \"") && refused == nil:
			t.Errorf("%s has an unknown key, and the schema takes it", name)
		case strings.Contains(bad.Error(), " has no \""):
			unknown++
		}
	}
	if good == 0 || unknown == 0 {
		t.Errorf("%d files were taken and %d refused, want some of both", good, unknown)
	}
}

func compile(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("bascule.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("bascule.json") // also validates the schema itself against the metaschema
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// documents returns the documents of a YAML file in the form that an editor validates.
func documents(t *testing.T, name, text string, good bool) (list []any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(text))
	for {
		var v any
		err := d.Decode(&v)
		if err == io.EOF || err != nil && !good {
			return list
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		asJSON, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if doc != nil {
			list = append(list, doc)
		}
	}
}
