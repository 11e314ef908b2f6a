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
	"slices"
	"strings"

	"bascule/lab/ends"
	"bascule/pattern"
)

// kernelPackage is Debian's package that depends on the newest kernel for virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// cacheDir keeps unpacked kernels between runs.
func cacheDir() string {
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "bascule")
	}
	return "/var/cache/bascule"
}

// kernelParts are the packages with a kernel in addition to linux-image-VERSION: from 6.19 on, that
// package is empty and depends on them. From 6.18 on, kernelNotes are packages with lists that a
// kernel does not need to boot.
var (
	kernelParts = []string{kernelNotes, "linux-binary-", "linux-modules-"}
	kernelNotes = "linux-base-"
)

// findKernel returns the folder of an unpacked kernel package: the one in the
// cache, or Debian's newest, which is downloaded but not installed. An
// ends.Unavailable lists the requirements.
func findKernel(ctx context.Context, cache string) (string, error) {
	have, err := filepath.Glob(filepath.Join(cache, imagePrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range slices.Backward(have) {
		if _, err := bootImage(dir); err == nil {
			return dir, nil
		}
	}
	dir, err := fetchNewest(ctx, machineApt, cache)
	if err != nil && ctx.Err() == nil {
		return "", &ends.Unavailable{Reason: "no guest kernel: " + err.Error()}
	}
	return dir, err
}

// imagePrefix begins the names of kernel packages.
const imagePrefix = "linux-image-"

// dependsOn matches a dependency of a package; brackets mark names that are not packages.
var dependsOn = pattern.New(`Depends: <?(linux-[^\s>]+)(>?)`)

// apt runs apt's programs; the first argument is the program's name.
type apt func(ctx context.Context, dir string, args ...string) (string, error)

// machineApt is apt in the machine's configuration.
func machineApt(ctx context.Context, dir string, args ...string) (string, error) {
	return output(ctx, dir, args[0], args[1:]...)
}

// depends returns the linux-... packages that a package depends on, and the ones among them that do
// not exist.
func (a apt) depends(ctx context.Context, name string) (names, gone []string, err error) {
	out, err := a(ctx, "", "apt-cache", "depends", name)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range dependsOn().FindAllStringSubmatch(out, -1) {
		if m[2] == "" {
			names = append(names, m[1])
		} else {
			gone = append(gone, m[1])
		}
	}
	return names, gone, nil
}

// packages returns the packages of a kernel; image is the first one. Archives may have only some of
// them, since packages are removed at different times.
func (a apt) packages(ctx context.Context, image string) ([]string, error) {
	names, gone, err := a.depends(ctx, image)
	if err != nil {
		return nil, err
	}
	packages := []string{image}
	for _, part := range kernelParts {
		name := part + strings.TrimPrefix(image, imagePrefix)
		if slices.Contains(gone, name) && part != kernelNotes {
			return nil, fmt.Errorf("package %s is not there", name)
		}
		if slices.Contains(names, name) {
			packages = append(packages, name)
		}
	}
	return packages, nil
}

// newest returns the package of the newest kernel that a package depends on.
func (a apt) newest(ctx context.Context, of string) (string, error) {
	names, _, err := a.depends(ctx, of)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, imagePrefix) })
	if i < 0 {
		return "", fmt.Errorf("apt-cache knows no %s; run apt-get update", of)
	}
	return names[i], nil
}

func fetchNewest(ctx context.Context, a apt, cache string) (string, error) {
	image, err := a.newest(ctx, kernelPackage)
	if err != nil {
		return "", err
	}
	return fetchKernel(ctx, a, cache, image)
}

// fetchKernel downloads the packages of a kernel, image first, and unpacks them into a folder named
// after it in the cache.
func fetchKernel(ctx context.Context, a apt, cache, image string) (string, error) {
	packages, err := a.packages(ctx, image)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// It is renamed to the kernel's folder only when it is complete.
	dir, err := os.MkdirTemp(cache, "unpacking-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	get := []string{"apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download"}
	if _, err := a(ctx, dir, append(get, packages...)...); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != len(packages) {
		return "", fmt.Errorf("apt-get download %s brought %d packages", strings.Join(packages, " "), len(debs))
	}
	unpacked := filepath.Join(dir, "root")
	for _, deb := range debs {
		if _, err := output(ctx, dir, "dpkg-deb", "-x", deb, unpacked); err != nil {
			return "", err
		}
	}
	if _, err := bootImage(unpacked); err != nil {
		return "", err
	}
	kernel := filepath.Join(cache, image)
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

// modulesDirs are the folders of modules in kernel packages: the second one from 6.16 on.
var modulesDirs = []string{"lib/modules", "usr/lib/modules"}

// bootImage returns the kernel image. From 7.2 on it is in the folder of the modules.
func bootImage(kernel string) (string, error) {
	var found []string
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} {
		files, err := filepath.Glob(filepath.Join(kernel, pattern))
		if err != nil {
			return "", err
		}
		found = append(found, files...)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("kernel in %s: %d files vmlinuz", kernel, len(found))
	}
	return found[0], nil
}

// modules returns the files of the named kernel modules and of the optional ones that the kernel
// has, with all modules that they depend on. Each module comes after its dependencies. Built-in
// modules are left out.
func modules(ctx context.Context, kernel string, names, optional []string) ([]module, error) {
	files := map[string]string{}
	var builtin string
	note := func(path string, d fs.DirEntry, err error) error {
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
	}
	for _, dir := range modulesDirs {
		err := filepath.WalkDir(filepath.Join(kernel, dir), note)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("modules of %s: %w", kernel, err)
		}
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
	for _, name := range optional {
		if files[name] == "" {
			continue
		}
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

// readModule reads a module and its dependencies from the section .modinfo: strings of KEY=VALUE
// that end with 0.
func readModule(ctx context.Context, name, path string) (m module, err error) {
	m.name = name
	if strings.HasSuffix(path, ".xz") {
		// The format of Debian 13 and later.
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
