// SPDX-License-Identifier: BSD-2-Clause

package doors

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"bascule/files"
)

// A Guard decides which requests are allowed.
type Guard struct {
	hosts   []string
	numeric bool // any address is a valid name
	token   string
}

// NewGuard returns the guard of a server that listens at an address. Valid names of the
// server are that address, localhost and its addresses, and names. Clients need the token,
// unless it is "". A server that listens at all addresses of the host accepts any address
// as its name: an attacker whose name points to the host (DNS rebinding) sends that name,
// not an address.
func NewGuard(at Address, names []string, token string) *Guard {
	g := &Guard{hosts: append([]string{"localhost", "127.0.0.1", "::1"}, names...), token: token}
	if at.Path == "" {
		g.hosts = append(g.hosts, at.TCP.Addr().String())
		g.numeric = at.TCP.Addr().IsUnspecified()
	}
	return g
}

// Protect passes requests to h that
//
//   - address the server by one of its names. A page of another site that makes its own
//     name point to this host (DNS rebinding) sends that name;
//   - are not made by a page of another site, by the headers Origin (RFC 6454) and
//     Sec-Fetch-Site (W3C Fetch Metadata), which browsers send and pages cannot change;
//   - have the token, as "Authorization: Bearer TOKEN" (RFC 6750), unless open returns true
//     for a request without secrets; a nil open is always false. No cookie has the token:
//     browsers send cookies to all servers of a host, whatever their port.
//
// The answers' headers prevent browsers from sharing and storing them.
func (g *Guard) Protect(h http.Handler, open func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		switch {
		case !g.named(r.Host):
			http.Error(w, "this server has another name; call it by its address, or see --web-host of bascule-agent(8)", http.StatusMisdirectedRequest)
		case foreign(r):
			http.Error(w, "requests from pages of other sites are refused", http.StatusForbidden)
		case g.token != "" && (open == nil || !open(r)) && !g.knows(r):
			head.Set("WWW-Authenticate", `Bearer realm="bascule"`)
			http.Error(w, "the token is missing or wrong; the agent has logged the address with it", http.StatusUnauthorized)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// named reports whether a Host header has one of the server's names.
func (g *Guard) named(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	if _, err := netip.ParseAddr(host); err == nil && g.numeric {
		return true
	}
	return slices.ContainsFunc(g.hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// foreign reports whether a page of another site has made the request. A browser sends each
// of these headers once. Behind a proxy, the scheme is the proxy's.
func foreign(r *http.Request) bool {
	switch strings.Join(r.Header.Values("Sec-Fetch-Site"), ",") {
	case "", "same-origin":
	case "none": // the user's own action, such as a typed address
	default:
		return true
	}
	origin := strings.Join(r.Header.Values("Origin"), ",")
	own := strings.EqualFold(origin, "http://"+r.Host) || strings.EqualFold(origin, "https://"+r.Host)
	return origin != "" && !own // also "null"
}

// knows reports whether a request has the token. The scheme's name may be in any case (RFC
// 9110 section 11.1).
func (g *Guard) knows(r *http.Request) bool {
	scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return ok && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare([]byte(text), []byte(g.token)) == 1
}

// NewToken returns a token of 192 random bits.
func NewToken() string {
	var b [24]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// The longest and the shortest token in a file, in bytes.
const (
	minToken = 16
	maxToken = 512
)

// ReadToken reads a token from a file that belongs to the process's user and that no other
// user can read.
func ReadToken(path string) (string, error) {
	f, err := files.OpenPlain(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return "", fmt.Errorf("cannot use the token in %s: the file belongs to user %d; write one of your own", path, sys.Uid)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("cannot use the token in %s: others can read it (mode %#o); run 'chmod 600 %s', and write a new one",
			path, st.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken+2))
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token := strings.TrimRight(string(text), "\n")
	plain := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`",;\`, r) }) < 0
	if len(token) < minToken || len(token) > maxToken || !plain {
		return "", fmt.Errorf("cannot use the token in %s: it has to be one line of %d to %d letters, digits and signs that a cookie can have",
			path, minToken, maxToken)
	}
	return token, nil
}
