// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"io/fs"

	"bascule/datapath"
)

// MaxSampleRate is the largest number of frames of which one is sampled.
const MaxSampleRate = 1 << 24

// MaxSampleDrops is how many dropped frames a CPU tells of in a second, at most.
const MaxSampleDrops = uint32(datapath.SampleLog) / 2

// SampleOptions choose what is sampled.
type SampleOptions struct {
	Rate  uint32 // one frame of so many, 1 to MaxSampleRate
	Drops uint32 // dropped frames that each CPU tells of in a second, 0 to MaxSampleDrops
}

// A SampledFrame is a frame that was sampled. Its ports are by index: that of the port's
// device, or, for a patch port, PatchIndex and the number of the cable's end.
type SampledFrame struct {
	In, Out uint32 // ports that it came in and leaves by; 0 where there is none, or it has left
	Flood   bool   // it leaves by several
	Reason  string // why it goes nowhere; "" with neither Out nor Flood: it is for the switch
	VLAN    uint16 // that it is in; 0 for none
	Length  int    // bytes of the frame
	Data    []byte // its first bytes, with its tags
}

// PatchIndex is above the index of any device that hosts make; patch ports have theirs from
// there.
const PatchIndex = 0xf00000

// Sampled has the samples of a while.
type Sampled struct {
	Flows, Drops []SampledFrame // frames that came in; frames that were dropped
	Missed       uint64         // samples of flows that came faster than they were read
}

// A Sampler reads samples of a bridge's frames.
type Sampler struct {
	s     *Switch
	name  string
	b     *datapath.Bridge
	log   *datapath.Samples
	stop  func() error
	ports map[uint32]*sampledPort // by id, also of those that have left
}

type sampledPort struct {
	index uint32
	port  datapath.Port
	base  datapath.Stats // when sampling began
}

// Sample has frames of a bridge sampled until the sampler is closed, or its process ends. A
// bridge has one sampler at a time. Nothing waits for it. The error is a *[UsageError] where
// an option is out of range.
func (s *Switch) Sample(bridge string, o SampleOptions) (*Sampler, error) {
	if o.Rate < 1 || o.Rate > MaxSampleRate {
		return nil, usagef(fmt.Sprintf("sampling rate %d", o.Rate), "out of range; give 1 to %d", MaxSampleRate)
	}
	if o.Drops > MaxSampleDrops {
		return nil, usagef(fmt.Sprintf("%d sampled drops a second", o.Drops), "out of range; give 0 to %d", MaxSampleDrops)
	}
	stop, err := s.hold("sample the frames of bridge "+bridge, bridge, datapath.WatchSample, func(c *draft) error {
		c.next.SampleRate, c.next.SampleDrops = o.Rate, o.Drops
		return nil
	})
	if err != nil {
		return nil, err
	}
	m := &Sampler{s: s, name: bridge, stop: stop, ports: map[uint32]*sampledPort{}}
	if err := m.adopt(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// errOtherBridge says that a bridge was deleted and made anew.
var errOtherBridge = errors.New("it has been made anew")

// adopt learns the bridge's ports as they are now.
func (m *Sampler) adopt() error {
	return m.s.each("sample the frames of bridge "+m.name, m.name, func(name string, b *datapath.Bridge) error {
		first := m.b == nil
		if !first && m.b.Config.HashSeed != b.Config.HashSeed {
			return errOtherBridge
		}
		if m.log == nil {
			log, err := b.OpenSamples()
			if err != nil {
				return err
			}
			m.log = log
		}
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		for _, p := range v.ports {
			known := m.ports[p.Id]
			if known == nil {
				known = &sampledPort{}
				if first { // what a later one has counted, it has counted since it came
					if known.base, err = b.PortStats(p); err != nil {
						return err
					}
				}
				m.ports[p.Id] = known
			}
			known.port = *p
			switch l := v.links[p.Id]; {
			case p.Facts&datapath.PortPatch != 0:
				known.index = PatchIndex + p.Endpoint
			case l != nil:
				known.index = uint32(l.Attrs().Index)
			}
		}
		m.b = b
		return nil
	})
}

// Read returns what was sampled since the last call. The error is one of fs.ErrNotExist
// where the bridge has gone.
func (m *Sampler) Read() (d Sampled, err error) {
	if !m.b.Current() {
		if err := m.adopt(); err != nil {
			if errors.Is(err, errNoBridge) || errors.Is(err, errOtherBridge) {
				return d, fs.ErrNotExist
			}
			return d, err
		}
	}
	flows, missed := m.log.Read(datapath.SampleFlow)
	drops, _ := m.log.Read(datapath.SampleDrop)
	slots := map[uint32]uint32{}
	if len(flows) > 0 {
		for _, p := range datapath.Ports(&m.b.Config) {
			slots[datapath.Slot(p.Id)] = p.Id
		}
	}
	index := func(id uint32) uint32 {
		if p := m.ports[id]; p != nil {
			return p.index
		}
		return 0
	}
	reasons := datapath.Reasons()
	frame := func(f datapath.Sample) SampledFrame {
		out := SampledFrame{In: index(f.Port), Flood: f.Flood, VLAN: f.VLAN, Length: f.Length, Data: f.Data}
		if f.Out != 0 {
			out.Out = index(slots[f.Out])
		}
		if int(f.Reason) < len(reasons) && f.Reason != 0 {
			out.Reason = reasons[f.Reason]
		}
		return out
	}
	for _, f := range flows {
		d.Flows = append(d.Flows, frame(f))
	}
	for _, f := range drops {
		d.Drops = append(d.Drops, frame(f))
	}
	d.Missed = missed
	return d, nil
}

// Counts returns how many frames have come in by the port of an index since sampling began,
// or since the port came, and how many of all were dropped there.
func (m *Sampler) Counts(index uint32) (frames, drops uint64, err error) {
	for id, p := range m.ports {
		if p.index != index || index == 0 {
			continue
		}
		now, err := m.b.PortStats(&p.port)
		if err != nil {
			return 0, 0, fmt.Errorf("read the counters of port %d: %w", id, err)
		}
		frames += now.RxFrames - p.base.RxFrames
		for i := range now.Drops {
			drops += now.Drops[i] - p.base.Drops[i]
		}
	}
	return frames, drops, nil
}

// Close ends the sampling.
func (m *Sampler) Close() error {
	if m.log != nil {
		m.log.Close()
	}
	return m.stop()
}
