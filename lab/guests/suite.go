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

// A Kernel is a kernel for virtual machines.
type Kernel struct {
	Release string // in the format of uname -r
	dir     string // its unpacked packages
	suite   string // its Debian suite
}

// WithDrivers returns the kernel of the same version with the drivers of all network cards. It has
// the errors of FindKernel.
func (k Kernel) WithDrivers(ctx context.Context) (Kernel, error) {
	return FindKernel(ctx, Pin{Suite: k.suite, Release: k.Release}.WithDrivers())
}

// Keyring has the signing keys of Debian's suites.
const Keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// keyringPackage is the package of Keyring.
const keyringPackage = "debian-archive-keyring"

// FindKernel returns a Debian kernel: from the cache, or downloaded but not installed. Mirrors
// remove old versions. If the requested one is gone, FindKernel returns the newest of the same
// series, or else the newest of the suite, always with the same flavor. An ends.Unavailable is the
// reason why there is none.
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

// lock makes a folder for one process at a time: apt fails if another instance is running.
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

// kind matches the end of Debian's releases: -cloud-amd64, -amd64.
var kind = pattern.New(`(-[a-z][a-z0-9]*)+$`)

// choose returns the release itself if the suite has it, or else the closest one.
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
		// the requested one, then the newest
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

// order sorts true before false.
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

// CompareReleases compares the numbers in two releases.
func CompareReleases(a, b string) int {
	of := func(s string) (out []int) {
		for _, digits := range number().FindAllString(s, -1) {
			n, _ := strconv.Atoi(digits) // it consists of digits
			out = append(out, n)
		}
		return out
	}
	return cmp.Or(slices.Compare(of(a), of(b)), strings.Compare(a, b))
}

// openSuite prepares apt for one suite in a separate folder, and fetches the suite's list of
// packages. It neither reads nor changes the sources, lists, preferences and caches of the
// machine's own apt. It uses the machine's connection settings: mirror, proxies and timeouts.
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

// Mirror returns the address of a mirror of Debian's own packages: from the environment variable
// DEBIAN_MIRROR, or from the machine's apt.
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

// mirrorOf returns the mirror of Debian's own packages in a list of archive addresses, one on each
// line.
func mirrorOf(list string) string {
	for uri := range strings.FieldsSeq(list) {
		if path.Base(strings.TrimSuffix(uri, "/")) == "debian" {
			return uri
		}
	}
	return ""
}

// suiteConfig returns a configuration of apt that keeps everything below a folder, with the
// machine's Acquire settings.
func suiteConfig(dir, acquire string) string {
	var b strings.Builder
	for line := range strings.Lines(acquire) {
		// only the list of packages is needed
		if !strings.HasPrefix(line, "Acquire::IndexTargets") {
			b.WriteString(line)
		}
	}
	// The machine's own files are not read, so that none of its hooks run.
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
