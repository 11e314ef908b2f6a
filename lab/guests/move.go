// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"bascule/lab/ends"
)

// Move migrates the i-th guest live to QEMU in another namespace, where a new tap is made for its card. The guest must
// have one card and have had no other before. Traffic at the card continues there. ready is called when the tap exists,
// before the guest arrives. The former QEMU stays, stopped, with its tap, until stay is called, which ends it.
//
// The guest runs at its new place before its memory is there, and fetches each page when it needs
// it (postcopy). The other order, memory first, requires QEMU to track the writes of a running guest. TCG misses some
// writes on a busy machine: with QEMU 7.2 and 14 busy programs on two CPUs, guests continued with partly outdated
// memory, and crashed ("output.0:id 0 is not a head!").
func (p *Pool) Move(ctx context.Context, i int, end ends.End, at *ends.Namespace, near Device, ready func() error) (stay func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from, card := p.guests[i], end.At.(*plugged)
	to, err := p.start(ctx, from.number, p.accel, at, "-incoming", "defer")
	if err != nil {
		return nil, err
	}
	if err := from.moveTo(ctx, to, card, end, at, near, ready); err != nil {
		to.end()
		return nil, fmt.Errorf("migrate virtual machine %d: %w", from.number, err)
	}
	p.guests[i] = to
	return from.end, nil
}

func (g *Guest) moveTo(ctx context.Context, to *Guest, card *plugged, end ends.End, at *ends.Namespace, near Device, ready func() error) error {
	there := *card
	there.guest = to
	if err := there.putIn(at, near, end.MAC); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bascule-move-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	uri := map[string]any{"uri": "unix:" + filepath.Join(dir, "socket")}
	postcopy := map[string]any{"capabilities": []any{map[string]any{"capability": "postcopy-ram", "state": true}}}
	for _, c := range []struct {
		at      *Guest
		command string
		args    map[string]any
	}{
		{to, "migrate-set-capabilities", postcopy},
		{to, "migrate-incoming", uri},
		{g, "migrate-set-capabilities", postcopy},
		// In bytes a second, until the guest has moved: almost none of its memory is sent before.
		{g, "migrate-set-parameters", map[string]any{"max-bandwidth": 4096}},
		{g, "migrate", uri},
		{g, "migrate-start-postcopy", map[string]any{}},
	} {
		if err := c.at.qmp.run(c.command, c.args); err != nil {
			return err
		}
	}
	for {
		text, err := g.qmp.ask("query-migrate", map[string]any{})
		if err != nil {
			return err
		}
		var state struct {
			Status string `json:"status"`
			Why    string `json:"error-desc"`
		}
		if err := json.Unmarshal(text, &state); err != nil {
			return err
		}
		switch state.Status {
		case "completed":
			*card = there
			return nil
		case "failed", "cancelled":
			return errors.New(state.Status + ": " + state.Why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
