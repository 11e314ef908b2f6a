// SPDX-License-Identifier: BSD-2-Clause

package cni

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"
	"bascule/pf"
	"bascule/plug"

	"github.com/containernetworking/cni/pkg/types"
)

// A network is the configuration of a network (CNI 1.1, section 1). The keys of the reference
// bridge plugin have the same meaning.
type network struct {
	types.PluginConf
	Bridge              string  `json:"bridge"`
	IsGateway           bool    `json:"isGateway"`
	IsDefaultGateway    bool    `json:"isDefaultGateway"`
	ForceAddress        bool    `json:"forceAddress"`
	IPMasq              bool    `json:"ipMasq"`
	IPMasqBackend       *string `json:"ipMasqBackend"`
	MTU                 int     `json:"mtu"`
	HairpinMode         bool    `json:"hairpinMode"`
	PromiscMode         bool    `json:"promiscMode"`
	VLAN                int     `json:"vlan"`
	VLANTrunk           []trunk `json:"vlanTrunk"`
	PreserveDefaultVLAN bool    `json:"preserveDefaultVlan"`
	MACSpoofCheck       bool    `json:"macspoofchk"`
	EnableDAD           bool    `json:"enabledad"`
	PortIsolation       bool    `json:"portIsolation"`
	DisableInterface    bool    `json:"disableContainerInterface"`

	// Keys of this plugin.
	PF          lines  `json:"pf"`          // rules for the container's port only
	SourceGuard bool   `json:"sourceGuard"` // the container can send only from its own addresses
	FDBMax      int64  `json:"fdbMax"`      // limit of learned addresses there; 0 for no limit
	Mirror      string `json:"mirror"`      // span port that receives copies of the container's frames

	// Keys of the reference plugin bandwidth.
	bandwidth
	Shaped   []string `json:"shapedSubnets"`
	Unshaped []string `json:"unshapedSubnets"`

	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC          string     `json:"mac"`
		Bandwidth    *bandwidth `json:"bandwidth"`
		PortMappings []any      `json:"portMappings"`
	} `json:"runtimeConfig"`

	mac    net.HardwareAddr
	tagged []uint16        // from VLANTrunk
	rates  []bridge.Change // from the limits
}

// bandwidth limits the traffic to the container (ingress) and from it: in bits a second, with a burst
// in bits.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// endless is the burst that kubelet always gives, since it has no setting for it.
const endless = math.MaxInt32

// changes returns the limits as settings of the container's port.
func (b bandwidth) changes() (list []bridge.Change, err error) {
	for _, way := range []struct {
		setting     string
		rate, burst uint64
		keys        string
	}{
		{bridge.RateOut, b.IngressRate, b.IngressBurst, "ingressRate and ingressBurst"},
		{bridge.RateIn, b.EgressRate, b.EgressBurst, "egressRate and egressBurst"},
	} {
		if way.burst == endless {
			way.burst = 0
		}
		value, err := plug.Rate(way.rate, way.burst)
		if err != nil {
			return nil, wrong("%s: %v", way.keys, err)
		}
		if way.rate != 0 {
			list = append(list, bridge.Change{Name: way.setting, Value: value})
		}
	}
	return list, nil
}

// A trunk lists tagged VLANs of a port.
type trunk struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

// lines is a text: a string, or a list of its lines.
type lines string

func (l *lines) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*l = lines(one)
		return nil
	}
	var list []string
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("pf is neither a string nor a list of lines")
	}
	*l = lines(strings.Join(list, "\n"))
	return nil
}

// environment has the keys allowed in CNI_ARGS.
type environment struct {
	types.CommonArgs
	MAC types.UnmarshallableString `json:"mac,omitempty"`
}

func wrong(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}

func unsupported(key string, value any, why string) error {
	return types.NewError(types.ErrUnsupportedField, fmt.Sprintf("%s %v is not supported: %s", key, value, why), "")
}

// keys returns the configuration's keys that the plugin supports.
func keys() (list []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[network]()) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" {
			list = append(list, key)
		}
	}
	return list
}

// unknown refuses a key that is probably a misspelt key of this plugin. Other keys are allowed, since
// other plugins may use them.
func unknown(text []byte) error {
	if err := plug.CheckKeys(text, new(network)); err != nil {
		return wrong("%v", err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	known := keys()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			continue
		}
		if near := plug.Near(key, known); near != "" {
			return wrong("%.40q is not a key of this plugin; the nearest is %s", key, near)
		}
	}
	return nil
}

// decode parses a configuration.
func decode(text []byte) (*network, error) {
	n := &network{Bridge: "cni0"}
	if err := plug.ReadAnyJSON(text, n); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration: "+err.Error(), "")
	}
	return n, n.checkIPAM()
}

// leave reads the part of a configuration that DEL and GC need. Mistakes elsewhere are ignored, so
// that a container can leave even if the file has changed meanwhile.
func leave(text []byte) (*network, error) {
	var all map[string]json.RawMessage
	err := plug.ReadAnyJSON(text, &all)
	of := types.PluginConf{}
	for _, key := range []struct {
		name string
		into any
	}{{"cniVersion", &of.CNIVersion}, {"name", &of.Name}, {"type", &of.Type}, {"ipam", &of.IPAM}, {"cni.dev/valid-attachments", &of.ValidAttachments}} {
		if value := all[key.name]; err == nil && value != nil {
			if err = plug.ReadAnyJSON(value, key.into); err != nil {
				err = fmt.Errorf("%s: %w", key.name, err)
			}
		}
	}
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration: "+err.Error(), "")
	}
	n := &network{PluginConf: of}
	return n, n.checkIPAM()
}

// checkIPAM refuses invalid IPAM plugins before it starts one.
func (n *network) checkIPAM() error {
	switch {
	case strings.Contains(n.IPAM.Type, "/"):
		return wrong("ipam.type %q: give the name of a plugin, without a path", n.IPAM.Type)
	case n.IPAM.Type != "" && (n.IPAM.Type == n.Type || n.IPAM.Type == filepath.Base(os.Args[0])):
		// each plugin would start the next
		return wrong("ipam.type %q: this plugin assigns no addresses; give one that does, such as host-local", n.IPAM.Type)
	}
	return nil
}

// read parses a configuration, and makes all checks that need no other source.
func read(text []byte, args string) (*network, error) {
	n, err := decode(text)
	if err == nil {
		err = unknown(text)
	}
	if err != nil {
		return nil, err
	}
	if n.IsDefaultGateway {
		n.IsGateway = true
	}
	if err := bridge.CheckName("bridge", n.Bridge); err != nil {
		return nil, wrong("%v", err)
	}
	switch {
	case n.VLAN < 0 || n.VLAN > 4094:
		return nil, wrong("vlan %d: give 1 to 4094, or 0 for none", n.VLAN)
	case n.MTU != 0 && (n.MTU < 68 || n.MTU > 65535):
		return nil, wrong("mtu %d: give 68 to 65535, or 0 for the default", n.MTU)
	case n.HairpinMode && n.PromiscMode:
		return nil, wrong("hairpinMode and promiscMode exclude each other; leave one out")
	case n.IPAM.Type == "" && slices.Contains([]string{"", "0.1.0", "0.2.0"}, n.CNIVersion):
		return nil, wrong("cniVersion %q: a result of CNI 0.1.0 or 0.2.0 must contain addresses; give 0.3.0 or newer, or ipam", n.CNIVersion)
	case n.DisableInterface && n.IPAM.Type != "":
		return nil, wrong("disableContainerInterface and ipam exclude each other: an interface that is down gets no address")
	case n.IPAM.Type == "" && n.IPMasq:
		return nil, wrong("ipMasq needs ipam: it translates the addresses that ipam assigns")
	case len(n.Shaped)+len(n.Unshaped) > 0:
		return nil, unsupported("shapedSubnets or unshapedSubnets", slices.Concat(n.Shaped, n.Unshaped), "a limit applies to all frames of the container; leave these keys out")
	case len(n.RuntimeConfig.PortMappings) > 0:
		return nil, unsupported("portMappings", len(n.RuntimeConfig.PortMappings),
			"the switch publishes no ports; chain the plugin 'portmap' after this one, with masqAll if stations of the bridge in other subnets use the ports, "+
				"or give 'rdr-to' rules of pf at a host port")
	}
	if n.FDBMax != 0 {
		if err := bridge.CheckPortSetting("fdb-max", strconv.FormatInt(n.FDBMax, 10)); err != nil {
			return nil, wrong("fdbMax %d: give 0 to %d; 0 means no limit", n.FDBMax, bridge.MaxFDB)
		}
	}
	if n.Mirror != "" {
		if err := bridge.CheckName("port", n.Mirror); err != nil {
			return nil, wrong("mirror: %v", err)
		}
	}
	limits := n.bandwidth
	if n.RuntimeConfig.Bandwidth != nil { // which the runtime takes from the container's annotations
		limits = *n.RuntimeConfig.Bandwidth
	}
	if n.rates, err = limits.changes(); err != nil {
		return nil, err
	}
	for _, t := range n.VLANTrunk {
		list, err := t.vlans()
		if err != nil {
			return nil, err
		}
		n.tagged = append(n.tagged, list...)
	}
	slices.Sort(n.tagged)
	n.tagged = slices.Compact(n.tagged)
	if n.VLAN > 0 && slices.Contains(n.tagged, uint16(n.VLAN)) {
		return nil, wrong("vlan %d is also in vlanTrunk, but its frames leave without a tag; remove it from one of the two", n.VLAN)
	}
	if n.IsGateway {
		if err := plug.CheckInterface(n.gateway()); err != nil {
			return nil, wrong("the gateway's interface: %v", err)
		}
	}
	var env environment
	if args != "" {
		if err := types.LoadArgs(args, &env); err != nil {
			return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "")
		}
	}
	for _, mac := range []string{n.RuntimeConfig.MAC, n.Args.CNI.MAC, string(env.MAC)} {
		if mac == "" {
			continue
		}
		if n.mac, err = bridge.ParseMAC(mac); err != nil {
			return nil, wrong("mac: %v", err)
		}
		break
	}
	return n, nil
}

func (t trunk) vlans() (list []uint16, err error) {
	valid := func(id int) bool { return id >= 1 && id <= 4094 }
	switch {
	case t.ID == nil && t.MinID == nil && t.MaxID == nil:
		return nil, wrong("vlanTrunk: an entry has neither id nor minID and maxID; give the one or the other")
	case (t.MinID == nil) != (t.MaxID == nil):
		return nil, wrong("vlanTrunk: an entry has only one of minID and maxID; give both")
	case t.MinID != nil && (!valid(*t.MinID) || !valid(*t.MaxID) || *t.MaxID < *t.MinID):
		return nil, wrong("vlanTrunk: %d to %d is not a range of VLANs; give 1 to 4094, the lower first", *t.MinID, *t.MaxID)
	case t.ID != nil && !valid(*t.ID):
		return nil, wrong("vlanTrunk: id %d: give 1 to 4094", *t.ID)
	}
	if t.MinID != nil {
		for id := *t.MinID; id <= *t.MaxID; id++ {
			list = append(list, uint16(id))
		}
	}
	if t.ID != nil {
		list = append(list, uint16(*t.ID))
	}
	return list, nil
}

// rules returns the rules that apply only to the container's port.
func (n *network) rules() *bridge.PFLoad {
	if n.PF == "" {
		return nil
	}
	return &bridge.PFLoad{Name: "pf", Text: []byte(n.PF + "\n"), Source: pf.Source{}}
}

// gateway returns the name of the host's interface on the bridge, with the names of the reference
// plugin: the bridge's name, followed by the VLAN if there is one.
func (n *network) gateway() string {
	if n.VLAN != 0 {
		return fmt.Sprintf("%s.%d", n.Bridge, n.VLAN)
	}
	return n.Bridge
}

// filters reports whether the bridge has to filter VLANs.
func (n *network) filters() bool { return n.VLAN != 0 || n.VLANTrunk != nil }

// nativeVLAN is the VLAN of a trunk's untagged frames if the network sets none. The reference plugin
// uses it whatever the default VLAN of the bridge is.
const nativeVLAN = 1

// vlans returns the VLANs of the container's port; usual is the VLAN of a new port, 0 for none.
func (n *network) vlans(usual uint16) (list []bridge.VLANRange) {
	if n.VLAN == 0 && len(n.tagged) == 0 {
		return nil
	}
	native := nativeVLAN
	if n.VLAN != 0 {
		native = n.VLAN
	}
	list = plug.VLANs(uint16(native), n.tagged)
	has := slices.ContainsFunc(list, func(r bridge.VLANRange) bool { return r.First == usual })
	if n.PreserveDefaultVLAN && usual != 0 && !has {
		list = append(list, bridge.VLANRange{First: usual, Last: usual, VLANOptions: bridge.VLANOptions{Untagged: true}})
	}
	return list
}

// settings returns the settings of the container's port.
func (n *network) settings() (list []bridge.Change) {
	for _, s := range []struct {
		name string
		on   bool
	}{
		{"hairpin", n.HairpinMode}, {"isolated", n.PortIsolation}, {"source-guard", n.SourceGuard}, {"locked", n.MACSpoofCheck},
	} {
		if s.on {
			list = append(list, bridge.Change{Name: s.name, Value: bridge.On})
		}
	}
	if n.MACSpoofCheck { // its only address is a static entry
		list = append(list, bridge.Change{Name: "learn", Value: bridge.Off})
	}
	if n.FDBMax != 0 {
		list = append(list, bridge.Change{Name: "fdb-max", Value: fmt.Sprint(n.FDBMax)})
	}
	return append(list, n.rates...)
}
