// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"encoding/json"
	"strings"

	"bascule/bridge"
)

//go:generate go test -run TestSchema -update

// jsonObject is a JSON object of a schema.
type jsonObject = map[string]any

// Patterns of values. Go's regular expressions and JavaScript's, which JSON Schema requires, agree
// on them.
const (
	vlanPattern = `^(none|\d+(-\d+)?(,\d+(-\d+)?)*)$`
	macPattern  = `^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$|^[0-9A-Fa-f]{4}(\.[0-9A-Fa-f]{4}){2}$|^[0-9A-Fa-f]{12}$`
	peerPattern = `^[^/]+/[^/]+$`
)

// Schema returns the JSON schema (draft 2020-12) of a YAML file, for completion and checks in
// editors. It accepts the files that Load accepts, and refuses unknown keys. Only Load checks the
// range of numbers.
func Schema() []byte {
	name := jsonObject{"type": []string{"string", "integer"}, "minLength": 1, "maxLength": 15}
	onOff := ref("switch")
	schema := jsonObject{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "bascule: the bridges that should exist",
		"description": "What `bascule apply` reads; see docs/config.md.",
		"type":        "object",
		"properties": jsonObject{
			"netns":   jsonObject{"type": "string", "description": "the network namespace, by name or path"},
			"bridges": jsonObject{"type": []string{"object", "null"}, "description": "the bridges, by name", "additionalProperties": ref("bridge")},
		},
		"patternProperties":    jsonObject{"^" + ownPrefix: jsonObject{"description": "the file's own, for anchors"}},
		"additionalProperties": false,
		"$defs": jsonObject{
			"switch": jsonObject{"enum": []any{"on", "off", "yes", "no", true, false}},
			"vlans": jsonObject{"anyOf": []any{
				jsonObject{"type": "integer", "minimum": 1, "maximum": 4094},
				jsonObject{"type": "string", "pattern": vlanPattern},
				jsonObject{"type": "array", "items": jsonObject{"type": []string{"integer", "string"}}},
			}},
			"vlan": jsonObject{"anyOf": []any{
				jsonObject{"type": "integer", "minimum": 1, "maximum": 4094},
				jsonObject{"type": "string", "pattern": `^\d+$`},
			}},
			"mac":  jsonObject{"type": "string", "pattern": macPattern},
			"name": name,
			"bridge": closed([]string{"object", "null"}, properties(bridge.BridgeSettings, jsonObject{
				"ports": jsonObject{
					"type": []string{"object", "null"}, "additionalProperties": ref("port"),
					"description": "the ports, by name or by a pattern such as tap*",
				},
				"private-vlans": jsonObject{"type": "object", "additionalProperties": ref("private-vlan"), "description": "private VLANs, by their primary VLAN"},
				"rules": jsonObject{
					"type": []string{"string", "array"}, "items": jsonObject{"type": "string"},
					"description": "MAC rules, in the order in which they are tried: block|pass [in|out] on PORT ...",
				},
				"mirrors": jsonObject{"type": "object", "additionalProperties": ref("mirror"), "description": "span ports, by device"},
				"pf":      jsonObject{"anyOf": []any{onOff, ref("pf")}, "description": "the packet filter; left as it is without this key"},
			})),
			"port": closed([]string{"object", "null"}, properties(bridge.PortSettings, jsonObject{
				"type":     jsonObject{"enum": bridge.Types, "default": bridge.TypeNetdev, "description": "what the port is"},
				"hook":     jsonObject{"enum": bridge.Hooks, "default": bridge.HookAuto, "description": "the hook that the port's program is attached to"},
				"peer":     jsonObject{"type": "string", "pattern": peerPattern, "description": "of a patch port: the other end, BRIDGE/PORT"},
				"force":    described(onOff, forceHelp),
				"pvid":     jsonObject{"anyOf": []any{ref("vlan"), jsonObject{"const": noVLAN}}, "description": "PVID: VLAN of incoming frames without a tag, or none"},
				"untagged": described(ref("vlans"), "VLANs whose frames leave without a tag, besides the pvid"),
				"tagged":   described(ref("vlans"), "VLANs whose frames leave with a tag"),
				"addresses": jsonObject{
					"type": []string{"string", "array"}, "items": jsonObject{"type": "string"},
					"description": "of a host port: the addresses of the host's interface, as 192.0.2.1/24; left as they are without this key",
				},
				"mac": jsonObject{
					"type":        "string",
					"description": "of a host port: the address of the host's interface, or auto, the same after each restart; left as it is without this key",
				},
				"mtu": jsonObject{
					"type": "integer", "minimum": bridge.MinMTU, "maximum": bridge.MaxMTU,
					"description": "of a host port: its MTU in bytes; left as it is without this key, and a new one begins with the smallest of the ports",
				},
				"description": jsonObject{
					"type": []string{"string", "number", "boolean"}, "maxLength": bridge.MaxDescription,
					"description": "a description of where the port leads, the alias of its device; left as it is without this key",
				},
				"up": described(onOff, "whether the port's device is up, or the host's interface of a host port"),
			})),
			"private-vlan": closed([]string{"object"}, jsonObject{
				bridge.KindIsolated:  described(ref("vlans"), "the VLAN whose ports talk only to promiscuous ports"),
				bridge.KindCommunity: described(ref("vlans"), "VLANs whose ports also talk to each other"),
			}),
			"mirror": closed([]string{"object", "null"}, jsonObject{
				"ports":     jsonObject{"type": []string{"string", "array"}, "items": jsonObject{"type": "string"}, "description": "ports whose frames are copied; all without this key"},
				"vlans":     ref("vlans"),
				"direction": jsonObject{"enum": []string{bridge.DirectionIn, bridge.DirectionOut, bridge.DirectionBoth}, "default": bridge.DirectionIn},
				"force":     described(onOff, forceHelp),
			}),
			"pf": closed([]string{"object"}, jsonObject{
				"enabled": described(onOff, "whether pf is on; on by default"),
				"file":    jsonObject{"type": "string", "description": "path of a pf.conf"},
				"rules":   jsonObject{"type": "string", "description": "the text of a pf.conf"},
			}),
		},
	}
	parts := schema["$defs"].(jsonObject)
	inBridge := parts["bridge"].(jsonObject)["properties"].(jsonObject)
	for _, s := range sections {
		inBridge[s.Section], parts[s.Definition] = s.schema()
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(schema); err != nil {
		panic(err) // a mistake in the schema above
	}
	return out.Bytes()
}

func ref(name string) jsonObject { return jsonObject{"$ref": "#/$defs/" + name} }

func described(schema jsonObject, description string) jsonObject {
	return jsonObject{"$ref": schema["$ref"], "description": description}
}

// closed returns an object without additional keys, or a value of the other types.
func closed(types []string, properties jsonObject, required ...string) jsonObject {
	schema := jsonObject{"type": types, "properties": properties, "additionalProperties": false}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

// properties returns other properties with the settings of a table added.
func properties[T any](table []bridge.Setting[T], others jsonObject) jsonObject {
	for _, s := range table {
		p := valueSchema(s.Value)
		p["description"], p["default"] = s.Help, s.Default
		others[s.Name] = p
	}
	return others
}

// valueSchema returns the schema of a setting's value. A name in capitals stands for a text that
// Load parses; the others are words.
func valueSchema(value string) jsonObject {
	if value == bridge.OnOff {
		return ref("switch")
	}
	var words []any
	free := jsonObject{}
	for v := range strings.SplitSeq(value, "|") {
		placeholder := strings.Trim(v, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
		switch {
		case placeholder:
			free = jsonObject{"type": []string{"string", "integer"}}
			if v == "LIST" {
				free = jsonObject{"type": []string{"string", "integer", "array"}, "items": jsonObject{"type": []string{"string", "integer"}}}
			}
		case v == "on":
			words = append(words, v, "yes", true)
		case v == "off":
			words = append(words, v, "no", false)
		default:
			words = append(words, v)
		}
	}
	switch {
	case words == nil:
		return free
	case len(free) == 0:
		return jsonObject{"enum": words}
	}
	return jsonObject{"anyOf": []any{jsonObject{"enum": words}, free}}
}

const forceHelp = "take the device even if it has others above it, or is above a port's: those then get nothing"
