// SPDX-License-Identifier: BSD-2-Clause

// Package web is the agent's live page, as a browser loads it. The page requests all
// that it shows from the agent's API, at ../api/v1. Its files contain nothing about the
// switch, so anyone who can reach the address may read them; the API requires the token.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"time"
)

// The page has no build step: browsers read these files as they are. uplot.js and
// uplot.css are from npm's package uplot, version 1.6.32 (MIT, uplot-LICENSE); a line in
// uplot.js exports it.
//
//go:embed page
var embedded embed.FS

// policy is the page's Content-Security-Policy (CSP Level 3, and Trusted Types). Nothing
// is loaded from other sites, no scripts and styles are inline, no text becomes markup,
// and no other page can have this one in a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// A file is the answer at one address of the page.
type file struct {
	kind string // media type
	tag  string // HTTP's entity tag (RFC 9110 section 8.8.3)
	text []byte
}

// kinds are the media types of the page; the host's tables may differ.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", "": "text/plain; charset=utf-8",
}

// files returns all files by name, so a path cannot lead anywhere else.
func files() map[string]file {
	all := map[string]file{}
	add := func(name string, text []byte) {
		sum := sha256.Sum256(text)
		kind, ok := kinds[path.Ext(name)]
		if !ok {
			kind = mime.TypeByExtension(path.Ext(name))
		}
		all[name] = file{kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, text}
	}
	list, err := fs.ReadDir(embedded, "page")
	if err != nil {
		panic(err) // the files are in the program
	}
	for _, e := range list {
		text, err := embedded.ReadFile("page/" + e.Name())
		if err != nil {
			panic(err)
		}
		add(e.Name(), text)
	}
	return all
}

// Handler answers requests for the page. It answers GET and HEAD only, and 404 for paths
// outside the page. Browsers keep the files, and check whether they are still current.
func Handler() http.Handler {
	all := files()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			head.Set("Allow", "GET, HEAD")
			http.Error(w, "the page can only be read", http.StatusMethodNotAllowed)
			return
		}
		name := r.URL.Path
		if name == "/" {
			name = "/index.html"
		}
		f, ok := all[name[1:]]
		if !ok {
			http.Error(w, "the page has nothing of this name", http.StatusNotFound)
			return
		}
		head.Set("Content-Type", f.kind)
		head.Set("Etag", f.tag)
		head.Set("Cache-Control", "private, no-cache")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.text))
	})
}
