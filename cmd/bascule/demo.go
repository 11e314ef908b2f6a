// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"bascule/bridge"
	"bascule/demo"

	"github.com/spf13/cobra"
)

func newDemo(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "show a switch at work, in a second",
		Long: `Connect two network namespaces with a switch, send pings from one to the other,
and show what passed. The demo prints each command, which you can type yourself,
before it does the same. Then it removes everything, also after Ctrl-C. What a
killed demo leaves, the next one removes.

The switch is in a network namespace of its own: nothing of the machine's own
network is touched. Programs such as ip and ping are not needed. With --keep the
switch stays until you press Enter, and the demo prints commands to look around
meanwhile.`,
		Example: `  bascule demo
  #! not run bascule demo --keep: it waits for Enter
  bascule demo --keep`,
		Annotations: map[string]string{noJSON: "is not for a text that people read"},
	}
	keep := cmd.Flags().Bool("keep", false, "keep the switch until Enter, or the end of standard input")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("netns") {
			return usagef(cmd, "--netns is not for the demo, which makes network namespaces of its own")
		}
		if err := bridge.Usable(); err != nil {
			return err
		}
		ctx, stop := p.untilInterrupted(cmd.Context()) // it has to clean up even without a reader
		defer stop()
		d := &demo.Demo{Program: shellWord(os.Args[0]), Say: p.sayNow, Run: p.nested, Forget: p.delBridgesOf}
		if *keep {
			d.Keep = p.enter
		}
		err := d.Show(ctx)
		if errors.Is(err, context.Canceled) {
			return errors.New("the demo was ended early; all of it is removed")
		}
		return err
	}
	return cmd
}

// sayNow prints a text and flushes it.
func (p *program) sayNow(text string) error {
	if _, err := p.out.WriteString(text); err != nil {
		return err
	}
	return p.out.Flush()
}

// runNested runs a command line like main does. If it fails, its error output becomes the error.
func (p *program) runNested(args ...string) error {
	var said strings.Builder
	nested := &program{stdin: p.stdin, stdout: p.stdout, out: p.out, stderr: &said, open: p.open, agents: p.agents}
	status := nested.run(args)
	if err := p.out.Flush(); err != nil { // nested treats a closed pipe as a normal end
		return err
	}
	if status != exitDone {
		return errors.New(strings.TrimPrefix(strings.TrimSpace(said.String()), "bascule: "))
	}
	_, err := fmt.Fprint(p.stderr, said.String())
	return err
}

// delBridgesOf removes the bridges of a network namespace.
func (p *program) delBridgesOf(netns string) error {
	s, err := p.open(netns)
	if err != nil {
		return err
	}
	_, _, err = s.DelBridges()
	return errors.Join(err, s.Close())
}

// enter waits for a line on standard input, for the end of input, or for the end of the context.
func (p *program) enter(ctx context.Context) error {
	line := make(chan struct{})
	go func() {
		defer close(line)
		_, _ = bufio.NewReader(p.stdin).ReadString('\n')
	}()
	select {
	case <-line:
	case <-ctx.Done():
	}
	return nil
}

// shellWord quotes a word for a shell if necessary.
func shellWord(word string) string {
	if regexp.MustCompile(`^[\w./+-]+$`).MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
