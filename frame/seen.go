// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"context"
	"fmt"
	"time"
)

// Direction is a switch's action on a frame at a port.
type Direction uint8

// The directions.
const (
	In      Direction = iota // received
	Out                      // sent
	Dropped                  // received and not forwarded
)

func (d Direction) String() string {
	switch d {
	case In:
		return "in"
	case Out:
		return "out"
	case Dropped:
		return "drop"
	}
	return fmt.Sprintf("direction %d", uint8(d))
}

// Seen is a captured frame, at a port.
type Seen struct {
	Time      time.Time
	Port      string // "" for no port
	Direction Direction
	Reason    string // for a drop, the word of `bascule port show --stats`
	VLAN      uint16 // VLAN in the switch, 0 for none
	Data      []byte // from the Ethernet header on, with tags; may be truncated
	Length    int    // bytes of the whole frame
}

// A Source supplies captured frames.
type Source interface {
	// Next waits for frames. It returns those that are available, in order of time, and
	// how many were missed since the last call because the reader was late. When ctx
	// ends it returns the frames until then, and after them the error of ctx. The
	// frames' data is good until the next call.
	Next(ctx context.Context) (frames []Seen, missed uint64, err error)

	// Close ends the capture.
	Close() error
}
