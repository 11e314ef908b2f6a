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

// ReceiveOn makes one CPU process all frames that arrive at an interface. Otherwise the sender's
// CPU processes them, on a cable between namespaces.
//
// A device that polls (NAPI), such as a veth with GRO or an XDP program, gets kernel threads that
// are pinned to the CPU and run its XDP program. The frames of other devices are steered to the CPU
// (RPS). See napi.rst and scaling.rst in the kernel's Documentation/networking.
//
// Offloads and XDP programs have to be set before: a device that starts polling loses this setting.
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
		// Polled frames are on the right CPU already.
		steered = "0"
	case !errors.Is(err, unix.EOPNOTSUPP): // the error for a device that does not poll
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

// cpuMask returns a set of one CPU in sysfs format: 32-bit numbers, the last CPUs first.
func cpuMask(cpu int) string {
	return fmt.Sprintf("%x", 1<<(cpu%32)) + strings.Repeat(",00000000", cpu/32)
}

// pinThreads pins a device's polling threads to a CPU, with priority over programs, like soft
// interrupts.
func pinThreads(index, cpu int) error {
	threads, err := pollThreads(index)
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, pid := range threads {
		// In a container the number may belong to another process.
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

// pollThreads returns the threads that poll a device, from the kernel's netdev netlink family
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
	// The messages of this family's dump lack the multipart flag: the netlink package's own
	// requests would end with the first one.
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
