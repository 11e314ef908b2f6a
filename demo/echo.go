// SPDX-License-Identifier: BSD-2-Clause

package demo

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// patience is the timeout of an answer.
const patience = time.Second

// listen opens a socket for ICMP in a network namespace.
func listen(in netns.NsHandle) (*icmp.PacketConn, error) {
	var socket *icmp.PacketConn
	result := make(chan error)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		err := netns.Set(in)
		if err == nil {
			socket, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		}
		result <- err
	}()
	err := <-result
	return socket, err
}

// echo sends an echo request (RFC 792) and returns the time until its answer.
func echo(ctx context.Context, socket *icmp.PacketConn, to netip.Addr, number int) (time.Duration, error) {
	id := os.Getpid() & 0xffff
	request, err := (&icmp.Message{
		Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: number, Data: make([]byte, 56)},
	}).Marshal(nil)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := socket.SetReadDeadline(begin.Add(patience)); err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err := socket.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return 0, err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := socket.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, errors.New("no answer")
		}
		if err != nil {
			return 0, err
		}
		answer, err := icmp.ParseMessage(ipv4.ICMPTypeEchoReply.Protocol(), buffer[:n])
		if err != nil || answer.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		if body, ok := answer.Body.(*icmp.Echo); ok && body.ID == id && body.Seq == number {
			return time.Since(begin), nil
		}
	}
}
