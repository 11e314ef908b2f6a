// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"maps"
	"strconv"
	"strings"
	"sync"
)

// byName returns the inverse of a table of names, with more names added.
func byName[K comparable](names map[K]string, more map[string]K) map[string]K {
	m := maps.Clone(more)
	if m == nil {
		m = make(map[string]K, len(names))
	}
	for k, name := range names {
		m[name] = k
	}
	return m
}

// The values of names in rules.
var (
	protocolNumbers = byName(protocolNames, map[string]uint8{
		"icmp6": protoICMPv6, "vrrp": 112,
		"ip": 0, "ggp": 3, "st": 5, "cbt": 7, "egp": 8, "igp": 9, "pup": 12, "chaos": 16, "hmp": 20,
		"xns-idp": 22, "rdp": 27, "iso-tp4": 29, "dccp": 33, "xtp": 36, "ddp": 37, "idpr-cmtp": 38,
		"ipv6-route": 43, "ipv6-frag": 44, "idrp": 45, "mobile": 55, "skip": 57, "ipv6-nonxt": 59,
		"ipv6-opts": 60, "rspf": 73, "vmtp": 81, "ax.25": 93, "encap": 98, "isis": 124, "fc": 133,
		"mobility-header": 135, "mpls-in-ip": 137, "manet": 138, "hip": 139, "shim6": 140, "wesp": 141,
		"rohc": 142, "ethernet": 143,
	})
	icmpTypes  = byName(icmpTypeNames, nil)
	icmp6Types = byName(icmp6TypeNames, map[string]uint8{
		"listqry": 130, "listenrep": 131, "listendone": 132,
		"fqdnreq": 139, "fqdnrep": 140, "niqry": 139, "nirep": 140,
	})
)

// icmpCode returns the code with this name of a type.
func icmpCode(names map[ICMPCode]string, icmpType uint8, name string) (uint8, bool) {
	for code, n := range names {
		if code.Type == icmpType && n == name {
			return code.Code, true
		}
	}
	// one code has two names
	if icmpType == 1 && name == "notnbr-unr" {
		return icmpCode(names, icmpType, "beyond-unr")
	}
	return 0, false
}

// tosValues are the values of tos that have names.
var tosValues = map[string]uint8{
	"lowdelay": 0x10, "throughput": 0x08, "reliability": 0x04,
	"critical": 0xa0, "inetcontrol": 0xc0, "netcontrol": 0xe0,
	"cs0": 0x00, "cs1": 0x20, "cs2": 0x40, "cs3": 0x60, "cs4": 0x80, "cs5": 0xa0, "cs6": 0xc0, "cs7": 0xe0,
	"ef": 0xb8, "va": 0xb0,
	"af11": 0x28, "af12": 0x30, "af13": 0x38, "af21": 0x48, "af22": 0x50, "af23": 0x58,
	"af31": 0x68, "af32": 0x70, "af33": 0x78, "af41": 0x88, "af42": 0x90, "af43": 0x98,
}

// optimizations are the timeouts that `set optimization` sets, from TCPFirst to TCPTsdiff.
var optimizations = map[string][7]uint32{
	"default":      {120, 30, 24 * 60 * 60, 15 * 60, 45, 90, 30},
	"normal":       {120, 30, 24 * 60 * 60, 15 * 60, 45, 90, 30},
	"high-latency": {180, 35, 24 * 60 * 60, 15*60 + 5, 50, 95, 60},
	"satellite":    {180, 35, 24 * 60 * 60, 15*60 + 5, 50, 95, 60},
	"conservative": {60 * 60, 15 * 60, 5 * 24 * 60 * 60, 60 * 60, 10 * 60, 3 * 60, 60},
	"aggressive":   {30, 5, 5 * 60 * 60, 60, 30, 30, 10},
}

// services are the named ports. They are built in, and not read from services(5), so that a
// file means the same everywhere. If TCP and UDP have different ports of one name, TCP's
// counts.
var services = sync.OnceValue(func() map[string]uint16 {
	words := strings.Fields(registeredNames + serviceNames)
	m := make(map[string]uint16, len(words)/2)
	for i := 0; i < len(words); i += 2 {
		n, _ := strconv.ParseUint(words[i+1], 10, 16)
		m[words[i]] = uint16(n)
	}
	return m
})

const serviceNames = `
Clearcase 371  acr-nema 104  afpovertcp 548  afs3-bos 7007  afs3-callback 7001  afs3-fileserver 7000
afs3-kaserver 7004  afs3-prserver 7002  afs3-rmtsys 7009  afs3-update 7008  afs3-vlserver 7003
afs3-volser 7005  amanda 10080  amandaidx 10082  amidxtape 10083  amqp 5672  amqps 5671  asf-rmcp 623
asp 27374  auth 113  authentication 113  babel 6696  bacula-dir 9101  bacula-fd 9102  bacula-sd 9103
bbs 7000  bfd-control 3784  bfd-echo 3785  bgp 179  bgpd 2605  biff 512  binkp 24554  bootpc 68  bootps 67
canna 5680  cfengine 5308  chargen 19  cisco-sccp 2000  clc-build-daemon 8990  clearcase 371  cmd 514
cmip-agent 164  cmip-man 163  codaauth2 370  codasrv 2432  codasrv-se 2433  comsat 512  csync2 30865
cvspserver 2401  daap 3689  datametrics 1645  daytime 13  db-lsp 17500  dcap 22125  dhcpv6-client 546
dhcpv6-server 547  dicom 104  dict 2628  dircproxy 57000  discard 9  distcc 3632  domain 53  domain-s 853
echo 7  epmap 135  epmd 4369  exec 512  f5-globalsite 2792  f5-iquery 4353  fax 4557  fido 60179  finger 79
font-service 7100  freeciv 5556  fsp 21  fspd 21  ftp 21  ftp-data 20  ftp-proxy 8021  ftps 990
ftps-data 989  gdomap 538  gds-db 3050  gds_db 3050  git 9418  gnunet 2086  gnutella-rtr 6347
gnutella-svc 6346  gopher 70  gpsd 2947  gris 2135  groupwise 1677  gsidcap 22128  gsiftp 2811
gsigatekeeper 2119  hkp 11371  hostmon 5355  hprop 754  http 80  http-alt 8080  https 443  hylafax 4559
iax 4569  icp 3130  icpv2 3130  ident 113  imap 143  imap2 143  imaps 993  ingreslock 1524  ipp 631
iprop 2121  ipsec-msft 4500  ipsec-nat-t 4500  ipx 213  ircd 6667  ircs-u 6697  isakmp 500  iscsi 860
iscsi-target 3260  isisd 2608  isns 3205  iso-tsap 102  jabber-client 5222  jabber-server 5269
kamanda 10081  kdc 750  kerberos 88  kerberos-adm 749  kerberos-iv 750  kerberos-master 751  kerberos-sec 88
kerberos4 750  kerberos5 88  kerberos_master 751  kermit 1649  klogin 543  kpasswd 464  krb-prop 754
krb5 88  krb5_prop 754  krb_prop 754  krcmd 544  kshell 544  l2f 1701  l2tp 1701  ldap 389  ldaps 636
ldp 646  loc-srv 135  login 513  lotusnote 1352  lotusnotes 1352  lrrd 4949  mail 25  mailq 174  mdns 5353
microsoft-ds 445  moira-db 775  moira-update 777  moira-ureg 779  moira_db 775  moira_update 777
moira_ureg 779  mon 2583  ms-sql-m 1434  ms-sql-s 1433  ms-wbt-server 3389  mtn 4691  munin 4949  mysql 3306
mysql-proxy 6446  nbd 10809  netbios-dgm 138  netbios-ns 137  netbios-ssn 139  netstat 15  nfs 2049
nfsd 2049  nicname 43  nntp 119  nntps 563  nqs 607  nrpe 5666  nsca 5667  ntalk 518  ntp 123  ntske 4460
null 9  nut 3493  old-radacct 1646  old-radius 1645  omniorb 8088  openvpn 1194  ospf6d 2606  ospfapi 2607
ospfd 2604  passwd-server 752  passwd_server 752  pawserv 345  pop-3 110  pop3 110  pop3s 995  poppassd 106
portmapper 111  postgres 5432  postgresql 5432  predict 1210  printer 515  proofd 1093  ptp-event 319
ptp-general 320  puppet 8140  qmqp 628  qmtp 209  qotd 17  quote 17  radacct 1813  radius 1812
radius-acct 1813  radmin-port 4899  readnews 119  redis 6379  remctl 4373  ripd 2602  ripngd 2603
rmiregistry 1099  rmtcfg 1236  rootd 1094  route 520  routed 520  router 520  rpc2portmap 369  rplay 5555
rptp 5556  rsync 873  rtcm-sc104 2101  rtsp 554  sa-msg-port 1646  saft 487  sane 6566  sane-port 6566
saned 6566  sge-execd 6445  sge-qmaster 6444  sge_execd 6445  sge_qmaster 6444  sgi-cad 17004
sgi-cmsd 17001  sgi-crsd 17002  sgi-gcd 17003  shell 514  sieve 4190  silc 706  sink 9  sip 5060
sip-tls 5061  skkserv 1178  smtp 25  smtps 465  smux 199  snmp 161  snmp-trap 162  snmptrap 162  snntp 563
snpp 444  socks 1080  source 19  spamd 8025  spamd-cfg 8026  spamd-sync 8025  spooler 515  ssh 22  ssmtp 465
stun 3478  submission 587  submissions 465  subversion 3690  sunrpc 111  supfiledbg 1127  supfilesrv 871
suucp 4031  svn 3690  svrloc 427  syslog 514  syslog-tls 6514  sysrqd 4094  systat 11  tacacs 49  talk 517
tap 113  tcpmux 1  telnet 23  telnets 992  tfido 60177  tftp 69  time 37  timserver 37  tinc 655
tproxy 8081  tsap 102  ttytst 19  untp 119  urd 465  users 11  uucp 540  uucpd 540  venus 2430
venus-se 2431  vxlan 4789  wais 210  webcache 8080  webmin 10000  who 513  whod 513  whois 43  wnn6 22273
www 80  x11 6000  x11-0 6000  x11-1 6001  x11-2 6002  x11-3 6003  x11-4 6004  x11-5 6005  x11-6 6006
x11-7 6007  xdmcp 177  xfs 7100  xinetd 9098  xmms2 9667  xmpp-client 5222  xmpp-server 5269  xtel 1313
xtelw 1314  z3950 210  zabbix-agent 10050  zabbix-trapper 10051  zebra 2601  zebrasrv 2600  zephyr-clt 2103
zephyr-hm 2104  zephyr-srv 2102  zope 9673  zope-ftp 8021  zserv 346
`

// registeredNames are names that IANA has registered, or that OpenBSD's /etc/services has, but
// that are missing in Debian's, which is serviceNames.
const registeredNames = `
adws 9389  aol 5190  bfd-lag 6784  bfd-multi-ctl 4784  blizwow 3724  capwap-control 5246
capwap-data 5247  coap 5683  coaps 5684  couchdb 5984  cvsup 5999  dhcp-failover 647  dhcp-failover2 847
dhcpd-sync 8067  diameter 3868  docker 2375  docker-s 2376  eklogin 2105  etcd-client 2379
etcd-server 2380  geneve 6081  gtp-control 2123  gtp-user 2152  h323gatedisc 1718  h323gatestat 1719
h323hostcall 1720  hostname 101  hsrp 1985  http-mgmt 280  http-rpc-epmap 593  hunt 26740  iapp 2313
icb 7326  imap3 220  ipfix 4739  ipfixs 4740  irc 194  ircs 994  krb524 4444  llmnr 5355  memcache 11211
minecraft 25565  mongodb 27017  mqtt 1883  ms-streaming 1755  msft-gc 3268  msft-gc-ssl 3269  msnp 1863
name 42  nameserver 42  nat-pmp 5351  nat-pmp-status 5350  ndl-aas 3128  ndmp 10000  netconf-ssh 830
netconf-tls 6513  pcanywheredata 5631  pcanywherestat 5632  pcp 5351  pcsync-https 8443
pdl-datastream 9100  pop2 109  pptp 1723  quake 26000  radius-dynauth 3799  rfb 5900  ripng 521
rpki-rtr 323  rpki-rtr-tls 324  rtsps 322  rwhois 4321  secure-mqtt 8883  sflow 6343  sftp 115
sips 5061  snmptls 10161  ssdp 1900  stuns 5349  teredo 3544  timed 525  turn 3478  turns 5349
uucp-path 117  vxlan-gpe 4790  wap-wsp 9200  wins 1512  ws-discovery 3702  wsdapi 5357  wsdapi-s 5358
wsman 5985  wsmans 5986
`
