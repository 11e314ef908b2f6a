// SPDX-License-Identifier: BSD-2-Clause

// Package top is a live view of a switch in a terminal: ports, drops and the
// busiest addresses, with rates per second. The model receives readings, pressed keys and the
// terminal's size, and turns them into text. It does no I/O itself. Run connects it to a terminal
// and a source.
package top

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"bascule/bridge"
	"bascule/rates"

	tea "charm.land/bubbletea/v2"
)

// Source provides readings. Only one goroutine reads it at a time.
type Source interface {
	Ports() ([]bridge.Port, error)
	Talkers() ([]bridge.Talker, error) // ErrNoTalkers without counters by address
}

// ErrNoTalkers is the error of a source without counters by address.
var ErrNoTalkers = errors.New("this bascule does not count frames by address")

// Reading is the data read from a source. It is a message to the model.
type Reading struct {
	At         time.Time
	Ports      []bridge.Port
	Err        error // of Ports, which are then nil
	Talkers    []bridge.Talker
	TalkersErr error
}

// Read reads a source.
func Read(s Source) (r Reading) {
	r.At = time.Now()
	if r.Ports, r.Err = s.Ports(); r.Err == nil {
		r.Talkers, r.TalkersErr = s.Talkers()
	}
	return r
}

// Model implements tea.Model.
type Model struct {
	title         string
	width, height int
	meter         rates.Meter
	latest, shown state // they differ while paused

	pane         int
	panes        [len(paneNames)]paneState
	paused, help bool
}

// state is the data to show.
type state struct {
	at         time.Time // of the last successful reading
	elapsed    time.Duration
	ports      []rates.Port
	talkers    []rates.Talker
	err        error // of a later reading
	talkersErr error
}

// The panes.
const (
	portPane = iota
	dropPane
	talkerPane
)

var paneNames = [...]string{"ports", "drops", "addresses"}

// paneState is a pane's order and position.
type paneState struct {
	sort    int // column
	reverse bool
	offset  int // rows above the visible ones
}

// New returns a model with a first reading.
func New(title string, first Reading) *Model {
	m := &Model{title: title}
	m.panes[portPane].sort = portRxBits
	m.panes[dropPane].sort = dropRate
	m.panes[talkerPane].sort = talkerBits
	m.take(first)
	return m
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return nil }

// Update handles a message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case Reading:
		m.take(msg)
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.scroll(0)
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

func (m *Model) take(r Reading) {
	if r.Err != nil {
		m.latest.err = r.Err // shown with the last successful reading
	} else {
		m.latest = state{at: r.At, talkersErr: r.TalkersErr}
		m.latest.ports, m.latest.talkers, m.latest.elapsed = m.meter.Read(r.At, r.Ports, r.Talkers)
	}
	if !m.paused {
		m.shown = m.latest
		m.scroll(0)
	}
}

func (m *Model) press(key string) tea.Cmd {
	if key == "q" || key == "ctrl+c" {
		return tea.Quit
	}
	if m.help {
		m.help = false // any key closes it
		return nil
	}
	p := &m.panes[m.pane]
	n := len(paneColumns[m.pane])
	switch key {
	case "?", "h":
		m.help = true
	case "tab":
		m.pane = (m.pane + 1) % len(paneNames)
	case "shift+tab":
		m.pane = (m.pane + len(paneNames) - 1) % len(paneNames)
	case "s", ">", "right":
		p.sort = (p.sort + 1) % n
	case "<", "left":
		p.sort = (p.sort + n - 1) % n
	case "r":
		p.reverse = !p.reverse
	case "p", "space":
		m.paused = !m.paused
		m.shown = m.latest
	case "up":
		m.scroll(-1)
	case "down":
		m.scroll(1)
	case "pgup":
		m.scroll(-m.page(m.table()))
	case "pgdown":
		m.scroll(m.page(m.table()))
	default:
		if len(key) == 1 && key >= "1" && int(key[0]-'0') <= n {
			p.sort = int(key[0] - '1')
		}
	}
	m.scroll(0)
	return nil
}

// scroll moves the rows of the pane by n, within the existing rows.
func (m *Model) scroll(n int) {
	p, t := &m.panes[m.pane], m.table()
	p.offset = max(0, min(p.offset+n, len(t.rows)-m.page(t)))
}

// A table is a pane's content; rows are in their final order.
type table struct {
	columns []column
	sort    int // index of the column that determines the order
	rows    []row
	widths  []int  // of the columns, in letters
	empty   string // the text for a table without rows
}

type column struct {
	name   string
	number bool
}

type row []cell

// cell is a number or a text. An unknown number has only the text.
type cell struct {
	text   string
	number float64
	known  bool
}

func text(s string) cell { return cell{text: clean(s), known: true} }

func count(n uint64) cell { return cell{strconv.FormatUint(n, 10), float64(n), true} }

// rate is a number per second.
func rate(n float64, known bool) cell {
	if !known {
		return cell{text: "-"}
	}
	return cell{scale(n), n, true}
}

// The initial sort columns of the panes.
const (
	portRxBits = 2
	dropRate   = 2
	talkerBits = 4
)

var paneColumns = [...][]column{
	portPane: {
		{"PORT", false}, {"RX-FRAMES/S", true}, {"RX-BIT/S", true}, {"TX-FRAMES/S", true}, {"TX-BIT/S", true}, {"DROPS/S", true},
	},
	dropPane:   {{"PORT", false}, {"REASON", false}, {"DROPS/S", true}, {"TOTAL", true}},
	talkerPane: {{"ADDRESS", false}, {"VLAN", true}, {"PORT", false}, {"FRAMES/S", true}, {"BIT/S", true}},
}

// table returns the content of the visible pane.
func (m *Model) table() table {
	p := m.panes[m.pane]
	t := table{columns: paneColumns[m.pane], sort: p.sort}
	s := &m.shown
	name := portName(s.ports)
	switch m.pane {
	case portPane:
		t.empty = "no ports"
		for _, p := range s.ports {
			t.rows = append(t.rows, row{
				text(name(p)), rate(p.RxFrames, p.Known), rate(p.RxBits, p.Known),
				rate(p.TxFrames, p.Known), rate(p.TxBits, p.Known), rate(p.Dropped(), p.Known),
			})
		}
	case dropPane:
		t.empty = "nothing has been dropped"
		for _, p := range s.ports {
			for _, reason := range slices.Sorted(maps.Keys(p.Stats.Drops)) {
				total := count(p.Stats.Drops[reason])
				t.rows = append(t.rows, row{text(name(p)), text(reason), rate(p.Drops[reason], p.Known), total})
			}
		}
	case talkerPane:
		t.empty = "no address has sent a frame"
		if s.talkersErr != nil {
			t.empty = clean(s.talkersErr.Error())
		}
		for _, a := range s.talkers {
			vlan := cell{text: "-"}
			if a.VLAN != 0 {
				vlan = count(uint64(a.VLAN))
			}
			t.rows = append(t.rows, row{
				text(a.MAC.String()), vlan, text(a.Port), rate(a.Frames, a.Known), rate(a.Bits, a.Known),
			})
		}
	}
	slices.SortStableFunc(t.rows, func(a, b row) int { return compare(a[p.sort], b[p.sort], p.reverse) })
	// over all rows, including invisible ones, so that columns do not move while scrolling
	for i := range t.columns {
		width := len(t.heading(i))
		for _, r := range t.rows {
			width = max(width, utf8.RuneCountInString(r[i].text))
		}
		t.widths = append(t.widths, width)
	}
	if t.sort != 0 {
		// names are shortened in favor of the sort column
		t.widths[0] = min(t.widths[0], max(minWidth, m.width)-len(gap)-t.widths[t.sort])
	}
	return t
}

// compare sorts numbers from the largest, texts from the first letter, and both in reverse order if
// reverse is set. Unknown values come last.
func compare(a, b cell, reverse bool) int {
	switch {
	case a.known && !b.known:
		return -1
	case !a.known && b.known:
		return 1
	}
	order := cmp.Or(cmp.Compare(b.number, a.number), compareNames(a.text, b.text))
	if reverse {
		return -order
	}
	return order
}

// compareNames sorts p2 before p10: it compares digits as a number.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		i, j := digits(a), digits(b)
		// without leading zeros, the longer number is larger
		if i > 0 && j > 0 && a[0] != '0' && b[0] != '0' && i != j {
			return cmp.Compare(i, j)
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		n := max(1, min(i, j))
		if order := cmp.Compare(a[:n], b[:n]); order != 0 {
			return order
		}
		a, b = a[n:], b[n:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the number of digits at the beginning of s.
func digits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}

// portName returns a function for the displayed names of ports: with the bridge's name if there are
// several bridges.
func portName(ports []rates.Port) func(rates.Port) string {
	several := slices.ContainsFunc(ports, func(p rates.Port) bool { return p.Bridge != ports[0].Bridge })
	return func(p rates.Port) string {
		if several {
			return p.Bridge + "/" + p.Name
		}
		return p.Name
	}
}
