// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestNameFor(t *testing.T) {
	if want := fmt.Sprintf("bsc-lab-%d-x", os.Getpid()); NameFor("x") != want {
		t.Errorf("NameFor(x) = %q, want %q", NameFor("x"), want)
	}
}

func TestFrame(t *testing.T) {
	mac, addr := Number(258)
	from := End{MAC: mac, Addr: addr}
	f := Frame(64, from, Broadcast, NoStation)
	if len(f) != 60 {
		t.Fatalf("a frame of 64 bytes has %d without its checksum, want 60", len(f))
	}
	if got := addr.String(); got != "198.18.1.2/15" {
		t.Errorf("station 258 has address %s", got)
	}
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if sum != 0xffff {
		t.Errorf("the IPv4 header's checksum is wrong: it sums up to %#x", sum)
	}
	if n := binary.BigEndian.Uint16(f[16:]); n != 46 {
		t.Errorf("the IPv4 packet says it has %d bytes, want 46", n)
	}
}

func TestListensIn(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 020012C6:2B67 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 19107 1 0000 100 0 0 10 0
   1: 020012C6:1451 010012C6:D2F0 01 00000000:00000000 00:00000000 00000000     0        0 19108 1 0000 20 4 30 10 -1
`
	for port, want := range map[int]bool{11111: true, 5201: false, 80: false} {
		if got := listensIn(table, Listen{"tcp", port}); got != want {
			t.Errorf("port %d: %v, want %v", port, got, want)
		}
	}
}

// TestServerEnds checks that a server reports its end, and the reason if it ended by itself.
func TestServerEnds(t *testing.T) {
	for command, want := range map[string]string{
		"echo no port >&2; exit 3": "sh in e2 has ended: exit status 3: no port",
		"echo up; kill -9 $$":      "sh in e2 has ended: signal: killed",
	} {
		s := &server{cmd: Command(t.Context(), "sh", "-c", command), done: make(chan struct{}), where: "sh in e2"}
		s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
		if err := s.Ended(t.Context(), 0); err != nil {
			t.Errorf("%s: %v before it ran", command, err)
		}
		_ = s.cmd.Run()
		close(s.done)
		if err := s.Ended(t.Context(), 0); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", command, err, want)
		}
	}
}

// TestLargeFrame checks that the header of a large frame has the data for its segmentation.
func TestLargeFrame(t *testing.T) {
	mac, addr := Number(1)
	from := End{MAC: mac, Addr: addr}
	const payload = 64000
	f := LargeFrame(payload, from, Broadcast, NoStation)
	if len(f) != 10+14+20+32+payload {
		t.Fatalf("it has %d bytes", len(f))
	}
	head, packet := f[:10], f[10:]
	number := func(at int) int { return int(binary.NativeEndian.Uint16(head[at:])) }
	if head[0] != 1 || head[1] != 1 || number(2) != 66 || number(4) != 1448 || number(6) != 34 || number(8) != 16 {
		t.Errorf("the header before it is % x", head)
	}
	if sum := sum16(packet[14:34], 0); sum != 0xffff {
		t.Errorf("the IPv4 header's checksum is wrong: it sums up to %#x", sum)
	}
	if n := binary.BigEndian.Uint16(packet[16:]); packet[23] != 6 || int(n) != 20+32+payload {
		t.Errorf("it is of protocol %d and %d bytes", packet[23], n)
	}
	if offset := packet[34+12] >> 4; offset != 8 {
		t.Errorf("TCP's header has %d words", offset)
	}
}

// TestLateOutput checks that a program's output is read to its end, even if the machine stalls
// after the program has ended. A child that writes three seconds later simulates the stall.
func TestLateOutput(t *testing.T) {
	out, err := Command(t.Context(), "sh", "-c", "{ sleep 3; echo late; } & echo early").Output()
	if want := "early\nlate\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

// TestStarted checks that a program survives the end of the thread that requested its start.
func TestStarted(t *testing.T) {
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for place, start := range map[string]func(Cmd) error{
		"here":           Cmd.Start,
		"in a namespace": func(c Cmd) error { return (&Namespace{Name: "own", handle: own}).Start(c, AnyCPU) },
	} {
		cmd := Command(t.Context(), "cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := onEndingThread(func() error { return start(cmd) }); err != nil {
			t.Fatalf("%s: %v", place, err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", place, err)
		}
	}
}

// onEndingThread runs fn on a thread, and returns when the thread has ended.
func onEndingThread(fn func() error) error {
	result, thread := make(chan error, 1), make(chan int, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if unix.Gettid() == os.Getpid() {
			result <- onEndingThread(fn) // the first thread does not end
			thread <- 0
			return
		}
		result <- fn()
		thread <- unix.Gettid()
	}()
	for id := <-thread; id != 0 && unix.Tgkill(os.Getpid(), id, 0) == nil; {
		time.Sleep(time.Millisecond)
	}
	return <-result
}

// TestCPUMask checks that a set of one CPU has the format of the kernel's bitmap_parse().
func TestCPUMask(t *testing.T) {
	for cpu, want := range map[int]string{0: "1", 1: "2", 31: "80000000", 32: "1,00000000", 70: "40,00000000,00000000"} {
		if got := cpuMask(cpu); got != want {
			t.Errorf("CPU %d: %s, want %s", cpu, got, want)
		}
	}
}
