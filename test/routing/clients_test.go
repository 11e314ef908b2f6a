// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
)

// serve runs a server program at a side's station until the test ends, and waits until it
// listens.
func (s *site) serve(side int, proto string, port int, name string, args ...string) {
	s.t.Helper()
	server, err := s.sides[side].end.Namespace.Serve(context.Background(), ends.AnyCPU, ends.Listen{Proto: proto, Port: port}, name, args...)
	s.must(err)
	s.t.Cleanup(func() { server.Close() })
}

// web runs an HTTP server with files of size bytes at the second side's station. seen returns
// the client's address as the server saw it last.
func (s *site) web(address string, size int) (seen func() string) {
	seenBy := make(chan string, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		seenBy <- host
		_, _ = io.WriteString(w, strings.Repeat("b", size))
	})}
	l := s.listen(1, "tcp", address).(net.Listener)
	go server.Serve(l)
	s.t.Cleanup(func() { server.Close() })
	return func() string {
		select {
		case host := <-seenBy:
			return host
		default:
			return "nobody"
		}
	}
}

// Common client programs work behind a translated address, and the servers see the new address.
// One server is reached by one of the host's own addresses and a port.
func TestNATClients(t *testing.T) {
	for program, packet := range map[string]string{
		"curl": "curl", "busybox": "busybox", "iperf3": "iperf3", "dnsmasq": "dnsmasq-base", "vsftpd": "vsftpd",
	} {
		needs(t, program, packet)
	}
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.load(`
match out on gw2 inet from gw1:network nat-to 10.0.2.1
match out on gw2 inet6 from gw1:network nat-to fd02::1
match in on gw1 inet proto tcp to 10.0.1.1 port 80 rdr-to 10.0.2.2 port 8080
pass
`)
		dir := folder(t, "root", map[string]string{"file": strings.Repeat("f", 1<<20)})
		s.must(os.Mkdir(filepath.Join(dir, "empty"), 0o755))
		client := func(name string, args ...string) string {
			t.Helper()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			text, err := s.sides[0].end.Namespace.Output(ctx, ends.AnyCPU, name, args...)
			if err != nil {
				t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, s.states())
			}
			return string(text)
		}
		// log returns the path of a server's log that shows the client.
		log := func(name string) string { return filepath.Join(dir, name+".log") }
		saw := func(name, text string) {
			t.Helper()
			s.lab.WaitUntil(time.Now().Add(patience), fmt.Sprintf("%q in what %s writes", text, name), func() bool {
				got, _ := os.ReadFile(log(name))
				return strings.Contains(string(got), text)
			})
			if got, _ := os.ReadFile(log(name)); strings.Contains(string(got), "10.0.1.2") {
				t.Errorf("%s has seen the address before:\n%s", name, got)
			}
		}
		before := s.routed()

		const size = 1 << 20
		four, six := s.web("10.0.2.2:8080", size), s.web("[fd02::2]:8080", size)
		for _, w := range []struct {
			url, peer string
			seen      func() string
		}{
			{"http://10.0.2.2:8080/", "10.0.2.1", four}, {"http://[fd02::2]:8080/", "fd02::1", six},
			{"http://10.0.1.1/", "10.0.2.1", four},
		} {
			got := client("curl", "-q", "-g", "-sS", "--noproxy", "*", "--max-time", "60", w.url)
			if peer := w.seen(); len(got) != size || peer != w.peer {
				t.Errorf("curl %s: %d bytes, want %d; the server has seen %s, want %s", w.url, len(got), size, peer, w.peer)
			}
		}
		if text := s.states(); !strings.Contains(text, " -> 10.0.2.2:8080 (10.0.1.1:80) ") {
			t.Errorf("no state is one of rdr-to:\n%s", text)
		}

		for _, to := range []string{"10.0.2.2", "fd02::2"} {
			if !s.ping(0, to) {
				t.Errorf("no answer from %s\n%s", to, s.states())
			}
		}
		// By UDP, and by echo requests.
		for _, how := range [][]string{nil, {"-I"}} {
			var hops []string
			for line := range strings.Lines(client("busybox", slices.Concat([]string{"traceroute", "-n", "-q", "1", "-m", "4", "-w", "10"}, how, []string{"10.0.2.2"})...)) {
				if words := strings.Fields(line); len(words) > 1 && words[0] != "traceroute" {
					hops = append(hops, words[1])
				}
			}
			if want := []string{"10.0.1.1", "10.0.2.2"}; !slices.Equal(hops, want) {
				t.Errorf("traceroute %s: %v, want %v", how, hops, want)
			}
		}

		// A server for each: it is busy for a moment after its client has ended.
		for i, how := range [][]string{{"-n", "4M"}, {"-n", "4M", "-R"}, {"-u", "-b", "10M", "-n", "200K"}} {
			port, name := 5201+i, fmt.Sprintf("iperf3-%d", i)
			s.serve(1, "tcp", port, "iperf3", "-s", "-p", fmt.Sprint(port), "--forceflush", "--logfile", log(name))
			client("iperf3", append([]string{"-c", "10.0.2.2", "-p", fmt.Sprint(port), "--connect-timeout", "60000"}, how...)...)
			saw(name, "Accepted connection from 10.0.2.1,")
		}

		s.serve(1, "udp", 53, "dnsmasq", "-k", "-C", "/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--pid-file=", "--log-queries",
			"--log-facility="+log("dnsmasq"), "--listen-address=10.0.2.2", "--bind-interfaces", "--address=/www.test/192.0.2.80")
		if got := client("busybox", "nslookup", "-type=a", "www.test", "10.0.2.2"); !strings.Contains(got, "192.0.2.80") {
			t.Errorf("nslookup: %s", got)
		}
		saw("dnsmasq", "www.test from 10.0.2.1")

		conf := filepath.Join(dir, "vsftpd.conf")
		s.must(os.WriteFile(conf, []byte(strings.Join([]string{
			"listen=YES", "listen_address=10.0.2.2", "background=NO", "anonymous_enable=YES", "no_anon_password=YES", "ftp_username=daemon",
			"anon_root=" + dir, "secure_chroot_dir=" + filepath.Join(dir, "empty"), "vsftpd_log_file=" + log("vsftpd"),
			"xferlog_enable=YES", "xferlog_std_format=NO", "log_ftp_protocol=YES", "seccomp_sandbox=NO", "isolate_network=NO", "",
		}, "\n")), 0o600))
		s.serve(1, "tcp", 21, "vsftpd", conf)
		// Both commands for a passive connection.
		for _, how := range []string{"--disable-epsv", "--ftp-pasv"} {
			got := client("curl", "-q", "-sS", "--noproxy", "*", "--max-time", "60", how, "ftp://10.0.2.2/file")
			if len(got) != 1<<20 {
				t.Errorf("curl %s: %d bytes", how, len(got))
			}
		}
		saw("vsftpd", `OK DOWNLOAD: Client "10.0.2.1"`)

		if n := s.routed() - before; n < 100 {
			t.Errorf("the datapath has routed %d packets", n)
		}
		if d := s.lab.Port("br0", s.sides[0].end.Port).Drops["pf-translate"] + s.lab.Port("br0", "gw2").Drops["pf-translate"]; d != 0 {
			t.Errorf("%d packets were not translated", d)
		}
	})
}
