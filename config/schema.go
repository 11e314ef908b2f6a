// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"encoding/json"
	"strings"

	"bascule/bridge"
)

//go:generate go test -run TestSchema -update

// object is a JSON object of a schema.
type object = map[string]any

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
	name := object{"type": []string{"string", "integer"}, "minLength": 1, "maxLength": 15}
	onOff := ref("switch")
	schema := object{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "bascule: the bridges that should exist",
		"description": "What `bascule apply` reads; see docs/config.md.",
		"type":        "object",
		"properties": object{
			"netns":   object{"type": "string", "description": "the network namespace, by name or path"},
			"bridges": object{"type": []string{"object", "null"}, "description": "the bridges, by name", "additionalProperties": ref("bridge")},
		},
		"patternProperties":    object{"^" + ownPrefix: object{"description": "the file's own, for anchors"}},
		"additionalProperties": false,
		"$defs": object{
			"switch": object{"enum": []any{"on", "off", "yes", "no", true, false}},
			"vlans": object{"anyOf": []any{
				object{"type": "integer", "minimum": 1, "maximum": 4094},
				object{"type": "string", "pattern": vlanPattern},
				object{"type": "array", "items": object{"type": []string{"integer", "string"}}},
			}},
			"vlan": object{"anyOf": []any{
				object{"type": "integer", "minimum": 1, "maximum": 4094},
				object{"type": "string", "pattern": `^\d+$`},
			}},
			"mac":  object{"type": "string", "pattern": macPattern},
			"name": name,
			"bridge": closed([]string{"object", "null"}, properties(bridge.BridgeSettings, object{
				"ports": object{
					"type": []string{"object", "null"}, "additionalProperties": ref("port"),
					"description": "the ports, by name or by a pattern such as tap*",
				},
				"private-vlans": object{"type": "object", "additionalProperties": ref("private-vlan"), "description": "private VLANs, by their primary VLAN"},
				"rules": object{
					"type": []string{"string", "array"}, "items": object{"type": "string"},
					"description": "MAC rules, in the order in which they are tried: block|pass [in|out] on PORT ...",
				},
				"bindings": object{"type": "array", "items": ref("binding"), "description": "addresses bound to stations"},
				"mirrors":  object{"type": "object", "additionalProperties": ref("mirror"), "description": "span ports, by device"},
				"fdb":      object{"type": "array", "items": ref("entry"), "description": "static and sticky addresses"},
				"pf":       object{"anyOf": []any{onOff, ref("pf")}, "description": "the packet filter; left as it is without this key"},
			})),
			"port": closed([]string{"object", "null"}, properties(bridge.PortSettings, object{
				"type":     object{"enum": bridge.Types, "default": bridge.TypeNetdev, "description": "what the port is"},
				"hook":     object{"enum": bridge.Hooks, "default": bridge.HookAuto, "description": "the hook that the port's program is attached to"},
				"peer":     object{"type": "string", "pattern": peerPattern, "description": "of a patch port: the other end, BRIDGE/PORT"},
				"force":    described(onOff, forceHelp),
				"pvid":     object{"anyOf": []any{ref("vlan"), object{"const": noVLAN}}, "description": "PVID: VLAN of incoming frames without a tag, or none"},
				"untagged": described(ref("vlans"), "VLANs whose frames leave without a tag, besides the pvid"),
				"tagged":   described(ref("vlans"), "VLANs whose frames leave with a tag"),
				"addresses": object{
					"type": []string{"string", "array"}, "items": object{"type": "string"},
					"description": "of a host port: the addresses of the host's interface, as 192.0.2.1/24; left as they are without this key",
				},
				"mac": object{
					"type":        "string",
					"description": "of a host port: the address of the host's interface, or auto, the same after each restart; left as it is without this key",
				},
				"mtu": object{
					"type": "integer", "minimum": bridge.MinMTU, "maximum": bridge.MaxMTU,
					"description": "of a host port: its MTU in bytes; left as it is without this key, and a new one begins with the smallest of the ports",
				},
				"description": object{
					"type": []string{"string", "number", "boolean"}, "maxLength": bridge.MaxDescription,
					"description": "a description of where the port leads, the alias of its device; left as it is without this key",
				},
				"up": described(onOff, "whether the port's device is up, or the host's interface of a host port"),
			})),
			"private-vlan": closed([]string{"object"}, object{
				bridge.KindIsolated:  described(ref("vlans"), "the VLAN whose ports talk only to promiscuous ports"),
				bridge.KindCommunity: described(ref("vlans"), "VLANs whose ports also talk to each other"),
			}),
			"binding": closed([]string{"object"}, object{
				"port": ref("name"), "mac": ref("mac"), "vlan": ref("vlan"),
				"address": object{"type": "string", "description": "an IPv4 or IPv6 address"},
			}, "port", "mac", "address"),
			"mirror": closed([]string{"object", "null"}, object{
				"ports":     object{"type": []string{"string", "array"}, "items": object{"type": "string"}, "description": "ports whose frames are copied; all without this key"},
				"vlans":     ref("vlans"),
				"direction": object{"enum": []string{bridge.DirectionIn, bridge.DirectionOut, bridge.DirectionBoth}, "default": bridge.DirectionIn},
				"force":     described(onOff, forceHelp),
			}),
			"entry": closed([]string{"object"}, object{
				"mac": ref("mac"), "port": ref("name"), "vlan": ref("vlan"),
				"sticky": described(onOff, "sticky instead of static"),
			}, "mac", "port"),
			"pf": closed([]string{"object"}, object{
				"enabled": described(onOff, "whether pf is on; on by default"),
				"file":    object{"type": "string", "description": "path of a pf.conf"},
				"rules":   object{"type": "string", "description": "the text of a pf.conf"},
			}),
		},
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

func ref(name string) object { return object{"$ref": "#/$defs/" + name} }

func described(schema object, description string) object {
	return object{"$ref": schema["$ref"], "description": description}
}

// closed returns an object without additional keys, or a value of the other types.
func closed(types []string, properties object, required ...string) object {
	schema := object{"type": types, "properties": properties, "additionalProperties": false}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

// properties returns other properties with the settings of a table added.
func properties[T any](table []bridge.Setting[T], others object) object {
	for _, s := range table {
		p := valueSchema(s.Value)
		p["description"], p["default"] = s.Help, s.Default
		others[s.Name] = p
	}
	return others
}

// valueSchema returns the schema of a setting's value. A name in capitals stands for a text that
// Load parses; the others are words.
func valueSchema(value string) object {
	if value == bridge.OnOff {
		return ref("switch")
	}
	var words []any
	free := object{}
	for v := range strings.SplitSeq(value, "|") {
		placeholder := strings.Trim(v, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
		switch {
		case placeholder:
			free = object{"type": []string{"string", "integer"}}
			if v == "LIST" {
				free = object{"type": []string{"string", "integer", "array"}, "items": object{"type": []string{"string", "integer"}}}
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
		return object{"enum": words}
	}
	return object{"anyOf": []any{object{"enum": words}, free}}
}

const forceHelp = "take the device even if it has others above it, or is above a port's: those then get nothing"
