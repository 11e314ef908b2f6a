// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bascule/agent"
	"bascule/agent/doors"

	"github.com/danielgtaylor/huma/v2"
)

// emptyAgent serves no network namespace: no request gets to a switch.
type emptyAgent struct{ fakeAgent }

func (emptyAgent) Places(context.Context) ([]agent.Place, error) { return nil, nil }

// FuzzRequest sends a request, as it comes by the connection, through guard and API. It has
// an answer with a status of HTTP, and an error is a problem with a line.
func FuzzRequest(f *testing.F) {
	for _, text := range []string{
		"GET /api/v1/port/show?bridge=br0&stats=true HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/fdb/show?vlan=7&mac=02:00:00:00:00:01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /api/v1/trace?bridge=br0&in=p1&frame=ffff HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"POST /api/v1/port/set HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 59\r\n\r\n" +
			`{"bridge":"br0","port":"p1","settings":{"isolated":"on"}}  `,
		"POST /api/v1/apply/dry-run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
		"GET /api/v1/monitor HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		"GET /api/v1/../../etc/passwd HTTP/1.0\r\nHost: localhost\r\nOrigin: null\r\n\r\n",
	} {
		f.Add(text)
	}
	h := doors.NewGuard(doors.Address{Path: "/x"}, nil, "").Protect(New(emptyAgent{}, Options{Write: true}), nil)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return // the library answers
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		w := httptest.NewRecorder()
		r.Body = http.MaxBytesReader(w, io.NopCloser(bytes.NewReader(body)), doors.MaxBody)
		h.ServeHTTP(w, r)
		if w.Code < 200 || w.Code > 599 || w.Code == http.StatusInternalServerError {
			t.Errorf("%q: status %d %s", text, w.Code, w.Body)
		}
		var p huma.ErrorModel
		if w.Header().Get("Content-Type") == "application/problem+json" && r.Method != http.MethodHead {
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Detail == "" || p.Status != w.Code {
				t.Errorf("%q: %d %s", text, w.Code, w.Body)
			}
		}
	})
}
