# bascule. `make demo` shows it at work, `make test` proves it; both install
# what they need from Debian's packages and want root.

GO      ?= go
FUZZTIME ?= 30s
PFRULESETS ?= 1000
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

# What each part needs, by the command or file that shows it is there.
DEMO_NEEDS = iperf3:iperf3 ip:iproute2 ethtool:ethtool
PEER_NEEDS = ovs-vswitchd:openvswitch-switch nft:nftables
TEST_NEEDS = $(DEMO_NEEDS) $(PEER_NEEDS) ping:iputils-ping strace:strace sockperf:sockperf setpriv:util-linux groff:groff-base \
	qemu-system-x86_64:qemu-system-x86 chromium:chromium tcpdump:tcpdump /usr/lib/*/libpcap.so.0.8:libpcap0.8 tmux:tmux
BENCH_NEEDS = $(DEMO_NEEDS) $(PEER_NEEDS) sockperf:sockperf
BUILD_NEEDS = clang-19:clang-19 clang-format-19:clang-format-19 llvm-strip-19:llvm-19 \
	/usr/include/bpf/bpf_helpers.h:libbpf-dev /usr/include/asm-generic/types.h:linux-libc-dev

# installs the packages of those that are missing
define install
	@missing=; for need in $(1); do \
		what=$${need%%:*}; \
		case $$what in /*) test -e $$what ;; *) command -v $$what >/dev/null ;; esac || missing="$$missing $${need#*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "installing$$missing"; \
		apt-get -qq update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null; \
	fi
endef

.PHONY: build demo test bench generate fuzz check install clean

build:
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o bascule ./cmd/bascule

demo:
	$(call install,$(DEMO_NEEDS))
	@$(MAKE) -s build
	@./bascule lab run --profile demo

test:
	$(call install,$(TEST_NEEDS))
	$(GO) test -count=1 -timeout 20m ./test/... ./... # the longest first

# Every figure that bascule is held to; BENCHFLAGS=--quick for a look.
BENCH ?= bench.json
bench:
	$(call install,$(BENCH_NEEDS))
	@$(MAKE) -s build
	./bascule lab run --profile bench $(BENCHFLAGS) -o $(BENCH)

# The datapath's objects, its Go bindings and the man pages; all are committed.
generate:
	$(call install,$(BUILD_NEEDS))
	$(GO) generate ./...

# Malformed and mutated frames through the datapath, what people give as a
# frame, and rules that nobody would write; each target for FUZZTIME. The rules
# of pf in the kernel are compared with the reference on PFRULESETS random
# rulesets, each with a thousand packets.
fuzz:
	$(GO) test ./datapath -run '^$$' -fuzz '^FuzzTCX$$' -fuzztime $(FUZZTIME)
	$(GO) test ./datapath -run '^$$' -fuzz '^FuzzXDP$$' -fuzztime $(FUZZTIME)
	$(GO) test ./frame -run '^$$' -fuzz '^FuzzParse$$' -fuzztime $(FUZZTIME)
	$(GO) test ./frame -run '^$$' -fuzz '^FuzzCapture$$' -fuzztime $(FUZZTIME)
	$(GO) test ./rule -run '^$$' -fuzz '^FuzzParseFile$$' -fuzztime $(FUZZTIME)
	$(GO) test ./rule -run '^$$' -fuzz '^FuzzParseRule$$' -fuzztime $(FUZZTIME)
	$(GO) test ./datapath -run '^$$' -fuzz '^FuzzVLAN$$' -fuzztime $(FUZZTIME)
	$(GO) test ./datapath -run '^$$' -fuzz '^FuzzAnswer$$' -fuzztime $(FUZZTIME)
	$(GO) test ./pf -run '^$$' -fuzz '^FuzzParse$$' -fuzztime $(FUZZTIME)
	$(GO) test ./pf -run '^$$' -fuzz '^FuzzCompile$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 10x
	$(GO) test ./datapath -run '^TestPFIsReference$$' -timeout 30m -rapid.checks $(PFRULESETS) -pf.packets 1000

# Everything that looks at the source and runs nothing of it.
check:
	$(call install,$(BUILD_NEEDS))
	@test -z "$$(gofmt -l .)" || { echo "not formatted by gofmt:"; gofmt -l .; exit 1; }
	clang-format-19 --dry-run -Werror bpf/*.h bpf/*.c
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) generate ./...
	@git diff --exit-code --stat -- '*_bpfel.*' docs/man || { echo "generated files are not up to date: commit what 'make generate' makes"; exit 1; }

PREFIX ?= /usr/local
install: build
	install -D -m 755 bascule $(DESTDIR)$(PREFIX)/sbin/bascule
	install -d $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 644 docs/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8

clean:
	rm -f bascule
