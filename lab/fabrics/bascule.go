// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/datapath/probe"
	"bascule/lab/ends"
)

// Bascule is a bascule bridge that forwards at tcx.
var Bascule = &Fabric{
	Name:     "bascule",
	About:    "a bascule bridge, forwarding at tcx",
	Path:     path("end", "device veth", "program bascule (tcx)", "end"),
	HostPath: path("host", "device host port", "program bascule (tcx)", "end"),
	Arrival:  AsBuffers,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &basculeKit{n, "tcx"})
	},
}

// BasculeXDP is a bascule bridge that forwards known unicast in XDP.
var BasculeXDP = &Fabric{
	Name:         "bascule-xdp",
	About:        "a bascule bridge, forwarding known unicast in XDP; GRO or an XDP program at the ends",
	Path:         path("end", "device veth", "program bascule (XDP)", "device veth", "end"),
	HostPath:     path("host", "device host port", "program bascule (XDP)", "device veth", "end"),
	Arrival:      AsXDP,
	FloodArrival: AsXDP,
	NeedsNAPI:    true,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &basculeKit{n, "xdp"})
	},
}

// stateDir contains bascule's maps: a folder for each network namespace, named after its cookie.
const stateDir = "/run/bascule"

// basculeKit makes bascule bridges that forward at a given hook.
type basculeKit struct {
	net  *Net
	hook string
}

// run runs a bascule command in the switch's namespace.
func (k *basculeKit) run(ctx context.Context, args ...string) error {
	_, err := k.net.site.run(ctx, k.net.Switch.Name, args...)
	return err
}

func (k *basculeKit) add(ctx context.Context, bridge string) error {
	n := k.net
	if n.site.Bascule == "" {
		return errors.New("the path of the bascule program is unknown")
	}
	add := []string{"bridge", "add", bridge}
	if n.Spec.Ageing != 0 {
		add = append(add, "--ageing", n.Spec.Ageing.String())
	}
	if n.Spec.FDBMax != 0 {
		add = append(add, "--fdb-max", fmt.Sprint(n.Spec.FDBMax))
	}
	n.leave = append(n.leave, func() error { return n.site.forget(n.Switch.Name) })
	n.memory, n.drops = n.basculeMemory, k.drops
	return k.run(ctx, add...)
}

func (k *basculeKit) plug(ctx context.Context, bridge, device string) error {
	return k.run(ctx, "port", "add", bridge, device, "--hook", k.hook)
}

func (k *basculeKit) unplug(ctx context.Context, bridge, device string) error {
	return k.run(ctx, "port", "del", bridge, device)
}

func (k *basculeKit) host(ctx context.Context, bridge, device string) (string, error) {
	return device, k.run(ctx, "port", "add", bridge, device, "--type", "host", "--hook", k.hook)
}

// join is plug for a device that is a host port of another bridge, which the command line refuses.
func (k *basculeKit) join(_ context.Context, name, device string) error {
	sw, err := bridge.Open(k.net.Switch.Name, bridge.Joining)
	if err != nil {
		return err
	}
	defer sw.Close()
	_, err = sw.AddPort(name, device, bridge.PortOptions{Hook: k.hook})
	return err
}

// patch connects two bridges with a patch cable, whose ends get the given names.
func (k *basculeKit) patch(ctx context.Context, bridge, port, peerBridge, peerPort string) error {
	return k.run(ctx, "port", "add", bridge, port, "--type", "patch", "--peer", peerBridge+"/"+peerPort)
}

func (k *basculeKit) flush(ctx context.Context, bridge string) error {
	return k.run(ctx, "fdb", "flush", bridge)
}

func (k *basculeKit) known(ctx context.Context, bridge string) (int, error) {
	out, err := k.net.site.run(ctx, k.net.Switch.Name, "-j", "bridge", "show", bridge)
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

// basculeMemory returns the memory of all of bascule's maps for the switch.
func (n *Net) basculeMemory() (uint64, error) { return n.mapMemory() }

// mapMemory returns the memory of bascule's maps for the switch that have one of the names; without
// names, of all.
func (n *Net) mapMemory(names ...string) (uint64, error) {
	cookie, err := n.Switch.Cookie()
	if err != nil {
		return 0, err
	}
	maps, err := probe.MapMemory(filepath.Join(stateDir, fmt.Sprint(cookie)))
	if err != nil {
		return 0, err
	}
	var sum uint64
	for name, bytes := range maps {
		if len(names) == 0 || slices.Contains(names, name) {
			sum += bytes
		}
	}
	if sum == 0 {
		return 0, fmt.Errorf("bascule has no maps %v for %s", names, n.Switch.Name)
	}
	return sum, nil
}

// drops returns the number of frames that the namespace's bridges have dropped, by reason.
func (k *basculeKit) drops(ctx context.Context) (map[string]uint64, error) {
	out, err := k.net.site.run(ctx, k.net.Switch.Name, "-j", "port", "show", "--stats")
	if err != nil {
		return nil, err
	}
	var shown []struct {
		Drops map[string]uint64 `json:"drops"`
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		return nil, fmt.Errorf("port show printed %q", out)
	}
	sum := map[string]uint64{}
	for _, p := range shown {
		for reason, count := range p.Drops {
			sum["bascule "+reason] += count
		}
	}
	return sum, nil
}

// run runs the bascule program in a namespace, like a user.
func (s Site) run(ctx context.Context, netns string, args ...string) ([]byte, error) {
	return s.feed(ctx, "", netns, args...)
}

// feed is run with text on the program's standard input.
func (s Site) feed(ctx context.Context, text, netns string, args ...string) ([]byte, error) {
	args = append([]string{"-n", netns}, args...)
	cmd := ends.Command(ctx, s.Bascule, args...)
	cmd.Stdin = strings.NewReader(text)
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

// forget removes the bridges of a namespace. It does not use the lab's context, because it cleans
// up after the context has ended.
func (s Site) forget(netns string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := s.run(ctx, netns, "-j", "bridge", "show")
	if err != nil {
		return err
	}
	var shown []struct {
		Ifname string `json:"ifname"`
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		return fmt.Errorf("bridge show printed %q", out)
	}
	var errs []error
	for _, b := range shown {
		_, err := s.run(ctx, netns, "bridge", "del", b.Ifname)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveLeftovers removes the leftovers of killed labs.
func (s Site) RemoveLeftovers() ([]string, error) {
	return ends.RemoveLeftovers(func(netns string) error {
		if !strings.HasSuffix(netns, "-sw") || s.Bascule == "" {
			return nil
		}
		return s.forget(netns)
	})
}
