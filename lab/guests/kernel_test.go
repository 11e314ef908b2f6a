// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unpack makes a folder with files.
func unpack(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLayouts checks the three layouts of kernel packages.
func TestLayouts(t *testing.T) {
	for _, files := range [][]string{
		{"boot/vmlinuz-6.12.95-cloud-amd64", "lib/modules/6.12.95-cloud-amd64/kernel/drivers/net/veth.ko"},
		{"boot/vmlinuz-6.16.12-cloud-amd64", "usr/lib/modules/6.16.12-cloud-amd64/kernel/drivers/net/veth.ko"},
		{"usr/lib/modules/7.3.4-cloud-amd64/vmlinuz", "usr/lib/modules/7.3.4-cloud-amd64/kernel/drivers/net/veth.ko"},
	} {
		dir := unpack(t, files...)
		if got, err := bootImage(dir); err != nil || got != filepath.Join(dir, files[0]) {
			t.Errorf("the kernel of %q is %q, error %v", files, got, err)
		}
		// the file exists, but is not a module
		if _, err := modules(t.Context(), dir, []string{"veth"}, nil); err == nil || !strings.Contains(err.Error(), files[1]) {
			t.Errorf("module of %q: error %v, want one about the file", files, err)
		}
		if _, err := modules(t.Context(), dir, []string{"tun"}, nil); err == nil || !strings.Contains(err.Error(), "module tun is not in ") {
			t.Errorf("module that is not in %q: error %v", files, err)
		}
		if got, err := modules(t.Context(), dir, nil, []string{"tun"}); err != nil || len(got) > 0 {
			t.Errorf("a module that is asked for where %q has it: %d modules, error %v", files, len(got), err)
		}
	}
	if _, err := bootImage(unpack(t, "usr/lib/modules/7.3.4/kernel/drivers/net/veth.ko")); err == nil {
		t.Error("modules alone are taken for a kernel")
	}
}

// playApt simulates apt with known packages and their dependencies; a package that begins with - is
// gone.
func playApt(packages map[string]string) apt {
	return func(_ context.Context, _ string, args ...string) (string, error) {
		switch args[1] {
		case "depends":
			var b strings.Builder
			b.WriteString(args[2] + "\n  PreDepends: linux-base\n |Depends: dracut\n")
			for name := range strings.FieldsSeq(packages[args[2]]) {
				if gone, ok := strings.CutPrefix(name, "-"); ok {
					name = "<" + gone + ">"
				}
				b.WriteString("  Depends: " + name + "\n")
			}
			return b.String(), nil
		case "pkgnames":
			var names []string
			for name := range packages {
				if strings.HasPrefix(name, args[2]) {
					names = append(names, name)
				}
			}
			return strings.Join(names, "\n"), nil
		}
		return "", errors.New("not played")
	}
}

// TestChoose checks the choice on mirrors, which remove versions, and the packages of a version one
// after the other.
func TestChoose(t *testing.T) {
	a := playApt(map[string]string{
		"linux-image-cloud-amd64":               "linux-base-cloud-amd64 linux-image-7.3.10+deb13-cloud-amd64 linux-modules-cloud-amd64",
		"linux-image-6.12.9+deb13-cloud-amd64":  "kmod",
		"linux-image-6.12.10+deb13-cloud-amd64": "kmod",
		"linux-image-amd64":                     "linux-base-amd64 linux-image-7.3.10+deb13-amd64 linux-modules-amd64",
		"linux-image-6.12.10+deb13-amd64":       "kmod",
		"linux-image-6.12.11+deb13-rt-amd64":    "kmod",
		"linux-image-7.3.10+deb13-amd64":        "kmod",
		"linux-image-7.3.10+deb13-amd64-dbg":    "kmod",
		"linux-image-7.2.9+deb13-cloud-amd64":   "linux-base-7.2.9+deb13-cloud-amd64 linux-binary-7.2.9+deb13-cloud-amd64 linux-modules-7.2.9+deb13-cloud-amd64",
		"linux-image-7.2.12+deb13-cloud-amd64":  "-linux-base-7.2.12+deb13-cloud-amd64 linux-binary-7.2.12+deb13-cloud-amd64 -linux-modules-7.2.12+deb13-cloud-amd64",
		"linux-image-6.18.15+deb13-cloud-amd64": "kmod -linux-base-6.18.15+deb13-cloud-amd64",
		"linux-image-7.3.10+deb13-cloud-amd64":  "linux-base-7.3.10+deb13-cloud-amd64 linux-binary-7.3.10+deb13-cloud-amd64",
	})
	for asked, want := range map[string]string{
		"6.12.9+deb13-cloud-amd64": "6.12.9+deb13-cloud-amd64",
		"6.12.7+deb13-cloud-amd64": "6.12.10+deb13-cloud-amd64", // the newest in its series
		"7.2.12+deb13-cloud-amd64": "7.2.9+deb13-cloud-amd64",   // the newest that is complete
		"6.17.5+deb13-cloud-amd64": "7.3.10+deb13-cloud-amd64",  // the newest in the suite
		"6.18.5+deb13-cloud-amd64": "6.18.15+deb13-cloud-amd64", // it lacks only its lists
		"7.3.10+deb13-cloud-amd64": "7.3.10+deb13-cloud-amd64",
		"6.1.0-50-cloud-amd64":     "7.3.10+deb13-cloud-amd64",
		"6.12.7+deb13-amd64":       "6.12.10+deb13-amd64", // of the same flavor
		"7.3.4+deb13-amd64":        "7.3.10+deb13-amd64",
		"6.18.5+deb13-amd64":       "7.3.10+deb13-amd64",
	} {
		if got, err := a.choose(t.Context(), asked); err != nil || got != want {
			t.Errorf("for %s it chooses %q, error %v, want %s", asked, got, err, want)
		}
	}
	got, err := a.packages(t.Context(), "linux-image-7.3.10+deb13-cloud-amd64")
	if want := []string{"linux-image-7.3.10+deb13-cloud-amd64", "linux-base-7.3.10+deb13-cloud-amd64", "linux-binary-7.3.10+deb13-cloud-amd64"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("its packages are %q, error %v, want %q", got, err, want)
	}
	if _, err := a.packages(t.Context(), "linux-image-7.2.12+deb13-cloud-amd64"); err == nil {
		t.Error("a kernel whose modules are gone is whole")
	}
}

// TestSuiteConfig checks that only the proxy settings of the machine's own apt are used.
func TestSuiteConfig(t *testing.T) {
	got := suiteConfig("/cache/apt/trixie", "Acquire \"\";\nAcquire::http::Proxy \"http://192.0.2.1:3128\";\nAcquire::IndexTargets::deb::DEP-11 \"\";\n")
	for _, want := range []string{"Acquire::http::Proxy \"http://192.0.2.1:3128\";\n", "Dir::State \"/cache/apt/trixie\";\n", "Dir::Etc::Parts \"/dev/null\";\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("it has no %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "DEP-11") {
		t.Errorf("it fetches more than packages:\n%s", got)
	}
	for list, want := range map[string]string{
		"":                          "",
		"http://a/debian-security/": "",
		"http://a/debian-security/\nhttp://a/debian/\nhttp://b/debian/\n": "http://a/debian/",
	} {
		if got := mirrorOf(list); got != want {
			t.Errorf("of %q the mirror is %q, want %q", list, got, want)
		}
	}
}

// TestTCGCPU checks that the CPU model depends on the kernel.
func TestTCGCPU(t *testing.T) {
	for release, cx16 := range map[string]bool{
		"6.1.0-50-cloud-amd64": false, "6.12.95+deb12-cloud-amd64": false, "6.18.15+deb13-cloud-amd64": true, "7.3.4+deb13-cloud-amd64": true,
	} {
		if got := !strings.Contains(TCGCPU(release), "-cx16"); got != cx16 {
			t.Errorf("for Linux %s the CPU is %s", release, TCGCPU(release))
		}
	}
}
