// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"encoding/binary"
	"os"
	"testing"

	"bascule/clock"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// message builds a message of rtnetlink(7) about a device.
func message(kind uint16, family byte, index int32, flags uint32) []byte {
	b := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	b[unix.NLMSG_HDRLEN] = family
	binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN+4:], uint32(index))
	binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN+8:], flags)
	return b
}

func TestLinkEvents(t *testing.T) {
	const up = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_BROADCAST
	join := func(list ...[]byte) (all []byte) {
		for _, b := range list {
			all = append(all, b...)
		}
		return all
	}
	above := func(list ...[2]uint32) []byte { // appends attributes, with these values, to the message
		b := message(unix.RTM_NEWLINK, 0, 5, up)
		for _, a := range list {
			b = binary.NativeEndian.AppendUint16(b, 8)
			b = binary.NativeEndian.AppendUint16(b, uint16(a[0]))
			b = binary.NativeEndian.AppendUint32(b, a[1])
		}
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		return b
	}
	torn := above([2]uint32{unix.IFLA_MTU, 1500}, [2]uint32{unix.IFLA_LINK, 9})
	binary.NativeEndian.PutUint16(torn[unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg:], 400)
	short := message(unix.RTM_NEWLINK, 0, 5, up)
	binary.NativeEndian.PutUint32(short, 1000)
	for _, c := range []struct {
		name string
		in   []byte
		want []linkEvent
	}{
		{"nothing", nil, nil},
		{"up", message(unix.RTM_NEWLINK, 0, 5, up), []linkEvent{{index: 5, up: true}}},
		{"no carrier", message(unix.RTM_NEWLINK, 0, 5, unix.IFF_UP), []linkEvent{{index: 5, up: false}}},
		{"gone", message(unix.RTM_DELLINK, 0, 5, up), []linkEvent{{index: 5, up: false}}},
		{"a Linux bridge's port", message(unix.RTM_DELLINK, unix.AF_BRIDGE, 5, up), nil},
		{"an address", message(unix.RTM_NEWADDR, 0, 5, up), []linkEvent{{index: 5, addr: true}}},
		{"several", join(message(unix.RTM_NEWLINK, 0, 5, up), message(unix.RTM_DELLINK, 0, 6, 0)), []linkEvent{{index: 5, up: true}, {index: 6, up: false}}},
		{"above another", above([2]uint32{unix.IFLA_MTU, 1500}, [2]uint32{unix.IFLA_LINK, 9}), []linkEvent{{index: 5, up: true, below: 9}}},
		{"above one elsewhere", above([2]uint32{unix.IFLA_LINK, 9}, [2]uint32{unix.IFLA_LINK_NETNSID, 0}), []linkEvent{{index: 5, up: true}}},
		{"attributes cut short", torn, []linkEvent{{index: 5, up: true}}},
		{"cut short", join(message(unix.RTM_NEWLINK, 0, 5, up), short), []linkEvent{{index: 5, up: true}, {}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, linkEvents(c.in), cmp.AllowUnexported(linkEvent{})); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzLinkEvents(f *testing.F) {
	f.Add(message(unix.RTM_NEWLINK, 0, 5, unix.IFF_UP))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(linkEvents(b)); n > len(b)/unix.NLMSG_HDRLEN+1 {
			t.Errorf("%d events of %d bytes", n, len(b))
		}
	})
}

// FuzzSnapshot: a tree begins with any contents of its snapshot's file.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte("00000000000000000012\n{\"bridge\":\"02:00:00:00:00:01\"}\n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b := newNet(t).add("a", "host")
		if err := os.WriteFile(b.path(), text, 0o600); err != nil {
			t.Fatal(err)
		}
		kept, err := readSnapshot(b.path(), clock.Boot())
		if err == nil && kept.paused < 0 {
			t.Errorf("the agent ends %v from now", -kept.paused)
		}
		b.begin(t)
	})
}
