// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"bascule/datapath/probe"
	"bascule/lab/ends"
)

// Bascule is a bascule bridge whose ports forward at tcx.
var Bascule = &Fabric{
	Name:    "bascule",
	About:   "a bascule bridge, forwarding at tcx",
	Path:    []string{"end", "veth", "bascule (tcx)", "end's side of a veth"},
	Arrival: AsBuffers,
	build: func(ctx context.Context, site Site, n *Net) error {
		return buildBascule(ctx, site, n, "tcx")
	},
}

// BasculeXDP is a bascule bridge that forwards known unicast in XDP.
var BasculeXDP = &Fabric{
	Name:         "bascule-xdp",
	About:        "a bascule bridge, forwarding known unicast in XDP; GRO on at the ends",
	Path:         []string{"end", "veth", "bascule (xdp)", "veth", "end"},
	Arrival:      AsXDP,
	FloodArrival: AsXDP,
	NeedsGRO:     true,
	build: func(ctx context.Context, site Site, n *Net) error {
		return buildBascule(ctx, site, n, "xdp")
	},
}

// stateDir is where bascule keeps its maps: a folder per network namespace,
// named by its cookie.
const stateDir = "/run/bascule"

// bridgeName is the bridge of every bascule fabric, each in its own namespace.
const bridgeName = "br0"

func buildBascule(ctx context.Context, site Site, n *Net, hook string) error {
	if site.Bascule == "" {
		return errors.New("the path of the bascule program is not known")
	}
	if err := n.cables(); err != nil {
		return err
	}
	run := func(ctx context.Context, args ...string) error {
		_, err := site.run(ctx, n.Switch.Name, args...)
		return err
	}
	add := []string{"bridge", "add", bridgeName}
	if n.Spec.Ageing != 0 {
		add = append(add, "--ageing", n.Spec.Ageing.String())
	}
	if n.Spec.FDBMax != 0 {
		add = append(add, "--fdb-max", fmt.Sprint(n.Spec.FDBMax))
	}
	n.undo = append(n.undo, func() error { return site.forget(n.Switch.Name) })
	if err := run(ctx, add...); err != nil {
		return err
	}
	n.extend = func(ctx context.Context, device string) error {
		return run(ctx, "port", "add", bridgeName, device, "--hook", hook)
	}
	n.shrink = func(ctx context.Context, device string) error {
		return run(ctx, "port", "del", bridgeName, device)
	}
	n.flush = func(ctx context.Context) error {
		return run(ctx, "fdb", "flush", bridgeName)
	}
	n.known = func(ctx context.Context) (int, error) {
		out, err := site.run(ctx, n.Switch.Name, "-j", "bridge", "show", bridgeName)
		if err != nil {
			return 0, err
		}
		var shown []struct {
			Count int `json:"fdb_count"`
		}
		if err := json.Unmarshal(out, &shown); err != nil || len(shown) != 1 {
			return 0, fmt.Errorf("bridge show printed %q", out)
		}
		return shown[0].Count, nil
	}
	n.memory = func() (uint64, error) {
		cookie, err := n.Switch.Cookie()
		if err != nil {
			return 0, err
		}
		maps, err := probe.MapMemory(filepath.Join(stateDir, fmt.Sprint(cookie)))
		if err != nil {
			return 0, err
		}
		var sum uint64
		for _, bytes := range maps {
			sum += bytes
		}
		return sum, nil
	}
	for _, p := range n.Ports {
		if err := n.extend(ctx, p.Ifname); err != nil {
			return err
		}
	}
	return nil
}

// run runs the bascule program on a namespace, as a user would.
func (s Site) run(ctx context.Context, netns string, args ...string) ([]byte, error) {
	args = append([]string{"-n", netns}, args...)
	cmd := ends.Command(ctx, s.Bascule, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if words := strings.TrimSpace(said.String()); err != nil && words != "" {
		return nil, errors.New(words)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(s.Bascule), strings.Join(args, " "), err)
	}
	return out, nil
}

// forget removes the bridge of a namespace, if there is one. It does not heed
// the lab's own context: it is what cleans up after that has ended.
func (s Site) forget(netns string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shown, err := s.run(ctx, netns, "-j", "bridge", "show")
	if err != nil {
		return err
	}
	if !strings.Contains(string(shown), `"`+bridgeName+`"`) {
		return nil
	}
	_, err = s.run(ctx, netns, "bridge", "del", bridgeName)
	return err
}

// RemoveLeftovers removes what labs that were killed left behind.
func (s Site) RemoveLeftovers() ([]string, error) {
	return ends.RemoveLeftovers(func(netns string) error {
		if !strings.HasSuffix(netns, "-sw") || s.Bascule == "" {
			return nil
		}
		return s.forget(netns)
	})
}
