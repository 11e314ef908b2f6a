// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"context"
	"fmt"
	"time"
)

// Direction is what a switch did with a frame at a port.
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

// Seen is a frame as it was seen at a port.
type Seen struct {
	Time      time.Time
	Port      string // "" if it is of no port
	Direction Direction
	Reason    string // of a drop, as `bascule port show --stats` calls it
	VLAN      uint16 // that the switch takes it for, 0 for none
	Data      []byte // from the Ethernet header on, tags included; maybe not all of it
	Length    int    // bytes that it had
}

// A Source is where captured frames come from.
type Source interface {
	// Next waits for frames. It returns those that there are, in order of
	// time, and how many were missed since the last call because nobody read
	// in time. When ctx ends it returns the frames until then, and after them
	// the error of ctx. The frames' data is good until the next call.
	Next(ctx context.Context) (frames []Seen, missed uint64, err error)

	// Close ends the capture.
	Close() error
}
