// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"io/fs"

	"bascule/datapath"
)

// MaxSampleRate is the maximum sampling rate: one frame in so many.
const MaxSampleRate = 1 << 24

// MaxSampleDrops is the maximum number of dropped frames that a CPU reports in a second.
const MaxSampleDrops = uint32(datapath.SampleLog) / 2

// SampleOptions choose which frames are sampled.
type SampleOptions struct {
	Rate  uint32 // one frame in so many, 1 to MaxSampleRate
	Drops uint32 // dropped frames that each CPU reports in a second, 0 to MaxSampleDrops
}

// A SampledFrame is a sampled frame. Its ports are identified by the index of their device or, for
// a patch port, by PatchIndex plus the number of the cable's end.
type SampledFrame struct {
	In, Out uint32 // ports by which it enters and leaves; 0 if there is none, or it has been removed
	Flood   bool   // it leaves by several ports
	Reason  string // why it is dropped; "" with neither Out nor Flood: it is for the switch
	VLAN    uint16 // its VLAN; 0 for none
	Length  int    // bytes of the frame
	Data    []byte // its first bytes, with its tags
}

// PatchIndex is above all indexes of devices. The indexes of patch ports begin there.
const PatchIndex = 0xf00000

// Sampled has the samples of an interval.
type Sampled struct {
	Flows, Drops []SampledFrame // frames that entered; frames that were dropped
	Missed       uint64         // samples of flows that were lost because they came too fast
}

// A Sampler reads samples of a bridge's frames.
type Sampler struct {
	s     *Switch
	name  string
	b     *datapath.Bridge
	log   *datapath.Samples
	stop  func() error
	ports map[uint32]*sampledPort // by id, including ports that have left
}

type sampledPort struct {
	index uint32
	port  datapath.Port
	base  datapath.Stats // at the start of sampling
}

// Sample samples frames of a bridge until the sampler is closed, or its process ends. A bridge has
// one sampler at a time. Frames never wait for it. The error is a *[UsageError] if an option is out
// of range.
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

// errOtherBridge means that a bridge was deleted and added again.
var errOtherBridge = errors.New("it has been made anew")

// adopt reads the bridge's present ports.
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
				if first { // all counts of a port that came later are since it came
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

// Read returns the samples since the last call. The error is an fs.ErrNotExist if the bridge is
// gone.
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

// Counts returns the number of frames that entered by the port with an index since sampling began,
// or since the port was added, and the number of all frames dropped there.
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

// Close stops sampling.
func (m *Sampler) Close() error {
	if m.log != nil {
		m.log.Close()
	}
	return m.stop()
}
