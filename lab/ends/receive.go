// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ReceiveOn has one CPU process all frames that come to an interface. Otherwise the CPU of
// the sender does, for a cable between namespaces.
//
// A device that polls (NAPI), as a veth does while its GRO is on or while it has an XDP
// program, gets threads of the kernel, and they are kept on the CPU: its XDP program runs in
// them. Another device has its frames steered there (RPS). Both are in the kernel's
// Documentation/networking, napi.rst and scaling.rst.
//
// Offloads and XDP programs have to be there before: a device that begins to poll begins
// anew.
func (n *Namespace) ReceiveOn(ifname string, cpu int) error {
	l, err := n.link.LinkByName(ifname)
	if err == nil {
		err = n.Do(func() error { return receiveOn(ifname, l.Attrs().Index, cpu) })
	}
	if err != nil {
		return fmt.Errorf("%s in %s on CPU %d: %w", ifname, n.Name, cpu, err)
	}
	return nil
}

// receiveOn is ReceiveOn in the namespace of the calling thread.
func receiveOn(ifname string, index, cpu int) error {
	sysfs, err := FileSystem("sysfs")
	if err != nil {
		return err
	}
	defer sysfs.Close()
	device := "class/net/" + ifname
	steered := cpuMask(cpu)
	switch err := writeAt(sysfs, device+"/threaded", "1"); {
	case err == nil:
		if err := pinThreads(index, cpu); err != nil {
			return err
		}
		// What a thread has polled is on its CPU already.
		steered = "0"
	case !errors.Is(err, unix.EOPNOTSUPP): // which it is where the device does not poll
		return err
	}
	dir, err := openAt(sysfs, device+"/queues", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	queues, err := dir.Readdirnames(0)
	if err != nil {
		return err
	}
	for _, q := range queues {
		if !strings.HasPrefix(q, "rx-") {
			continue
		}
		err := writeAt(dir, q+"/rps_cpus", steered)
		if errors.Is(err, os.ErrNotExist) {
			return &Unavailable{"the kernel cannot steer packets to a CPU (CONFIG_RPS)"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cpuMask is a set of one CPU as sysfs reads it: numbers of 32 bits, the last CPUs first.
func cpuMask(cpu int) string {
	return fmt.Sprintf("%x", 1<<(cpu%32)) + strings.Repeat(",00000000", cpu/32)
}

// pinThreads keeps the threads that poll a device on a CPU, where they go before programs, as
// soft interrupts do.
func pinThreads(index, cpu int) error {
	threads, err := pollThreads(index)
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, pid := range threads {
		// In a container the number may be another process's.
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(name), "napi/") {
			return fmt.Errorf("process %d is %s, and no thread that polls", pid, strings.TrimSpace(string(name)))
		}
		err = unix.SchedSetaffinity(pid, &set)
		if err == nil {
			err = unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(string(name)), err)
		}
	}
	return nil
}

// pollThreads are the threads that poll a device, by the kernel's netdev netlink family
// (Linux 6.8).
func pollThreads(index int) ([]int, error) {
	const (
		cmdNAPIGet  = 11 // NETDEV_CMD_NAPI_GET
		attrIfindex = 1  // NETDEV_A_NAPI_IFINDEX
		attrPID     = 4  // NETDEV_A_NAPI_PID
	)
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return nil, fmt.Errorf("threads that poll: %w", err)
	}
	// The parts of this family's dump are not marked as such: the netlink package's own
	// requests end with the first one.
	s, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("threads that poll: %w", err)
	}
	defer s.Close()
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	req.AddRawData(append([]byte{cmdNAPIGet, 1, 0, 0}, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(index))).Serialize()...))
	if err := s.Send(req); err != nil {
		return nil, fmt.Errorf("threads that poll: %w", err)
	}
	var pids []int
	for {
		msgs, _, err := s.Receive()
		if err != nil {
			return nil, fmt.Errorf("threads that poll: %w", err)
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				if len(pids) == 0 {
					return nil, errors.New("the kernel tells of no thread that polls")
				}
				return pids, nil
			case unix.NLMSG_ERROR:
				err := unix.Errno(-int32(nl.NativeEndian().Uint32(m.Data)))
				if err == unix.EOPNOTSUPP {
					return nil, &Unavailable{"the kernel does not tell which thread polls a device (Linux 6.8 does)"}
				}
				return nil, fmt.Errorf("threads that poll: %w", err)
			}
			attrs, err := nl.ParseRouteAttr(m.Data[nl.SizeofGenlmsg:])
			if err != nil {
				return nil, fmt.Errorf("threads that poll: %w", err)
			}
			for _, a := range attrs {
				if a.Attr.Type == attrPID {
					pids = append(pids, int(nl.NativeEndian().Uint32(a.Value)))
				}
			}
		}
	}
}
