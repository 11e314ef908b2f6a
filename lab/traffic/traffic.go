// SPDX-License-Identifier: BSD-2-Clause

// Package traffic is requests and responses over TCP: a server that answers,
// and a client that counts transactions and their times. The lab runs both at
// the ends of a fabric, as programs of their own.
//
// A connection begins with a header of three 32-bit numbers in network order:
// the length of each request, the length of each response, and after how many
// transactions the server closes, 0 for never. What follows has no meaning.
package traffic

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Largest is the longest request or response, in bytes.
const Largest = 16 << 20

// header begins a connection.
type header struct {
	Request  uint32
	Response uint32
	Count    uint32
}

const headerSize = 12

func (h header) check() error {
	if h.Request < 1 || h.Request > Largest || h.Response < 1 || h.Response > Largest {
		return fmt.Errorf("requests of %d bytes and responses of %d: give 1 to %d", h.Request, h.Response, Largest)
	}
	return nil
}

// Serve answers the clients of a listener until ctx ends, and closes it. What
// goes wrong with one client ends its connection only.
func Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			defer c.Close()
			// The client sees it and says more of it.
			_ = answer(c)
		})
	}
}

// answer serves a connection until the client closes it.
func answer(c io.ReadWriter) error {
	in := bufio.NewReader(c)
	var h header
	if err := binary.Read(in, binary.BigEndian, &h); err != nil {
		return err
	}
	if err := h.check(); err != nil {
		return err
	}
	response := make([]byte, h.Response)
	for n := uint32(0); h.Count == 0 || n < h.Count; n++ {
		if k, err := io.CopyN(io.Discard, in, int64(h.Request)); err != nil {
			if k == 0 && errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := c.Write(response); err != nil {
			return err
		}
	}
	return nil
}
