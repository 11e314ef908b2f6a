// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestNames checks that a workload's name can be parsed back to the workload.
func TestNames(t *testing.T) {
	for text, want := range map[string]string{
		"tcp-stream":                          "tcp-stream",
		"tcp-stream:duration=9s":              "tcp-stream",
		"tcp-stream:offloads:streams=4":       "tcp-stream:streams=4:offloads",
		"tcp-stream:offloads=false:streams=1": "tcp-stream",
		"tcp-stream:pin=false:reverse=true":   "tcp-stream:reverse:pin=false",
		"netperf-stream:streams=1":            "netperf-stream",
		"iperf-3streams:streams=1":            "iperf-3streams:streams=1",
		"latency:load=udp:udp":                "latency:udp:load=udp",
		"pps:size=imix:generator=ring":        "pps:size=imix:generator=ring",
		"uperf:response=65536:request=1":      "uperf:request=1:response=65536",
		"crr:pin=false:duration=3s":           "crr:pin=false",
		"throughput-search:loss=0.50":         "throughput-search:loss=0.5",
		"pps:same-source:cores=2":             "pps:cores=2:same-source",
		"learning:rate=0:duration=20ms":       "learning:rate=0",
		"fdb-memory:count=1000000":            "fdb-memory",
		"pps:connections=9:cores=2":           "pps:cores=2:connections=9",
		"pf-load:rules=10000":                 "pf-load",
		"pf-memory:count=99":                  "pf-memory:count=99",
		"tcp-stream:offloads:mebibytes=64":    "tcp-stream:offloads",
		"netperf-stream:own-core:reverse":     "netperf-stream:reverse:own-core",
	} {
		w, err := Parse(text)
		if err != nil {
			t.Errorf("Parse(%q): %v", text, err)
			continue
		}
		if w.Name != want {
			t.Errorf("Parse(%q) is called %q, want %q", text, w.Name, want)
		}
		if again, err := Parse(w.Name); err != nil || again.Name != w.Name || again.About != w.About {
			t.Errorf("Parse(%q) is not what was called so: %+v, error %v", w.Name, again, err)
		}
	}
}

// TestKinds checks that every kind has valid defaults and a description.
func TestKinds(t *testing.T) {
	for _, k := range Kinds {
		w, err := Parse(k.Name)
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		if w.Name != k.Name || w.About == "" || w.Unit == "" || w.Takes <= 0 || w.Start == nil || w.Spec.Ends < 2 {
			t.Errorf("%s: %+v", k.Name, w)
		}
		for _, p := range k.Params() {
			if p.About == "" {
				t.Errorf("%s: parameter %s says nothing of itself", k.Name, p.Name)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 `unknown workload ""`,
		"tcp":                              `unknown workload "tcp"`,
		"pps:coers=2":                      `unknown parameter of pps "coers"`,
		"pps:cores=65":                     "cores must be 1 to 64",
		"pps:connections=0":                "connections must be 1 to 4000000",
		"pf-load:rules=9":                  "rules must be 10 to 50000",
		"pf-memory:count=4000001":          "count must be 1 to 4000000",
		"pps:same-source":                  "same-source is for cores=2",
		"pps:size=1519":                    "size must be 64 to 1518, or imix",
		"pps:generator=packets":            "generator must be auto, bpf or ring",
		"throughput-search:loss=-1":        "loss must be 0 or more",
		"learning-rate:addresses=9":        "addresses must be 1000 to",
		"address-capacity:max=9":           "max must be 100 to",
		"crr:request=0":                    "request and response must be 1 to 65536",
		"uperf:connections=257":            "connections must be 1 to 256",
		"uperf:duration=1ms":               "duration must be 10ms or more",
		"many-flows:flows=0":               "flows must be 1 to 1000000",
		"first-packets:duration=0s":        "duration must be more than 0",
		"pps:cores=two":                    "workload pps: cores=two: give a number",
		"pps:cores":                        "cores=: give a number",
		"tcp-stream:streams=0":             "streams must be 1 to 128",
		"tcp-stream:duration=1500ms":       "give whole seconds",
		"tcp-stream:own-core:pin=false":    "own-core says where the ends run",
		"tcp-stream:mss=9":                 "mss must be 88 to 32767",
		"udp:rate=fast":                    "give bits a second",
		"latency:load=icmp":                "load must be none, tcp or udp",
		"latency:size=13":                  "size must be 14 to 65507",
		"udp:size=15":                      "size must be 16 to 65507",
		"flood:ports=0":                    "ports must be 1 to 512",
		"flood:ports=99999999999999999999": "ports=99999999999999999999: the number is too large",
		"pps:same-source=2":                "same-source=2: give true or false",
		"pps:duration=2":                   "duration=2: give a duration such as 2s",
		"pps:duration=13h":                 "duration must be more than 0, and 12h0m0s at most",
		"tcp-stream:duration=13h":          "duration must be 12h0m0s at most",
		"throughput-search:loss=few":       "loss=few: give a number",
		"addresses:count=4294967297":       "count must be 1 to 10000000",
		"fdb-memory:count=10000001":        "count must be 1 to 10000000",
		"learning:rate=500001":             "rate must be 0 or more, and at most 500000",
		"learning:duration=10s":            "at most 500000 addresses in all of duration",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q): error %v, want one that says %q", text, err, want)
		}
		var unknown *UnknownError
		if strings.HasPrefix(want, "unknown") && (!errors.As(err, &unknown) || len(unknown.Known) == 0) {
			t.Errorf("Parse(%q): %v tells nothing that is known", text, err)
		}
	}
}

// TestBrief checks that a brief round has an amount if the kind supports it, and otherwise a
// duration, and that the workload keeps its name.
func TestBrief(t *testing.T) {
	for text, want := range map[string]string{
		"tcp-stream:streams=4:offloads": "tcp-stream:streams=4:offloads:mebibytes=64",
		"netperf-stream":                "netperf-stream:mebibytes=64",
		"uperf:connections=64":          "uperf:connections=64:duration=50ms",
	} {
		got := Brief(text, 64, "50ms")
		w, err := Parse(got)
		if got != want || err != nil || w.Name != text || w.Takes > time.Second {
			t.Errorf("%s: %s, error %v, want %s: %+v", text, got, err, want, w)
		}
	}
	if _, err := Parse("tcp-stream:mebibytes=-1"); err == nil {
		t.Error("less than nothing is an amount")
	}
}
