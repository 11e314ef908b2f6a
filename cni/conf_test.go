// SPDX-License-Identifier: BSD-2-Clause

package cni

import (
	"strings"
	"testing"
)

// TestKeysOnce checks that ADD refuses a configuration with duplicate keys, and that DEL accepts
// it.
func TestKeysOnce(t *testing.T) {
	const conf = `{"cniVersion":"1.0.0","name":"n","type":"bascule-cni","bridge":"br0",MORE}`
	for more, want := range map[string]string{
		`"vlan":10`:                          "",
		`"vlan":10,"vlan":20`:                `"vlan" occurs twice`,
		`"Bridge":"br1"`:                     `"Bridge" is not a key; write bridge`,
		`"VLAN":10`:                          `"VLAN" is not a key; write vlan`,
		`"ipam":{"type":"static","Type":""}`: `"Type" is not a key; write type`,
		`"runtimeConfig":{"MAC":"02:00:00:00:00:01"}`: `"MAC" is not a key; write mac`,
		`"others":{"a":1,"A":2}`:                      "",
		`"bridge":"lo"`:                               "occurs twice",
	} {
		text := []byte(strings.Replace(conf, "MORE", more, 1))
		_, err := read(text, "")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", more, err, want)
		}
		if _, err := leave(text); err != nil {
			t.Errorf("DEL with %s: %v", more, err)
		}
	}
	for _, mistake := range []string{`"mtu":"1500"`, `"pf":17`, `"vlan":1.5`, `"args":1`, `"runtimeConfig":{"bandwidth":[]}`, `"dns":"x"`} {
		text := []byte(strings.Replace(conf, "MORE", mistake+`,"ipam":{"type":"static"}`, 1))
		if _, err := read(text, ""); err == nil {
			t.Errorf("ADD takes %s", mistake)
		}
		if n, err := leave(text); err != nil || n.Name != "n" || n.CNIVersion != "1.0.0" || n.IPAM.Type != "static" {
			t.Errorf("DEL with %s: %+v, %v", mistake, n, err)
		}
	}
	// each of these mistakes would make DEL leave objects behind, or remove too many
	for _, mistake := range []string{`"ipam":"x"`, `"cni.dev/valid-attachments":{}`, `"ipam":{"type":"../x"}`} {
		if _, err := leave([]byte(strings.Replace(conf, "MORE", mistake, 1))); err == nil {
			t.Errorf("DEL and GC take %s", mistake)
		}
	}
	for _, name := range []string{"lo", "-n", "all"} {
		if _, err := read([]byte(strings.Replace(strings.Replace(conf, "br0", name, 1), "MORE", `"vlan":10`, 1)), ""); err == nil {
			t.Errorf("a bridge is called %s", name)
		}
	}
}
