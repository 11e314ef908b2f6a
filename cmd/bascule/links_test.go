// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	linkMark    = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	headingMark = regexp.MustCompile(`(?m)^#+ (.*)$`)
	anchorMark  = regexp.MustCompile(`<a id="([^"]+)"`)
	notAnchor   = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinks checks that every link within the source leads to an existing file, and to a heading or an anchor of a
// page.
func TestLinks(t *testing.T) {
	pages, links := map[string]string{}, 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "../.." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		pages[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for page, text := range pages {
		for _, found := range linkMark.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[2], "://") {
				continue
			}
			links++
			target := page
			path, anchor, _ := strings.Cut(found[2], "#")
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links %s: %v", page, found[2], err)
			} else if to, ours := pages[target]; ours && anchor != "" && !anchors(to)[anchor] {
				t.Errorf("%s links %s: there is no such heading", page, found[2])
			}
		}
	}
	if links < 100 {
		t.Errorf("the pages have %d links", links)
	}
}

// anchors returns the link targets of a page: GitHub's names of the headings, and the page's own anchors.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, found := range headingMark.FindAllStringSubmatch(page, -1) {
		heading := strings.ToLower(linkMark.ReplaceAllString(found[1], "$1"))
		names[strings.ReplaceAll(notAnchor.ReplaceAllString(heading, ""), " ", "-")] = true
	}
	for _, found := range anchorMark.FindAllStringSubmatch(page, -1) {
		names[found[1]] = true
	}
	return names
}
