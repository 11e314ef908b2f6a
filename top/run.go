// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"context"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Run shows a source on a terminal until q is pressed or ctx ends, and reads it
// every interval; first is the latest reading. It restores the terminal. When Run returns, the
// source is not read any more.
func Run(ctx context.Context, in io.Reader, out io.Writer, m *Model, s Source, interval time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	program := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	var reader sync.WaitGroup
	reader.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				program.Quit()
				return
			case <-tick.C:
				program.Send(Read(s))
			}
		}
	})
	_, err := program.Run()
	cancel()
	reader.Wait()
	return err
}
