// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"bascule/datapath"
)

func TestParseVLANs(t *testing.T) {
	for s, want := range map[string]string{
		"1":                "1",
		"4094":             "4094",
		"10-12":            "10-12",
		"10-10":            "10",
		"10,11":            "10-11",
		"20-30,10":         "10,20-30",
		"30,10-12,13,2":    "2,10-13,30",
		"1-4094":           "1-4094",
		"007":              "7",
		"1,3,5-6,8-9,4094": "1,3,5-6,8-9,4094",
	} {
		list, err := ParseVLANs(s)
		if err != nil || FormatVLANs(list) != want || !slices.IsSorted(list) {
			t.Errorf("%q: %v, %v; want %s", s, list, err, want)
		}
	}
	for s, why := range map[string]string{
		"":            "not a VLAN",
		"0":           "not a VLAN",
		"-1":          `"-1" is not a VLAN`,
		"4095":        "not a VLAN",
		"65546":       "not a VLAN",
		"ten":         `"ten" is not a VLAN`,
		"10,":         "not a VLAN",
		"10,,20":      "not a VLAN",
		"10-":         "not a VLAN",
		"-10-20":      "not a VLAN",
		"10-20-30":    "not a VLAN",
		" 10":         "not a VLAN",
		"10-4095":     `"4095" is not a VLAN`,
		"20-10":       "20-10 begins after its end",
		"10,10":       "VLAN 10 occurs twice",
		"10-20,15-30": "VLAN 15 occurs twice",
	} {
		list, err := ParseVLANs(s)
		if !isUsage(err) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "; ") || list != nil {
			t.Errorf("%q: %v, %v; want a usage error with %q", s, list, err, why)
		}
	}
	if s := FormatVLANs(nil); s != "" {
		t.Errorf("no VLANs are %q", s)
	}
}

// A plan is a change of a filtering bridge, without a kernel.
type plan struct {
	t    *testing.T
	was  datapath.Config
	next datapath.Config
	v    datapath.VLANs
}

func newPlan(t *testing.T, ports int) *plan {
	p := &plan{t: t}
	p.next.Flags, p.next.DefaultPvid = uint32(datapath.BridgeVLANs), 1
	for i := range ports {
		datapath.NewPort(&p.next, fmt.Sprintf("p%d", i+1))
	}
	p.commit()
	return p
}

// commit plans the change. A refused one changes nothing.
func (p *plan) commit() error {
	v := p.v
	c := &draft{bridge: &datapath.Bridge{Config: p.was}, next: &p.next, vlans: vlanPlan{read: true, now: &v}}
	c.vlans.take(&p.was)
	if err := c.planVLANs("try"); err != nil {
		p.next = p.was
		return err
	}
	p.v, p.was = v, p.next
	return nil
}

func (p *plan) port(n int) *datapath.Port { return datapath.PortAt(&p.next, p.next.Ports[n].Id) }

func (p *plan) want(what string, want ...string) {
	p.t.Helper()
	var got []string
	for _, port := range datapath.Ports(&p.next) {
		var words []string
		for _, r := range ranges(&p.v, port) {
			words = append(words, fmt.Sprintf("%d-%d", r.First, r.Last)+
				map[bool]string{true: "u"}[r.Untagged]+map[bool]string{true: "p"}[r.PVID])
		}
		got = append(got, strings.Join(words, " "))
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestDefaultPVID(t *testing.T) {
	p := newPlan(t, 3)
	p.want("new ports", "1-1up", "1-1up", "1-1up")
	setIn(&p.v[10].Member, 2, true)
	p.port(2).Pvid = 10
	setIn(&p.v[7].Member, 3, true)
	p.commit()
	p.want("one has another PVID", "1-1up", "1-1u 10-10p", "1-1up 7-7")
	p.next.DefaultPvid = 7
	p.commit()
	p.want("another default, in which one is already", "7-7up", "1-1u 10-10p", "1-1up 7-7")
	p.next.DefaultPvid = 0
	p.commit()
	p.want("no default", "", "1-1u 10-10p", "1-1up 7-7")
	p.next.DefaultPvid = 5
	p.commit()
	p.want("a default again", "5-5up", "1-1u 10-10p", "1-1up 7-7")

	// a slot has nothing of its former port
	*p.port(2) = datapath.Port{}
	p.commit()
	p.want("a port leaves", "5-5up", "1-1up 7-7")
	datapath.NewPort(&p.next, "new")
	p.commit()
	p.want("another takes its slot", "5-5up", "5-5up", "1-1up 7-7")
	*p.port(2) = datapath.Port{}
	p.next.DefaultPvid = 6
	datapath.NewPort(&p.next, "newer")
	p.commit()
	p.want("both at once", "6-6up", "6-6up", "1-1up 7-7")
}

// A trunk must be in the primary of the private VLANs that it has with tags.
func TestCheckPrivate(t *testing.T) {
	p := newPlan(t, 2)
	p.v[100].Kind = datapath.VLANPrimary
	p.v[101].Kind, p.v[101].Fid = datapath.VLANIsolated, 100
	if err := p.commit(); err != nil {
		t.Fatal(err)
	}
	was := p.v
	setIn(&p.v[101].Member, 2, true)
	if err := p.commit(); err == nil || !strings.Contains(err.Error(), "port p2 would have VLAN 101 with a tag") {
		t.Errorf("a tagged member of a private VLAN alone: %v", err)
	}
	p.v = was
	setIn(&p.v[101].Member, 2, true)
	setIn(&p.v[101].Untagged, 2, true)
	if err := p.commit(); err != nil {
		t.Error(err)
	}
	p.v = was
	setIn(&p.v[101].Member, 2, true)
	setIn(&p.v[100].Member, 2, true)
	if err := p.commit(); err != nil {
		t.Error(err)
	}
}

// The derived bits of every port agree with the rules of RFC 5517, and deriving them again changes
// nothing.
func TestDerive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	vids := []uint16{10, 100, 101, 102, 103, 4094}
	for range 300 {
		v := new(datapath.VLANs)
		if r.IntN(4) > 0 {
			v[100].Kind = datapath.VLANPrimary
			v[101].Kind, v[101].Fid = datapath.VLANIsolated, 100
			v[102].Kind, v[102].Fid = datapath.VLANCommunity, 100
			v[103].Kind, v[103].Fid = datapath.VLANCommunity, 100
		}
		slots := []uint32{1, 2, 63, 64, 65, 1000, 1023}
		member, untagged := map[[2]uint32]bool{}, map[[2]uint32]bool{}
		for _, vid := range vids {
			for _, slot := range slots {
				k := [2]uint32{uint32(vid), slot}
				member[k] = r.IntN(2) == 0
				untagged[k] = member[k] && r.IntN(2) == 0
				setIn(&v[vid].Member, slot, member[k])
				setIn(&v[vid].Untagged, slot, untagged[k])
			}
		}
		derive(v)
		again := *v
		derive(&again)
		if again != *v {
			t.Fatal("deriving it again changes something")
		}
		for _, vid := range vids {
			row := &v[vid]
			for _, slot := range slots {
				in := func(vid uint16) bool { return member[[2]uint32{uint32(vid), slot}] }
				bare := func(vid uint16) bool { return untagged[[2]uint32{uint32(vid), slot}] }
				reach, leavesBare := in(vid), bare(vid)
				switch row.Kind {
				case datapath.VLANPrimary:
					for _, below := range []uint16{101, 102, 103} {
						reach = reach || in(below)
						leavesBare = leavesBare || !in(vid) && bare(below)
					}
				case datapath.VLANIsolated:
					reach, leavesBare = in(100), bare(vid) || !in(vid) && bare(100)
				case datapath.VLANCommunity:
					reach, leavesBare = in(vid) || in(100), bare(vid) || !in(vid) && bare(100)
				}
				if got := inSet(&row.Reach, slot); got != reach {
					t.Errorf("VLAN %d reaches slot %d: %t, should be %t", vid, slot, got, reach)
				}
				if got := inSet(&row.Untagged, slot); got != leavesBare {
					t.Errorf("VLAN %d leaves slot %d untagged: %t, should be %t", vid, slot, got, leavesBare)
				}
				if inSet(&row.Member, slot) != in(vid) {
					t.Errorf("VLAN %d: the members have changed", vid)
				}
			}
			want := vid
			if isSecondary(row) {
				want = 100
			}
			if row.Fid != want {
				t.Errorf("VLAN %d has the addresses of %d, should have those of %d", vid, row.Fid, want)
			}
		}
	}
}

// A port has addresses in the right VLANs of the FDB.
func TestAddressSpaces(t *testing.T) {
	p := newPlan(t, 2)
	p.v[100].Kind = datapath.VLANPrimary
	for _, vid := range []int{101, 102} {
		p.v[vid].Kind, p.v[vid].Fid = datapath.VLANCommunity, 100
		setIn(&p.v[vid].Member, 2, true)
		setIn(&p.v[vid].Untagged, 2, true)
	}
	setIn(&p.v[50].Member, 2, true)
	if err := p.commit(); err != nil {
		t.Fatal(err)
	}
	id := p.port(2).Id
	if got := addressSpaces(&p.was, &p.v)[id]; !slices.Equal(got, []uint16{1, 50, 100}) {
		t.Errorf("%v, want 1, 50 and the primary once", got)
	}
	p.was.Flags = 0
	if got := addressSpaces(&p.was, &p.v)[id]; !slices.Equal(got, []uint16{0}) {
		t.Errorf("without filtering %v, want 0 alone", got)
	}
}
