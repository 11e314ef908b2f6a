// SPDX-License-Identifier: BSD-2-Clause

// Package api is the agent's HTTP API. A request is a command: its path has the command's
// words, its parameters are the command's arguments and flags, and the answer is the
// command's output with -j, of package answer. Requests that only show something are GETs,
// requests that change something POSTs. The OpenAPI document is generated from the same
// types.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"

	"bascule/agent"
	"bascule/agent/doors"
	"bascule/answer"
	"bascule/bridge"
	"bascule/config"
	"bascule/history"
	"bascule/pf"
	"bascule/plug"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// The files that are generated from the types here. The document uses the words of the
// first.
//
//go:generate go test -run TestGenerated -update
//go:generate go test -run TestGenerated -update

// Prefix begins the paths of the API.
const Prefix = "/api/v1"

// NoteHeader is the header of an answer for the command's warnings, one line each. See
// [Options].
const NoteHeader = "Bascule-Note"

// Agent is the agent as the API needs it; *[agent.View] implements it.
type Agent interface {
	Status(ctx context.Context) (agent.Status, error)
	Places(ctx context.Context) ([]agent.Place, error)
	Reload(ctx context.Context, how agent.Reload) error
}

// Options configure an API.
type Options struct {
	Program answer.Version // version of the answering program
	Write   bool           // changes are allowed; otherwise they are refused

	// Watch has the meaning of agent.Options.Watch.
	Watch func(netns string) error
}

// An API answers requests.
type API struct {
	agent   Agent
	o       Options
	mux     *http.ServeMux
	huma    huma.API
	places  chan struct{} // one for each request that is answered at the same time
	streams chan struct{} // one for each stream
	held    atomic.Int64  // bytes of bodies, as mostHeld counts them
	meters  meters
	watches watches
}

// Limits for all clients together.
const (
	mostAtOnce  = 4
	mostStreams = 64
)

// New returns the API of an agent.
func New(a Agent, o Options) *API {
	huma.DefaultArrayNullable = false // empty lists are lists, not null
	huma.ValidateStrictCasing = true
	api := &API{
		agent: a, o: o, mux: http.NewServeMux(),
		places: make(chan struct{}, mostAtOnce), streams: make(chan struct{}, mostStreams),
	}
	c := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "bascule", Version: "1", License: &huma.License{Name: "BSD-2-Clause"},
				Description: "The agent of a bascule switch. A path has the words of a command, a query or a body its " +
					"arguments and flags, and the answer is what the command prints with -j. " + NoteHeader +
					" has what the command prints as warnings, a header for each.",
			},
			Servers:    []*huma.Server{{URL: Prefix}},
			Components: &huma.Components{Schemas: huma.NewMapRegistry(schemas, huma.DefaultSchemaNamer)},
		},
		Formats:                      map[string]huma.Format{"application/json": {Marshal: marshal, Unmarshal: plug.ReadJSON}, "json": {Marshal: marshal, Unmarshal: plug.ReadJSON}},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{tellFirst},
	}
	sub := http.NewServeMux()
	api.huma = humago.New(sub, c)
	api.huma.UseMiddleware(api.strict)
	api.shows()
	api.filters()
	api.edits()
	api.objects()
	api.follows()
	api.finish()
	sub.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(api.Document())
	})
	api.mux.Handle(Prefix+"/", http.StripPrefix(Prefix, plainErrors(sub)))
	return api
}

// ServeHTTP answers a request once all of it was received, so a slow client keeps no other
// waiting.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, held, err := a.read(r.Body)
	defer a.held.Add(-held)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		r.Body = io.NopCloser(bytes.NewReader(text))
		a.mux.ServeHTTP(w, r)
		return
	case errors.As(err, &large):
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes; send less", large.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		fail(w, http.StatusRequestTimeout, "the body did not arrive in time; send it faster")
	case errors.Is(err, errHeld):
		w.Header().Set("Retry-After", "10")
		fail(w, http.StatusServiceUnavailable, err.Error())
	default:
		fail(w, http.StatusBadRequest, "the body is cut off, or does not match its header; send all of it")
	}
}

// mostHeld limits the bodies in memory at the same time, in bytes. Bodies up to maxEdit do
// not count, since the number of connections is limited; the bytes of all bodies beyond
// maxEdit count together.
const mostHeld = 4 * doors.MaxBody

var errHeld = errors.New("other requests take all room; try again later")

// read reads a body. held is its part of mostHeld, which the caller gives back.
func (a *API) read(from io.Reader) (text []byte, held int64, err error) {
	if from == nil || from == http.NoBody {
		return nil, 0, nil
	}
	var b bytes.Buffer
	piece := make([]byte, 16<<10)
	for {
		n, err := from.Read(piece)
		if over := int64(b.Len()+n-maxEdit) - held; n > 0 && over > 0 {
			held += over
			if a.held.Add(over) > mostHeld {
				return nil, held, errHeld
			}
		}
		b.Write(piece[:n])
		switch {
		case errors.Is(err, io.EOF):
			return b.Bytes(), held, nil
		case err != nil:
			return nil, held, err
		}
	}
}

// fail answers an invalid request and closes the connection: the client's further bytes are
// not a request.
func fail(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Connection", "close")
	answerProblem(w, status, detail)
}

func answerProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = marshal(w, huma.ErrorModel{Title: http.StatusText(status), Status: status, Detail: detail})
}

// Document returns the OpenAPI document of the API.
func (a *API) Document() []byte {
	text, err := json.MarshalIndent(a.huma.OpenAPI(), "", " ")
	if err != nil {
		panic(err) // the document consists of the program's own types
	}
	return append(text, '\n')
}

func marshal(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// strict refuses repeated and empty parameters: a client that sends those means something
// else than no parameter. The library refuses unknown parameters. strict also limits the
// number of requests at a time.
func (a *API) strict(ctx huma.Context, next func(huma.Context)) {
	u := ctx.URL()
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		a.refuse(ctx, http.StatusBadRequest, "the query cannot be read: "+err.Error()+"; see RFC 3986 for the form of an address")
		return
	}
	for name, values := range query {
		list := slices.ContainsFunc(ctx.Operation().Parameters, func(p *huma.Param) bool { return p.Name == name && p.Schema.Type == "array" })
		switch {
		case len(values) > 1 && !list:
			a.refuse(ctx, http.StatusUnprocessableEntity, fmt.Sprintf("query parameter %q occurs %d times; give it once", name, len(values)))
			return
		case slices.Contains(values, ""):
			a.refuse(ctx, http.StatusUnprocessableEntity, fmt.Sprintf("query parameter %q is empty; leave it out, or give it a value", name))
			return
		case slices.ContainsFunc(values, func(v string) bool { return strings.ContainsFunc(v, unicode.IsControl) }):
			// the answer is one line, and quotes the parameter
			a.refuse(ctx, http.StatusUnprocessableEntity, fmt.Sprintf("query parameter %q has a control character; leave that out", name))
			return
		}
	}
	edit := ctx.Operation().Metadata[isEdit] != nil
	if edit && !a.o.Write {
		a.refuse(ctx, http.StatusForbidden, "nothing can be changed here: the agent was started without --web-write")
		return
	}
	room := a.places
	if ctx.Operation().Metadata[isStream] != nil {
		room = a.streams
		select {
		case room <- struct{}{}:
		default:
			ctx.SetHeader("Retry-After", "10")
			a.refuse(ctx, http.StatusServiceUnavailable, fmt.Sprintf("there are %d streams already; end one, or try again later", mostStreams))
			return
		}
	} else {
		select {
		case room <- struct{}{}:
		case <-ctx.Context().Done():
			return
		}
	}
	defer func() { <-room }()
	next(ctx)
}

// The keys of an operation's metadata.
const (
	isEdit   = "edit"
	isStream = "stream"
)

func (a *API) refuse(ctx huma.Context, status int, text string) {
	huma.WriteErr(a.huma, ctx, status, text)
}

// plainErrors gives the router's errors the form of all other errors.
func plainErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		status, detail := http.StatusNotFound, fmt.Sprintf("there is no %.100q; see %s/openapi.json", r.URL.Path, Prefix)
		var allowed []string
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "" {
				allowed = append(allowed, method)
			}
		}
		if allowed != nil {
			status, detail = http.StatusMethodNotAllowed, fmt.Sprintf("%.100q takes %s", r.URL.Path, strings.Join(allowed, ", "))
			w.Header().Set("Allow", strings.Join(allowed, ", "))
		}
		answerProblem(w, status, detail)
	})
}

// problem returns the error of an operation as an answer (RFC 9457): its one line, or one
// line for each mistake in a file.
func problem(err error) error {
	status := http.StatusInternalServerError
	var usage *bridge.UsageError
	var known huma.StatusError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case bridge.Missing(err):
		status = http.StatusNotFound
	case errors.As(err, &usage), isText(err):
		status = http.StatusUnprocessableEntity
	case bridge.Refused(err), history.Refused(err):
		status = http.StatusConflict
	}
	lines := []string{err.Error()}
	if joined := (interface{ Unwrap() []error })(nil); isText(err) || errors.As(err, &joined) {
		lines = strings.Split(err.Error(), "\n")
	}
	if list := pf.ErrorList(nil); errors.As(err, &list) {
		lines = nil
		for _, e := range list {
			lines = append(lines, e.Brief())
		}
	}
	for i := range lines { // a name in a request may contain a newline
		lines[i] = graphic(lines[i])
	}
	var more []error
	if len(lines) > 1 {
		for _, line := range lines {
			more = append(more, &huma.ErrorDetail{Message: line})
		}
	}
	return huma.NewError(status, lines[0], more...)
}

// tellFirst puts the first mistake that the library has found in a request into the
// answer's one line.
func tellFirst(_ huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok || len(e.Errors) == 0 || e.Errors[0].Location == "" {
		return v, nil
	}
	first := e.Errors[0]
	e.Detail = fmt.Sprintf("%s: %s; see %s/openapi.json", first.Location, first.Message, Prefix)
	if n := len(e.Errors); n > 1 {
		e.Detail += fmt.Sprintf(" (the first of %d mistakes)", n)
	}
	return e, nil
}

// isText reports whether an error is about the text of a request's body.
func isText(err error) bool {
	var files config.Errors
	var rules pf.ErrorList
	return errors.As(err, &files) || errors.As(err, &rules)
}

// Where is the network namespace of a request.
type Where struct {
	Netns string `query:"netns" maxLength:"255" doc:"network namespace, named as the agent's files name it; without, it is the agent's own"`
}

func (w Where) netns() string { return w.Netns }

type located interface{ netns() string }

// switchOf returns the switch of a network namespace that the agent serves. It accepts no
// other name, since that may be the path of a file.
func (a *API) switchOf(ctx context.Context, netns string) (*bridge.Switch, error) {
	list, err := a.agent.Places(ctx)
	if err != nil {
		return nil, huma.Error503ServiceUnavailable(err.Error())
	}
	for _, p := range list {
		if p.Netns == netns {
			return p.Switch, nil
		}
	}
	return nil, huma.Error404NotFound(fmt.Sprintf("the agent serves no network namespace %q; see /agent/status", netns))
}

// An Answer has a command's output with -j.
type Answer[T any] struct {
	Notes []string `header:"Bascule-Note" doc:"a warning of the command"`
	Body  T
}

// show adds an operation that changes nothing.
func show[I, T any](a *API, path, summary string, f func(ctx context.Context, in *I) (T, error)) {
	operation(a, huma.Operation{Method: http.MethodGet, Path: path, Summary: summary}, func(ctx context.Context, in *I) (T, []string, error) {
		answer, err := f(ctx, in)
		return answer, nil, err
	})
}

// look adds an operation that shows properties of a switch.
func look[I, T any](a *API, path, summary string, f func(s *bridge.Switch, in *I) (T, error)) {
	show(a, path, summary, func(ctx context.Context, in *I) (answer T, err error) {
		s, err := a.switchOf(ctx, any(in).(located).netns())
		if err != nil {
			return answer, err
		}
		return f(s, in)
	})
}

// maxEdit is the largest size of a change's body that has no file in it, in bytes.
const maxEdit = 64 << 10

// edit adds an operation that changes a switch, and answers with the command's output.
func edit[I, T any](a *API, path, summary string, f func(s *bridge.Switch, in *I) (answer T, notes []string, err error)) {
	operation(a, huma.Operation{
		Method: http.MethodPost, Path: path, Summary: summary, MaxBodyBytes: maxEdit,
		Metadata: map[string]any{isEdit: true},
	}, onSwitch(a, f))
}

// Nothing is the answer of a command without output.
type Nothing struct{}

// change adds an operation that changes a switch by a command without output.
func change[I any](a *API, path, summary string, f func(s *bridge.Switch, in *I) (notes []string, err error)) {
	edit(a, path, summary, func(s *bridge.Switch, in *I) (Nothing, []string, error) {
		notes, err := f(s, in)
		return Nothing{}, notes, err
	})
}

func onSwitch[I, T any](a *API, f func(s *bridge.Switch, in *I) (T, []string, error)) func(context.Context, *I) (T, []string, error) {
	return func(ctx context.Context, in *I) (answer T, notes []string, err error) {
		s, err := a.switchOf(ctx, any(in).(located).netns())
		if err != nil {
			return answer, nil, err
		}
		return f(s, in)
	}
}

// text makes an operation take a text as its body.
func text(op huma.Operation) huma.Operation {
	op.Method, op.MaxBodyBytes = http.MethodPost, doors.MaxBody
	return op
}

func operation[I, T any](a *API, op huma.Operation, f func(context.Context, *I) (T, []string, error)) {
	op.OperationID = strings.ReplaceAll(strings.TrimPrefix(op.Path, "/"), "/", "-")
	op.Tags = []string{strings.Split(op.Path, "/")[1]}
	op.BodyReadTimeout = -1 // the server has a timeout
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*Answer[T], error) {
		answer, notes, err := f(ctx, in)
		if err != nil {
			return nil, problem(err)
		}
		return &Answer[T]{notesOf(notes), answer}, nil
	})
}

// maxNotes is the largest number of notes in an answer.
const maxNotes = 20

// notesOf returns notes as lines of a header.
func notesOf(notes []string) []string {
	list := make([]string, 0, min(len(notes), maxNotes))
	for i, n := range notes {
		if i == maxNotes-1 && len(notes) > maxNotes {
			n = fmt.Sprintf("%d more, which the agent does not send", len(notes)-i)
		}
		if i == maxNotes {
			break
		}
		list = append(list, graphic(n))
	}
	return list
}

// graphic returns a text as one visible line.
func graphic(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsGraphic(c) {
			return c
		}
		return ' '
	}, text)
}

// Optional is an optional number of a query.
type Optional[T any] struct {
	Value T
	Set   bool
}

// Or returns the number, or other if there is none.
func (o Optional[T]) Or(other T) T {
	if o.Set {
		return o.Value
	}
	return other
}

// Pointer returns the number, or nil if there is none.
func (o Optional[T]) Pointer() *T {
	if o.Set {
		return &o.Value
	}
	return nil
}
