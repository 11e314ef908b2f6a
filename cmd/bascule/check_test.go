// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"strings"
	"testing"

	"bascule/bridge"
)

// TestCheckCommand checks the table in 100 columns, and the failure if a bridge needs a missing
// feature.
func TestCheckCommand(t *testing.T) {
	f := &fakeSwitch{found: []bridge.Finding{
		{About: "kernel", Name: "tcx", State: bridge.VerdictYes, Text: "there", Needed: true},
		{About: "kernel", Name: "routed host port", State: bridge.VerdictNo, Text: strings.Repeat("words ", 20)},
		{About: "device", Name: "eth0", State: bridge.VerdictYes},
	}}
	var out, said strings.Builder
	if status := runWith(f, &out, &said, "check"); status != exitDone || said.Len() > 0 {
		t.Errorf("exit status %d, %s", status, said.String())
	}
	words := strings.TrimSpace(strings.Repeat("words ", 12))
	want := "kernel\n" +
		"* tcx               yes      there\n" +
		"  routed host port  no       " + words + "\n" +
		"                             " + strings.TrimSpace(strings.Repeat("words ", 8)) + "\n" +
		"device\n" +
		"  eth0              yes\n" +
		"agent\n" +
		"  files             yes      /etc/bascule: in force\n"
	if out.String() != want {
		t.Errorf("printed\n%s, should be\n%s", out.String(), want)
	}
	out.Reset()
	if runWith(f, &out, &said, "-n", "wrong", "check"); !strings.Contains(out.String(), "no       not in force as they are now: a line is wrong; mend them") {
		t.Errorf("printed\n%s", out.String())
	}
	out.Reset()
	f.found[0].State = bridge.VerdictNo
	if status := runWith(f, &out, &said, "-j", "check"); status != exitRefused || said.String() != "bascule: this machine can have no bridge: see tcx above\n" {
		t.Errorf("exit status %d, %s", status, said.String())
	}
	if !strings.HasPrefix(out.String(), `[{"about":"kernel","name":"tcx","state":"no","needed":true,"text":"there"},`) {
		t.Errorf("printed %s", out.String())
	}
}
