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

// Move has the i-th guest, which has one card and had no other before, migrate live to QEMU in
// another namespace, where its card is plugged into a tap that is made. What is at the card
// goes on there. ready is called when that tap is there, before the guest is. The guest's
// former QEMU stays, stopped, with its tap, until stay is called, which ends it.
func (p *Pool) Move(ctx context.Context, i int, end ends.End, at *ends.Namespace, near Device, ready func() error) (stay func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from, card := p.guests[i], end.At.(*plugged)
	to, _, err := p.start(ctx, from.number, p.accel, at, "-incoming", "defer")
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
	if err := to.qmp.run("migrate-incoming", uri); err != nil {
		return err
	}
	if err := g.qmp.run("migrate", uri); err != nil {
		return err
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
