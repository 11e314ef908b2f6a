// SPDX-License-Identifier: BSD-2-Clause

// Package client calls the API of a bascule switch's agent, see docs/api.md. Its types and most of
// its methods are generated from the API's OpenAPI document, docs/openapi.json. It needs no other
// package of bascule, and only the permission to reach the agent.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// prefix begins the paths of the API.
const prefix = "/api/v1"

// maxAnswer is the size limit of an answer in bytes.
const maxAnswer = 256 << 20

// A Client calls one agent. Its methods are safe for concurrent use.
type Client struct {
	base  string // "http://127.0.0.1:9811"
	token string
	http  *http.Client
}

// New makes a client for the agent at an address: "unix:PATH" for the agent's own socket or the one
// of --web, or "ADDRESS:PORT". The token is "" for a socket without one. New sends no request.
func New(address, token string) (*Client, error) {
	transport := &http.Transport{}
	c := &Client{base: "http://" + address, token: token, http: &http.Client{Transport: transport}}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		c.base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		return c, nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("%q is no address of an agent; give unix:PATH, or an address and a port, such as 127.0.0.1:9811", address)
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// An Error is an agent's refusal or failure (RFC 9457).
type Error struct {
	Status int    `json:"status"` // HTTP status code
	Title  string `json:"title"`  // meaning of Status
	Detail string `json:"detail"` // one line: the mistake, its object, the reason and the remedy
	// Errors has a line for each mistake in a request or a file.
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location,omitempty"` // place in the request: "query.bridge"
	} `json:"errors,omitempty"`
}

func (e *Error) Error() string {
	text := e.Detail
	for _, d := range e.Errors {
		switch {
		case d.Location != "" && strings.HasPrefix(e.Detail, d.Location+": "+d.Message): // Detail has it
		case d.Location != "":
			text += "; " + d.Location + ": " + d.Message
		case d.Message != e.Detail && strings.TrimSpace(d.Message) != "":
			text += "\n" + d.Message
		}
	}
	return text
}

// body is the body of a request.
type body struct {
	kind string
	data []byte
	err  error
}

func jsonBody(v any) *body {
	data, err := json.Marshal(v)
	return &body{"application/json", data, err}
}

func textBody(kind string, data []byte) *body { return &body{kind, data, nil} }

// do sends a request, and decodes the answer into a value, which may be nil. It returns the
// command's warnings.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, b *body, answer any) (notes []string, err error) {
	r, err := c.send(ctx, method, path, query, b)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the agent's answer: %w", err)
	}
	return r.Header.Values("Bascule-Note"), nil
}

// open sends a request, and returns the body of the answer for the caller to read.
func (c *Client) open(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	r, err := c.send(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return nil, err
	}
	return r.Body, nil
}

func (c *Client) send(ctx context.Context, method, path string, query url.Values, b *body) (*http.Response, error) {
	at := c.base + prefix + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	var data io.Reader
	if b != nil {
		if b.err != nil {
			return nil, b.err
		}
		data = bytes.NewReader(b.data)
	}
	r, err := http.NewRequestWithContext(ctx, method, at, data)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the agent: %w", err)
	}
	if b != nil {
		r.Header.Set("Content-Type", b.kind)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		var e *url.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		return nil, fmt.Errorf("cannot reach the agent: %w", err)
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	e := &Error{}
	if err := json.Unmarshal(text, e); err != nil || e.Detail == "" {
		e = &Error{Title: http.StatusText(answer.StatusCode), Detail: strings.TrimSpace(string(text))}
	}
	e.Status = answer.StatusCode
	return nil, e
}

// follow reads server-sent events.
func follow[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		from, err := c.open(ctx, path, query)
		if err != nil {
			yield(none, err)
			return
		}
		defer from.Close()
		lines := bufio.NewScanner(from)
		lines.Buffer(nil, 16<<20)
		name := ""
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ":")
			value = strings.TrimPrefix(value, " ")
			switch field {
			case "event":
				name = value
			case "data":
				if name == "error" {
					e := &Error{}
					if json.Unmarshal([]byte(value), e) != nil {
						e.Detail = value
					}
					yield(none, e)
					return
				}
				var v T
				if err := json.Unmarshal([]byte(value), &v); err != nil {
					yield(none, fmt.Errorf("cannot read the agent's event: %w", err))
					return
				}
				if !yield(v, nil) {
					return
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err = lines.Err(); err == nil {
			err = io.ErrUnexpectedEOF // the agent has ended
		}
		yield(none, fmt.Errorf("the agent says no more: %w", err))
	}
}

// set adds a parameter to a query, unless its value is the zero value.
func set[T any](v url.Values, name string, value T) {
	switch x := any(value).(type) {
	case string:
		if x != "" {
			v.Set(name, x)
		}
	case bool:
		if x {
			v.Set(name, "true")
		}
	case []string:
		v[name] = x
	case *uint64:
		if x != nil {
			v.Set(name, strconv.FormatUint(*x, 10))
		}
	case *int64:
		if x != nil {
			v.Set(name, strconv.FormatInt(*x, 10))
		}
	case *float64:
		if x != nil {
			v.Set(name, strconv.FormatFloat(*x, 'g', -1, 64))
		}
	default:
		panic(fmt.Sprintf("parameter %s is a %T", name, value))
	}
}
