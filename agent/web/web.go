// SPDX-License-Identifier: BSD-2-Clause

// Package web has the files of the live page. The agent serves them at "/" of the address
// of --web, beside the API at [bascule/agent/api.Prefix].
//
// The files hold nothing of the switch, and whoever reaches the address may have them. All
// else comes by the API, which wants the token. The agent logs the page's address as
// http://ADDRESS/#TOKEN when it starts: what is behind the # stays in the browser. The page
// keeps it in sessionStorage, which is the page's own (a cookie would go to every server of
// the host, whatever its port), takes it out of the address bar, and sends it with each
// request as "Authorization: Bearer TOKEN", also for streams of events: fetch() reads these,
// since EventSource can send no header. At a unix socket there is no token.
package web

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed files
var embedded embed.FS

// Policy is the content security policy (W3C CSP 3) of the page: scripts, styles and
// connections are of the page's own origin, and nothing is inline.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler answers with the files of the page.
func Handler() http.Handler {
	root, err := fs.Sub(embedded, "files")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	files := http.FileServerFS(plainFiles{root})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", Policy)
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page can be read, and nothing else", http.StatusMethodNotAllowed)
			return
		}
		files.ServeHTTP(w, r)
	})
}

// plainFiles are files without the lists that an http.FileServer makes of folders.
type plainFiles struct{ fs.FS }

func (p plainFiles) Open(name string) (fs.File, error) {
	f, err := p.FS.Open(name)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() && name != "." {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
