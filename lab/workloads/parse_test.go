// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func iperfOf(t *testing.T, text string) iperfReport {
	t.Helper()
	var r iperfReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestIperfTCP(t *testing.T) {
	r := iperfOf(t, read(t, "iperf3-tcp.json"))
	s, err := r.tcp()
	if err != nil {
		t.Fatal(err)
	}
	// sum_received.bits_per_second in the file.
	if want := 42720614547.99162 / 1e9; s.Value != want {
		t.Errorf("%v Gbit/s, want %v", s.Value, want)
	}
	if want := float64(5357699072); r.payload() != want {
		t.Errorf("%v bytes received, want %v", r.payload(), want)
	}
	if _, ok := s.More["retransmits"]; !ok {
		t.Error("no retransmits")
	}
	r.End.Congestion = "bbr"
	if _, err := r.tcp(); err == nil {
		t.Error("a transfer with another congestion control was taken")
	}
	if _, err := (iperfReport{}).tcp(); err == nil {
		t.Error("an empty report gave a sample")
	}
}

// TestIperfReverse checks that the client is the receiver of a reverse transfer.
func TestIperfReverse(t *testing.T) {
	r := iperfOf(t, read(t, "iperf3-reverse.json"))
	s, err := r.tcp()
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes != r.End.Received.Bytes || s.Bytes == 0 {
		t.Errorf("%v bytes, want %v", s.Bytes, r.End.Received.Bytes)
	}
	if got, want := s.More["sender_cpu_percent"], r.End.CPU.Remote; got != want {
		t.Errorf("the sender's CPU is %v, want the server's, %v", got, want)
	}
	if len(s.Intervals) != 10 {
		t.Errorf("%d intervals of a second in tenths", len(s.Intervals))
	}
	var sum float64
	for _, v := range s.Intervals {
		sum += v / 10
	}
	if sum < 0.9*s.Value || sum > 1.1*s.Value {
		t.Errorf("intervals of %v on average, the whole is %v", sum, s.Value)
	}
	// The remainder at the end is not an interval.
	rest := r.Intervals[9]
	rest.Sum.Seconds = 0.01
	r.Intervals = append(r.Intervals, rest)
	if s, err := r.tcp(); err != nil || len(s.Intervals) != 10 {
		t.Errorf("%d intervals with a short one at the end, error %v", len(s.Intervals), err)
	}
}

func TestIperfBusy(t *testing.T) {
	for text, want := range map[string]bool{
		`{"error":"the server is busy running a test. try again later"}`: true,
		`{"error":"unable to connect to server: Connection refused"}`:    true,
		`{"error":"unable to connect to server: Connection timed out"}`:  false,
		// errors of iperf3 3.12 for a server that closed its listening socket
		`{"start":{"connected":[]},"intervals":[],"error":"unable to receive control message: Connection reset by peer"}`: true,
		`{"start":{"connected":[]},"error":"unable to send cookie to server: Broken pipe"}`:                               true,
		`{"error":"unable to connect to server: Connection reset by peer"}`:                                               true,
		`{"start":{"connected":[{"socket":5}]},"error":"unable to receive control message: Connection reset by peer"}`:    false,
		`{}`: false,
	} {
		if got := iperfOf(t, text).busy(); got != want {
			t.Errorf("%s: busy is %v", text, got)
		}
	}
}

func TestIperfUDP(t *testing.T) {
	r := iperfOf(t, read(t, "iperf3-udp.json"))
	s, err := r.udp()
	if err != nil {
		t.Fatal(err)
	}
	sum := r.End.Sum
	if sum.Packets == 0 || sum.Lost == 0 {
		t.Fatal("the file has no datagrams, or none lost")
	}
	if want := (sum.Packets - sum.Lost) / sum.Seconds / 1000; s.Value != want {
		t.Errorf("%v k/s, want %v", s.Value, want)
	}
	if want := sum.Packets - sum.Lost; s.Frames != want || s.Bytes != r.payload() {
		t.Errorf("%v frames of %v bytes arrived, want %v of %v", s.Frames, s.Bytes, want, r.payload())
	}
	if want := 64 * (sum.Packets - sum.Lost); r.payload() < want*0.999 || r.payload() > want*1.001 {
		t.Errorf("%v bytes received, want %v", r.payload(), want)
	}
	if _, err := (iperfReport{}).udp(); err == nil {
		t.Error("an empty report gave a sample")
	}
}

func TestSockperf(t *testing.T) {
	s, err := parseSockperf(read(t, "sockperf.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Value != 27.590 {
		t.Errorf("mean %v, want 27.590", s.Value)
	}
	want := map[string]float64{"p99.999_us": 839.260, "p99.99_us": 436.302, "p99.9_us": 49.448, "p99_us": 37.054,
		"p90_us": 29.488, "p75_us": 28.347, "p50_us": 27.485, "p25_us": 26.739, requests: 39861}
	if diff := cmp.Diff(want, s.More); diff != "" {
		t.Errorf("percentiles (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "sockperf: ERROR: could not connect", "Summary: Latency is 27.590 usec", "Summary: Latency is 0.000 usec"} {
		if _, err := parseSockperf(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("parseSockperf(%q): error %v", bad, err)
		}
	}
}

func TestTransactions(t *testing.T) {
	w := transactionParams{request: 10, response: 90}
	s, err := w.sample([]byte(read(t, "traffic.json")))
	if err != nil {
		t.Fatal(err)
	}
	if s.Value != 60000 || s.Bytes != 3_000_000 || len(s.Intervals) != 2 {
		t.Errorf("%v transactions a second, %v bytes, intervals %v", s.Value, s.Bytes, s.Intervals)
	}
	want := map[string]float64{"mean_us": 16.5, "p50_us": 15.1, "p90_us": 20.2, "p99_us": 41.3, "p99.9_us": 99.9}
	if diff := cmp.Diff(want, s.More); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "{}", `{"transactions":1}`} {
		if _, err := w.sample([]byte(bad)); err == nil {
			t.Errorf("%q gave a sample", bad)
		}
	}
}
