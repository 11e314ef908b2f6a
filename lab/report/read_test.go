// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestReadJSON(t *testing.T) {
	r := realistic(12, 4, 2)
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	back, err := ReadJSON(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("what was read back (-want +got):\n%s", diff)
	}
}

// TestReadOlderJSON reads a report of an earlier version, which lacks fields.
func TestReadOlderJSON(t *testing.T) {
	f, err := os.Open("testdata/older.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := ReadJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Groups) == 0 || r.Groups[0].Case("direct tcp-stream-1") == nil {
		t.Fatalf("%d groups, and no direct tcp-stream-1 in the first", len(r.Groups))
	}
	for name, write := range forms(r) {
		var b bytes.Buffer
		if err := write(&b); err != nil || !strings.Contains(b.String(), "linux-bridge") {
			t.Errorf("an older report as %s: %d bytes, error %v", name, b.Len(), err)
		}
	}
}

func TestReadJSONError(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "not JSON: unexpected end of JSON input, at byte 0"},
		{"TCP (3 rounds)\n", "not JSON: invalid character 'T' looking for beginning of value, at byte 1"},
		{`{"machine":{},"groups":[]} {}`, "not JSON: invalid character '{' after top-level value, at byte 28"},
		{`[]`, "not a report of the lab: it is not a JSON object"},
		{`null`, `not a report of the lab: it has no "machine"`},
		{`{"groups":[]}`, `not a report of the lab: it has no "machine"`},
		{`{"machine":{}}`, `not a report of the lab: it has no "groups"`},
		{`{"machine":{},"groups":[null]}`, "not a report of the lab: group 1 is null"},
		{`{"machine":{},"groups":[{"name":"g","cases":[null]}]}`, "not a report of the lab: case 1 of group g is null"},
		{`{"machine":{},"groups":[{"name":"g\u001b[2J","cases":[null]}]}`, `not a report of the lab: case 1 of group g\x1b[2J is null`},
		{`{"machine":{},"groups":{}}`, "not a report of the lab: json: cannot unmarshal object into Go struct field Report.groups of type []*report.Group"},
	} {
		_, err := ReadJSON(strings.NewReader(test.text))
		if err == nil || err.Error() != test.want {
			t.Errorf("%q: error %v, want %s", test.text, err, test.want)
		}
	}
	if _, err := ReadJSON(iotest.ErrReader(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a file that cannot be read: error %v", err)
	}
	if _, err := ReadJSON(io.LimitReader(blanks{}, maxReport+1)); err == nil || err.Error() != "it has more than 16777216 bytes" {
		t.Errorf("too large a file: error %v", err)
	}
	// The caller adds the name.
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := ReadJSON(dir); err == nil || err.Error() != "is a directory" {
		t.Errorf("a directory: error %v", err)
	}
}

// An endless stream of spaces.
type blanks struct{}

func (blanks) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}
