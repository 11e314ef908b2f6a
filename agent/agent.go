// SPDX-License-Identifier: BSD-2-Clause

// Package agent does the work of a switch that needs a clock or a neighbour: it runs the spanning
// tree, applies the files that configure bridges, attaches devices that come and go, and logs
// events.
//
// The agent forwards no frames. It can end at any time and be started again: bridges go on
// forwarding, and ports keep their states.
//
// One goroutine, the loop, owns all state and makes all decisions. Other goroutines wait for
// something and post it to the loop. Applying files takes long, so a job beside the loop does it.
// Only the loop notifies the watchdog.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"bascule/agent/doors"
	"bascule/bridge"
	"bascule/clock"
	"bascule/config"
	"bascule/history"
	"bascule/pf"

	"golang.org/x/sys/unix"
)

// Options configure an agent.
type Options struct {
	Netns   string    // name or path of its network namespace, "" for the namespace of the process
	Files   []string  // files and folders to apply; none to apply nothing
	Force   bool      // limits of the files may use more than a quarter of the free memory
	PF      pf.Source // how rules of pf read other files and look up hosts; the zero value refuses both
	Dir     string    // of its sockets, locks and snapshots
	Version string    // of the program, shown in the status
	Log     *slog.Logger

	// API answers HTTP requests at the agent's socket, and Services run beside the agent until
	// it ends. They access the agent through a View. Both are optional.
	API      func(*View) http.Handler
	Services []Service
	Doors    []Door             // the addresses of the services, for the status
	SFlow    func() SFlowStatus // nil if no samples are sent

	// Watch starts a process that puts a change back if this agent cannot (history.StartWatch).
	// Its argument is the name of the network namespace. Nil for no such process.
	Watch func(netns string) error

	// Notify reports the agent's state to the service manager (sd_notify(3)). Watchdog is the
	// longest time between two reports that the service manager accepts, 0 for any time.
	Notify   func(state string)
	Watchdog time.Duration
}

// maxJob is the time after which a running job counts as hung.
const maxJob = 5 * time.Minute

// How long after a failure the files are tried again: at first, and at most.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// memory is the size in bytes above which the garbage collector works harder. Loading programs
// needs much memory for a short time.
const memory = 32 << 20

type agent struct {
	o    Options
	log  *slog.Logger
	ctx  context.Context
	todo chan func()

	since   time.Time
	home    *site
	door    *doorway
	web     *doors.Server    // nil if HTTP requests are not answered
	handed  *handover        // connections for web
	lacks   string           // what it could not restore so far
	sites   map[uint64]*site // by cookie, with home
	ready   bool
	pinged  time.Time
	told    string // the last summary that was sent to the service manager
	applied time.Time
	good    time.Time // the value of applied for files that wait for no confirmation
	err     string    // why the files were not applied
	notes   []string  // settings of the files that have no effect

	job      time.Time     // start of the running job, zero if none runs
	again    bool          // another job must follow it
	next     Reload        // how the next job applies the files
	waiting  []func(error) // called at the end of the job
	waitNext []func(error) // called at the end of the next job
	retry    time.Time     // time of the next try, zero for never
	pause    time.Duration

	origin origin            // of the agent's own namespace
	names  map[string]string // namespaces that the files name, each with the identity that its name had
	looked time.Time         // when the identities were last checked
}

// Run runs the agent. It serves the bridges of its network namespace, and of the namespaces that
// its files name, until ctx ends. Then it leaves everything in place. A value from reload makes it
// apply its files again.
func Run(ctx context.Context, o Options, reload <-chan os.Signal) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memory)
	}
	if o.Notify == nil {
		o.Notify = func(string) {}
	}
	if err := bridge.Usable(); err != nil {
		return err
	}
	// A path that is missing at the start is most likely a mistake. If a path goes away later,
	// the agent tries again, since the path may come back.
	for _, path := range o.Files {
		var e *fs.PathError
		if _, err := os.Stat(path); errors.As(err, &e) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)) {
			return fmt.Errorf("cannot start the agent: %s: %w; give an existing file or folder", path, e.Err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &agent{o: o, log: o.Log, ctx: ctx, todo: make(chan func(), 256), since: time.Now(), sites: map[uint64]*site{}}
	if err := a.makeDir(); err != nil {
		return err
	}
	home, err := a.openSite(o.Netns)
	if err != nil {
		return err
	}
	a.home, a.sites[home.cookie], a.origin = home, home, originOf(o.Netns)
	defer func() {
		for _, s := range a.sites {
			s.close()
		}
	}()
	if o.API != nil {
		a.web = doors.NewServer(o.API(&View{a}), a.log, mostRequests)
		a.handed = newHandover()
		go a.web.Serve(ctx, a.handed)
	}
	if err := a.open(); err != nil {
		return err
	}
	defer func() { a.door.Close() }()
	a.log.Info("the agent starts", "version", o.Version, "files", o.Files)
	wait := a.beginServices()
	defer func() { cancel(); wait() }()
	home.listen()
	a.reload(Reload{}, nil)
	err = a.loop(reload)
	o.Notify("STOPPING=1")
	if errors.Is(err, errDeleted) {
		a.log.Info("the agent's network namespace has been deleted; the agent ends")
		return nil
	}
	if err != nil {
		return fmt.Errorf("the agent cannot go on: %w; restart it", err)
	}
	a.log.Info("the agent ends; bridges go on forwarding")
	return nil
}

// mostAtOnce is the largest number of events that the protocols get before they act on them.
const mostAtOnce = 64

// loop runs posted functions, and work that is due.
func (a *agent) loop(reload <-chan os.Signal) error {
	idle := reportPeriod
	if a.o.Watchdog > 0 {
		idle = min(idle, a.o.Watchdog/3)
	}
	tick := time.NewTimer(0)
	for did := 0; ; did++ {
		// one commit for all functions that are posted at once: each commit takes a
		// snapshot
		if len(a.todo) == 0 || did >= mostAtOnce {
			did = 0
			for _, s := range a.sites {
				s.settle()
			}
		}
		select {
		case <-a.ctx.Done():
			return nil
		case f := <-a.todo:
			f()
		case <-reload:
			a.reload(Reload{}, nil)
		case now := <-tick.C:
			period := idle
			for _, s := range a.sites {
				if s.tick(now) {
					period = busyPeriod
				}
			}
			if err := a.due(now); err != nil {
				return err
			}
			tick.Reset(period)
		}
	}
}

// post makes the loop run f. It waits until the loop has room for f, not until f has run.
func (a *agent) post(f func()) {
	select {
	case a.todo <- f:
	case <-a.ctx.Done():
	}
}

// keep runs f, and runs it again after each failure, until ctx ends. what names the work of f.
func (a *agent) keep(ctx context.Context, log *slog.Logger, what string, f func() error) {
	var before string
	for ctx.Err() == nil {
		err := f()
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != before {
			log.Error(what+" failed; trying again every second", "error", err)
			before = err.Error()
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPeriod):
		}
	}
}

// due does the work that is due at this time.
func (a *agent) due(now time.Time) error {
	if !a.retry.IsZero() && now.After(a.retry) {
		a.reload(Reload{}, nil)
	}
	if now.Sub(a.looked) >= time.Second {
		a.looked = now
		if a.origin.deleted(a.log) {
			return errDeleted
		}
		err := a.keepPlaces()
		if err != nil && !passing(err) {
			return err
		}
		if text := fmt.Sprint(err); err != nil && text != a.lacks {
			a.lacks = text
			a.log.Error("cannot restore files of the agent that were removed; trying again every second", "error", err)
		} else if err == nil {
			a.lacks = ""
		}
		a.tell("")
		a.endTrials()
		for _, s := range a.sites {
			if a.job.IsZero() && !s.trial { // else hot-plug still has files that may be put back
				s.followHistory()
			}
		}
		for name, was := range a.names {
			if now := stands(name); now != was {
				a.names[name] = now
				a.reload(Reload{}, nil)
			}
		}
	}
	hung := !a.job.IsZero() && now.Sub(a.job) > maxJob
	if a.o.Watchdog > 0 && !hung && now.Sub(a.pinged) >= a.o.Watchdog/3 {
		a.pinged = now
		a.o.Notify("WATCHDOG=1")
	}
	return nil
}

// A Reload controls how the files are applied.
type Reload struct {
	Confirm time.Duration `json:"confirm,omitempty"` // history.Options.Confirm
	Yes     bool          `json:"yes,omitempty"`     // config.Options.Yes
	Who     history.Who   `json:"who"`               // the author of the request
}

// reload applies the files, and then calls done, if done is not nil. Requests that arrive during a
// job are served after it.
func (a *agent) reload(how Reload, done func(error)) {
	if !a.job.IsZero() {
		a.again = true
		if how != (Reload{}) {
			a.next = how
		}
		if done != nil {
			a.waitNext = append(a.waitNext, done)
		}
		return
	}
	if done != nil {
		a.waiting = append(a.waiting, done)
	}
	a.job, a.retry = time.Now(), time.Time{}
	a.o.Notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", clock.Monotonic().Microseconds()))
	known := map[uint64]*site{}
	for cookie, s := range a.sites {
		known[cookie] = s
	}
	go func() {
		r := a.apply(known, how)
		for cookie, s := range known { // apply has passed over the namespaces of files that it could not read
			r.trials[cookie] = r.trials[cookie] || s.history.Waits()
		}
		a.tidyEnded()
		debug.FreeOSMemory() // reading, verifying and loading programs needed much memory
		a.post(func() { a.applyDone(r) })
	}()
}

// A result is the outcome of a job.
type result struct {
	loaded   bool                   // all files could be read
	files    map[uint64]config.File // by the cookie of their namespace; only files that are in force
	names    map[string]string      // namespaces that the files name, with the former identity of each name
	opened   []*site
	gone     []*site             // sites whose names stand for other namespaces now, or for none
	trials   map[uint64]bool     // by cookie: a change waits for its confirmation
	held     map[uint64][]string // by cookie: the bridges of a change that waits, which hot-plug leaves alone
	digests  map[uint64]string   // by cookie: the digest of the files, if they are that change
	former   map[uint64]bool     // by cookie: the files of the previous agent are in force
	restored map[uint64]bool     // by cookie: earlier files are in force again
	notes    []string            // settings of the files that have no effect
	err      error
}

// apply reads the files, and changes the bridges accordingly. It runs beside the loop, and touches
// none of the loop's data.
func (a *agent) apply(known map[uint64]*site, how Reload) result {
	r := result{files: map[uint64]config.File{}, names: map[string]string{}, trials: map[uint64]bool{}, held: map[uint64][]string{}, digests: map[uint64]string{},
		former: map[uint64]bool{}, restored: map[uint64]bool{}}
	for _, s := range known {
		s.putBack()
	}
	if !a.ready {
		a.renew(a.home)
	}
	for _, s := range known {
		if cookie, err := cookieOf(s.name); s != a.home && (err != nil || cookie != s.cookie) {
			r.gone = append(r.gone, s)
			delete(known, s.cookie)
		}
	}
	var files []config.File
	if len(a.o.Files) > 0 {
		list, err := config.Reload(a.o.Files...)
		if err != nil {
			r.err = err
			a.home.holdFormer(&r)
			return r
		}
		files = list
	}
	r.loaded = true
	for _, f := range files {
		if f.Netns != "" && f.Netns != a.o.Netns {
			r.names[f.Netns] = stands(f.Netns)
		}
		for _, note := range f.Notes {
			r.notes = append(r.notes, note.Error())
		}
	}
	o := history.Options{Options: config.Options{PF: a.o.PF, Yes: how.Yes}, Who: how.Who, What: strings.Join(a.o.Files, " "), Confirm: how.Confirm}
	if o.Who == (history.Who{}) {
		o.Who.By = "agent"
	}
	for _, f := range config.ByNetns(files, a.o.Netns) {
		if a.o.PF.Lookup != nil { // a name may resolve to another host in another namespace
			o.PF.Lookup = briefly(a.o.PF.Lookup)
		}
		r.err = errors.Join(r.err, a.applyTo(f, o, known, &r))
	}
	if _, named := r.files[a.home.cookie]; !named && r.err == nil {
		a.home.keepGood(config.File{})
	}
	return r
}

// maxLookup is the time that a job may spend on looking up hosts of a namespace. The first job must
// not keep the service manager waiting for a resolver that does not answer: it may be behind the
// switch.
const maxLookup = 10 * time.Second

// briefly wraps lookup. It looks each host up once, since rules are compared before they are
// loaded, and looks up no more hosts once maxLookup has passed.
func briefly(lookup func(string, []string) ([]netip.Prefix, error)) func(string, []string) ([]netip.Prefix, error) {
	type answer struct {
		list []netip.Prefix
		err  error
	}
	known := map[string]answer{}
	var taken time.Duration
	return func(name string, modes []string) ([]netip.Prefix, error) {
		key := name + strings.Join(modes, ":")
		a, ok := known[key]
		if !ok {
			if taken >= maxLookup {
				return nil, errors.New("skipped, since other names took too long")
			}
			start := time.Now()
			a.list, a.err = lookup(name, modes)
			taken += time.Since(start)
			known[key] = a
		}
		return a.list, a.err
	}
}

// applyTo applies the file of one namespace.
func (a *agent) applyTo(f config.File, o history.Options, known map[uint64]*site, r *result) error {
	name := f.Netns
	cookie, err := cookieOf(name)
	if err != nil {
		return err
	}
	s := known[cookie] // perhaps known by another name
	if name == a.o.Netns && s != a.home {
		return fmt.Errorf("another network namespace now has the name %s; restart the agent", name)
	}
	if s == nil {
		if s, err = a.openSite(name); err != nil {
			return err
		}
		known[s.cookie] = s
		r.opened = append(r.opened, s)
		a.renew(s)
		s.putBack()
	}
	if a.o.Watch != nil {
		o.Watch = func() error { return a.o.Watch(name) }
	}
	actions, warnings, err := s.history.Apply(f, o)
	for _, w := range warnings {
		s.log.Warn(w)
	}
	for _, action := range actions {
		s.log.Debug("applied", "action", fmt.Sprint(action))
	}
	if errors.Is(err, history.ErrDenied) {
		instead, bad := s.instead()
		if err = errors.Join(err, bad); bad == nil {
			r.files[s.cookie], r.restored[s.cookie] = instead, true
		}
	} else if err != nil {
		s.holdFormer(r)
	}
	r.trials[s.cookie] = s.history.Waits() || errors.Is(err, history.ErrWaits) // it may have ended since
	switch {
	case err != nil && name != "":
		return fmt.Errorf("network namespace %s: %w", name, err)
	case err != nil:
		return err
	case len(actions) > 0:
		s.log.Info("the files are applied", "changes", len(actions))
	}
	r.files[s.cookie] = f
	if r.trials[s.cookie] {
		r.digests[s.cookie] = s.history.WaitsWith(f)
	} else {
		s.keepGood(f)
	}
	return nil
}

// renew loads the programs of this build into the bridges of a namespace.
func (a *agent) renew(s *site) {
	names, err := s.sw.Names()
	if err != nil {
		s.log.Error("cannot list the bridges", "error", err)
		return
	}
	for _, name := range names {
		renewed, notes, err := s.sw.Renew(name)
		for _, n := range notes {
			s.log.Warn(n, "bridge", name)
		}
		switch {
		case err != nil:
			s.log.Error("the bridge keeps the programs that it has", "bridge", name, "error", err)
		case renewed:
			s.log.Info("the bridge now has the programs of this version", "bridge", name)
		}
	}
}

// applyDone takes over the result of a job.
func (a *agent) applyDone(r result) {
	a.job = time.Time{}
	for _, s := range r.gone {
		s.close()
		delete(a.sites, s.cookie)
		s.log.Info("the network namespace has gone, and is no longer served")
	}
	for _, s := range r.opened {
		a.sites[s.cookie] = s
		s.listen()
	}
	for cookie, s := range a.sites {
		f, named := r.files[cookie]
		waits, before := r.trials[cookie], s.trial
		s.trial = waits
		if waits && !before && r.err != nil && (!named || r.former[cookie]) {
			s.tellWaits()
		}
		switch {
		case named:
			s.setFile(f, r.restored[cookie], r.held[cookie])
			s.former = r.former[cookie]
			s.follow(f, waits, r.digests[cookie])
		case !r.loaded, r.err != nil: // the former state remains
			if !waits {
				s.endTrial()
			}
		case s == a.home:
			s.setFile(config.File{}, false, nil)
			s.former, s.tried = false, nil
		default:
			s.close()
			delete(a.sites, cookie)
			s.log.Info("the network namespace is no longer served")
		}
	}
	if r.loaded {
		a.names = r.names
		for _, note := range r.notes {
			if !slices.Contains(a.notes, note) {
				a.log.Warn(note)
			}
		}
		a.notes = r.notes
	}
	before := a.err
	a.err = ""
	if r.err == nil {
		a.applied, a.pause = time.Now(), 0
		if !a.tries() {
			a.good = a.applied
		}
		if before != "" {
			a.log.Info("the files are in force")
		}
	} else {
		if !a.tries() { // the files that were tried may have been put back
			a.applied = a.good
		}
		a.err = strings.ReplaceAll(r.err.Error(), "\n", "; ")
		if a.err != before {
			for _, line := range strings.Split(r.err.Error(), "\n") {
				a.log.Error("the files are not completely in force", "error", line)
			}
		}
		a.pause = min(max(2*a.pause, firstRetry), lastRetry)
		a.retry = time.Now().Add(a.pause)
	}
	a.ready = true
	a.tell("READY=1\n")
	for _, done := range a.waiting {
		done(r.err)
	}
	a.nextJob()
}

// tries reports whether a change waits for its confirmation.
func (a *agent) tries() bool {
	for _, s := range a.sites {
		if s.history.Waits() {
			return true
		}
	}
	return false
}

// nextJob starts the job that was requested while another ran.
func (a *agent) nextJob() {
	a.waiting, a.waitNext = a.waitNext, nil
	if a.again {
		a.again = false
		how := a.next
		a.next = Reload{}
		a.reload(how, nil)
	}
}

// Sends a state, and the agent's summary if it is new, to the service manager.
func (a *agent) tell(state string) {
	if text := a.summary(); state != "" || text != a.told {
		a.told = text
		a.o.Notify(state + "STATUS=" + text)
	}
}

// summary returns the agent's state as a line.
func (a *agent) summary() string {
	bridges, running := 0, map[*runner]int{}
	for _, s := range a.sites {
		for _, b := range s.bridges {
			bridges++
			for _, k := range b.control.running() {
				running[k]++
			}
		}
	}
	text := fmt.Sprintf("serving %d bridges", bridges)
	for _, k := range protocols {
		text += fmt.Sprintf(", %d with %s", running[k], k.name)
	}
	if a.err != "" {
		text += "; files not in force: " + a.err
	}
	return text
}

// status returns the agent's status.
func (a *agent) status() Status {
	st := Status{
		PID: os.Getpid(), Version: a.o.Version, Since: a.since, Files: append([]string{}, a.o.Files...),
		Doors:    append([]Door{}, a.o.Doors...),
		Applying: !a.job.IsZero(), Error: a.err,
	}
	if a.o.SFlow != nil {
		now := a.o.SFlow()
		st.SFlow = &now
	}
	if !a.applied.IsZero() && len(a.o.Files) > 0 {
		st.Applied = &a.applied
	}
	st.Namespaces = append(st.Namespaces, a.home.status())
	var others []SiteStatus
	for _, s := range a.sites {
		if s != a.home {
			others = append(others, s.status())
		}
	}
	slices.SortFunc(others, func(x, y SiteStatus) int { return cmp.Compare(x.Netns, y.Netns) })
	st.Namespaces = append(st.Namespaces, others...)
	return st
}
