// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// A dockerHost is a host whose agent is a network driver of Docker. The test acts as Docker.
type dockerHost struct {
	*host
	dir    string
	agent  *exec.Cmd
	logs   netlab.OutputFile
	client http.Client
}

func newDockerHost(t *testing.T) *dockerHost {
	d := &dockerHost{host: newHost(t), dir: t.TempDir(), logs: netlab.NewOutputFile(t)}
	d.Setenv("BASCULE_AGENT_DIR", d.dir)
	d.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", filepath.Join(d.dir, "d", "bascule.sock"))
	}}
	t.Cleanup(d.stop)
	d.start()
	return d
}

// start starts an agent with Docker's socket.
func (d *dockerHost) start() {
	d.t.Helper()
	cmd := exec.Command("nsenter", "--net="+path(d.Switch), d.Binary(), "agent", "--docker", "unix:"+filepath.Join(d.dir, "d", "bascule.sock"),
		"--docker-state", filepath.Join(d.dir, "state", "docker.json"))
	cmd.Env = append(os.Environ(), "BASCULE_AGENT_DIR="+d.dir)
	cmd.Stderr = d.logs.File
	d.must(cmd.Start())
	d.agent = cmd
	d.Wait("the driver to answer", func() bool {
		_, err := d.post("Plugin.Activate", "")
		return err == nil
	})
}

func (d *dockerHost) stop() {
	if d.agent != nil {
		_ = d.agent.Process.Kill()
		_ = d.agent.Wait()
		d.agent = nil
	}
}

// post sends a request to the driver. The error is about the transport.
func (d *dockerHost) post(what, body string) (answer map[string]any, err error) {
	r, err := d.client.Post("http://plugin/"+what, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	if says, _ := answer["Err"].(string); strings.Contains(says, "\n") || says == "" && r.StatusCode != http.StatusOK || bytes.Count(text, []byte("\n")) > 1 {
		return nil, fmt.Errorf("%s: %d %s", what, r.StatusCode, text)
	}
	return answer, nil
}

func (d *dockerHost) docker(what string, body any) map[string]any {
	d.t.Helper()
	text, is := body.(string)
	if !is {
		b, err := json.Marshal(body)
		d.must(err)
		text = string(b)
	}
	answer, err := d.post(what, text)
	d.must(err)
	return answer
}

// move handles an interface from Join's response as Docker does.
func (d *dockerHost) move(space *ends.Namespace, name, to string, addresses ...string) {
	d.t.Helper()
	link, err := d.Switch.Netlink().LinkByName(name)
	d.must(err)
	ns, err := netns.GetFromPath(path(space))
	d.must(err)
	defer ns.Close()
	d.must(d.Switch.Netlink().LinkSetNsFd(link, int(ns)))
	link = mustLink(d.t, space, name)
	d.must(space.Netlink().LinkSetName(link, to))
	for _, text := range addresses {
		a, err := netlink.ParseAddr(text)
		d.must(err)
		if a.IP.To4() == nil {
			a.Flags = 2 // IFA_F_NODAD
		}
		d.must(space.Netlink().AddrAdd(link, a))
	}
	d.must(space.Netlink().LinkSetUp(link))
}

// Recorded requests of Docker are repeated, with an agent that is killed now and then. Stations
// reach each other and the host, the responses are the recorded ones, and nothing is left.
func TestDockerRecorded(t *testing.T) {
	t.Parallel()
	d := newDockerHost(t)
	spaces, addresses := map[string]*ends.Namespace{}, map[string][]string{}
	for i, r := range recorded(t, "docker.txt") {
		if i%7 == 3 {
			d.stop()
			d.start()
		}
		var all map[string]any
		if r[1] != "" {
			d.must(json.Unmarshal([]byte(r[1]), &all))
		}
		end, _ := all["EndpointID"].(string)
		answer := d.docker(r[0], r[1])
		_, what, _ := strings.Cut(r[0], ".")
		ports, _ := at(all, "Options", "com.docker.network.portmap").([]any)
		if refused := answer["Err"] != nil; refused != (len(ports) > 0 || at(all, "Options", "com.docker.network.generic", "nonsense") != nil) {
			t.Fatalf("%v: the answer is %v", r, answer)
		} else if refused {
			continue
		}
		switch what {
		case "Activate":
			if fmt.Sprint(answer) != "map[Implements:[NetworkDriver]]" {
				t.Errorf("%s: the answer is %v", r[0], answer)
			}
		case "GetCapabilities":
			if answer["Scope"] != "local" {
				t.Errorf("%s: the answer is %v", r[0], answer)
			}
		case "CreateEndpoint":
			for _, key := range []string{"Address", "AddressIPv6"} {
				if a := at(all, "Interface", key).(string); a != "" {
					addresses[end] = append(addresses[end], a)
				}
			}
			given, said := at(all, "Interface", "MacAddress"), at(answer, "Interface", "MacAddress")
			if (given == "") != (said != nil) { // Docker uses the driver's MAC only if it has given none
				t.Errorf("the MAC is %q, and the answer %v", given, answer)
			}
			// Docker repeats it if the agent was killed before it had answered
			again := d.docker(r[0], r[1])
			if again["Err"] != nil {
				t.Errorf("%s again: %v", r[0], again)
			}
		case "Join":
			spaces[end] = d.space()
			d.move(spaces[end], at(answer, "InterfaceName", "SrcName").(string), "eth0", addresses[end]...)
			if addresses[end][0] == "10.96.0.2/24" { // internal: no gateway, and no docker_gwbridge instead
				if answer["Gateway"] != nil || answer["DisableGatewayService"] != true {
					t.Errorf("Join of an internal network: %v", answer)
				}
				break
			}
			if answer["Gateway"] != "10.97.0.1" || answer["GatewayIPv6"] != "fd97::1" || answer["DisableGatewayService"] != nil {
				t.Errorf("Join: %v", answer)
			}
			for _, to := range []string{"10.97.0.1", "fd97::1"} {
				d.must(ping(spaces[end], to))
			}
			if addresses[end][0] == "10.97.0.3/24" {
				for _, to := range []string{"10.97.0.2", "fd97::2"} {
					d.must(ping(spaces[end], to))
				}
			}
		case "EndpointOperInfo":
			if at(answer, "Value", "bridge") == nil {
				t.Errorf("%s: the answer is %v", r[0], answer)
			}
		case "DeleteEndpoint":
			d.docker(r[0], r[1])
		}
	}
	for _, name := range d.bridges() {
		if ports := d.Ports(name); len(ports) != 0 || name != "br7" { // this bridge has a name from the user
			t.Errorf("bridge %s is left, with the ports %v", name, ports)
		}
	}
	if left := devices(t, d.Switch); len(left) != 1 {
		t.Errorf("the devices %v are left", left)
	}
	if text, err := os.ReadFile(filepath.Join(d.dir, "state", "docker.json")); err != nil || strings.TrimSpace(string(text)) != "{}" {
		t.Errorf("the file of networks has %q, %v", text, err)
	}
}

// Each mistake has one line in Err, and nothing is changed.
func TestDockerBadInput(t *testing.T) {
	t.Parallel()
	d := newDockerHost(t)
	d.Bascule("bridge", "add", "br0")
	type o = map[string]any
	network := func(id string, generic o, more ...any) o {
		r := o{"NetworkID": id, "Options": o{"com.docker.network.generic": generic}, "IPv4Data": more}
		return r
	}
	if a := d.docker("NetworkDriver.CreateNetwork", network("n1", o{"bridge": "br0"})); a["Err"] != nil {
		t.Fatal(a)
	}
	type wrong struct {
		what string
		body any
		word string
	}
	list := []wrong{
		{"NetworkDriver.Frobnicate", "{}", "has no request"},
		{"../../etc/passwd", "{}", "has no request"},
		{"NetworkDriver.CreateNetwork", "{", "unexpected end"},
		{"NetworkDriver.CreateNetwork", "[]", "it is a list; give an object"},
		{"NetworkDriver.CreateNetwork", `{"NetworkID": 5}`, "NetworkID is a number; give a string"},
		{"NetworkDriver.CreateNetwork", network("n1", o{"bridge": "br0", "isolated": "on"}), "n1 already exists with other settings"},
		{"NetworkDriver.CreateNetwork", o{"NetworkID": "n2", "Options": o{"com.docker.network.generic": []string{}}}, "not an object"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"source_guard": "on"}), "the nearest is source-guard"},
		{"NetworkDriver.CreateNetwork", "{}", "NetworkID is missing"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"vlan": "0"}), "vlan"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"vlan": 10}), "not a string"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"bridge": "br0", "vlan": "10"}), "does not filter VLANs"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"nonsense": "1"}), "not a setting of a port"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"pf": "blok"}), "pf:1"},
		{"NetworkDriver.CreateNetwork", network("n2", o{"com.docker.network.bridge.enable_icc": "true"}), "not a setting of a port"},
		{"NetworkDriver.CreateNetwork", network("n2", nil, o{"Pool": "10.0.0.0/24", "Gateway": "x"}), "gateway"},
		{"NetworkDriver.CreateEndpoint", o{"NetworkID": "n1"}, "EndpointID is missing"},
		{"NetworkDriver.CreateEndpoint", o{"NetworkID": "n2", "EndpointID": "e"}, "is unknown"},
		{"NetworkDriver.CreateEndpoint", o{"NetworkID": "n1", "EndpointID": "e", "Interface": o{"Address": "x"}}, "address"},
		{"NetworkDriver.CreateEndpoint", o{"NetworkID": "n1", "EndpointID": "e", "Interface": o{"MacAddress": "x"}}, "MAC"},
		{"NetworkDriver.Join", o{"NetworkID": "n1", "EndpointID": "e"}, "is not on the switch"},
		{"NetworkDriver.EndpointOperInfo", o{"NetworkID": "n1", "EndpointID": "e"}, "is not on the switch"},
		{"NetworkDriver.ProgramExternalConnectivity", o{"NetworkID": "n1", "EndpointID": "e", "Options": o{"com.docker.network.portmap": []any{o{}}}}, "publishes no ports"},
	}
	for _, name := range nasty {
		if name != "" {
			list = append(list, wrong{"NetworkDriver.CreateEndpoint", o{"NetworkID": "n1", "EndpointID": name}, "EndpointID"},
				wrong{"NetworkDriver.DeleteEndpoint", o{"NetworkID": "n1", "EndpointID": name}, "EndpointID"})
		}
		list = append(list, wrong{"NetworkDriver.CreateNetwork", network(name, nil), "NetworkID"}, wrong{"NetworkDriver.DeleteNetwork", o{"NetworkID": name}, "NetworkID"},
			wrong{"NetworkDriver.CreateNetwork", network("n2", o{name + "/": "1"}), "not a setting of a port"})
	}
	state := filepath.Join(d.dir, "state", "docker.json")
	kept, err := os.ReadFile(state)
	d.must(err)
	before := d.Bascule("port", "show") + d.Bascule("bridge", "show") + string(kept)
	for _, w := range list {
		answer := d.docker(w.what, w.body)
		if says, _ := answer["Err"].(string); !strings.Contains(says, w.word) || says == "" || len(answer) != 1 {
			t.Errorf("%s %.200v: %v, should say %q", w.what, w.body, answer, w.word)
		}
	}
	r, err := d.client.Get("http://plugin/NetworkDriver.GetCapabilities")
	d.must(err)
	if r.Body.Close(); r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET has the status %d", r.StatusCode)
	}
	kept, err = os.ReadFile(state)
	d.must(err)
	if after := d.Bascule("port", "show") + d.Bascule("bridge", "show") + string(kept); after != before {
		t.Errorf("the switch was\n%sand is\n%s", before, after)
	}
	for range 2 { // as if the response had been lost, and by the next agent
		for _, body := range []o{network("n1", o{"bridge": "br0"}), network("n4", nil)} {
			if a := d.docker("NetworkDriver.CreateNetwork", body); a["Err"] != nil {
				t.Errorf("a network that is there already, as it is: %v", a)
			}
		}
		d.stop()
		d.start()
	}
	// An unreadable file is not changed, and reported.
	for _, wrong := range []string{"{", "[]", `{"n1": null}`, `{"n1": {"options": {"vlan": 5}}}`} {
		d.stop()
		d.must(os.WriteFile(state, []byte(wrong), 0o600))
		d.start()
		for _, what := range []string{"CreateNetwork", "DeleteNetwork"} {
			if a := d.docker("NetworkDriver."+what, network("n3", nil)); a["Err"] == nil || !strings.Contains(a["Err"].(string), state) {
				t.Errorf("%s with the file %s: %v", what, wrong, a)
			}
		}
		if text, _ := os.ReadFile(state); string(text) != wrong {
			t.Errorf("the file is written over: %q", text)
		}
	}
}

// Requests to an agent that is killed meanwhile are repeated, and nothing is left.
func TestDockerKilled(t *testing.T) {
	t.Parallel()
	d := newDockerHost(t)
	network := `{"NetworkID":"n1","Options":{"com.docker.network.generic":{"bridge":"br0","isolated":"on"}}}`
	d.docker("NetworkDriver.CreateNetwork", network)
	end := `{"NetworkID":"n1","EndpointID":"e1","Interface":{"Address":"10.0.0.2/24"}}`
	for i := range netlab.Third(*pairs) / 3 {
		what := "NetworkDriver." + []string{"CreateEndpoint", "DeleteEndpoint"}[i%2]
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = d.post(what, end)
		}()
		time.Sleep(time.Duration(i) * time.Millisecond) // the result must be right at each moment
		d.stop()
		<-done
		d.start()
		if a := d.docker(what, end); a["Err"] != nil {
			t.Fatalf("kill %d: %s again: %v", i, what, a)
		}
		if want := 1 - i%2; len(d.Ports("br0")) != want || len(devices(t, d.Switch)) != 1+2*want {
			t.Fatalf("kill %d, after %s: ports %v, devices %v", i, what, d.Ports("br0"), devices(t, d.Switch))
		}
	}
	d.docker("NetworkDriver.DeleteNetwork", network) // removes the remaining state of its endpoints
	if left := devices(t, d.Switch); len(left) != 1 {
		t.Errorf("the devices %v are left", left)
	}
}

// An agent that ends removes the folder that it has made. It reports what it serves.
func TestDockerEnds(t *testing.T) {
	t.Parallel()
	d := newDockerHost(t)
	if n := d.logs.Lines("the network driver of Docker is served"); n != 1 {
		t.Errorf("%d lines tell of the driver:\n%s", n, d.logs.String())
	}
	d.must(d.agent.Process.Signal(syscall.SIGTERM))
	d.must(d.agent.Wait())
	d.agent = nil
	if _, err := os.Lstat(filepath.Join(d.dir, "d")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the socket is left: %v", err)
	}
}
