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

// TapName is the pattern by which the helper's taps are called. libvirt takes vnet, vif,
// macvtap and macvlan for itself.
const TapName = "guest%d"

// ByHelper is the front door that ports of the helper's taps have in their owner.
const ByHelper = "qemu"

// usage is what the helper says to who calls it otherwise than QEMU does.
const usage = "bascule-bridge-helper: QEMU runs this: -netdev tap,helper=/usr/local/libexec/bascule-bridge-helper,br=br0\n"

// Helper is the program that QEMU runs for a user who may not make taps
// (qemu-bridge-helper(8)): "--use-vnet --fd=N --br=NAME". If the access list allows it, it
// makes a tap, plugs it to the bridge, and sends its descriptor over the unix socket N. It
// trusts nothing of its caller but who that is, and has another process do the work
// ([apart]). trusted says that the caller is as trusted as this process, as [Trusted] has it.
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

// serve does what a caller asks for, or what this program asks itself for on behalf of one.
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
	// the descriptor is tried before anything is made
	if kind, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || kind != unix.AF_UNIX {
		return 0, fmt.Errorf("descriptor %d is no unix socket", r.fd)
	}
	who, err := self()
	if err != nil {
		return 0, err
	}
	return apart(r, who, stderr)
}

var errUsage = errors.New("usage")

// request is what QEMU asks for.
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

// help gives a caller what it asks for, if the access list allows it.
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
	defer unix.Close(tap) // QEMU has its own by then; without one the tap goes
	warnings, err := plug.Put(s, plug.Plug{
		Owner:  bridge.Owner{ID: ByHelper + "/" + name, By: ByHelper, Container: "user " + strconv.Itoa(who.UID), Network: r.bridge},
		Bridge: r.bridge, Device: name, VLANs: plug.VLANs(grant.VLAN, nil), Settings: grant.Settings,
	})
	for _, w := range warnings {
		fmt.Fprintln(stderr, "bascule-bridge-helper: warning:", w)
	}
	if err == nil { // a caller who lets nothing in is not waited for: this process is root's
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

// tidy takes off ports whose taps went with their QEMU. A tap that its user has made persistent
// goes now, if its user has.
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

// left reports whether no process has the tap of a name open, and ends such a tap.
func left(name string) bool {
	fd, _, err := openTap(name, 0)
	if err != nil {
		return false // it is open, or no tap
	}
	defer unix.Close(fd)
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0) == nil
}

// openTap opens the tap of a name, or makes one.
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

// makeTap makes a tap that lasts as long as its descriptors. Who has a descriptor can make it
// persistent (TUNSETPERSIST). It is root's then, and not anybody's, unless that process has given
// it to a user itself (TUNSETOWNER): the kernel refuses it neither.
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

// Trusted reports whether the caller of this process is as trusted as the process: that is
// not so where the file has made it another user's, or given it capabilities (AT_SECURE of
// getauxval(3)). Such a process must be nothing but the helper, whatever it is called.
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

// Clean starts the program anew without its environment, if it has one: Go's runtime has
// obeyed that by now (GODEBUG, GOMEMLIMIT and others of package runtime). It returns nil where
// there is none. What the runtime itself puts there for such a program stays.
func Clean() error {
	const put = "GOTRACEBACK=none" // secureEnv() of runtime/security_unix.go
	if env := os.Environ(); len(env) == 0 || len(env) == 1 && env[0] == put {
		return nil
	}
	err := unix.Exec("/proc/self/exe", os.Args, nil)
	return fmt.Errorf("cannot leave the caller's environment: /proc/self/exe: %w; run it without one, by 'env -i'", err)
}
