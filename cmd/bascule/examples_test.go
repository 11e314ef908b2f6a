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

// TestMain runs the program itself if the test's binary is called by the program's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "bascule" {
		main()
	}
	os.Exit(m.Run())
}

// TestExamples runs the examples of README.md and CONTRIBUTING.md, of the pages in docs, and of help,
// which are also in the man pages, in order and unchanged. The examples of a page form one bash
// script, whose commands must all succeed. It has network and mount namespaces of its own, with an
// empty /run and its own files in /etc.
//
// If a line of a block begins with "# ", as on a console, these lines are the commands, and the lines
// after one are its output; the output of `# cat FILE` is the file. In all other blocks every line is
// a command.
//
// Marks hold the parts that readers need not see, one on each line: in Markdown in a comment that
// begins with "<!-- example", in help in lines that begin with "#! ".
//
//	run: COMMANDS commands to run here; prologue defines functions for them
//	file: PATH              the next block is this file
//	not run: REASON the next block, or all examples of a help text, are not run
//	not run COMMAND: REASON a line, here or below, that begins with COMMAND is not run
//	status N: COMMAND       such a line has this exit status
//	ended COMMAND: CHECK such a line runs until CHECK, which is repeated, succeeds,
//	                        and is then interrupted; $out has its output
//	begun COMMAND: CHECK such a line keeps running with the others, after CHECK succeeds
//	typed KEYS: COMMAND such a line runs in a terminal, until KEYS end it
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

// TestPagesAreWhole checks that pages for a first reading have no commands in marks: the visible
// commands should work by themselves, one after another.
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

// TestReadmeIsShort checks that README.md fits on one page, and that the changes of a release fit on
// half a page.
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

// prologue begins the script of each page; $dir is its folder.
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

// A script has the examples of a page.
type script struct {
	t     *testing.T
	page  string
	dir   string
	text  strings.Builder
	marks []*mark
	runs  int // of commands of the page

	file string // the path of the next block
	skip bool   // the next block is not run
}

// A mark applies to lines of commands.
type mark struct {
	line        int
	kind        string // "not run", "status", "ended", "begun" or "typed"
	prefix, arg string
	used        bool
}

// mark parses a mark.
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

// markdown parses a page in Markdown.
func (s *script) markdown(lines []string) {
	var block []string // the current one
	var first int      // the number of its first line, from 1
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

// block parses the lines of an example; first is the number of its first line.
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

// isPrompt and isCommand distinguish a console from a script with comments.
func isPrompt(line string) bool  { return regexp.MustCompile(`^# (bascule|cat|ip) `).MatchString(line) }
func isCommand(line string) bool { return regexp.MustCompile(`^(bascule|ip) `).MatchString(line) }

// console parses a terminal session.
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

// continues reports whether a command continues on the next line.
func continues(command string) bool {
	if m := hereDocument.FindStringSubmatch(command); m != nil {
		return !strings.HasSuffix(command, "\n"+m[1])
	}
	return strings.HasSuffix(command, `\`) || strings.HasSuffix(command, "|")
}

// write adds a step that writes a file.
func (s *script) write(path string, lines []string) {
	fmt.Fprintf(&s.text, "mkdir -p $(dirname %s)\ncat >%s <<'END-OF-FILE'\n%s\nEND-OF-FILE\n", path, path, strings.Join(lines, "\n"))
}

// step adds commands; their errors are reported with the line.
func (s *script) step(line int, commands string) {
	fmt.Fprintf(&s.text, "at=$page:%d\n%s\n", line, commands)
}

// command adds a command of the page. Its output must match printed, if that is not empty.
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
		// stdbuf: each line must be in $out at once, even if the program would buffer it
		s.step(line, fmt.Sprintf(">$out\nstdbuf -oL bash -o pipefail -c %s >$out &\n%s %s; cat $out", quote(command), m.kind, quote(m.arg)))
	case m.kind == "typed":
		s.step(line, fmt.Sprintf("typed %s %s", quote(m.arg), quote(command)))
	case printed != nil:
		s.step(line, fmt.Sprintf("{\n%s\n} >$out\ndiff -u - $out <<'END-OF-OUTPUT'\n%s\nEND-OF-OUTPUT", command, strings.Join(printed, "\n")))
	default:
		s.step(line, command)
	}
}

// withoutComment removes a shell comment.
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
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // a limit for hanging commands
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", path)
	cmd.Env = append(os.Environ(), "BASCULE_STATE_DIR="+s.t.TempDir(), "PATH="+bin+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		text := out.String()
		if most := 3000; len(text) > most { // from repeated attempts
			text = "...\n" + text[len(text)-most:]
		}
		s.t.Errorf("%v\n%s", err, text)
	}
}
