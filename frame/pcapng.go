// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Pcapng writes frames as a pcapng file (draft-ietf-opsawg-pcapng). Its first interface
// is the bridge, for data that concerns no port; every port is an interface from its
// first frame on. The flags and the comment of a frame describe what the switch did
// with it.
type Pcapng struct {
	w       *pcapgo.NgWriter
	bridge  pcapgo.NgInterface
	ports   map[string]int // interfaces
	frames  uint64
	missed  uint64
	started time.Time
}

// NewPcapng begins a file of a bridge's frames, which were chosen by expression, and of
// which snaplen bytes are kept. A reader of a pipe gets the beginning at once.
func NewPcapng(w io.Writer, bridge, expression string, snaplen int) (*Pcapng, error) {
	p := &Pcapng{ports: map[string]int{}, started: time.Now()}
	p.bridge = pcapgo.NgInterface{
		Name: text(bridge), Description: "bridge " + text(bridge), Filter: text(expression),
		OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet, SnapLength: uint32(snaplen),
	}
	section := pcapgo.NgSectionInfo{Application: "bascule", OS: runtime.GOOS, Hardware: runtime.GOARCH}
	var err error
	p.w, err = pcapgo.NewNgWriterInterface(w, p.bridge, pcapgo.NgWriterOptions{SectionInfo: section})
	if err != nil {
		return nil, err
	}
	return p, p.w.Flush()
}

// Write adds frames, and the number of frames missed before them, and flushes them.
func (p *Pcapng) Write(frames []Seen, missed uint64) error {
	for _, f := range frames {
		if err := p.add(f); err != nil {
			return err
		}
	}
	if missed > 0 {
		p.missed += missed
		if err := p.statistics(); err != nil {
			return err
		}
	}
	return p.w.Flush()
}

// Close ends the file with its statistics. It does not close the underlying writer.
func (p *Pcapng) Close() error {
	if err := p.statistics(); err != nil {
		return err
	}
	return p.w.Flush()
}

func (p *Pcapng) add(f Seen) error {
	port, err := p.port(f.Port)
	if err != nil {
		return err
	}
	flags := pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
	var options pcapgo.NgPacketOptions
	options.Flags = &flags
	switch f.Direction {
	case Out:
		flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
		options.Comments = []string{"out by " + text(f.Port)}
	case Dropped:
		options.Comments = []string{"dropped: " + text(f.Reason)}
	}
	p.frames++
	return p.w.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: f.Time, InterfaceIndex: port, CaptureLength: len(f.Data), Length: max(f.Length, len(f.Data)),
	}, f.Data, options)
}

// port returns the interface of a port.
func (p *Pcapng) port(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	if id, ok := p.ports[name]; ok {
		return id, nil
	}
	port := p.bridge
	port.Name = text(name)
	port.Description = fmt.Sprintf("port %s of %s", port.Name, p.bridge.Description)
	id, err := p.w.AddInterface(port)
	if err == nil {
		p.ports[name] = id
	}
	return id, err
}

// statistics writes the numbers of frames that were seen and missed so far. They belong
// to the bridge: missed frames may be from any port.
func (p *Pcapng) statistics() error {
	now := time.Now()
	return p.w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{
		LastUpdate: now, StartTime: p.started, EndTime: now, PacketsReceived: p.frames + p.missed, PacketsDropped: p.missed,
	})
}

// text returns a name in the format's form: UTF-8, and shorter than the longest
// possible option. Names of devices may be neither.
func text(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), 4096)], "\ufffd")
}
