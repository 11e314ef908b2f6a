// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// These limits keep the cost of a hostile YAML file low. An alias or a merge counts as the values
// that it stands for.
const (
	maxDepth  = 16
	maxValues = 1 << 20
	maxTokens = 1 << 20 // names, values, and the signs between them
	maxSigns  = 3 << 18 // for lists, mappings, tags, anchors and aliases, anywhere in the file
	maxIndent = 256     // columns before a block's keys and items; each column can add one level
	maxKeys   = 1 << 12
)

// maxRepeated limits the values that aliases in a file's text may stand for. An alias takes a few
// bytes, but may stand for thousands of values.
func maxRepeated(text string) int { return 1<<15 + len(text) }

// tooDeep is the message if a text exceeds maxDepth.
const tooDeep = "nested too deeply; no bridge needs more than 16 levels"

// A kind is the kind of a node.
type kind uint8

const (
	absent  kind = iota // "key:" without a value, or null
	scalar              // text
	mapping             // keys and values
	sequence
)

var kindNames = [...]string{absent: "empty", scalar: "a single value", mapping: "a mapping", sequence: "a list"}

// A node is a value in a YAML file, with aliases and merges resolved. Scalars
// keep their text, which is interpreted according to its key. So 010, 1:30 and off are never
// converted to other values.
type node struct {
	at      Position
	kind    kind
	text    string
	block   bool // the text uses | and begins on the next line
	entries []entry
	items   []node
}

// An entry is a key of a mapping with its value.
type entry struct {
	key, value node
}

// A tree makes the nodes of a document.
type tree struct {
	*faults
	anchors map[string][]*ast.AnchorNode // by name, in the order of their places
	values  int                          // made so far
	full    bool                         // there were too many, which is reported once
	size    map[ast.Node]extent          // of the values of aliases
}

// An extent is the size of a value with aliases expanded.
type extent struct {
	values   int // with itself, long texts counted by line; at most endless
	repeated int // the values among them that aliases stand for
	depth    int // number of levels below it
}

// shortLine is the number of bytes of a text that count as one value, since a line, such as a rule,
// may be a value.
const shortLine = 16

// endless exceeds any allowed number of values.
const endless = 1 << 40

// parseNodes returns the documents of a YAML file that are not empty.
func parseNodes(bad *faults, text string) (list []node) {
	// the library makes tokens of a whole line before this code sees any of them
	if at := signsEnd(text); at >= 0 {
		line, begin := 1+strings.Count(text[:at], "\n"), 1+strings.LastIndexByte(text[:at], '\n')
		bad.add(Position{bad.path, line, at - begin + 1}, "more than %d of the characters [ ] { } , & * ! ? '- ' and ': '; give fewer, or several files", maxSigns)
		return nil
	}
	tokens, why := tokenize(strings.TrimPrefix(text, "\ufeff"))
	if why != "" {
		bad.add(bad.place(tokens[len(tokens)-1]), "%s", why)
		return nil
	}
	file, err := parser.Parse(withNulls(tokens), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at := Position{Path: bad.path, Line: 1, Column: 1}
		msg, remedy := "it cannot be parsed", "see docs/config.md"
		var e yaml.Error // whose Error method also prints lines of the file
		if errors.As(err, &e) {
			msg, remedy = e.GetMessage(), "see the lines before, too"
			if strings.Contains(msg, "'\t'") {
				msg, remedy = "a tab is not allowed here", "indent with spaces"
			}
			if e.GetToken() != nil {
				at = bad.place(e.GetToken())
			}
		}
		bad.add(at, "not YAML: %s; %s", msg, remedy)
		return nil
	}
	for _, doc := range file.Docs {
		if _, ok := doc.Body.(*ast.DirectiveNode); ok || doc.Body == nil { // %YAML 1.2 adds no information
			continue
		}
		t := tree{faults: bad, anchors: map[string][]*ast.AnchorNode{}, size: map[ast.Node]extent{}}
		ast.Walk(&t, doc.Body)
		if all := t.measure(doc.Body, 0); !t.full && all.repeated > maxRepeated(text) {
			t.add(t.place(doc.Body.GetToken()), "aliases stand for %s values, but in a file of %d bytes for at most %d; repeat less", atMost(all.repeated), len(text), maxRepeated(text))
			t.full = true
		}
		if t.full {
			continue
		}
		if n := t.node(doc.Body, 0); !t.full {
			list = append(list, n)
		}
	}
	return list
}

// atMost formats a limit on a number of values.
func atMost(n int) string {
	if n >= endless {
		return fmt.Sprintf("more than %d", endless)
	}
	return fmt.Sprint(n)
}

// signsEnd returns the place of the first sign above the limit, or -1 if there is none.
func signsEnd(text string) int {
	n := 0
	for i := range len(text) {
		switch text[i] {
		case '[', ']', '{', '}', ',', '&', '*', '!', '?':
			n++
		case '-', ':':
			if i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\n' {
				n++
			}
		}
		if n > maxSigns {
			return i
		}
	}
	return -1
}

// tokenize is lexer.Tokenize, but stops at the first token that the parser should not see: the
// parser recurses for each level and for each key of a block, and tokens take far more memory than
// the text. why is the reason, "" for none.
func tokenize(text string) (list token.Tokens, why string) {
	var s scanner.Scanner
	s.Init(text)
	var l levels
	for {
		some, err := s.Scan()
		if errors.Is(err, io.EOF) {
			return list, ""
		}
		for _, t := range some {
			list.Add(t)
			if why := l.tooMuch(t); why != "" {
				return list, why
			}
			if len(list) > maxTokens {
				return list, fmt.Sprintf("more than %d names, values and signs; give fewer, or several files", maxTokens)
			}
		}
	}
}

// measure returns the size of a value at a depth. It adds an error if the value is nested too
// deeply.
func (t *tree) measure(n ast.Node, depth int) (all extent) {
	all.values = 1
	if t.full || n == nil {
		return all
	}
	if depth > maxDepth {
		t.add(t.place(n.GetToken()), tooDeep)
		t.full = true
		return all
	}
	add := func(n ast.Node) {
		part := t.measure(n, depth+1)
		all.values = min(all.values+part.values, endless)
		all.repeated = min(all.repeated+part.repeated, endless)
		all.depth = max(all.depth, part.depth+1)
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		add(n.Value)
	case *ast.TagNode:
		add(n.Value)
	case *ast.AliasNode:
		value := t.anchor(n.Value.GetToken().Value, n.GetToken())
		if value == nil {
			return all // node adds the error
		}
		part, known := t.size[value]
		switch {
		case !known:
			part = t.measure(value, depth+1)
			t.size[value] = part
		case depth+1+part.depth > maxDepth:
			t.add(t.place(n.GetToken()), tooDeep)
			t.full = true
		}
		return extent{min(1+part.values, endless), min(1+part.values, endless), part.depth + 1}
	case *ast.MappingNode:
		for _, v := range n.Values {
			add(unwrapKey(v.Key))
			add(v.Value)
		}
	case *ast.MappingValueNode:
		add(unwrapKey(n.Key))
		add(n.Value)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.LiteralNode:
		all.values += len(n.Value.GetToken().Value) / shortLine
	default:
		all.values += len(n.GetToken().Value) / shortLine
	}
	return all
}

// withNulls adds null values to block keys without a value: otherwise the parser would insert them
// itself and move all later tokens each time.
func withNulls(tokens token.Tokens) token.Tokens {
	key := func(i int) bool { // whether a plain key begins here
		return i >= 0 && i+1 < len(tokens) && tokens[i+1].Type == token.MappingValueType && tokens[i+1].Position.Line == tokens[i].Position.Line &&
			slices.Contains([]token.Type{token.StringType, token.IntegerType, token.SingleQuoteType, token.DoubleQuoteType}, tokens[i].Type)
	}
	list := make(token.Tokens, 0, len(tokens)+len(tokens)/2)
	flow := 0
	for i, t := range tokens {
		list = append(list, t)
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow = max(flow-1, 0)
		}
		if flow > 0 || t.Type != token.MappingValueType || !key(i-1) || !key(i+1) {
			continue
		}
		next := tokens[i+1]
		if next.Position.Line <= t.Position.Line || next.Position.Column > tokens[i-1].Position.Column {
			continue
		}
		at := *t.Position
		at.Column++
		null := token.New("null", " null", &at)
		null.Type = token.ImplicitNullType
		null.Prev, null.Next = t, next
		t.Next, next.Prev = null, null
		list = append(list, null)
	}
	return list
}

// levels tracks the nesting levels that are open at a token.
type levels struct {
	flow int
	keys [maxIndent + 1]int // of the block that is open at each column
}

// tooMuch returns the reason why the parser should not see the next token, "" if it may.
func (l *levels) tooMuch(t *token.Token) string {
	column := t.Position.Column
	switch t.Type {
	case token.MappingStartType, token.SequenceStartType:
		if l.flow++; l.flow > maxDepth {
			return tooDeep
		}
	case token.MappingEndType, token.SequenceEndType:
		l.flow = max(l.flow-1, 0)
	case token.DocumentHeaderType:
		clear(l.keys[:])
	case token.MappingValueType:
		if l.flow > 0 || t.Prev == nil {
			return ""
		}
		column = t.Prev.Position.Column
		fallthrough
	case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
		if l.flow > 0 {
			return ""
		}
		if column > maxIndent {
			return tooDeep
		}
		clear(l.keys[max(column, 0)+1:])
		if t.Type == token.SequenceEntryType {
			return ""
		}
		if l.keys[max(column, 0)]++; l.keys[max(column, 0)] > maxKeys {
			return fmt.Sprintf("more than %d keys in one mapping; give fewer", maxKeys)
		}
	}
	return ""
}

// place returns the place of a token.
func (f *faults) place(t *token.Token) Position {
	return Position{f.path, max(t.Position.Line, 1), max(t.Position.Column, 1)}
}

// Visit collects anchors.
func (t *tree) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		name := a.Name.GetToken().Value
		t.anchors[name] = append(t.anchors[name], a)
	}
	return t
}

// anchor returns the value of the last anchor with the name before a place.
func (t *tree) anchor(name string, before *token.Token) ast.Node {
	list := t.anchors[name]
	n, _ := slices.BinarySearchFunc(list, before.Position, func(a *ast.AnchorNode, at *token.Position) int {
		p := a.Start.Position
		return cmp.Or(cmp.Compare(p.Line, at.Line), cmp.Compare(p.Column, at.Column))
	})
	if n == 0 {
		return nil
	}
	return list[n-1].Value
}

// node converts a value of the library's tree.
func (t *tree) node(n ast.Node, depth int) node {
	if n == nil {
		return node{at: Position{Path: t.path, Line: 1, Column: 1}}
	}
	at := t.place(n.GetToken())
	switch t.values++; {
	case t.full:
		return node{at: at}
	case t.values > maxValues:
		t.add(at, "more than %d values, aliases counted as what they stand for; give fewer", maxValues)
		t.full = true
		return node{at: at}
	case depth > maxDepth:
		t.add(at, tooDeep)
		t.full = true
		return node{at: at}
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return node{at: at}
	case *ast.AnchorNode:
		return t.node(n.Value, depth+1)
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		value := t.anchor(name, n.GetToken())
		if value == nil {
			t.add(at, "there is no anchor %q before this; define it first", name)
			return node{at: at}
		}
		return t.node(value, depth+1)
	case *ast.TagNode:
		if tag := n.GetToken().Value; tag != "!!str" && tag != "!!map" && tag != "!!seq" {
			t.add(at, "the tag %q means nothing here; leave it out", tag)
		}
		return t.node(n.Value, depth+1)
	case *ast.LiteralNode:
		return node{at: at, kind: scalar, text: n.Value.GetToken().Value, block: n.Start.Type == token.LiteralType}
	case *ast.MappingNode:
		return t.mapping(n.Values, at, depth)
	case *ast.MappingValueNode:
		return t.mapping([]*ast.MappingValueNode{n}, at, depth)
	case *ast.SequenceNode:
		s := node{at: at, kind: sequence}
		for _, v := range n.Values {
			s.items = append(s.items, t.node(v, depth+1))
		}
		return s
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node{at: at, kind: scalar, text: n.GetToken().Value}
	}
	t.add(at, "it has no meaning here; leave it out")
	return node{at: at}
}

// mapping makes a node from keys and values. A merge key ("<<") adds the keys that the mapping does
// not have itself.
func (t *tree) mapping(values []*ast.MappingValueNode, at Position, depth int) node {
	m := node{at: at, kind: mapping}
	if len(values) > 0 {
		m.at = t.place(values[0].Key.GetToken())
	}
	seen := map[string]Position{}
	var merged []node
	for _, v := range values {
		if t.full {
			return m
		}
		if v.Key.IsMergeKey() {
			from := t.node(v.Value, depth+1)
			if from.kind == sequence {
				merged = append(merged, from.items...)
			} else {
				merged = append(merged, from)
			}
			continue
		}
		key := t.node(unwrapKey(v.Key), depth+1)
		if key.kind != scalar {
			if t.full {
				return m
			}
			t.add(key.at, "a key is a name, not %s; quote it if it is one", kindNames[key.kind])
			continue
		}
		if first, ok := seen[key.text]; ok {
			t.add(key.at, "%q occurs twice, first at line %d; remove one", key.text, first.Line)
			continue
		}
		seen[key.text] = key.at
		value := t.node(v.Value, depth+1)
		if value.kind == absent {
			value.at = key.at
		}
		m.entries = append(m.entries, entry{key, value})
	}
	for _, from := range merged {
		if from.kind != mapping {
			t.add(from.at, "<< merges mappings, and this is %s; give *NAME of a mapping", kindNames[from.kind])
			continue
		}
		for _, e := range from.entries {
			if _, ok := seen[e.key.text]; !ok {
				seen[e.key.text] = e.key.at
				m.entries = append(m.entries, e)
			}
		}
	}
	return m
}

// unwrapKey returns the key in "? key".
func unwrapKey(k ast.MapKeyNode) ast.Node {
	if e, ok := k.(*ast.MappingKeyNode); ok {
		return e.Value
	}
	return k
}

// describe names the kind of a node for messages.
func (n node) describe() string {
	if n.kind == scalar {
		return fmt.Sprintf("%q", n.text)
	}
	return kindNames[n.kind]
}
