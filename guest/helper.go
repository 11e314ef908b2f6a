// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"bascule/bridge"
	"bascule/plug"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TapName is the name pattern of the helper's taps. libvirt reserves vnet, vif, macvtap and
// macvlan.
const TapName = "guest%d"

// ByHelper identifies the helper in a port's owner.
const ByHelper = "qemu"

// usage is the message for other calls than QEMU's.
const usage = "bascule-bridge-helper: QEMU runs this: -netdev tap,helper=/usr/local/libexec/bascule-bridge-helper,br=br0\n"

// Helper is the program that QEMU runs for a user without permission to make taps
// (qemu-bridge-helper(8)): "--use-vnet --fd=N --br=NAME". If the access list permits it, Helper
// makes a tap, plugs it into the bridge, and sends its descriptor over the unix socket N. It trusts
// only the identity of its caller, and works in a separate process ([apart]). trusted is the result
// of [Trusted].
func Helper(args []string, acl string, trusted bool, stderr io.Writer) int {
	exit, err := serve(args, acl, trusted, stderr)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "bascule-bridge-helper:", err)
		return 1
	}
	return exit
}

// serve executes a request of a caller, or one that this program passes on for a caller.
func serve(args []string, acl string, trusted bool, stderr io.Writer) (exit int, err error) {
	if len(args) > 0 && trusted {
		if text, is := strings.CutPrefix(args[0], forCaller); is {
			who, err := parseCaller(text)
			if err != nil {
				return 0, err
			}
			r, err := readRequest(args[1:])
			if err != nil {
				return 0, err
			}
			if err := leaveCgroups(); err != nil {
				return 0, err
			}
			return 0, help(r, who, acl, stderr)
		}
	}
	r, err := readRequest(args)
	if err != nil {
		return 0, err
	}
	// check the descriptor before any object is made
	if kind, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || kind != unix.AF_UNIX {
		return 0, fmt.Errorf("descriptor %d is not a Unix socket", r.fd)
	}
	who, err := self()
	if err != nil {
		return 0, err
	}
	return apart(r, who, stderr)
}

var errUsage = errors.New("usage")

// request has QEMU's arguments.
type request struct {
	vnet   bool
	fd     int
	bridge string
}

func readRequest(args []string) (r request, err error) {
	r.fd = -1
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		if name == "--use-vnet" && !given {
			r.vnet = true
			continue
		}
		if !given {
			if i++; i == len(args) {
				return r, errUsage
			}
			value = args[i]
		}
		switch name {
		case "--fd":
			if r.fd, err = strconv.Atoi(value); err != nil || r.fd < 0 {
				return r, errUsage
			}
		case "--br":
			r.bridge = value
		default:
			return r, errUsage
		}
	}
	if r.fd < 0 || r.bridge == "" {
		return r, errUsage
	}
	return r, bridge.CheckName("bridge", r.bridge)
}

// help executes a caller's request if the access list permits it.
func help(r request, who Caller, acl string, stderr io.Writer) error {
	text, err := ReadACL(acl)
	if err != nil {
		return err
	}
	grant, err := Allowed(acl, text, r.bridge, who)
	if err != nil {
		return err
	}
	s, err := bridge.Open("")
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Bridge(r.bridge); err != nil { // before a tap is made
		return err
	}
	if err := tidy(s); err != nil {
		return err
	}
	tap, name, err := makeTap(r.vnet)
	if err != nil {
		return fmt.Errorf("cannot make a tap: %w", err)
	}
	defer unix.Close(tap) // QEMU has its own by then; without one the tap disappears
	warnings, err := plug.Put(s, plug.Plug{
		Owner:  bridge.Owner{ID: ByHelper + "/" + name, By: ByHelper, Container: "user " + strconv.Itoa(who.UID), Network: r.bridge},
		Bridge: r.bridge, Device: name, VLANs: plug.VLANs(grant.VLAN, nil), Settings: grant.Settings,
	})
	for _, w := range warnings {
		fmt.Fprintln(stderr, "bascule-bridge-helper: warning:", w)
	}
	if err == nil { // do not wait for a slow reader: this process runs as root
		if err = unix.Sendmsg(r.fd, []byte{0}, unix.UnixRights(tap), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			err = fmt.Errorf("cannot hand the tap over: %w", err)
		}
	}
	if err != nil {
		_, _, failed := plug.Remove(s, ByHelper+"/"+name)
		return errors.Join(err, failed)
	}
	return nil
}

// tidy removes ports whose taps disappeared with QEMU. If a user made the tap persistent, tidy
// deletes the tap after the user has ended.
func tidy(s *bridge.Switch) error {
	list, err := s.Owned()
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Owner.By == ByHelper && (p.State == "gone" || left(p.Name)) {
			if _, _, err := plug.RemoveGone(s, p.Owner.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// left reports whether no process has the named tap open, and deletes such a tap.
func left(name string) bool {
	fd, _, err := openTap(name, 0)
	if err != nil {
		return false // it is open, or not a tap
	}
	defer unix.Close(fd)
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) == nil
}

// openTap opens the named tap, which it makes if necessary.
func openTap(name string, flags uint16) (fd int, is string, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, request.Name(), nil
}

// makeTap makes a tap that lasts as long as its descriptors. A process with a descriptor can make
// the tap persistent (TUNSETPERSIST). The persistent tap then belongs to root, unless that process
// has set an owner (TUNSETOWNER). The kernel does not prevent either.
func makeTap(vnet bool) (fd int, name string, err error) {
	var flags uint16
	if vnet {
		flags = unix.IFF_VNET_HDR
	}
	if fd, name, err = openTap(TapName, flags); err != nil {
		return -1, "", err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.IoctlSetInt(fd, unix.TUNSETOWNER, 0); err != nil {
		return -1, "", err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return -1, "", err
	}
	return fd, name, netlink.LinkSetUp(link)
}

// Trusted reports whether the caller of this process has the same rights as the process. This is
// false if the program's file is setuid or has capabilities (AT_SECURE of getauxval(3)). Such a
// process must act only as the helper, under any name.
func Trusted() bool {
	const secure = 23 // AT_SECURE of linux/auxvec.h
	words, err := unix.Auxv()
	for _, w := range words {
		if w[0] == secure {
			return w[1] == 0
		}
	}
	return err == nil && os.Getuid() == os.Geteuid() && os.Getgid() == os.Getegid()
}

// Clean starts the program again without its environment, if it has one, since Go's runtime has
// already read it (GODEBUG, GOMEMLIMIT and other variables of package runtime). It returns nil if
// the environment is empty. The variable that the runtime itself adds for such a program stays.
func Clean() error {
	const put = "GOTRACEBACK=none" // secureEnv() of runtime/security_unix.go
	if env := os.Environ(); len(env) == 0 || len(env) == 1 && env[0] == put {
		return nil
	}
	err := unix.Exec("/proc/self/exe", os.Args, nil)
	return fmt.Errorf("cannot leave the caller's environment: /proc/self/exe: %w; run it without one, with 'env -i'", err)
}
