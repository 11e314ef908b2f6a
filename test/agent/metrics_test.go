// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// inside is a client of HTTP in a network namespace.
func inside(t testing.TB, ns *ends.Namespace) *http.Client {
	transport := &http.Transport{DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
		err = ns.Do(func() (err error) {
			conn, err = net.Dial(network, addr)
			return err
		})
		return conn, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// get returns what a server answers, or an error.
func get(c *http.Client, url string) (string, error) {
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// TestPrometheus: Debian's Prometheus scrapes an agent and finds nothing wrong with it;
// the alert rules are evaluated, and none of them fires for a switch that is well. The
// series are what the commands say.
func TestPrometheus(t *testing.T) {
	for _, tool := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is missing: run 'make needs'")
		}
	}
	t.Parallel()
	l := netlab.New(t)
	ports := l.NewEnds(3)
	lo, err := l.Switch.Netlink().LinkByName("lo")
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetUp(lo))
	r := newRunner(t, l)
	r.inside = true
	r.start("--metrics", "127.0.0.1:9810", "-f", r.file("br1.yaml", "bridges: {br1: {ports: {}}}\n"))
	l.AddBridge("br0", "tcx", nil, "--vlan-filtering", "--vlan-stats", "--stp", "rstp")
	r.serves(2, "br0") // else a port is warned of
	l.AddPorts("br0", "tcx", ports[:2], "--stp-edge", "on")
	forwarding(l, "br0", 2)
	l.Bascule("vlan", "add", "br0", ports[0].Port, "10", "--untagged", "--pvid")
	l.Bascule("plug", "guest/7", "--bridge", "br0", "--device", ports[2].Port)
	l.Bascule("pfctl", "-q", "-b", "br0", "-e")
	l.Bascule("pfctl", "-q", "-b", "br0", "-f", file(t, "pf.conf", "table <bad> persist { 192.0.2.1 }\nblock label \"else\"\npass proto udp label \"service\"\n"))
	client := inside(t, l.Switch)

	text, err := get(client, "http://127.0.0.1:9810/metrics")
	must(t, err)
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v: %s", err, out)
	}
	l.Send(ports[0], l.Frames(5, netlab.MAC{2, 0, 0, 0, 0, 1}, netlab.MAC{2, 0, 0, 0, 0, 2})...)
	l.Wait("events to be read", func() bool {
		text, err = get(client, "http://127.0.0.1:9810/metrics")
		return err == nil && strings.Contains(text, "\nbascule_agent_events_total{")
	})
	for _, p := range l.Ports("br0") {
		for _, want := range []string{
			fmt.Sprintf("bascule_port_receive_frames_total{bridge=\"br0\",netns=\"\",port=%q} ", p.Ifname),
			fmt.Sprintf("bascule_stp_port_cost{bridge=\"br0\",netns=\"\",port=%q} ", p.Ifname),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("there is no %s", want)
			}
		}
	}
	for _, want := range []string{
		`owner="guest/7",owner_by="plug"`,
		`bascule_vlan_receive_frames_total{bridge="br0",netns="",vlan="10"} `,
		`bascule_pf_label_evaluations_total{bridge="br0",label="service",netns=""} `,
		`bascule_pf_table_addresses{anchor="",bridge="br0",netns="",table="bad"} 1`,
		`bascule_scrape_failed{netns="",part="bridges"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}

	// other rules, of which the agent has kept nothing
	l.Bascule("pfctl", "-q", "-b", "br0", "-f", file(t, "pf.conf", "pass label \"later\"\npass proto udp label \"service\"\n"))
	l.Send(ports[0], l.Frames(5, netlab.MAC{2, 0, 0, 0, 0, 1}, netlab.MAC{2, 0, 0, 0, 0, 2})...)
	again, err := get(client, "http://127.0.0.1:9810/metrics")
	must(t, err)
	if !strings.Contains(again, `{bridge="br0",label="later",netns=""}`) || strings.Contains(again, `label="else"`) {
		t.Errorf("the series of labels are not those of the rules:\n%s", again)
	}
	l.Bascule("pfctl", "-q", "-b", "br0", "-d")
	again, err = get(client, "http://127.0.0.1:9810/metrics")
	must(t, err)
	if !strings.Contains(again, `bascule_pf_enabled{bridge="br0",netns=""} 0`) {
		t.Errorf("pf is still on:\n%s", again)
	}

	dir := t.TempDir()
	rules, err := os.ReadFile("../../share/prometheus/bascule.rules.yml")
	must(t, err)
	board, err := os.ReadFile("../../share/grafana/bascule.json")
	must(t, err)
	named := regexp.MustCompile(`bascule_[a-z_]+`).FindAllString(string(rules)+string(board), -1)
	for _, name := range slices.Compact(slices.Sorted(slices.Values(named))) {
		if !strings.Contains(text, "\n"+name+"{") {
			t.Errorf("the rules or the dashboard ask for %s, which is not in a scrape", name)
		}
	}
	if len(named) < 50 {
		t.Errorf("rules and dashboard name %v alone: the test does not read them", named)
	}
	must(t, os.WriteFile(filepath.Join(dir, "bascule.rules.yml"), rules, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [bascule.rules.yml]
scrape_configs:
- job_name: bascule
  static_configs: [{targets: ['127.0.0.1:9810']}]
`), 0o600))
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	var says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &says, &says
	must(t, l.Switch.Do(cmd.Start)) // it is in the network namespace of the thread
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(says.String())
		}
	})
	ask := func(path string, into any) bool {
		text, err := get(client, "http://127.0.0.1:9090/api/v1/"+path)
		return err == nil && json.Unmarshal([]byte(text), into) == nil
	}
	l.Wait("the agent to be up", func() bool {
		var up struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		return ask("query?query="+url.QueryEscape(`up{job="bascule"}`), &up) && len(up.Data.Result) == 1 && up.Data.Result[0].Value[1] == "1"
	})
	type rule struct {
		Name, Health, LastError, State string
		LastEvaluation                 time.Time
	}
	begin := time.Now()
	evaluated := map[string]rule{}
	l.Wait("all rules to be evaluated", func() bool {
		var answer struct {
			Data struct {
				Groups []struct{ Rules []rule }
			}
		}
		if !ask("rules", &answer) || len(answer.Data.Groups) == 0 {
			return false
		}
		for _, r := range answer.Data.Groups[0].Rules {
			evaluated[r.Name] = r
			if r.LastEvaluation.Before(begin) {
				return false
			}
		}
		return true
	})
	if len(evaluated) != bytes.Count(rules, []byte("- alert: ")) {
		t.Errorf("%d rules are there: %v", len(evaluated), evaluated)
	}
	for _, r := range evaluated {
		if r.Health != "ok" || r.State != "inactive" {
			t.Errorf("rule %s: %s, %s %s", r.Name, r.Health, r.State, r.LastError)
		}
	}
	r.stop()
}

// TestServiceExposure: systemd says of the service, with metrics and page, that little is
// open to it, and reads what the drop-in says.
func TestServiceExposure(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing: run 'make needs'")
	}
	t.Parallel()
	dir := t.TempDir()
	for from, to := range map[string]string{"bascule.service": "bascule.service", "seen.conf": "bascule.service.d/seen.conf"} {
		text, err := os.ReadFile("../../share/systemd/" + from)
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, to), text, 0o644))
	}
	// the threshold is in tenths
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=39", filepath.Join(dir, "bascule.service")).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("only localhost entries")) {
		t.Errorf("%v:\n%s", err, out)
	}
}
