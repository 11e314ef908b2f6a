// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bascule/lab/ends"
	"bascule/locks"
	"bascule/pattern"
)

// A Kernel is one that virtual machines can boot.
type Kernel struct {
	Release string // as uname -r has it
	dir     string // its packages, unpacked
	suite   string // of Debian's, that it is of
}

// WithDrivers is the kernel of the same version that has the drivers of all network
// cards. Its errors are those of FindKernel.
func (k Kernel) WithDrivers(ctx context.Context) (Kernel, error) {
	return FindKernel(ctx, Pin{Suite: k.suite, Release: k.Release}.WithDrivers())
}

// Keyring has the keys that Debian's suites are signed with.
const Keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// keyringPackage is the package of Keyring.
const keyringPackage = "debian-archive-keyring"

// FindKernel returns a kernel of Debian's: from the cache, or downloaded and not
// installed. Mirrors drop versions. Where they have dropped the one that is asked
// for, it is the newest of the same series, or else the newest of the suite. An
// ends.Unavailable tells why there is none. It is always of the same kind.
func FindKernel(ctx context.Context, pin Pin) (Kernel, error) {
	k, err := findPinned(ctx, filepath.Join(cacheDir(), "kernels"), pin)
	k.suite = pin.Suite
	if err != nil && ctx.Err() == nil {
		err = &ends.Unavailable{Reason: fmt.Sprintf("no kernel of %s: %v", pin.Suite, err)}
	}
	return k, err
}

func findPinned(ctx context.Context, cache string, pin Pin) (Kernel, error) {
	if k, err := cached(cache, pin.Release); err == nil {
		return k, nil
	}
	dir := filepath.Join(cache, "apt", pin.Suite)
	unlock, err := lock(dir)
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	a, err := openSuite(ctx, dir, pin.Suite)
	if err != nil {
		return Kernel{}, err
	}
	release, err := a.choose(ctx, pin.Release)
	if err != nil {
		return Kernel{}, err
	}
	if k, err := cached(cache, release); err == nil {
		return k, nil
	}
	dir, err = fetchKernel(ctx, a, cache, imagePrefix+release)
	return Kernel{Release: release, dir: dir}, err
}

// lock makes a folder that one process at a time works in: apt gives up where
// another is at work.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := locks.Wait(f); err != nil {
		f.Close()
		return nil, err
	}
	return func() { locks.Close(f) }, nil
}

// cached returns a kernel that was unpacked before.
func cached(cache, release string) (Kernel, error) {
	dir := filepath.Join(cache, imagePrefix+release)
	_, err := bootImage(dir)
	return Kernel{Release: release, dir: dir}, err
}

// kind finds what Debian's releases end with: -cloud-amd64, -amd64.
var kind = pattern.New(`(-[a-z][a-z0-9]*)+$`)

// choose returns the release itself where the suite has it, or else what comes
// nearest to it.
func (a apt) choose(ctx context.Context, release string) (string, error) {
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	out, err := a(ctx, "", "apt-cache", "pkgnames", imagePrefix+major+"."+minor+".")
	if err != nil {
		return "", err
	}
	var series []string
	for name := range strings.FieldsSeq(out) {
		if r := strings.TrimPrefix(name, imagePrefix); kind().FindString(r) == kind().FindString(release) {
			series = append(series, r)
		}
	}
	slices.SortFunc(series, func(a, b string) int {
		// the one that is asked for, then the newest
		return cmp.Or(order(a == release, b == release), -CompareReleases(a, b))
	})
	for _, r := range series {
		if _, err := a.packages(ctx, imagePrefix+r); err == nil {
			return r, nil
		}
	}
	image, err := a.newest(ctx, strings.TrimSuffix(imagePrefix, "-")+kind().FindString(release))
	return strings.TrimPrefix(image, imagePrefix), err
}

// order puts what is true first.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

var number = pattern.New(`[0-9]+`)

// CompareReleases compares by the numbers in them.
func CompareReleases(a, b string) int {
	of := func(s string) (out []int) {
		for _, digits := range number().FindAllString(s, -1) {
			n, _ := strconv.Atoi(digits) // it is nothing but digits
			out = append(out, n)
		}
		return out
	}
	return cmp.Or(slices.Compare(of(a), of(b)), strings.Compare(a, b))
}

// openSuite readies apt for one suite in a folder of its own, and fetches the
// suite's list of packages. Sources, lists, preferences and caches of the machine's
// own apt are neither asked nor touched. What the machine knows about the way to
// a mirror stays: which one it is, proxies, patience.
func openSuite(ctx context.Context, dir, suite string) (apt, error) {
	if _, err := os.Stat(Keyring); err != nil {
		return nil, fmt.Errorf("%s is not there; apt-get install %s", Keyring, keyringPackage)
	}
	mirror, err := Mirror(ctx)
	if err != nil {
		return nil, err
	}
	ways, err := machineApt(ctx, "", "apt-config", "dump", "Acquire")
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"lists/partial", "archives/partial", "preferences.d"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(dir, "apt.conf")
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "sources.list"), fmt.Appendf(nil, "deb [signed-by=%s] %s %s main\n", Keyring, mirror, suite), 0o644),
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o644),
		os.WriteFile(config, []byte(suiteConfig(dir, ways)), 0o644),
	)
	if err != nil {
		return nil, err
	}
	var a apt = func(ctx context.Context, at string, args ...string) (string, error) {
		return output(ctx, at, "env", append([]string{"APT_CONFIG=" + config}, args...)...)
	}
	_, err = a(ctx, "", "apt-get", "-qq", "-o", "Acquire::Retries=3", "-o", "APT::Update::Error-Mode=any", "update")
	return a, err
}

// Mirror is the address of a mirror of Debian's own packages: that in the environment
// variable DEBIAN_MIRROR, or the one that the machine's apt has.
func Mirror(ctx context.Context) (string, error) {
	if mirror := os.Getenv("DEBIAN_MIRROR"); mirror != "" {
		return mirror, nil
	}
	out, err := machineApt(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	mirror := mirrorOf(out)
	if mirror == "" {
		return "", errors.New("apt knows no mirror of Debian; set DEBIAN_MIRROR to one")
	}
	return mirror, nil
}

// mirrorOf picks the mirror of Debian's own packages from addresses of archives,
// one a line.
func mirrorOf(list string) string {
	for uri := range strings.FieldsSeq(list) {
		if path.Base(strings.TrimSuffix(uri, "/")) == "debian" {
			return uri
		}
	}
	return ""
}

// suiteConfig is a configuration of apt that keeps everything below a folder. The
// settings of how to acquire files are the machine's.
func suiteConfig(dir, acquire string) string {
	var b strings.Builder
	for line := range strings.Lines(acquire) {
		// other lists than that of the packages are of no use
		if !strings.HasPrefix(line, "Acquire::IndexTargets") {
			b.WriteString(line)
		}
	}
	// The machine's own files are not read, so that no hook of them runs.
	fmt.Fprintf(&b, `Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "%[1]s/preferences.d";
Dir::State "%[1]s";
Dir::State::Lists "%[1]s/lists";
Dir::State::Status "%[1]s/status";
Dir::Cache "%[1]s";
Dir::Cache::Archives "%[1]s/archives";
APT::Architecture "amd64";
APT::Sandbox::User "root";
`, dir)
	return b.String()
}
