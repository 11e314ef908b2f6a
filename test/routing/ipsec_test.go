// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
)

// An IPsec gateway of a side, whose inner address is on its loopback device.
type ipsecGateway struct {
	id, inner, dir string
}

func (g ipsecGateway) file(name string) string { return filepath.Join(g.dir, name) }

// ipsec runs strongSwan at the station of a side. It encrypts in its own process.
func (s *site) ipsec(side int, g, other ipsecGateway, remote string) {
	s.t.Helper()
	link, err := s.sides[side].end.Namespace.Netlink().LinkByName("lo")
	s.must(err)
	s.must(s.sides[side].end.Namespace.Netlink().LinkSetUp(link))
	_, err = s.sides[side].end.Namespace.Output(context.Background(), ends.AnyCPU, "ip", "address", "add", g.inner+"/32", "dev", "lo")
	s.must(err)
	s.must(os.WriteFile(g.file("strongswan.conf"), fmt.Appendf(nil, `
charon-systemd {
  load = random nonce openssl hmac kdf kernel-libipsec kernel-netlink socket-default vici
  plugins {
    vici {
      socket = unix://%s
    }
  }
  journal {
    default = -1
  }
  filelog {
    all {
      path = %s
      flush_line = yes
      default = 1
    }
  }
}
swanctl {
  load = random openssl
}
`, g.file("vici"), g.file("log")), 0o600))
	s.must(os.WriteFile(g.file("swanctl.conf"), fmt.Appendf(nil, `
connections {
  tunnel {
    version = 2
    local_addrs = %s
    remote_addrs = %s
    proposals = aes128-sha256-ecp256
    local {
      auth = psk
      id = %s
    }
    remote {
      auth = psk
      id = %s
    }
    children {
      tunnel {
        local_ts = %s/32
        remote_ts = %s/32
        esp_proposals = aes128gcm16
      }
    }
  }
}
secrets {
  ike-all {
    secret = bascule
  }
}
`, s.sides[side].station4, remote, g.id, other.id, g.inner, other.inner), 0o600))
	daemon(s.t, s.sides[side].end.Namespace, "env", "STRONGSWAN_CONF="+g.file("strongswan.conf"), "charon-systemd")
	s.lab.WaitUntil(time.Now().Add(patience), "strongSwan's socket of "+g.id, func() bool {
		conn, err := net.Dial("unix", g.file("vici"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	s.swanctl(side, g, "--load-all", "--file", g.file("swanctl.conf"))
}

// swanctl runs swanctl for the strongSwan of a side, and returns its output.
func (s *site) swanctl(side int, g ipsecGateway, args ...string) string {
	s.t.Helper()
	args = append([]string{"STRONGSWAN_CONF=" + g.file("strongswan.conf"), "swanctl"}, args...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	text, err := s.sides[side].end.Namespace.Output(ctx, ends.AnyCPU, "env", append(args, "--uri", "unix://"+g.file("vici"))...)
	if err != nil {
		log, _ := os.ReadFile(g.file("log"))
		s.t.Fatalf("%s: %v\n%s%s%s", strings.Join(args, " "), err, text, log, s.states())
	}
	return string(text)
}

// Two IPsec gateways detect a translated address between them (RFC 7296, section 2.23), and
// their tunnel uses UDP (RFC 3948). It continues while rules are loaded.
func TestNATIPsec(t *testing.T) {
	needs(t, "charon-systemd", "charon-systemd")
	needs(t, "swanctl", "strongswan-swanctl")
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		rules := "pass\nmatch out on gw2 inet from gw1:network nat-to 10.0.2.1\n"
		s.load(rules)
		inside, outside := ipsecGateway{"inside.test", "172.16.1.1", t.TempDir()}, ipsecGateway{"outside.test", "172.16.2.1", t.TempDir()}
		s.ipsec(1, outside, inside, "%any")
		s.ipsec(0, inside, outside, s.sides[1].station4.String())
		before := s.routed()
		said := s.swanctl(0, inside, "--initiate", "--child", "tunnel")
		if !strings.Contains(said, "local host is behind NAT") {
			t.Errorf("the gateway inside has not found the translation:\n%s", said)
		}
		sas := s.swanctl(1, outside, "--list-sas")
		if !strings.Contains(sas, "remote 'inside.test' @ 10.0.2.1[") || !strings.Contains(sas, "ESP in UDP") && !strings.Contains(sas, "TUNNEL-in-UDP") {
			t.Errorf("the gateway outside has\n%s", sas)
		}
		l := s.listen(1, "tcp", outside.inner+":80").(net.Listener)
		for range 2 {
			conn, err := s.dial(0, "tcp", inside.inner+":0", outside.inner+":80")
			if err != nil {
				t.Fatalf("by the tunnel: %v\n%s", err, s.states())
			}
			if peer := s.echoTCP(l, conn, 1<<20); peer.Addr().String() != inside.inner {
				t.Errorf("by the tunnel: the server sees %s, want %s", peer, inside.inner)
			}
			s.load("match in on gw1\n" + rules)
		}
		// The packets have at most 1400 bytes, and go in both directions.
		if n := s.routed() - before; n < 2*(1<<20)/1400 {
			t.Errorf("the datapath has routed %d packets of the tunnel", n)
		}
		if text := s.states(); strings.Contains(text, inside.inner) || !strings.Contains(text, "10.0.2.1:") {
			t.Errorf("the states are\n%s", text)
		}
	})
}
