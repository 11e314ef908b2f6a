// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestMain is the program itself where the test's binary is called by its name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "bascule" {
		main()
	}
	os.Exit(m.Run())
}

// TestExamples runs the examples of README.md and CONTRIBUTING.md, of the pages in docs, and of help,
// which are those of the man pages, in order, as they are written. Those of one page
// are one script of bash, whose commands must all succeed. It has network and mount
// namespaces of its own, with nothing in /run and its own files in /etc.
//
// Where a line of a block begins with "# ", as in a console, these lines are the
// commands, and what stands below one is what it prints; what `# cat FILE` prints
// is the file. All other blocks are commands.
//
// What readers need not see is in marks, one on a line: in Markdown in a comment
// that begins with "<!-- example", in help in lines that begin with "#! ".
//
//	run: COMMANDS           commands that come here; prologue has some to call
//	file: PATH              the next block is this file
//	not run: REASON         the next block, or all of a help's, is not run
//	not run COMMAND: REASON nor is a line, here or below, that begins with COMMAND
//	status N: COMMAND       such a line has this exit status
//	ended COMMAND: CHECK    such a line runs until it is interrupted, which is when CHECK,
//	                        which is tried again and again, succeeds; $out is what it printed
//	begun COMMAND: CHECK    such a line runs on while the others do, when CHECK has succeeded
//	typed KEYS: COMMAND     such a line runs in a terminal, until KEYS have ended it
func TestExamples(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which takes root")
	}
	for _, need := range []string{"unshare", "ip", "ping", "tcpdump", "jq", "script", "hostapd", "wpa_supplicant"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs %s, which 'make test' installs", need)
		}
	}
	bin := t.TempDir()
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, bin+"/bascule")
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, read func(*script)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{t: t, page: name, dir: t.TempDir()}
			read(s)
			s.run(bin)
		})
	}
	pages, err := filepath.Glob("../../docs/*.md")
	more, bad := filepath.Glob("../../docs/design/*.md")
	if err = errors.Join(err, bad); err != nil {
		t.Fatal(err)
	}
	pages = append(pages, more...)
	for _, path := range append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../docs/lab/README.md", "../../docs/lab/published.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		run(strings.TrimPrefix(path, "../../"), func(s *script) { s.markdown(strings.Split(string(text), "\n")) })
	}
	everyCommand(newRoot(&program{}), func(cmd *cobra.Command) {
		if cmd.Example == "" {
			return
		}
		lines := strings.Split(cmd.Example, "\n")
		run(cmd.CommandPath()+" --help", func(s *script) {
			for i, line := range lines {
				if mark, ok := strings.CutPrefix(strings.TrimSpace(line), "#! "); ok {
					s.mark(i+1, mark)
				}
			}
			s.block(1, examples(cmd))
		})
	})
}

// TestPagesAreWhole wants no command in the marks of pages that are read from their beginning: the
// commands that a reader sees are to work by themselves, one after another.
func TestPagesAreWhole(t *testing.T) {
	for _, page := range []string{"README.md", "docs/tour.md", "docs/howto.md", "docs/from-linux-bridge.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?m)^(?:<!-- example )?(?:run|file): .*$`).FindAllString(string(text), -1) {
			t.Errorf("%s: the reader does not see %q", page, found)
		}
	}
}

// TestReadmeIsShort wants README.md on one page, and the changes of a release on half of one.
func TestReadmeIsShort(t *testing.T) {
	read := func(page string) string {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if lines := strings.Count(read("README.md"), "\n"); lines > 120 {
		t.Errorf("README.md has %d lines; it is to have 120 at most", lines)
	}
	for _, release := range strings.Split(read("CHANGELOG.md"), "\n## ")[1:] {
		name, text, _ := strings.Cut(release, "\n")
		if lines := strings.Count(text, "\n"); lines > 60 {
			t.Errorf("CHANGELOG.md has %d lines about %s; it is to have 60 at most", lines, name)
		}
	}
}

// prologue is what the script of each page begins with; its folder is $dir.
const prologue = `
set -eE -o pipefail -m
at=$page
trap 'echo "$at: exit status $?"' ERR
mount -t tmpfs tmpfs /run
mkdir -p /run/netns $dir/etc $dir/home
mount -t sysfs sysfs /sys
mount -o bind,ro /etc $dir/etc
mount -t tmpfs tmpfs /etc
ln -s $dir/etc/* /etc/
rm -rf /etc/bascule /etc/pf.conf /etc/hostname.* /etc/bash_completion.d
mkdir /etc/bash_completion.d
export HOME=$dir/home TERM=xterm
cd $dir/home
out=$dir/out
ip link set lo up

# devices NAME ... makes devices; far-NAME is the other end of the cable.
devices() {
	for device; do
		ip link add $device type veth peer name far-$device
		echo 0 >/proc/sys/net/ipv6/conf/far-$device/accept_dad
		ip link set $device up
		ip link set far-$device up
	done
}

# switch BRIDGE DEVICE ... makes a bridge, and devices that are its ports.
switch() {
	bascule bridge add $1
	devices "${@:2}"
	for device in "${@:2}"; do bascule port add $1 $device; done
}

# send DEVICE sends a frame from the other end of the cable.
send() { ping -6 -q -c 1 -W 0.05 -I far-$1 ff02::1 &>/dev/null || test $? = 1; }

begun() { # CHECK: of the job that was begun last
	job=$!
	tries=0
	until eval "$1"; do
		kill -0 $job
		test $((tries++)) -lt 500 # or it will never be
		sleep 0.02
	done >/dev/null
}

ended() { # CHECK
	begun "$1"
	for process in /proc/[0-9]*; do # not all of the job: a reader of a pipe would say that it was interrupted
		read -r number name _ _ group _ 2>/dev/null <$process/stat || continue # it has just ended
		if test "$name $group" = "(bascule) $job"; then kill -INT $number; fi
	done
	wait $job
}

typed() { # KEYS COMMAND
	set +o pipefail
	while printf "$1"; do sleep 0.05; done 2>/dev/null | script -qec "$2" $out
	set -o pipefail
}
`

// A script is the examples of a page.
type script struct {
	t     *testing.T
	page  string
	dir   string
	text  strings.Builder
	marks []*mark
	runs  int // commands of the page

	file string // the path of the next block
	skip bool   // the next block is not run
}

// A mark is about lines of commands.
type mark struct {
	line        int
	kind        string // "not run", "status", "ended", "begun" or "typed"
	prefix, arg string
	used        bool
}

// mark reads a mark.
func (s *script) mark(line int, text string) {
	what, arg, ok := strings.Cut(text, ": ")
	kind, rest, _ := strings.Cut(what, " ")
	if after, ok := strings.CutPrefix(what, "not run"); ok {
		kind, rest = "not run", strings.TrimSpace(after)
	}
	m := &mark{line: line, kind: kind, prefix: rest, arg: arg}
	switch {
	case !ok:
		s.t.Fatalf("%s:%d: no mark: %s", s.page, line, text)
	case kind == "run":
		s.step(line, arg)
	case kind == "file":
		s.file = arg
	case kind == "not run" && rest == "":
		s.skip = true
	case kind == "status" || kind == "typed":
		m.prefix, m.arg = arg, rest
		s.marks = append(s.marks, m)
	case kind == "not run" || kind == "ended" || kind == "begun":
		s.marks = append(s.marks, m)
	default:
		s.t.Fatalf("%s:%d: no mark: %s", s.page, line, text)
	}
}

// markdown reads a page in Markdown.
func (s *script) markdown(lines []string) {
	var block []string // being read
	var first int      // its number, from 1
	end := func() {
		for len(block) > 0 && block[len(block)-1] == "" {
			block = block[:len(block)-1]
		}
		if len(block) > 0 {
			s.block(first, block)
		}
		block = nil
	}
	fenced, comment, before := false, false, ""
	for i, line := range append(lines, "end") {
		text, indented := strings.CutPrefix(line, "    ")
		switch {
		case comment:
			if comment = !strings.HasSuffix(line, "-->"); comment || line != "-->" {
				s.mark(i+1, strings.TrimSpace(strings.TrimSuffix(line, "-->")))
			}
		case strings.HasPrefix(line, "```"):
			if fenced {
				end()
			}
			fenced, first = !fenced, i+2
		case fenced:
			block = append(block, line)
		case strings.HasPrefix(line, "<!-- example"):
			end()
			if one := strings.TrimPrefix(line, "<!-- example"); strings.HasSuffix(one, "-->") {
				s.mark(i+1, strings.TrimSpace(strings.TrimSuffix(one, "-->")))
			} else {
				comment = true
			}
		case indented && block == nil && strings.TrimSpace(before) != "" && !strings.HasSuffix(before, "-->"):
			// of a paragraph or a list
			continue
		case indented && block == nil:
			block, first = []string{text}, i+1
		case indented:
			block = append(block, text)
		case line == "" && block != nil:
			block = append(block, "")
		default:
			end()
		}
		before = line
	}
}

// block reads the lines of an example, the first of which has the number first.
func (s *script) block(first int, lines []string) {
	switch {
	case s.skip:
		s.skip = false
		return
	case s.file != "":
		s.write(s.file, lines)
		s.file = ""
		return
	case slices.ContainsFunc(lines, isPrompt) && strings.HasPrefix(lines[0], "# ") && !slices.ContainsFunc(lines, isCommand):
		s.console(first, lines)
		return
	}
	for i := 0; i < len(lines); i++ {
		at, command := i, lines[i]
		for continues(command) && i+1 < len(lines) {
			i++
			command += "\n" + lines[i]
		}
		if text := strings.TrimSpace(command); text != "" && !strings.HasPrefix(text, "#") {
			s.command(first+at, text, nil)
		}
	}
}

// isPrompt and isCommand tell a console from a script with comments.
func isPrompt(line string) bool  { return regexp.MustCompile(`^# (bascule|cat|ip) `).MatchString(line) }
func isCommand(line string) bool { return regexp.MustCompile(`^(bascule|ip) `).MatchString(line) }

// console reads what a terminal shows.
func (s *script) console(first int, lines []string) {
	for i := 0; i < len(lines); {
		at, command := i, strings.TrimPrefix(lines[i], "# ")
		var printed []string
		for i++; i < len(lines) && !strings.HasPrefix(lines[i], "# "); i++ {
			printed = append(printed, lines[i])
		}
		if path, ok := strings.CutPrefix(command, "cat "); ok {
			s.write(path, printed)
		} else {
			s.command(first+at, command, printed)
		}
	}
}

var hereDocument = regexp.MustCompile(`<<'?(\w+)'?`)

// continues reports whether a command goes on in the next line.
func continues(command string) bool {
	if m := hereDocument.FindStringSubmatch(command); m != nil {
		return !strings.HasSuffix(command, "\n"+m[1])
	}
	return strings.HasSuffix(command, `\`) || strings.HasSuffix(command, "|")
}

// write makes a file.
func (s *script) write(path string, lines []string) {
	fmt.Fprintf(&s.text, "mkdir -p $(dirname %s)\ncat >%s <<'END-OF-FILE'\n%s\nEND-OF-FILE\n", path, path, strings.Join(lines, "\n"))
}

// step runs something; errors are told with its line.
func (s *script) step(line int, commands string) {
	fmt.Fprintf(&s.text, "at=$page:%d\n%s\n", line, commands)
}

// command runs a command of the page, which must print what is in printed, if
// there is anything.
func (s *script) command(line int, command string, printed []string) {
	s.runs++
	var m *mark
	for _, one := range s.marks {
		if strings.HasPrefix(command, one.prefix) && (m == nil || len(one.prefix) > len(m.prefix)) {
			m = one
		}
	}
	if m == nil {
		m = &mark{}
	}
	m.used = true
	fmt.Fprintf(&s.text, "echo '%s:%d: '%s\n", s.page, line, quote(command))
	switch {
	case m.kind == "not run":
	case m.kind == "status":
		s.step(line, fmt.Sprintf("status=0; %s || status=$?; test $status = %s", withoutComment(command), m.arg))
	case m.kind == "ended" || m.kind == "begun":
		command = strings.TrimSuffix(strings.TrimSpace(withoutComment(command)), " &")
		// each line is in $out at once, also of programs that would keep some until they end
		s.step(line, fmt.Sprintf(">$out\nstdbuf -oL bash -o pipefail -c %s >$out &\n%s %s; cat $out", quote(command), m.kind, quote(m.arg)))
	case m.kind == "typed":
		s.step(line, fmt.Sprintf("typed %s %s", quote(m.arg), quote(command)))
	case printed != nil:
		s.step(line, fmt.Sprintf("{\n%s\n} >$out\ndiff -u - $out <<'END-OF-OUTPUT'\n%s\nEND-OF-OUTPUT", command, strings.Join(printed, "\n")))
	default:
		s.step(line, command)
	}
}

// withoutComment cuts off what a shell would not read.
func withoutComment(command string) string {
	before, _, _ := strings.Cut(command, " #")
	return before
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// run runs the script.
func (s *script) run(bin string) {
	for _, m := range s.marks {
		if !m.used {
			s.t.Errorf("%s:%d: no line begins with %q", s.page, m.line, m.prefix)
		}
	}
	if s.runs == 0 {
		return
	}
	source, err := filepath.Abs("../..")
	path := filepath.Join(s.dir, "examples.sh")
	if err == nil {
		text := fmt.Sprintf("page=%s\ndir=%s\nsource=%s\n%s%s", quote(s.page), s.dir, source, prologue, s.text.String())
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // a bound for what hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", path)
	cmd.Env = append(os.Environ(), "BASCULE_STATE_DIR="+s.t.TempDir(), "PATH="+bin+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		text := out.String()
		if most := 3000; len(text) > most { // what was tried again and again
			text = "...\n" + text[len(text)-most:]
		}
		s.t.Errorf("%v\n%s", err, text)
	}
}
