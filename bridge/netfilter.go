// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// netfilterWarning lists the host's rules that do not see packets that a port routes past them.
func netfilterWarning(port string) []string {
	rules := forwardRules()
	const shown = 3
	switch n := len(rules); {
	case n == 0:
		return nil
	case n > shown:
		rules = append(rules[:shown:shown], fmt.Sprintf("%d more", n-shown))
	}
	return []string{fmt.Sprintf("%s: packets that the datapath routes bypass rules of the host: %s; filter with pf or MAC rules, or leave --route off",
		port, strings.Join(rules, ", "))}
}

// forwardRules returns the chains of nftables and the tables of iptables that see packets routed by
// the network stack, for a warning. It returns none if they cannot be read.
func forwardRules() []string {
	var list []string
	for _, of := range []struct{ file, name string }{{"ip_tables_names", "iptables"}, {"ip6_tables_names", "ip6tables"}} {
		text, err := os.ReadFile("/proc/thread-self/net/" + of.file)
		if err != nil {
			continue // the kernel has none
		}
		for _, table := range strings.Fields(string(text)) {
			list = append(list, of.name+" "+table)
		}
	}
	const message = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	ask := nl.NewNetlinkRequest(message, unix.NLM_F_DUMP)
	ask.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_UNSPEC, Version: nl.NFNETLINK_V0})
	chains, err := ask.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return list
	}
	for _, c := range chains {
		if name := forwardChain(c); name != "" {
			list = append(list, name)
		}
	}
	return list
}

// forwardChain returns the name of a chain that sees packets routed by the network stack, or "" for
// other chains. message is the kernel's (include/uapi/linux/netfilter/nf_tables.h).
func forwardChain(message []byte) string {
	families := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}
	if len(message) < nl.SizeofNfgenmsg || families[message[0]] == "" {
		return ""
	}
	chain, err := nl.ParseRouteAttrAsMap(message[nl.SizeofNfgenmsg:])
	if err != nil {
		return ""
	}
	hook, err := nl.ParseRouteAttrAsMap(chain[unix.NFTA_CHAIN_HOOK].Value)
	if err != nil {
		return ""
	}
	number := hook[unix.NFTA_HOOK_HOOKNUM].Value
	if len(number) != 4 {
		return "" // a chain that other chains jump to
	}
	switch binary.BigEndian.Uint32(number) {
	case unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING:
		return fmt.Sprintf("nftables %s %s %s", families[message[0]],
			nl.BytesToString(chain[unix.NFTA_CHAIN_TABLE].Value), nl.BytesToString(chain[unix.NFTA_CHAIN_NAME].Value))
	}
	return ""
}
