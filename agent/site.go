// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/agent/hotplug"
	"bascule/bridge"
	"bascule/config"
	"bascule/datapath"
	"bascule/history"
	"bascule/locks"

	"golang.org/x/sys/unix"
)

// A site is a network namespace that the agent serves. Its fields belong to the agent's loop,
// except for the fields that open sets.
type site struct {
	a        *agent
	name     string // as given by the option -n or a file
	cookie   uint64
	sw       *bridge.Switch
	history  *history.History
	good     *config.File    // the file that is in force for good, nil if there was none since the agent began
	former   bool            // good is the previous agent's, since the files have not been in force since
	trial    bool            // a change waited for its confirmation when the files were last tried
	tried    *config.File    // the file that hot-plug follows while a change waits, nil for none
	digest   string          // of tried, if these files are the change, else ""
	unback   string          // why a change could not be put back, as last logged
	backAt   time.Time       // when putting it back may be tried again
	changed  time.Time       // time of the history's last change when it was last checked
	returned time.Time       // Return.At at that time
	lock     *os.File        // a file of the agents' folder
	follower *bridge.Devices // the mark beside the bridges that they are served
	log      *slog.Logger
	ctx      context.Context
	stop     context.CancelFunc

	packets int // socket, -1 until something is sent
	bridges map[string]*served
	links   *links // nil if events of devices cannot be received
	plug    *hotplug.Watcher
	named   bool     // a file names bridges of the namespace
	cabled  []handed // frames on their way to patch ports

	devices *devices

	findings *findings

	tidied bool      // snapshots of deleted bridges were removed
	look   bool      // a new device may be a port
	looked time.Time // time of the last such check
}

// A served bridge is a bridge that the agent serves.
type served struct {
	reporter *reporter
	control  *controlled // nil if no control protocol is on
	retry    time.Time   // when a failed part is tried again
	err      string      // why it is not served
}

// retryPeriod is the time after which a failure is tried again.
const retryPeriod = time.Second

// openSite makes the agent the only one of a network namespace.
func (a *agent) openSite(name string) (*site, error) {
	sw, err := bridge.Open(name, bridge.Waiting(func(process int) {
		a.log.Warn("another command is changing bridges; the agent waits", "netns", name, "for", bridge.Waited(process))
	}), bridge.Telling(func(of, note string) {
		a.log.Info(note, "netns", name, "bridge", of)
	}))
	if err != nil {
		return nil, err
	}
	if a.o.Force {
		sw.Force()
	}
	cookie, err := sw.Cookie()
	if err != nil {
		sw.Close()
		return nil, err
	}
	h, err := history.Open(sw, name)
	if err != nil {
		sw.Close()
		return nil, err
	}
	s := &site{a: a, name: name, cookie: cookie, sw: sw, history: h, packets: -1, bridges: map[string]*served{}, log: a.log}
	s.changed, s.returned = h.Changed(), h.Returned().At
	if name != a.o.Netns {
		s.log = a.log.With("netns", name)
	}
	if s.lock, err = takeLock(s.lockPath()); err != nil {
		sw.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("cannot serve %s: %s; stop that first", s.where(), s.other())
		}
		return nil, err
	}
	if s.follower, err = sw.FollowDevices(); err != nil {
		if errors.Is(err, datapath.ErrWatched) {
			err = fmt.Errorf("cannot serve %s: %s; stop that first", s.where(), s.other())
		}
		s.unlock()
		sw.Close()
		return nil, err
	}
	s.ctx, s.stop = context.WithCancel(a.ctx)
	return s, nil
}

// cookieOf returns the cookie of the network namespace that a name stands for.
func cookieOf(name string) (uint64, error) {
	sw, err := bridge.Open(name)
	if err != nil {
		return 0, err
	}
	defer sw.Close()
	return sw.Cookie()
}

// stands returns an identity of the network namespace that a name stands for, "" for none. It
// differs from all other namespaces' as long as a process has the namespace open.
func stands(name string) string {
	var st unix.Stat_t
	if err := unix.Stat(bridge.NetnsPath(name), &st); err != nil {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino)
}

// listen starts to follow the site's bridges and their devices.
func (s *site) listen() {
	if err := s.hear(); err != nil {
		s.log.Error("cannot watch devices", "error", err)
	}
	s.devices = s.followDevices()
	s.findings = s.followFindings()
	go s.a.keep(s.ctx, s.log, "following the bridges", func() error {
		return s.sw.Changes(s.ctx, func() {
			done := make(chan struct{})
			s.a.post(func() { s.refresh(); close(done) })
			select { // a change in the meantime is reported at once
			case <-done:
			case <-s.ctx.Done():
			}
		})
	})
}

// close ends the service. Bridges remain as they are.
func (s *site) close() {
	s.stop()
	if s.devices != nil {
		<-s.devices.done // devices gives back what it has taken
		<-s.findings.done
	}
	names, err := s.sw.Names()
	for name := range s.bridges {
		s.drop(name, err != nil || slices.Contains(names, name)) // the bridge may have been deleted just now
	}
	if s.links != nil {
		s.links.close()
	}
	if s.packets >= 0 {
		unix.Close(s.packets)
	}
	if err := s.follower.Close(); err != nil {
		s.log.Warn("host ports may have been left without a carrier", "error", err)
	}
	s.sw.Close()
	s.unlock()
}

// setFile makes hot-plug maintain the file's bridges. Also without bridges in the file, hot-plug updates rules when
// names and addresses change. restored means that the file was in force before, and that later files were put back.
// held are the bridges that a waiting change has: a new hot-plug leaves devices out that are not their ports now.
func (s *site) setFile(f config.File, restored bool, held []string) {
	s.devices.leave(f)
	s.named = s.named || len(f.Bridges) > 0
	switch {
	case s.plug == nil:
	case restored:
		s.plug.RestoreFile(f, s.history.Returned().Of)
		return
	default:
		s.plug.SetFile(f)
		return
	}
	plug := hotplug.New(s.sw, f, s.log)
	plug.Hold(held)
	plug.OnArrival(func() { s.a.post(func() { s.a.reload(Reload{}, nil) }) })
	plug.OnBerth(func(bridge string) { s.a.post(func() { s.joined(bridge) }) })
	s.plug = plug
	go s.a.keep(s.ctx, s.log, "following the devices", func() error { return plug.Run(s.ctx) })
}

// refresh reads which bridges there are, and their states.
func (s *site) refresh() {
	names, err := s.sw.Names()
	if err != nil {
		s.log.Error("cannot list the bridges", "error", err)
		return
	}
	for name := range s.bridges {
		if !slices.Contains(names, name) {
			s.drop(name, false)
		}
	}
	if !s.tidied {
		s.tidied = true
		s.tidy(names)
	}
	for _, name := range names {
		s.serve(name)
	}
	s.devices.wake()
}

// tidy removes the snapshots of bridges that were deleted while no agent ran.
func (s *site) tidy(names []string) {
	there := map[string]bool{}
	for _, name := range names {
		for _, k := range protocols {
			there[s.snapshotPath(name, k)] = true
		}
	}
	paths, err := filepath.Glob(filepath.Join(s.a.o.Dir, strconv.FormatUint(s.cookie, 10)+"-*"))
	if err != nil {
		return // a folder whose name has a bracket
	}
	for _, path := range paths {
		if !there[path] {
			if err := os.Remove(path); err != nil {
				s.log.Warn("a snapshot cannot be removed", "error", err)
			}
		}
	}
}

// tidyEnded removes files of ended network namespaces from the agents' folder:
// their snapshots, and the files of agents that were killed. No two namespaces
// ever have the same cookie.
func (a *agent) tidyEnded() {
	entries, err := os.ReadDir(a.o.Dir)
	if err != nil {
		a.log.Warn("the agent's folder cannot be read", "error", err)
		return
	}
	files := map[uint64][]string{}
	for _, e := range entries {
		number, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(e.Name(), ".sock"), ".lock"), "-")
		if cookie, err := strconv.ParseUint(number, 10, 64); err == nil && e.Name() != number {
			files[cookie] = append(files[cookie], filepath.Join(a.o.Dir, e.Name()))
		}
	}
	ended, err := bridge.Ended(slices.Collect(maps.Keys(files)))
	if err != nil {
		a.log.Warn("files of ended network namespaces stay", "error", err)
		return
	}
	for _, cookie := range ended {
		lock, err := takeLock(lockPath(a.o.Dir, cookie))
		if err != nil {
			continue // an agent still has it open
		}
		for _, path := range append(files[cookie], lock.Name()) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				a.log.Warn("cannot remove a file of an ended network namespace", "error", err)
			}
		}
		locks.Close(lock)
	}
}

// serve brings the service of a bridge up to date.
func (s *site) serve(name string) {
	b := s.bridges[name]
	if b == nil {
		b = &served{}
		s.bridges[name] = b
	}
	before := b.err
	b.err = ""
	err := s.serveControl(name, b)
	if wrong := s.serveWatch(name, b); err == nil {
		err = wrong
	}
	if err == nil {
		return
	}
	b.err = err.Error()
	if names, err := s.sw.Names(); err == nil && !slices.Contains(names, name) {
		s.drop(name, false) // an event of the deletion is about to come
		return
	}
	b.retry = time.Now().Add(retryPeriod)
	former := new(datapath.FormerError) // renew takes the bridge over, or logs why not
	if b.err != before && (s.a.ready || !errors.As(err, &former)) {
		s.log.Error("a bridge is not completely served", "bridge", name, "error", b.err)
	}
}

func (s *site) serveWatch(name string, b *served) error {
	if b.reporter != nil {
		same, err := b.reporter.events.Renew()
		if same || err != nil {
			return err
		}
		b.reporter.close()
		b.reporter = nil
	}
	events, err := s.sw.OpenEvents(name)
	if err != nil {
		return err
	}
	b.reporter = newReporter(events, s.log.With("bridge", name))
	return nil
}

// settle carries out the decisions of the protocols, and delivers their messages through patch
// cables, until there are no more messages.
func (s *site) settle() {
	for again := true; again; {
		for _, name := range slices.Sorted(maps.Keys(s.bridges)) {
			s.commit(name, s.bridges[name])
		}
		said := s.cabled
		s.cabled = nil
		again = len(said) > 0
		for _, h := range said {
			s.hand(h)
		}
	}
}

// drop ends the service of a bridge. With keep, its snapshots remain for the next agent.
func (s *site) drop(name string, keep bool) {
	b := s.bridges[name]
	b.endControl(keep)
	if b.reporter != nil {
		b.reporter.close()
	}
	for _, k := range protocols {
		if !keep {
			s.forget(name, k, nil)
		}
	}
	delete(s.bridges, name)
}

// hear starts to receive events of devices, unless it has already.
func (s *site) hear() error {
	if s.links != nil {
		return nil
	}
	l, err := openLinks(s.sw)
	if err != nil {
		return err
	}
	s.links = l
	go func() {
		for {
			list, err := l.read()
			if errors.Is(err, fs.ErrClosed) || s.ctx.Err() != nil {
				return
			}
			if err != nil {
				s.log.Error("cannot watch devices", "error", err)
				list = []linkEvent{{}}
				time.Sleep(retryPeriod)
			}
			s.a.post(func() { s.linksChanged(list) })
		}
	}()
	return nil
}

// linksChanged passes events to the control protocols, and to the goroutine that follows
// devices.
func (s *site) linksChanged(list []linkEvent) {
	concerned := slices.DeleteFunc(slices.Clone(list), func(e linkEvent) bool {
		return e.index != 0 && !s.devices.concerns(e.index) && !s.devices.concerns(e.below)
	})
	if len(concerned) > 0 {
		s.findings.wake()
	}
	list = slices.DeleteFunc(list, func(e linkEvent) bool { return e.tc || e.addr })
	if slices.ContainsFunc(concerned, func(e linkEvent) bool { return !e.tc }) {
		s.devices.wake()
	}
	any := false
	for _, b := range s.bridges {
		any = any || b.control != nil
	}
	if !any {
		return
	}
	all := false
	again := map[string]bool{}
	for _, e := range list {
		all = all || e.index == 0
		known := s.knows(e.index)
		s.look = s.look || e.up && !known
		if !e.up && known && linkIsUp(s.sw, e.index) {
			continue // the device has come back since the event
		}
		for name, b := range s.bridges {
			if b.control.linkChanged(s.log.With("bridge", name), e.index, e.up) {
				again[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.bridges)) {
		if s.bridges[name].control != nil && (all || again[name]) {
			s.serve(name)
		}
	}
}

// joined is called when a bridge has a new port.
func (s *site) joined(name string) {
	s.devices.wake()
	if b := s.bridges[name]; b != nil && b.control != nil {
		s.serve(name)
	}
}

// Send implements wire.
func (s *site) Send(index int, frame []byte) error {
	if s.packets < 0 {
		fd, err := openPacketSocket(s.sw)
		if err != nil {
			return err
		}
		s.packets = fd
	}
	return unix.Sendto(s.packets, frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
}

// tick does periodic work, and reports whether more of it must be done soon.
func (s *site) tick(now time.Time) (busy bool) {
	// there is also no event for a device that a program other than hot-plug lets into a
	// berth
	if s.look && now.Sub(s.looked) >= time.Second {
		s.look, s.looked = false, now
		s.refresh()
	}
	for _, name := range slices.Sorted(maps.Keys(s.bridges)) {
		b := s.bridges[name]
		if b.reporter != nil {
			much, err := b.reporter.read(now)
			busy = busy || much
			if err != nil {
				b.reporter.close()
				b.reporter, b.err, b.retry = nil, err.Error(), now
			}
		}
		b.control.tick(s.log.With("bridge", name), now)
		if b.err != "" && now.After(b.retry) {
			s.serve(name)
		}
	}
	return busy
}

// status returns the site's status.
func (s *site) status() SiteStatus {
	st := SiteStatus{Netns: s.name, Cookie: s.cookie, Former: s.former, Bridges: []BridgeStatus{}}
	if s == s.a.home {
		st.Netns = ""
	}
	for _, name := range slices.Sorted(maps.Keys(s.bridges)) {
		b := s.bridges[name]
		line := BridgeStatus{Name: name, Error: b.err, Events: EventStatus{Counts: map[string]uint64{}}}
		if b.reporter != nil {
			line.Events = b.reporter.status()
		}
		for _, k := range b.control.running() {
			b.control.runs[k].status(&line)
		}
		st.Bridges = append(st.Bridges, line)
	}
	if s.named {
		stats := s.plug.Stats()
		st.Hotplug = &stats
	}
	return st
}
