// SPDX-License-Identifier: BSD-2-Clause

package boot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"bascule/lab/guests"
	"bascule/test/program"
)

// suite is the Debian that boots: the first one whose kernel has tcx.
const suite = "trixie"

// packages are installed in addition to apt and the essential packages.
var packages = []string{
	"systemd-sysv", "udev", "dbus", "kmod", "linux-image-cloud-amd64", "initramfs-tools", "zstd",
	"ifupdown", "dhcpcd-base", "netplan.io", "network-manager", "iproute2", "iputils-ping", "python3-minimal",
}

// An image is a Debian in a folder, from which disks are made.
type image struct {
	root           string
	kernel, initrd string
	release        string // release of the kernel
}

// newImage makes a Debian, and installs bascule's package.
func newImage(t *testing.T) *image {
	t.Helper()
	for _, name := range []string{"qemu-system-x86_64", "mmdebstrap", "mke2fs", "dpkg-deb", "unshare", "dnsmasq", "make"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s, which 'make test-boot' installs", name)
		}
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("virtual machines are made on amd64 only")
	}
	dir := t.TempDir()
	im := &image{root: filepath.Join(dir, "root")}
	mirror, err := guests.Mirror(t.Context())
	if err != nil {
		t.Skipf("no mirror of Debian is known: %v", err)
	}
	source := fmt.Sprintf("deb [signed-by=%s] %s %s main", guests.Keyring, mirror, suite)
	run(t, "mmdebstrap", "--quiet", "--variant=minbase", "--include="+strings.Join(packages, ","), suite, im.root, source)
	im.kernel = only(t, filepath.Join(im.root, "boot/vmlinuz-*"))
	im.initrd = only(t, filepath.Join(im.root, "boot/initrd.img-*"))
	im.release = strings.TrimPrefix(filepath.Base(im.kernel), "vmlinuz-")

	im.write(t, "/package.deb", newPackage(t, "../..", program.Path(t), "v0.1"))
	im.inside(t, "dpkg -i /package.deb; rm /package.deb")
	// Other tags make another build, so the agent treats it as another program.
	newer := filepath.Join(dir, "newer")
	run(t, "go", "build", "-o", newer, "-tags", "newer", "-ldflags", "-X main.version=v9.0", "bascule/cmd/bascule")
	im.write(t, "/newer.deb", newPackage(t, "../..", newer, "v9.0"))
	// The machine gets its ID when it boots for the first time. systemd does not treat an empty ID as a first boot.
	im.write(t, "/etc/machine-id", "")
	im.write(t, "/etc/fstab", "/dev/vda / ext4 rw 0 1\n")
	for _, name := range []string{"door.service", "listen.service"} {
		im.write(t, "/etc/systemd/system/"+name, read(t, filepath.Join("testdata", name)))
	}
	for _, name := range []string{"door.sh", "listen.py", "talk.py"} {
		im.write(t, "/test/"+name, read(t, filepath.Join("testdata", name)))
	}
	im.inside(t, "systemctl disable NetworkManager; systemctl enable door listen; systemctl mask serial-getty@ttyS0.service getty@tty1.service")
	return im
}

// newPackage packs a program, with the other files of a source tree.
func newPackage(t *testing.T, source, program, version string, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "make", append([]string{"-s", "-C", source, "packages", "PREBUILT=" + program, "VERSION=" + version,
		"ARCHES=" + runtime.GOARCH, "FORMATS=deb", "PACKAGES=" + dir}, more...)...)
	return read(t, only(t, filepath.Join(dir, "*.deb")))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// write writes a file of the Debian.
func (im *image) write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(im.root+path), 0o755))
	must(t, os.WriteFile(im.root+path, []byte(text), 0o644))
}

// inside runs a script in the Debian while it is not booted.
func (im *image) inside(t *testing.T, script string) {
	t.Helper()
	run(t, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", `
		mount --make-rprivate /
		mount -t proc proc "$0/proc"
		mount -o bind /dev "$0/dev"
		exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$0" sh -euc "$1"`, im.root, script)
}

// disk makes a disk of the Debian with additional files, after a script has run there. The Debian itself does not
// change.
func (im *image) disk(t *testing.T, files map[string]string, script string) string {
	t.Helper()
	dir := t.TempDir()
	with := &image{root: filepath.Join(dir, "root")}
	run(t, "cp", "-a", "--reflink=auto", im.root, with.root)
	for path, text := range files {
		with.write(t, path, text)
	}
	with.inside(t, script)
	disk := filepath.Join(dir, "disk")
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", with.root, disk, "2G")
	must(t, os.RemoveAll(with.root))
	return disk
}

// run runs a command, which must succeed, and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
