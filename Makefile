# bascule. `make demo` shows it at work, `make test` proves it; both install
# what they need from Debian's packages and want root.

GO      ?= go
FUZZ ?= 10
PFRULESETS ?= 1000
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE ?= $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)

# All of this compiles in one way, the packages' way, so that Go's cache has each library once: without C, and without
# names of folders, which would be other ones for the source of a former version. Links of tests need no debug
# information: without it each takes half the time.
export CGO_ENABLED ?= 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)
LINK = -ldflags '-s -w'

STAMPS = -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)

# What each part needs, by the command or file that shows it is there.
DEMO_NEEDS = iperf3:iperf3 ip:iproute2 ethtool:ethtool
PEER_NEEDS = ovs-vswitchd:openvswitch-switch nft:nftables
TEST_NEEDS = $(DEMO_NEEDS) $(PEER_NEEDS) ping:iputils-ping sockperf:sockperf setpriv:util-linux groff:groff-base \
	qemu-system-x86_64:qemu-system-x86 busybox:busybox chromium:chromium xz:xz-utils \
	/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring tcpdump:tcpdump \
	/usr/lib/*/libpcap.so.0.8:libpcap0.8 tmux:tmux jq:jq curl:curl \
	promtool:prometheus prometheus:prometheus systemd-analyze:systemd tshark:tshark \
	/usr/lib/frr/ospfd:frr bird:bird2 tayga:tayga keepalived:keepalived dnsmasq:dnsmasq-base vsftpd:vsftpd \
	charon-systemd:charon-systemd swanctl:strongswan-swanctl \
	/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so:libcharon-extra-plugins \
	/usr/lib/ipsec/plugins/libstrongswan-openssl.so:libstrongswan-standard-plugins \
	/usr/lib/cni/bridge:containernetworking-plugins containerd:containerd \
	libvirtd:libvirt-daemon virsh:libvirt-clients \
	/usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so:libvirt-daemon-driver-qemu \
	mmdebstrap:mmdebstrap dpkg-scanpackages:dpkg-dev gpg:gnupg hostapd:hostapd wpa_supplicant:wpasupplicant \
	/usr/sbin/sshd:openssh-server ssh:openssh-client
PACKAGES_NEEDS = mmdebstrap:mmdebstrap dpkg-scanpackages:dpkg-dev gpg:gnupg rpm:rpm \
	qemu-aarch64-static:qemu-user-static /lib/ld-musl-*.so.1:musl \
	/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1:libc6-arm64-cross
KERNEL_NEEDS = qemu-system-x86_64:qemu-system-x86 xz:xz-utils dash:dash bash:bash ip:iproute2 ping:iputils-ping \
	setpriv:util-linux tcpdump:tcpdump wg:wireguard-tools \
	/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
BOOT_NEEDS = qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mke2fs:e2fsprogs dnsmasq:dnsmasq-base ping:iputils-ping \
	unshare:util-linux /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
CARD_NEEDS = $(KERNEL_NEEDS) teamnl:libteam-utils
EXACT_NEEDS = qemu-system-x86_64:qemu-system-x86 xz:xz-utils ip:iproute2 $(PEER_NEEDS) \
	/usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
BENCH_NEEDS = $(DEMO_NEEDS) $(PEER_NEEDS) sockperf:sockperf
BUILD_NEEDS = clang-19:clang-19 clang-format-19:clang-format-19 llvm-strip-19:llvm-19 \
	/usr/include/bpf/bpf_helpers.h:libbpf-dev /usr/include/asm-generic/types.h:linux-libc-dev
LINT_NEEDS = gcc:gcc /usr/include/stdio.h:libc6-dev

# installs the packages of those that are missing; with SYSTEMD_OFFLINE systemctl(1) starts no service of theirs
define install
	@missing=; for need in $(1); do \
		what=$${need%%:*}; \
		case $$what in /*) test -e $$what ;; *) command -v $$what >/dev/null ;; esac || missing="$$missing $${need#*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "installing$$missing"; \
		apt="apt-get -qq -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5"; \
		for try in 1 2 3 4 5; do \
			$$apt update >/dev/null; \
			SYSTEMD_OFFLINE=1 DEBIAN_FRONTEND=noninteractive $$apt install -y --no-install-recommends $$missing >/dev/null && exit; \
			sleep 10; \
		done; \
		exit 1; \
	fi
endef

.PHONY: build demo test test-all test-kernels test-cards test-boot test-exact test-packages test-upgrade soak bench bench-exact profile-exact bench-agent pictures generate generated \
	lint fuzz check needs install stage install-doc packages clean

build:
	$(GO) build -ldflags "$(STAMPS)" -o bascule ./cmd/bascule

demo:
	$(call install,$(DEMO_NEEDS))
	@$(MAKE) -s build
	@./bascule demo
	@./bascule lab run --profile demo

# Each test and each case once, by the rule of CONTRIBUTING.md (test/netlab/tier.go). `make test-all` leaves nothing of
# that out, and is what CI runs.
test: TEST_FLAGS = -short
test:
	$(run-tests)
	@echo "left out: each case's other hook, nine tenths of random tests and of FreeBSD's and OpenBSD's suites, two"
	@echo "thirds of the kills, tests of minutes ('make test-all'); machines that boot ('make test-boot'), other kernels"
	@echo "('make test-kernels'), drivers of cards ('make test-cards')"

test-all:
	$(run-tests)
	@echo "left out: machines that boot ('make test-boot'), other kernels ('make test-kernels'), drivers of cards ('make"
	@echo "test-cards'), instructions of a frame ('make test-exact'), half an hour of changes ('make soak')"

# one program for all, and the longest first; tests wait, too, so there is one more at a time than CPUs;
# `make lint` vets
define run-tests
	$(call install,$(TEST_NEEDS))
	@dir=$$(mktemp -d) && chmod 755 $$dir && trap "rm -r $$dir" EXIT && \
		$(GO) build -o $$dir/bascule ./cmd/bascule && \
		BASCULE=$$dir/bascule $(GO) test $(TEST_FLAGS) $(LINK) -count=1 -vet=off -p $$(($$(nproc) + 1)) -timeout 80m \
			./test/conformance ./lab ./test/routing ./datapath ./test/agent ./test/oracle ./lab/fabrics \
			./test/... ./...
endef

# The switch and its agent while everything about them changes, under traffic.
# SOAK=2m for less, SEED=7 for the same changes again; ends by itself, or by Ctrl-C.
SOAK ?= 30m
SEED ?= 0
soak:
	$(call install,$(TEST_NEEDS))
	$(GO) test ./test/soak -count=1 -v -timeout 0 -soak.time $(SOAK) -soak.seed $(SEED)
	# no packet is lost while rules are loaded a hundred times
	$(GO) test ./test/routing -count=1 -timeout 0 -run 'TestNATConformance/reload_keeps' -routing.reloads 100
	# a million connections are translated at once
	$(GO) test ./test/routing -count=1 -timeout 0 -run TestNATMany -routing.connections 1000000

# The same tests on Debian's kernels, in virtual machines, and the table of
# docs/kernels.md. KERNELS="6.12.95 7.3" for these, KERNEL_CASES=short for few cases,
# or a regular expression. A kernel that cannot be had fails it, but not with
# KERNEL_FLAGS=-untested-ok. Only a run of all cases writes the table.
KERNELS ?=
KERNEL_CASES ?= all
test-kernels:
	$(call install,$(KERNEL_NEEDS))
	@dir=$$(mktemp -d) && trap "rm -r $$dir" EXIT && $(GO) build -o $$dir/kernels ./test/kernels && \
		$$dir/kernels -kernels "$(KERNELS)" -cases "$(KERNEL_CASES)" -bascule "$(VERSION)" \
			$(if $(filter all,$(KERNEL_CASES)),-table docs/kernels.md) $(KERNEL_FLAGS)

# The switch on the drivers of network cards, which QEMU plays in virtual machines, and
# the table of docs/cards.md. CARDS="igb vmxnet3" for these, CARD_CASES=short for few
# cases, or a regular expression. A card that QEMU lacks fails it, but not with
# CARD_FLAGS=-untested-ok: igb wants QEMU 8.0, which Debian 12 has among its backports.
# Only a run of all cases writes the table.
CARDS ?=
CARD_CASES ?= all
test-cards:
	$(call install,$(CARD_NEEDS))
	@dir=$$(mktemp -d) && trap "rm -r $$dir" EXIT && $(GO) build -o $$dir/cards ./test/cards && \
		$$dir/cards -cards "$(CARDS)" -cases "$(CARD_CASES)" -bascule "$(VERSION)" \
			$(if $(filter all,$(CARD_CASES)),-table docs/cards.md) $(CARD_FLAGS)

# The pictures of README and docs, from the page as it is now.
pictures:
	$(call install,$(TEST_NEEDS))
	@dir=$$(mktemp -d) && trap "rm -r $$dir" EXIT && \
		$(GO) test ./agent/web -count=1 -run TestPictures -web.pictures $$dir && \
		cp $$dir/switch.png docs/page.png && cp $$dir/switch-dark.png docs/page-dark.png && cp $$dir/rack.png docs/page-rack.png && \
		$(GO) run ./cmd/bascule lab report lab/testdata/new.json --html > $$dir/report.html && \
		timeout 300 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,960 \
			--screenshot=$(CURDIR)/docs/lab/report.png file://$$dir/report.html

# A Debian whose own uplink is a port of a bridge, by the files of docs/boot.md: booted by QEMU with each program that
# configures networks, BOOT=netplan for one of them. Then the package is upgraded, and purged. BOOT=former for the
# upgrade from another layout.
BOOT ?=
test-boot:
	$(call install,$(BOOT_NEEDS))
	$(GO) test ./test/boot -count=1 -v -vet=off -timeout 6h -run 'TestFiles|TestBoot/$(BOOT)' -boot.machines

# Whether a frame costs as many instructions as is recorded in test/exact/golden.json, by
# the plain paths, with VLAN filtering, and past pf's rules; fails from 1 % more on.
# EXACT_FLAGS=-record records it. A kernel that cannot be had fails it, but not with
# EXACT_FLAGS=-untested-ok.
test-exact:
	$(call install,$(EXACT_NEEDS))
	@dir=$$(mktemp -d) && trap "rm -r $$dir" EXIT && $(GO) build -o $$dir/exact ./test/exact && $$dir/exact $(EXACT_FLAGS)

# All packages for all processors: built twice, compared, installed, and the program run.
test-packages:
	$(call install,$(PACKAGES_NEEDS))
	$(GO) test ./test/packages -count=1 -vet=off -timeout 60m -packages.all

# This version takes over bridges that programs of the last three layouts have made, which
# are built from the history; `make test` tries the last one. LAYOUTS=4 for more.
LAYOUTS ?= 3
test-upgrade:
	$(call install,$(DEMO_NEEDS))
	$(GO) test ./test/upgrade -count=1 -vet=off -v -timeout 60m -upgrade.layouts $(LAYOUTS)

# The cost of a frame in instructions, for each fabric; BENCHFLAGS=--quick for a look.
EXACT ?= exact.json
bench-exact:
	$(call install,$(EXACT_NEEDS))
	@$(MAKE) -s build
	./bascule lab run --in-vm --profile exact $(BENCHFLAGS) -o $(EXACT)

# Where the instructions of a frame go, by the functions of the kernel and of its BPF
# programs, as a table. FABRICS="bascule,ovs" and WORKLOAD="one-by-one:fresh:behind" for
# others; `bascule lab list` has their names. QEMU's interface for plug-ins is that of 7.2.
FABRICS ?= bascule,linux-bridge
WORKLOAD ?= one-by-one:behind
profile-exact:
	$(call install,$(EXACT_NEEDS) clang-19:clang-19)
	@$(GO) run ./test/exact -functions "$(FABRICS)" -workload "$(WORKLOAD)"

# Every figure that bascule is held to; BENCHFLAGS=--quick for a look.
BENCH ?= bench.json
bench:
	$(call install,$(BENCH_NEEDS))
	@$(MAKE) -s build
	./bascule lab run --profile bench $(BENCHFLAGS) -o $(BENCH)

# The figures of the agent, as a table for docs/performance.md.
bench-agent:
	$(call install,$(TEST_NEEDS))
	@{ $(GO) test ./test/agent -run '^$$' -bench . -benchtime 1x -timeout 20m; \
		$(GO) test ./agent/hotplug -run '^$$' -bench Hotplug -benchtime 40x -timeout 20m; \
		$(GO) test ./agent/web -run '^$$' -bench Page -benchtime 1x -timeout 20m; } 2>&1 | awk -f test/agent/figures.awk

# The datapath's objects, its Go bindings, the man pages and the schema of
# configuration files; all are committed.
generate:
	$(call install,$(BUILD_NEEDS))
	$(GO) generate ./datapath # the names of what is new there are used by all others
	$(GO) generate ./...

# Malformed and mutated frames through the datapath, what people give as a
# frame, and rules and files that nobody would write: FUZZ times the inputs that
# take some three seconds on two cores. They are counted, since Go before 1.27 now
# and then calls it a failure that the time is up (go.dev/issue/75804). The rules
# of pf in the kernel are compared with the reference on PFRULESETS random
# rulesets, each with a thousand packets. Each filter in turn has to hold back FUZZ
# times 300 packets from a real station, on each hook of each kind of bridge. FUZZ times
# 6000 packets, more or less, are routed on each hook, and once more by the host's stack.
#
# Each package's tests are built once for all of its fuzzers. What their inputs go through is
# instrumented, and that is not Go's own library: go test -fuzz would compile all of it anew.
FUZZED = ./datapath ./frame ./rule ./config ./pf ./agent/rstp ./agent ./agent/api
FOLLOWED = bascule/... github.com/goccy/go-yaml/... github.com/gopacket/gopacket/...
fuzz = (cd $(1) && $$dir/$(notdir $(1)).test -test.paniconexit0 -test.run '^$$' -test.fuzz '^$(2)$$' \
	-test.fuzztime $(shell expr $(FUZZ) \* $(3))x -test.fuzzminimizetime 10x -test.fuzzcachedir $$found/$(1:./%=%))
fuzz:
	dir=$$(mktemp -d) && chmod 755 $$dir && trap "rm -r $$dir" EXIT && \
	found=$$($(GO) env GOCACHE)/fuzz/bascule && export BASCULE=$$dir/bascule && set -x && \
	$(GO) build -o $$dir/bascule ./cmd/bascule && \
	$(GO) test -c -vet=off $(LINK) $(FOLLOWED:%='-gcflags=%=-d=libfuzzer') -o $$dir $(FUZZED) && \
	mkdir $$dir/plain && $(GO) test -c -vet=off $(LINK) -o $$dir/plain ./datapath ./test/oracle ./test/routing && \
	$(call fuzz,./datapath,FuzzTCX,750) && \
	$(call fuzz,./datapath,FuzzXDP,500) && \
	$(call fuzz,./datapath,FuzzVLAN,2500) && \
	$(call fuzz,./datapath,FuzzAnswer,7500) && \
	$(call fuzz,./frame,FuzzParse,50000) && \
	$(call fuzz,./frame,FuzzCapture,50000) && \
	$(call fuzz,./rule,FuzzParseFile,40000) && \
	$(call fuzz,./rule,FuzzParseRule,50000) && \
	$(call fuzz,./config,FuzzYAML,4500) && \
	$(call fuzz,./config,FuzzHostname,4500) && \
	$(call fuzz,./pf,FuzzParse,30000) && \
	$(call fuzz,./pf,FuzzCompile,20000) && \
	$(call fuzz,./agent/rstp,FuzzDecode,100000) && \
	$(call fuzz,./agent/rstp,FuzzReceive,10000) && \
	$(call fuzz,./agent/rstp,FuzzRestore,60000) && \
	$(call fuzz,./agent,FuzzLinkEvents,20000) && \
	$(call fuzz,./agent,FuzzSnapshot,2000) && \
	$(call fuzz,./agent/api,FuzzRequest,5000) && \
	(cd datapath && $$dir/plain/datapath.test -test.run '^TestPFIsReference$$' -test.timeout 30m \
		-rapid.checks $(PFRULESETS) -pf.packets 1000) && \
	(cd test/oracle && $$dir/plain/oracle.test -test.run '^TestOracle$$' -rapid.seed 0 \
		-oracle.frames $(shell expr $(FUZZ) \* 300)) && \
	(cd test/routing && $$dir/plain/routing.test -test.run '^TestLikeStack$$' -rapid.seed 0 \
		-routing.packets $(shell expr $(FUZZ) \* 6000)) && \
	(cd test/routing && $$dir/plain/routing.test -test.run '^TestPFLikeStack$$' -rapid.seed 0 \
		-routing.packets $(shell expr $(FUZZ) \* 1500))

# Everything that looks at the source and runs nothing of it.
check: generated lint

# Whether the form of the source is right, and what is generated up to date. It writes what it compares.
generated:
	$(call install,$(BUILD_NEEDS))
	@test -z "$$(gofmt -l .)" || { echo "not formatted by gofmt:"; gofmt -l .; exit 1; }
	clang-format-19 --dry-run -Werror bpf/*.h bpf/*.c bpf/*/*.h datapath/probe/*.c test/exact/plugin/*.c
	git ls-files -z '*.md' '*.go' '*.h' '*.c' | xargs -0 $(GO) run ./test/width
	$(GO) generate ./...
	@git diff --exit-code --stat -- '*_bpfel.*' docs/man docs/bascule.schema.json || { echo "generated files are not up to date: commit what 'make generate' makes"; exit 1; }

# The findings of tools in the source, and in the English of pages and comments (test/prose), by vale, which contains
# parsers in C.
VALE = CGO_ENABLED=1 $(GO) tool -modfile=test/prose/go.mod vale --no-global --config=test/prose/vale.ini
lint:
	$(call install,$(LINT_NEEDS))
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) vet -C packages ./...
	$(VALE) test test/prose/styles
	$(VALE) --output=line $$(git ls-files '*.md' '*.go' '*.h' '*.c')

# What all parts of .ci/run need: one of them after the other would do, but not two at once.
needs:
	$(call install,$(sort $(TEST_NEEDS) $(KERNEL_NEEDS) $(EXACT_NEEDS) $(PACKAGES_NEEDS) $(BUILD_NEEDS) $(LINT_NEEDS)))

PREFIX ?= /usr/local
UNITDIR ?= /usr/lib/systemd/system
install: build stage

# Puts all files in place; packages have the same. PROGRAM is the program that goes there, and
# RUNS one that this machine can run, for the completions.
PROGRAM ?= bascule
RUNS ?= ./bascule
SHARE = $(DESTDIR)$(PREFIX)/share
stage: install-doc
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/sbin/bascule
	install -d $(DESTDIR)$(PREFIX)/libexec
	for name in bascule-cni bascule-libvirt-hook bascule-bridge-helper; do \
		ln -sf ../sbin/bascule $(DESTDIR)$(PREFIX)/libexec/$$name || exit; done
	install -d $(DESTDIR)$(PREFIX)/libexec/netavark # where Podman looks
	ln -sf ../../sbin/bascule $(DESTDIR)$(PREFIX)/libexec/netavark/bascule-netavark
	install -d $(SHARE)/man/man8
	install -m 644 docs/man/*.8 $(SHARE)/man/man8
	install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)/usr/lib/systemd/network $(DESTDIR)/usr/lib/NetworkManager/conf.d
	sed 's|/usr/local/|$(PREFIX)/|' share/systemd/bascule.service | install -m 644 /dev/stdin $(DESTDIR)$(UNITDIR)/bascule.service
	install -m 644 share/systemd/run-bascule.mount $(DESTDIR)$(UNITDIR)
	install -m 644 share/systemd/10-bascule.network $(DESTDIR)/usr/lib/systemd/network
	install -m 644 share/NetworkManager/10-bascule.conf $(DESTDIR)/usr/lib/NetworkManager/conf.d
	install -D -m 644 share/prometheus/bascule.rules.yml $(SHARE)/bascule/prometheus/bascule.rules.yml
	install -D -m 644 share/grafana/bascule.json $(SHARE)/bascule/grafana/bascule.json
	install -d $(SHARE)/bascule/systemd
	sed 's|/usr/local/|$(PREFIX)/|' share/systemd/seen.conf | install -m 644 /dev/stdin $(SHARE)/bascule/systemd/seen.conf
	sed 's|/usr/local/|$(PREFIX)/|' share/libvirt/bascule | install -m 755 /dev/stdin $(SHARE)/bascule/libvirt-hook
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(RUNS) completion bash | install -m 644 /dev/stdin $(SHARE)/bash-completion/completions/bascule
	$(RUNS) completion zsh | install -m 644 /dev/stdin $(SHARE)/zsh/site-functions/_bascule
	$(RUNS) completion fish | install -m 644 /dev/stdin $(SHARE)/fish/vendor_completions.d/bascule.fish
	install -m 644 LICENSE $(SHARE)/doc/bascule/copyright

# Packages of what make install puts in place, and a bill of materials (CycloneDX), in
# PACKAGES. The same commit and Go make the same bytes. PREBUILT is a program to pack, instead
# of one that is built for each of ARCHES.
PACKAGES ?= dist
ARCHES ?= amd64 arm64
FORMATS ?= deb rpm apk tar
MAINTAINER ?= bascule <root@localhost>
packages: $(if $(PREBUILT),,build)
	@set -e; dir=$$(mktemp -d); trap "rm -r $$dir" EXIT; \
	$(GO) build -C packages -o $$dir/packages .; \
	for arch in $(ARCHES); do \
		program=$(PREBUILT); \
		if [ -z "$$program" ]; then \
			program=$$dir/bascule-$$arch; \
			GOARCH=$$arch $(GO) build -ldflags "-s -w $(STAMPS)" -o $$program ./cmd/bascule; \
		fi; \
		mkdir $$dir/$$arch; \
		$(MAKE) -s stage PROGRAM=$$program RUNS=$(or $(PREBUILT),./bascule) DESTDIR=$$dir/$$arch PREFIX=/usr; \
		mkdir -p $$dir/$$arch/etc/bascule; \
		$$dir/packages -tree $$dir/$$arch -arch $$arch -version "$(VERSION)" -date "$(DATE)" -maintainer "$(MAINTAINER)" \
			-scripts packages/scripts -out $(PACKAGES) $(FORMATS); \
	done

# The pages of docs, and what they link to.
install-doc:
	install -d $(DESTDIR)$(PREFIX)/share/doc/bascule/design $(DESTDIR)$(PREFIX)/share/doc/bascule/lab
	install -m 644 docs/design/*.md $(DESTDIR)$(PREFIX)/share/doc/bascule/design
	install -m 644 docs/lab/*.md docs/lab/*.png $(DESTDIR)$(PREFIX)/share/doc/bascule/lab
	install -m 644 docs/*.md docs/*.png docs/openapi.json $(DESTDIR)$(PREFIX)/share/doc/bascule
	install -D -m 644 docs/bascule.schema.json $(DESTDIR)$(PREFIX)/share/bascule/bascule.schema.json
	ln -sf ../../bascule/bascule.schema.json $(DESTDIR)$(PREFIX)/share/doc/bascule

clean:
	rm -rf bascule dist
