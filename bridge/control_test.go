// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"testing"

	"bascule/datapath"
)

// Every control protocol has its words in protocols.
func TestProtocols(t *testing.T) {
	for p := Protocol(0); p < datapath.ControlEnd; p++ {
		if words := protocols[p]; words.name == "" || words.on == "" || words.frame == "" {
			t.Errorf("protocol %d has the words %q", p, words)
		}
	}
	if len(protocols) != int(datapath.ControlEnd) {
		t.Errorf("%d protocols have words, and there are %d", len(protocols), datapath.ControlEnd)
	}
}
