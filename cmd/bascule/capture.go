// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"bascule/answer"
	"bascule/bridge"
	"bascule/files"
	"bascule/frame"

	"github.com/spf13/cobra"
)

func newCapture(p *program) *cobra.Command {
	var o bridge.CaptureOptions
	file := word{name: "FILE"}
	buffer := size{bytes: bridge.DefaultCaptureBuffer, least: bridge.MinCaptureBuffer, most: bridge.MaxCaptureBuffer}
	var count int
	cmd := &cobra.Command{
		Use:   "capture BRIDGE [EXPRESSION ...]",
		Short: "show frames in, out and dropped",
		Long: `Show the frames that a bridge takes in, sends out and drops, one per line, until
interrupted (Ctrl-C): the time, the port, what was done with the frame or why it
was dropped, its VLAN, addresses and protocols. With -j, each line is a JSON
object. With -w, the frames are written as pcapng, which Wireshark and tcpdump
read: every port is an interface; what was done is in the frame's comment and
direction.

EXPRESSION chooses frames in the language of tcpdump, see pcap-filter(7). The
kernel evaluates it on the bytes that are kept of the frame. It needs libpcap
(Debian's package libpcap0.8).

A frame that is forwarded is shown as it came in, and as it leaves by each port.
A frame that is refused is shown once for every drop that is counted. A bridge
has one capture at a time. While it runs, the bridge's frames cost more: ports
on the hook xdp leave all of them to tcx. A port that comes and goes before one
of its frames was read is shown by its number, as "port 3".

The last line, on standard error, says how many frames were captured, and how
many were missed because they came faster than they were read. There is no such
line if the reader of standard output ends first, as head does.`,
		Example: `  #! run: switch br0 veth0 veth1
  #! ended bascule capture: send veth0; test -s $out
  #! not run bascule capture br0 -w - vlan: it takes wireshark
  #! not run bascule capture br0 --count: it takes a thousand frames
  #! ended bascule capture br0 --dropped: bascule fdb flush br0; bascule port set br0 veth0 --locked --learn=off; send veth0; test -s $out
  bascule capture br0
  bascule capture br0 --dropped not arp
  bascule capture br0 -w - vlan 10 and tcp port 443 | wireshark -k -i -
  bascule capture br0 -w - --port veth0 | tcpdump -n -r -
  bascule capture br0 --count 1000 -w frames.pcapng`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Snaplen < frame.MinSnaplen || o.Snaplen > frame.MaxSnaplen {
				return usagef(cmd, "--snaplen %d: give %d to %d", o.Snaplen, frame.MinSnaplen, frame.MaxSnaplen)
			}
			if cmd.Flags().Changed("count") && count < 1 {
				return usagef(cmd, "--count %d: give at least 1", count)
			}
			if p.json && file.text != "" {
				return usagef(cmd, "--json and --write: give one of them")
			}
			if file.text == "-" && isTerminal(p.stdout) {
				return usagef(cmd, "--write -: standard output is a terminal, which cannot show pcapng")
			}
			expression := strings.Join(args[1:], " ")
			var err error
			o.Filter, err = frame.Compile(expression, o.Snaplen)
			if syntax := new(frame.SyntaxError); errors.As(err, &syntax) {
				return usagef(cmd, "%s", syntax)
			}
			if err != nil {
				return err
			}
			o.Buffer = buffer.bytes

			ctx, stop := p.untilInterrupted(cmd.Context())
			defer stop()
			return p.with(func(s switcher) error {
				var source frame.Source
				err := begin(ctx, func() (err error) {
					source, err = s.Capture(ctx, args[0], o)
					return err
				})
				if err != nil {
					return err
				}
				defer source.Close() // only the capture's result matters
				w, err := p.frameWriter(ctx, file.text, args[0], expression, o.Snaplen)
				if err != nil {
					return err
				}
				return p.capture(ctx, source, w, args[0], count)
			})
		},
	}
	f := cmd.Flags()
	f.VarP(&file, "write", "w", "write the frames as pcapng to this file, - for standard output")
	f.IntVar(&count, "count", 0, "stop after `N` frames")
	f.StringArrayVar(&o.Ports, "port", nil, "show only frames at this `PORT`; may be given several times")
	f.BoolVar(&o.Dropped, "dropped", false, "show only dropped frames")
	f.IntVar(&o.Snaplen, "snaplen", frame.MaxSnaplen, fmt.Sprintf("keep `N` bytes of each frame, %d to %d", frame.MinSnaplen, frame.MaxSnaplen))
	p.addForce(cmd)
	f.Var(&buffer, "buffer", fmt.Sprintf("buffer frames that have not been read yet, in bytes, or with K, M or G: %s to %s",
		inBytes(buffer.least), inBytes(buffer.most)))
	completeFlag(cmd, "port", p.portNames)
	return cmd
}

// A frameWriter writes captured frames.
type frameWriter interface {
	// Write writes frames, after the number of frames that were missed before them.
	Write(frames []frame.Seen, missed uint64) error
	// Close completes the output.
	Close() error
}

// frameWriter returns a writer to the file of -w, or to standard output.
func (p *program) frameWriter(ctx context.Context, file, bridge, expression string, snaplen int) (frameWriter, error) {
	switch file {
	case "":
		return lines{p, bridge}, nil
	case "-":
		return frame.NewPcapng(frames{p}, bridge, expression, snaplen)
	}
	f, err := files.Create(file, os.O_TRUNC)
	if err != nil {
		return nil, fileError(file, err)
	}
	w, err := frame.NewPcapng(untilStuck(ctx, file, f), bridge, expression, snaplen)
	if err != nil {
		f.Close()
		return nil, fileError(file, err)
	}
	return frameFile{w, f}, nil
}

// capture writes frames from source until ctx ends, count frames are written (0 means no limit), or the reader has
// closed the output. Frames that the reader does not take after an interruption are missed.
func (p *program) capture(ctx context.Context, source frame.Source, w frameWriter, bridge string, count int) error {
	captured, missed := 0, uint64(0)
	var err, stuck error
	for err == nil && (count == 0 || captured < count) {
		var frames []frame.Seen
		var more uint64
		frames, more, err = source.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = nil // the normal end
			}
			break
		}
		if count > 0 {
			frames = frames[:min(len(frames), count-captured)]
		}
		missed += more
		if stuck == nil {
			err = w.Write(frames, more)
		}
		if errors.Is(err, errStuck) {
			stuck, err = err, nil
		}
		if stuck == nil {
			captured += len(frames)
		} else {
			missed += uint64(len(frames))
		}
	}
	if cerr := w.Close(); err == nil && stuck == nil {
		err = cerr
	}
	if errors.Is(err, syscall.EPIPE) {
		if ctx.Err() == nil {
			return nil // the reader has closed the pipe
		}
		err = nil // the same Ctrl-C has ended it
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil && isTerminal(p.stderr) {
		fmt.Fprintln(p.stderr) // after the terminal's ^C
	}
	remedy := ""
	if missed > 0 && stuck == nil {
		remedy = "; give an expression, or more --buffer"
	}
	frames := "frames"
	if captured == 1 {
		frames = "frame"
	}
	p.complain(fmt.Sprintf("%s: %d %s captured, %d missed%s", bridge, captured, frames, missed, remedy))
	return stuck
}

// lines prints frames as text or JSON.
type lines struct {
	p      *program
	bridge string
}

func (l lines) Write(frames []frame.Seen, _ uint64) error {
	for _, f := range frames {
		var err error
		if l.p.json {
			err = l.p.printJSON(answer.OfFrame(l.bridge, f))
		} else {
			_, err = fmt.Fprintln(l.p.out, f)
		}
		if err != nil {
			return err
		}
	}
	return l.p.out.Flush() // the reader wants each line at once
}

func (l lines) Close() error { return nil }

// frames is standard output for files of frames: binary data, flushed after each write.
type frames struct{ *program }

func (p frames) Write(b []byte) (int, error) {
	p.text.raw = true
	n, err := p.out.Write(b)
	if err == nil {
		err = p.out.Flush()
	}
	return n, err
}

// frameFile is a file of frames.
type frameFile struct {
	frames *frame.Pcapng
	file   *os.File
}

func (f frameFile) Write(frames []frame.Seen, missed uint64) error {
	return fileError(f.file.Name(), f.frames.Write(frames, missed))
}

func (f frameFile) Close() error {
	err := f.frames.Close()
	if cerr := f.file.Close(); err == nil {
		err = cerr
	}
	return fileError(f.file.Name(), err)
}

// fileCause returns a file's error without the failed call: "NAME: why".
func fileCause(err error) error {
	if path := new(os.PathError); errors.As(err, &path) {
		return fmt.Errorf("%s: %w", path.Path, path.Err)
	}
	return err
}

func fileError(name string, err error) error {
	if path := new(os.PathError); errors.As(err, &path) {
		return fmt.Errorf("cannot write %s: %w; see where -w goes", name, path.Err)
	}
	return err
}
