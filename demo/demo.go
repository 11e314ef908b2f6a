// SPDX-License-Identifier: BSD-2-Clause

// Package demo demonstrates the switch to a new user: it connects two network namespaces with a
// bridge in a third one, prints the equivalent commands, and removes everything. It needs no other
// program.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"bascule/lab/spaces"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// prefix begins the names of the demo's network namespaces; the process's number follows.
const prefix = "bsc-demo"

// The network namespaces, by their names for spaces.Name.
const (
	red      = "red"
	blue     = "blue"
	switches = "switch"
)

// The bridge, and the interface in both red and blue.
const (
	bridge = "br0"
	eth    = "eth0"
)

// addresses has the addresses of eth in red and in blue (RFC 5737).
var addresses = map[string]netip.Prefix{
	red:  netip.MustParsePrefix("192.0.2.1/24"),
	blue: netip.MustParsePrefix("192.0.2.2/24"),
}

// echoes is the number of echo requests.
const echoes = 3

// A Demo is one run of the demo.
type Demo struct {
	// Program is the name of this program, quoted for a shell.
	Program string
	// Run executes a command line of this program, and prints its output.
	Run func(args ...string) error
	// Say prints complete lines of text at once.
	Say func(text string) error
	// Forget removes the bridges of a network namespace.
	Forget func(netns string) error
	// Keep waits until the user continues, or the context ends. It may be nil.
	Keep func(context.Context) error

	made map[string]*space
}

// A space is a network namespace of the demo.
type space struct {
	handle netns.NsHandle
	link   *netlink.Handle
}

// Show makes the objects, demonstrates them, and removes them, even if the context ends early or
// printing fails. It returns the first error.
func (d *Demo) Show(ctx context.Context) (err error) {
	if err := d.removeLeftovers(); err != nil {
		return err
	}
	d.made = map[string]*space{}
	defer func() { err = errors.Join(err, d.remove(err == nil)) }()
	for _, step := range []func(context.Context) error{d.build, d.ping, d.look, d.keep} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// removeLeftovers removes objects of demos that were killed.
func (d *Demo) removeLeftovers() error {
	removed, err := spaces.RemoveLeftovers(prefix, func(name string) error {
		if !strings.HasSuffix(name, "-"+switches) || !spaces.Is(name) {
			return nil
		}
		return d.Forget(name)
	})
	if err != nil {
		return fmt.Errorf("cannot remove what an earlier demo left: %w", err)
	}
	if len(removed) > 0 {
		return d.Say("removed what an earlier demo left: " + strings.Join(removed, ", ") + "\n")
	}
	return nil
}

// name is the full name of a network namespace.
func name(what string) string { return spaces.Name(prefix, what) }

// ip prints a command of iproute2, and does the same with netlink.
func (d *Demo) ip(command string, do func() error) error {
	if err := d.Say("# ip " + command + "\n"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return fmt.Errorf("cannot do what 'ip %s' does: %w", command, err)
	}
	return nil
}

// bascule prints a command of this program for the switch's network namespace, and runs it.
func (d *Demo) bascule(args ...string) error {
	args = append([]string{"-n", name(switches)}, args...)
	if err := d.Say("# " + d.Program + " " + strings.Join(args, " ") + "\n"); err != nil {
		return err
	}
	return d.Run(args...)
}

func (d *Demo) build(ctx context.Context) error {
	if err := d.Say("Two network namespaces, and between them a switch, which is in a third one. By hand it takes\n" +
		"the commands behind #:\n\n"); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return d.addSpace(red) },
		func() error { return d.addSpace(blue) },
		func() error { return d.addSpace(switches) },
		func() error { return d.addCable(red) },
		func() error { return d.addCable(blue) },
		func() error { return d.bascule("bridge", "add", bridge) },
		func() error { return d.bascule("port", "add", bridge, red) },
		func() error { return d.bascule("port", "add", bridge, blue) },
		func() error { return d.addAddress(red) },
		func() error { return d.setUp(red) },
		func() error { return d.addAddress(blue) },
		func() error { return d.setUp(blue) },
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (d *Demo) addSpace(what string) error {
	return d.ip("netns add "+name(what), func() error {
		result := make(chan error)
		s := &space{handle: netns.None()}
		go func() { // the thread ends with the goroutine
			runtime.LockOSThread()
			var err error
			s.handle, err = spaces.New(name(what))
			result <- err
		}()
		err := <-result
		d.made[what] = s
		if err != nil {
			return err
		}
		s.link, err = netlink.NewHandleAt(s.handle, unix.NETLINK_ROUTE)
		return err
	})
}

func (d *Demo) addCable(what string) error {
	return d.ip(fmt.Sprintf("-n %s link add %s up type veth peer name %s netns %s", name(switches), what, eth, name(what)), func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.Flags = what, unix.IFF_UP
		return d.made[switches].link.LinkAdd(&netlink.Veth{
			LinkAttrs: attributes, PeerName: eth, PeerNamespace: netlink.NsFd(d.made[what].handle),
		})
	})
}

func (d *Demo) addAddress(what string) error {
	address := addresses[what].String()
	return d.ip(fmt.Sprintf("-n %s address add %s dev %s", name(what), address, eth), func() error {
		link, err := d.made[what].link.LinkByName(eth)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return d.made[what].link.AddrAdd(link, a)
	})
}

func (d *Demo) setUp(what string) error {
	return d.ip(fmt.Sprintf("-n %s link set %s up", name(what), eth), func() error {
		link, err := d.made[what].link.LinkByName(eth)
		if err != nil {
			return err
		}
		return d.made[what].link.LinkSetUp(link)
	})
}

// running waits until both ends of both cables can send: a device that was just set up drops
// packets.
func (d *Demo) running(ctx context.Context) error {
	for _, at := range []struct{ space, device string }{{red, eth}, {switches, red}, {switches, blue}, {blue, eth}} {
		for {
			link, err := d.made[at.space].link.LinkByName(at.device)
			if err != nil {
				return err
			}
			if link.Attrs().OperState == netlink.OperUp {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

func (d *Demo) ping(ctx context.Context) error {
	to := addresses[blue].Addr()
	if err := d.running(ctx); err != nil {
		return err
	}
	if err := d.Say(fmt.Sprintf("# ip netns exec %s ping -c %d %s\n", name(red), echoes, to)); err != nil {
		return err
	}
	socket, err := listen(d.made[red].handle)
	if err != nil {
		return fmt.Errorf("cannot send ICMP: %w", err)
	}
	defer socket.Close()
	answers := 0
	for n := 1; n <= echoes; n++ {
		took, err := echo(ctx, socket, to, n)
		text := fmt.Sprintf("from %s: seq=%d time=%.3f ms\n", to, n, float64(took.Microseconds())/1e3)
		switch {
		case err == nil:
			answers++
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			text = fmt.Sprintf("seq=%d: %v\n", n, err)
		}
		if err := d.Say(text); err != nil {
			return err
		}
	}
	if answers == 0 {
		return fmt.Errorf("none of %d echoes came back through the switch; see the machine with '%s check'", echoes, d.Program)
	}
	return nil
}

func (d *Demo) look(context.Context) error {
	if err := d.Say("\nThe kernel forwards these packets by itself. This shows what passed, and who is where:\n\n"); err != nil {
		return err
	}
	if err := d.bascule("port", "show", bridge, "--stats"); err != nil {
		return err
	}
	return d.bascule("fdb", "show", bridge)
}

func (d *Demo) keep(ctx context.Context) error {
	if d.Keep == nil {
		return nil
	}
	in := d.Program + " -n " + name(switches) + " "
	mac, err := d.made[red].link.LinkByName(eth)
	if err != nil {
		return err
	}
	if err := d.Say(strings.Join([]string{
		"\nIt stays until you press Enter. From another terminal these show more:\n",
		in + "monitor " + bridge,
		in + "top " + bridge,
		in + "capture " + bridge,
		in + "trace " + bridge + " --in " + blue + " --dst " + mac.Attrs().HardwareAddr.String(),
		"ip netns exec " + name(red) + " ping " + addresses[blue].Addr().String() + "\n\n",
	}, "\n")); err != nil {
		return err
	}
	return d.Keep(ctx)
}

// remove removes all objects. It prints the commands if nothing has failed.
func (d *Demo) remove(show bool) error {
	var errs []error
	say := func(text string) {
		if show {
			errs = append(errs, d.Say(text))
		}
	}
	say("\nAnd this removes it:\n\n")
	if s := d.made[switches]; s != nil && s.link != nil {
		say("# " + d.Program + " -n " + name(switches) + " bridge del " + bridge + "\n")
		errs = append(errs, d.Forget(name(switches)))
	}
	for _, what := range []string{red, blue, switches} {
		s := d.made[what]
		if s == nil {
			continue
		}
		say("# ip netns del " + name(what) + "\n")
		if s.link != nil {
			s.link.Close()
		}
		if s.handle.IsOpen() {
			s.handle.Close()
		}
		if err := spaces.Remove(name(what)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("cannot remove network namespace %s: %w; 'ip netns del' does", name(what), err))
		}
	}
	return errors.Join(errs...)
}
