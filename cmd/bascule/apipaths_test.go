// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"bascule/agent/api"

	"github.com/spf13/cobra"
)

// withoutPath has the commands without a path in the API, each with the reason.
var withoutPath = map[string]string{
	"check":         "it looks at the machine before there is an agent",
	"completion":    "it is of a shell",
	"demo":          "it makes network namespaces to show what the program does",
	"lab":           "it measures the machine",
	"top":           "it draws in a terminal; /rates has what it draws",
	"pfctl -T load": "it reads a file; /pf/load takes the whole of one, and /pf/table/replace a table's addresses",
	"pfctl -s all":  "it is several requests",
}

// otherPath are commands whose path has other words.
var otherPath = map[string]string{
	"bridge del --all": "/bridge/del-all",
	"apply --dry-run":  "/apply/dry-run",
	"apply --back":     "/apply/back",
	"apply --history":  "/apply/history",
	"stats --interval": "/rates",
}

// TestAPIHasCommands requires a path of the API, or a reason for its absence, for each command and
// for each word of pfctl. docs/api.md has to list the commands without a path.
func TestAPIHasCommands(t *testing.T) {
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal(api.New(nil, api.Options{}).Document(), &document); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	check := func(command, path string) {
		t.Helper()
		for _, name := range []string{command, strings.Fields(command)[0]} {
			if withoutPath[name] != "" {
				used[name] = true
				if document.Paths[path] != nil {
					t.Errorf("bascule %s is listed as having no path, and has %s", command, path)
				}
				return
			}
		}
		if document.Paths[path] == nil {
			t.Errorf("bascule %s: the API has no %s", command, path)
		}
	}
	everyCommand(newRoot(&program{}), func(cmd *cobra.Command) {
		words := strings.TrimPrefix(cmd.CommandPath(), "bascule")
		if cmd.HasSubCommands() || words == "" || words == " pfctl" {
			return
		}
		check(words[1:], strings.ReplaceAll(words, " ", "/"))
	})
	for command, path := range otherPath {
		check(command, path)
	}
	for _, f := range pfShows {
		check("pfctl -s "+f.name, "/pf/"+strings.ToLower(f.name))
	}
	for _, f := range pfCommands {
		check("pfctl -T "+f.name, "/pf/table/"+f.name)
	}
	text := string(api.New(nil, api.Options{}).Document())
	for _, f := range pfFlushes { // all of them are several requests
		if f.name != "all" && !strings.Contains(text, `"`+f.name+`"`) {
			t.Errorf("bascule pfctl -F %s: /pf/flush does not take it", f.name)
		}
	}
	for _, path := range []string{"/pf/load", "/pf/check", "/pf/enable", "/pf/disable", "/pf/zero", "/pf/kill-states", "/pf/kill-sources", "/pf/flush"} {
		check("pfctl", path)
	}
	for name := range withoutPath {
		if !used[name] {
			t.Errorf("bascule %s is listed as having no path, and is no command", name)
		}
	}
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, named, _ := strings.Cut(string(page), "these have no path:")
	named, _, _ = strings.Cut(named, ".")
	var list []string
	for i, word := range strings.Split(named, "`") {
		if i%2 == 1 {
			list = append(list, word)
		}
	}
	slices.Sort(list)
	if want := slices.Sorted(maps.Keys(withoutPath)); !slices.Equal(list, want) {
		t.Errorf("docs/api.md names %q as having no path, not %q", list, want)
	}
}
