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

// inside returns an HTTP client in a network namespace.
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

// get returns a server's response, or an error.
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

// TestMetricsOfShortWays: the metrics include frames that went directly to a veth's other end, which the counters of
// the port's device lack.
func TestMetricsOfShortWays(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	ports := l.NewEnds(2)
	from, to := ports[0].Host(), ports[1].Host()
	lo, err := l.Switch.Netlink().LinkByName("lo")
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetUp(lo))
	l.AddBridge("br0", "tcx", ports)
	r := newRunner(t, l)
	r.inside = true
	r.start("--metrics", "127.0.0.1:9811")
	client := inside(t, l.Switch)
	l.Wait("the agent to answer", func() bool {
		text, err := get(client, "http://127.0.0.1:9811/metrics")
		return err == nil && strings.Contains(text, "bascule_port_transmit_frames_total")
	})
	counted := func() (device, ours int) {
		t.Helper()
		side, err := l.Switch.Netlink().LinkByName(ports[1].Port)
		must(t, err)
		text, err := get(client, "http://127.0.0.1:9811/metrics")
		must(t, err)
		series := fmt.Sprintf("\nbascule_port_transmit_frames_total{bridge=\"br0\",netns=\"\",port=%q} ", ports[1].Port)
		_, rest, ok := strings.Cut(text, series)
		if _, err := fmt.Sscan(rest, &ours); !ok || err != nil {
			t.Fatalf("there is no %s", series)
		}
		return int(side.Attrs().Statistics.TxPackets), ours
	}
	ping := func(n int) {
		t.Helper()
		line := []string{"netns", "exec", from.Namespace.Name, "ping", "-q", "-i", "0.01", "-c", fmt.Sprint(n), to.IPv4.String()}
		if out, err := exec.Command("ip", line...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	l.Wait("frames to go straight", func() bool { return l.Port("br0", ports[1].Port).Way == "straight" })
	ping(1)
	device, ours := counted()
	ping(50)
	after, oursAfter := counted()
	if n := oursAfter - ours; n < 50 {
		t.Errorf("the metrics have %d of 50 frames", n)
	}
	if n := after - device; n >= 50 {
		t.Errorf("the device has counted %d frames of 50 that went past it", n)
	}
}

// TestPrometheus: Debian's Prometheus scrapes an agent without errors. The alert rules are evaluated, and none of them
// fires for a healthy switch. The series agree with the commands.
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
	r.serves(2, "br0") // otherwise there is a warning about a port
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

	// Other rules, which the agent has not read before.
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
	must(t, l.Switch.Do(cmd.Start)) // it runs in the network namespace of the thread
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

// TestMetricsAtHostPort: the agent serves at the address of a host port that it makes itself, and reports before that
// the host lacks the address.
func TestMetricsAtHostPort(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	lo, err := l.Switch.Netlink().LinkByName("lo")
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetUp(lo))
	r := newRunner(t, l)
	r.inside = true
	r.start("--metrics", "192.0.2.9:9810", "-f", r.file("br0.yaml", "bridges: {br0: {ports: {host0: {type: host, addresses: 192.0.2.9/24}}}}\n"))
	r.says(1, "the host does not have this address yet", "192.0.2.9:9810")
	client := inside(t, l.Switch)
	l.Wait("an answer", func() bool {
		text, err := get(client, "http://192.0.2.9:9810/metrics")
		return err == nil && strings.Contains(text, "bascule_bridge_info")
	})
	r.stop()
}

// TestServiceExposure: systemd rates the exposure of the service with metrics and page as low, and can read the
// drop-in.
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
	// The threshold is in tenths.
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=39", filepath.Join(dir, "bascule.service")).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("only localhost entries")) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// underSystemd runs systemd as the first process of namespaces of its own, in which the machine's files can be
// overwritten, with the installed service and the drop-in. Then it runs a script, and ends. $1 is an empty folder. $2
// has the installed files, and receives the script's output.
const underSystemd = `
dir=$1 with=$2
mount --make-rprivate /
mount -t tmpfs tmpfs $dir
r=$dir/root
mkdir $dir/upper $dir/work $dir/cgroup $r
# cgroups below one of its own
mount -t cgroup2 cgroup2 $dir/cgroup
mkdir $dir/cgroup/$(basename $with)
echo $$ >$dir/cgroup/$(basename $with)/cgroup.procs
mount -t overlay overlay -o lowerdir=/,upperdir=$dir/upper,workdir=$dir/work $r
mount -t proc proc $r/proc
mount -t sysfs sysfs $r/sys
for at in run tmp var/log dev sys/fs/cgroup; do mount -t tmpfs tmpfs $r/$at; done
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
	mknod -m 666 $r/dev/${node%%:*} c $(echo ${node#*:} | tr : ' ')
done
mkdir $r/dev/pts $r/dev/shm $r/with
ln -s /proc/self/fd $r/dev/fd
mount -t devpts devpts $r/dev/pts -o ptmxmode=666
ln -s pts/ptmx $r/dev/ptmx
mount --bind $with $r/with
# no service of the machine's, and none of its disks
rm -rf $r/etc/systemd/system $r/etc/fstab $r/lib/systemd/system/*.wants $r/lib/systemd/system-generators
units=$r/etc/systemd/system
mkdir -p $units/bascule.service.d $r/etc/bascule $r/etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n' >$r/etc/systemd/journald.conf.d/only.conf
cp $with/bascule.service $with/run-bascule.mount $units
cp $with/seen.conf $units/bascule.service.d
install -D $with/bascule $r/usr/local/sbin/bascule
echo 'bridges: {br0: {ports: {}}}' >$r/etc/bascule/br0.yaml
printf '[Unit]\nRequires=systemd-journald.service bascule.service look.service\n' >$units/seen.target
cat >$units/look.service <<X
[Unit]
After=bascule.service
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=append:/with/said
StandardError=inherit
ExecStart=/bin/sh -eux /with/look.sh
ExecStopPost=/bin/systemctl --force --force poweroff
X
ip link set lo up
exec unshare --cgroup sh -euc 'mount -t cgroup2 cgroup2 $1/sys/fs/cgroup
	exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot $1 /lib/systemd/systemd --system --unit=seen.target' sh $r
`

// whenSystemdRuns is the script that runs there.
const whenSystemdRuns = `
ask() { curl -sS --max-time 60 "$@"; }
systemctl is-active bascule
ask http://127.0.0.1:9810/metrics | grep '^bascule_bridge_info{.*bridge="br0"'
ask http://127.0.0.1:9811/ | grep -i '<title>'
token() { journalctl --sync; journalctl -u bascule -o cat --no-pager | grep -o '9811/#[A-Za-z0-9_-]*' | tail -1 | cut -d'#' -f2; }
ask -H "Authorization: Bearer $(token)" http://127.0.0.1:9811/api/v1/bridge/show | grep '"ifname":"br0"'
systemctl reload bascule
# it is killed, and comes again
kill -9 $(systemctl show -P MainPID bascule)
until [ "$(systemctl show -P NRestarts bascule)" = 1 ] && systemctl is-active bascule; do sleep 0.1; done
ask http://127.0.0.1:9810/metrics | grep '^bascule_agent_files_in_force{.*} 1'
systemctl stop bascule
/usr/local/sbin/bascule bridge show
echo all is well
`

// TestServiceRuns: systemd starts the agent with its unit, and with the drop-in that serves metrics and page.
func TestServiceRuns(t *testing.T) {
	const systemd = "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("systemd is missing: run 'make needs'")
	}
	t.Parallel()
	l := netlab.New(t)
	with, err := os.MkdirTemp("", "bsc-systemd-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(with) })
	for _, name := range []string{"bascule.service", "run-bascule.mount", "seen.conf"} {
		text, err := os.ReadFile("../../share/systemd/" + name)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(with, name), text, 0o644))
	}
	l.CopyBinary(filepath.Join(with, "bascule"), "755")
	must(t, os.WriteFile(filepath.Join(with, "look.sh"), []byte(whenSystemdRuns), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc",
		"sh", "-euc", underSystemd, "sh", t.TempDir(), with).CombinedOutput()
	said, _ := os.ReadFile(filepath.Join(with, "said"))
	if !bytes.Contains(said, []byte("\nall is well\n")) {
		t.Errorf("%v:\n%s\n%s", err, out, said)
	}
	// Its remaining cgroups, which the kernel removes after the processes have ended.
	l.Wait("the cgroups to go", func() bool {
		return exec.Command("unshare", "--mount", "sh", "-euc", `mount -t cgroup2 cgroup2 "$1"
			cd "$1"; [ ! -e "$2" ] || find "$2" -depth -type d -exec rmdir {} +`, "sh", t.TempDir(), filepath.Base(with)).Run() == nil
	})
}
