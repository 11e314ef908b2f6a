// SPDX-License-Identifier: BSD-2-Clause

// Package packages tests what `make packages` makes, with the package managers of the systems that the packages are
// for. `make test-packages` tests all formats and processors, since it builds the program for each processor.
package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"bascule/test/program"
)

var all = flag.Bool("packages.all", false, "build all formats for all processors, twice, and try them")

// run runs a command, which must succeed, and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// needs skips the test if one of the programs is missing.
func needs(t *testing.T, names ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("installs packages into a folder, which takes root")
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s, which 'make test' installs", name)
		}
	}
}

// debian makes a system of Debian's essential packages, from the machine's own apt sources.
func debian(t *testing.T) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	sources, err := filepath.Glob("/etc/apt/sources.list.d/*.sources")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/etc/apt/sources.list"); err == nil {
		sources = append(sources, "/etc/apt/sources.list")
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Skipf("which Debian this is cannot be found out: %v", err)
	}
	_, suite, ok := strings.Cut(string(release), "VERSION_CODENAME=")
	suite, _, _ = strings.Cut(suite, "\n")
	if !ok || len(sources) == 0 {
		t.Skip("no sources of Debian are set up for apt")
	}
	args := append([]string{"--variant=essential", "--include=mount", "--quiet", suite, root}, sources...)
	out, err := exec.CommandContext(t.Context(), "mmdebstrap", args...).CombinedOutput()
	for _, why := range []string{"Could not resolve", "Temporary failure", "Could not connect", "Unable to connect", "Failed to fetch"} {
		if err != nil && bytes.Contains(out, []byte(why)) {
			t.Skipf("no mirror of Debian is reached: %s", why)
		}
	}
	if err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	return root
}

// inside runs a script of sh in a system, in namespaces of its own.
func inside(t *testing.T, root, script string) {
	t.Helper()
	run(t, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", `
		mount --make-rprivate /
		mount -t proc proc "$0/proc"
		mount -t sysfs sysfs "$0/sys"
		mount -t tmpfs tmpfs "$0/run"
		mount -o bind /dev "$0/dev"
		exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$0" sh -euxc "$1"`, root, script)
}

// list is a script that lists the files of a system, except for records of package managers.
const list = `find / -xdev -not -path '/dev*' -not -path '/var/lib/dpkg*' -not -path '/var/lib/rpm*' -not -path '/var/log*' \
	-not -path '/var/cache*' -not -path '/usr/lib/sysimage*' -not -path '/package.*' -not -path '/before' -not -path '/after' | sort`

// use is a script that tries an installed package. It starts a bridge and an agent.
const use = `
	bascule version
	bascule --help >/dev/null
	! command -v ip
	bascule demo # which needs no such program
	bascule bridge add br0
	bascule export >/etc/bascule/switch.yaml
	bascule agent -f /etc/bascule 2>/run/agent.log &
	agent=$!
	tries=0
	until bascule agent status >/dev/null 2>&1; do
		kill -0 $agent
		test $((tries += 1)) -lt 600
		sleep 0.1
	done
	# where the agent keeps what Docker says only once (--docker-state)
	mkdir -p /var/lib/bascule
	echo '{}' >/var/lib/bascule/docker.json
	for name in bascule-cni bascule-libvirt-hook bascule-bridge-helper netavark/bascule-netavark; do
		test $(readlink -f /usr/libexec/$name) = $(readlink -f /usr/sbin/bascule)
	done
	CNI_COMMAND=VERSION /usr/libexec/bascule-cni </dev/null | grep -q 1.1.0
	grep -q '^exec /usr/libexec/' /usr/share/bascule/libvirt-hook
	grep -q '^ExecStart=/usr/sbin/bascule ' /usr/lib/systemd/system/bascule.service
	gzip -dc /usr/share/man/man8/bascule-demo.8.gz | grep -q '^.Dt BASCULE-DEMO'
	test -z "$(find /usr/share/man/man8 -name 'bascule*' ! -name '*.gz')"
	test -s /usr/share/bash-completion/completions/bascule
	test -s /usr/share/bascule/bascule.schema.json
	grep -q CycloneDX /usr/share/doc/bascule/bascule.cdx.json
	grep -q schema /usr/share/doc/bascule/bascule.schema.json
	test -s /usr/share/doc/bascule/openapi.json
	# no samples of measurements
	test -z "$(cd /usr/share/doc/bascule; find . -name '*.json' ! -name bascule.cdx.json ! -name bascule.schema.json ! -name openapi.json -o -name '*.html')"
`

// over is a script of the steps that a user takes before the package is removed.
const over = `
	kill $agent
	wait $agent || true
	bascule bridge del br0
	rm /etc/bascule/switch.yaml
`

// nothing is a script that compares the system with its initial state.
const nothing = list + ` >/after
	diff /before /after
	test ! -e /run/bascule
	test ! -e /run/bascule-agent
`

func only(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The .deb is installed in a Debian that has nothing else, used, installed again, and purged. It leaves nothing behind.
// The same holds for the .rpm.
func TestInstall(t *testing.T) {
	t.Parallel()
	needs(t, "mmdebstrap", "dpkg-deb", "unshare", "make")
	formats, dir := "deb", t.TempDir()
	if *all {
		needs(t, "rpm")
		formats += " rpm"
	}
	run(t, "make", "-s", "-C", "../..", "packages", "PREBUILT="+program.Path(t), "ARCHES="+runtime.GOARCH,
		"FORMATS="+formats, "PACKAGES="+dir)
	repository(t, only(t, dir, "*.deb"))
	root := debian(t)
	copyTo(t, only(t, dir, "*.deb"), filepath.Join(root, "package.deb"))
	inside(t, root, list+" >/before\ndpkg -i /package.deb\n"+use+"dpkg -i /package.deb\nkill -0 $agent\n"+
		over+"dpkg --purge bascule\n"+nothing)
	if !*all {
		return
	}
	// rpm keeps its own list of installed packages, and does not know Debian's libc.
	rpm := only(t, dir, "*.rpm")
	// rpm leaves folders that packages of the system would own.
	things := strings.Replace(list, " | sort", ` \( -not -type d -o -name '*bascule*' \) | sort`, 1)
	inside(t, root, things+" >/before\n")
	run(t, "rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nodeps", "--install", rpm)
	run(t, "rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nodeps", "--verify", "bascule")
	inside(t, root, use+over)
	run(t, "rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nodeps", "--erase", "bascule")
	inside(t, root, strings.Replace(nothing, list, things, 1))
}

// repository makes the repository of docs/packages.md from the packages in dir, and installs the package from there
// with apt.
func repository(t *testing.T, deb string) {
	t.Helper()
	needs(t, "dpkg-scanpackages", "gpg", "apt-get")
	page, err := os.ReadFile("../../docs/packages.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## An APT repository\n")
	var script strings.Builder
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			script.WriteString(command)
		} else if script.Len() > 0 {
			break
		}
	}
	at := t.TempDir()
	run(t, "sh", "-euc", `cd "$0" && mkdir dist && cp "$1" dist && eval "$2" && gpgconf --kill all`, at, deb, script.String())
	// An apt of its own, whose user cannot read files that only root may read.
	apt := `cd "$0" && mkdir -p state/lists/partial cache/archives/partial got &&
		echo "deb [signed-by=$0/repo/bascule.gpg] file:$0/repo stable main" >list &&
		set -- -o Dir::State=$0/state -o Dir::Cache=$0/cache -o Dir::Etc::sourcelist=$0/list -o Dir::Etc::sourceparts=/dev/null \
			-o Dir::State::status=/dev/null -o APT::Sandbox::User=root &&
		apt-get "$@" update && cd got && apt-get "$@" download bascule`
	out := run(t, "sh", "-euc", apt, at)
	if strings.Contains(out, "W:") {
		t.Errorf("apt warns: %s", out)
	}
	got, err := os.ReadFile(only(t, at+"/got", "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(deb); err != nil || !bytes.Equal(got, want) {
		t.Errorf("apt brought another package (%v)", err)
	}
	// a change by another person
	run(t, "sh", "-euc", `cd "$0/repo/dists/stable" && sed -i 's/^Suite: stable/Suite: stables/' InRelease && rm -r "$0"/state "$0"/cache "$0"/got`, at)
	if out, err := exec.CommandContext(t.Context(), "sh", "-euc", apt, at).CombinedOutput(); err == nil {
		t.Errorf("apt took a repository that was changed: %s", out)
	}
}

// unpack unpacks an archive with tar, and returns the names of its files and links.
func unpack(t *testing.T, path, into string) (names []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(h.Name, "./"), "/")
		if h.Typeflag == tar.TypeDir || strings.HasPrefix(name, ".") { // metadata of apk
			continue
		}
		names = append(names, name)
		if name != "usr/sbin/bascule" {
			continue
		}
		text, err := io.ReadAll(archive)
		if err == nil {
			err = os.WriteFile(into, text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	return names
}

// Two builds, from two folders at different times, are identical byte by byte. All formats contain the same files. The
// program and its parsers run on each processor and libc.
func TestAll(t *testing.T) {
	if !*all {
		t.Skip("builds the program for each processor: 'make test-packages'")
	}
	needs(t, "dpkg-deb", "rpm", "qemu-aarch64-static", "git", "make")
	if _, err := os.Stat("/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1"); err != nil {
		t.Skip("needs libc6-arm64-cross, which 'make test-packages' installs")
	}
	one, two, dir := t.TempDir(), t.TempDir(), t.TempDir()
	tree := filepath.Join(dir, "tree")
	run(t, "bash", "-c", `cd ../.. && mkdir "$0" && git ls-files -z | tar --null -T - -c | tar -xm -C "$0"`, tree)
	stamps := []string{}
	for name, command := range map[string]string{
		"VERSION": "git describe --tags --always --dirty", "COMMIT": "git rev-parse HEAD", "DATE": "TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd",
	} {
		stamps = append(stamps, name+"="+strings.TrimSpace(run(t, "bash", "-c", command)))
	}
	for at, out := range map[string]string{"../..": one, tree: two} {
		run(t, "make", append([]string{"-s", "-C", at, "packages", "PACKAGES=" + out}, stamps...)...)
	}
	made, err := os.ReadDir(one)
	if err != nil || len(made) != 10 {
		t.Fatalf("%v, %v; not 10", made, err)
	}
	for _, e := range made {
		a, err := os.ReadFile(filepath.Join(one, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(two, e.Name())); err != nil || !bytes.Equal(a, b) {
			t.Errorf("two builds of %s differ (%v)", e.Name(), err)
		}
	}
	for _, arch := range []struct{ deb, rpm string }{{"amd64", "x86_64"}, {"arm64", "aarch64"}} {
		root := filepath.Join(dir, arch.deb)
		run(t, "dpkg-deb", "-x", only(t, one, "*_"+arch.deb+".deb"), root)
		var want []string
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				want = append(want, strings.TrimPrefix(path, root+"/"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		musl, glibc := filepath.Join(dir, "musl-"+arch.deb), filepath.Join(dir, "glibc-"+arch.deb)
		var inRPM []string
		for line := range strings.Lines(run(t, "rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", only(t, one, "*."+arch.rpm+".rpm"))) {
			if mode, path, ok := strings.Cut(strings.TrimSpace(line), " /"); ok && !strings.HasPrefix(mode, "d") && !strings.HasPrefix(mode, "warning") {
				inRPM = append(inRPM, path)
			}
		}
		slices.Sort(inRPM)
		for what, got := range map[string][]string{
			"apk": unpack(t, only(t, one, "*_"+arch.rpm+".apk"), musl),
			"tar": unpack(t, only(t, one, "*-linux-"+arch.deb+".tar.gz"), glibc),
			"rpm": inRPM,
		} {
			if !slices.Equal(got, want) {
				t.Errorf("%s for %s has %v, the .deb %v", what, arch.deb, got, want)
			}
		}
		programs := []string{glibc, filepath.Join(root, "usr/sbin/bascule")}
		if arch.deb == runtime.GOARCH {
			programs = append(programs, musl) // Debian has musl only for the machine's own processor.
		}
		for _, path := range programs {
			command := []string{path}
			if arch.deb != runtime.GOARCH {
				command = []string{"qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", path}
			}
			for _, about := range []string{"--version", "--help"} {
				if out := run(t, command[0], append(command[1:], about)...); !strings.Contains(out, "bascule") {
					t.Errorf("%v %s printed %q", command, about, out)
				}
			}
		}
		if runtime.GOARCH == "arm64" || arch.deb == runtime.GOARCH {
			continue
		}
		for _, parser := range []string{"pf", "rule", "config"} {
			test := filepath.Join(dir, parser+".test")
			run(t, "env", "CGO_ENABLED=0", "GOARCH="+arch.deb, "go", "test", "-c", "-vet=off", "-trimpath", "-o", test, "bascule/"+parser)
			// TestMemory starts itself, which the emulator does not support.
			cmd := exec.CommandContext(t.Context(), "qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", test, "-test.timeout=20m",
				"-test.skip=^TestMemory$")
			cmd.Dir = "../../" + parser
			out, err := cmd.CombinedOutput()
			t.Logf("%s on %s: %s", parser, arch.deb, bytes.TrimSpace(out))
			if err != nil {
				t.Errorf("the tests of %s on %s: %v", parser, arch.deb, err)
			}
		}
	}
}
