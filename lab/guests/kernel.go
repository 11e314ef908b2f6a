// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bascule/lab/ends"
)

// kernelPackage is Debian's package that depends on the newest kernel made for
// virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// cacheDir is where unpacked kernels are kept from one run to the next.
func cacheDir() string {
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "bascule")
	}
	return "/var/cache/bascule"
}

// findKernel returns the folder of an unpacked kernel package: the one in the
// cache, or Debian's newest, which is downloaded but not installed. An
// ends.Unavailable tells what it would take.
func findKernel(ctx context.Context, cache string) (string, error) {
	have, err := filepath.Glob(filepath.Join(cache, "linux-image-*", "boot", "vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(have) > 0 {
		return filepath.Dir(filepath.Dir(have[len(have)-1])), nil
	}
	dir, err := fetchKernel(ctx, cache)
	if err != nil && ctx.Err() == nil {
		return "", &ends.Unavailable{Reason: "no guest kernel: " + err.Error()}
	}
	return dir, err
}

var dependsOnImage = regexp.MustCompile(`Depends: (linux-image-[0-9]\S+)`)

func fetchKernel(ctx context.Context, cache string) (string, error) {
	out, err := output(ctx, "", "apt-cache", "depends", kernelPackage)
	if err != nil {
		return "", err
	}
	m := dependsOnImage.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("apt-cache knows no %s; run apt-get update", kernelPackage)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// It becomes the kernel's folder only when all of it is there.
	dir, err := os.MkdirTemp(cache, "unpacking-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if _, err := output(ctx, dir, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", m[1]); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s brought %d packages", m[1], len(debs))
	}
	unpacked := filepath.Join(dir, "root")
	if _, err := output(ctx, dir, "dpkg-deb", "-x", debs[0], unpacked); err != nil {
		return "", err
	}
	kernel := filepath.Join(cache, m[1])
	// Another lab may have been faster.
	if err := os.Rename(unpacked, kernel); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return kernel, nil
}

// output runs a program of the machine's own in a folder.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := ends.Command(ctx, name, args...)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is not installed", name)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Errorf("%s: %w: %s", name, err, lines[len(lines)-1])
	}
	return string(out), nil
}

// bootImage is the kernel itself.
func bootImage(kernel string) (string, error) {
	found, err := filepath.Glob(filepath.Join(kernel, "boot", "vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("kernel in %s: %d files boot/vmlinuz-*", kernel, len(found))
	}
	return found[0], nil
}

// modules are the files of the kernel modules of these names and of all modules
// that they need. Each module comes after those that it needs. Modules that are
// built into the kernel are left out.
func modules(ctx context.Context, kernel string, names ...string) ([]module, error) {
	files := map[string]string{}
	var builtin string
	err := filepath.WalkDir(filepath.Join(kernel, "lib", "modules"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if d.Name() == "modules.builtin" {
			text, err := os.ReadFile(path)
			builtin = string(text)
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("modules of %s: %w", kernel, err)
	}
	var out []module
	var add func(string) error
	add = func(name string) error {
		if slices.ContainsFunc(out, func(m module) bool { return m.name == name }) {
			return nil
		}
		path, ok := files[name]
		if !ok {
			if strings.Contains(strings.ReplaceAll(builtin, "-", "_"), "/"+name+".ko") {
				return nil
			}
			return fmt.Errorf("module %s is not in %s", name, kernel)
		}
		m, err := readModule(ctx, name, path)
		if err != nil {
			return fmt.Errorf("module %s: %w", path, err)
		}
		for _, need := range m.needs {
			if err := add(need); err != nil {
				return err
			}
		}
		out = append(out, m)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

type module struct {
	name  string
	data  []byte
	needs []string
}

// readModule reads a module, and what it needs, which its section .modinfo
// tells: strings of KEY=VALUE that end with 0.
func readModule(ctx context.Context, name, path string) (m module, err error) {
	m.name = name
	if strings.HasSuffix(path, ".xz") {
		// As Debian 13 and later have them.
		var text string
		text, err = output(ctx, "", "xz", "-dc", path)
		m.data = []byte(text)
	} else {
		m.data, err = os.ReadFile(path)
	}
	if err != nil {
		return m, err
	}
	e, err := elf.NewFile(bytes.NewReader(m.data))
	if err != nil {
		return m, err
	}
	s := e.Section(".modinfo")
	if s == nil {
		return m, errors.New("it has no .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return m, err
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			for need := range strings.SplitSeq(list, ",") {
				m.needs = append(m.needs, strings.ReplaceAll(need, "-", "_"))
			}
		}
	}
	return m, nil
}
