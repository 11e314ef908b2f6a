// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"bascule/files"
)

// maxReport is the size limit of a report in bytes. A report with everything in the lab has less
// than a MiB.
const maxReport = 16 << 20

// ReadJSON reads a report from WriteJSON, including one from an older version, which lacks fields.
// The error is one line without the source's name.
func ReadJSON(r io.Reader) (*Report, error) {
	text, err := files.ReadAll(r, maxReport)
	if err != nil {
		// The caller adds the file's name.
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, err
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("not JSON: %w, at byte %d", err, syntax.Offset)
		}
		return nil, errors.New("not a report of the lab: it is not a JSON object")
	}
	for _, name := range []string{"machine", "groups"} {
		if _, ok := parts[name]; !ok {
			return nil, fmt.Errorf("not a report of the lab: it has no %q", name)
		}
	}
	var out Report
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("not a report of the lab: %w", err)
	}
	for i, g := range out.Groups {
		if g == nil {
			return nil, fmt.Errorf("not a report of the lab: group %d is null", i+1)
		}
		for k, c := range g.Cases {
			if c == nil {
				return nil, fmt.Errorf("not a report of the lab: case %d of group %s is null", k+1, printable(g.Name))
			}
		}
	}
	return &out, nil
}
