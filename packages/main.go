// SPDX-License-Identifier: BSD-2-Clause

// Packages packs the result of `make install` as .deb, .rpm, .apk and .tar.gz. The output depends only on the tree and
// the time. The program has a module of its own, so that its dependencies are not bascule's.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// program is the path of the program in the tree.
const program = "/usr/sbin/bascule"

// The folders that belong to the packages, with everything below them, and are removed with them. All others belong to
// the system.
var own = []string{"/etc/bascule", "/usr/share/bascule", "/usr/share/doc/bascule"}

// musl has Alpine's dynamic loaders. The program needs one because it loads libpcap at run time, if it is installed.
var musl = map[string]string{"amd64": "/lib/ld-musl-x86_64.so.1", "arm64": "/lib/ld-musl-aarch64.so.1"}

func main() {
	log.SetFlags(0)
	log.SetPrefix("packages: ")
	var p packer
	var when string
	flag.StringVar(&p.tree, "tree", "", "the installed `FOLDER`, with PREFIX=/usr")
	flag.StringVar(&p.arch, "arch", "", "Go's name of the processor, `amd64` or arm64")
	flag.StringVar(&p.version, "version", "", "what git describe says, or what is to be in the packages")
	flag.StringVar(&when, "date", "", "when it was made, in `RFC 3339`: the time of all files")
	flag.StringVar(&p.maintainer, "maintainer", "bascule <root@localhost>", "`NAME <ADDRESS>` of who makes the packages")
	flag.StringVar(&p.scripts, "scripts", "scripts", "the `FOLDER` of the packages' scripts")
	flag.StringVar(&p.out, "out", ".", "the `FOLDER` to write to")
	flag.Parse()
	var err error
	if p.date, err = time.Parse(time.RFC3339, when); err != nil {
		log.Fatal(err)
	}
	if err := p.pack(flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// A packer packs a tree.
type packer struct {
	tree, arch, version, maintainer, scripts, out string
	date                                          time.Time
}

// number returns a version that each package manager orders correctly: a tag with the number of commits since then, or
// the time.
func number(version string, date time.Time) string {
	m := regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)*)(?:-([0-9]+)-g[0-9a-f]+)?(?:-dirty)?$`).FindStringSubmatch(version)
	switch {
	case m == nil || !strings.Contains(m[1], "."): // a git hash may consist of digits
		return date.UTC().Format("0.20060102.150405")
	case m[2] != "":
		return m[1] + "." + m[2]
	}
	return m[1]
}

// pack makes packages in the formats.
func (p *packer) pack(formats []string) error {
	known := []string{"deb", "rpm", "apk", "tar"}
	for _, format := range formats {
		if !slices.Contains(known, format) {
			return fmt.Errorf("there is no format %.40q; give some of %s, as FORMATS of 'make packages'", format, strings.Join(known, ", "))
		}
	}
	bom, err := p.bom()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.out, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("bascule-%s-linux-%s", number(p.version, p.date), p.arch)
	if err := os.WriteFile(filepath.Join(p.out, name+".cdx.json"), bom, 0o644); err != nil {
		return err
	}
	in := filepath.Join(p.tree, "/usr/share/doc/bascule/bascule.cdx.json")
	if err := os.WriteFile(in, bom, 0o644); err != nil {
		return err
	}
	if err := p.zipManual(); err != nil {
		return err
	}
	for _, format := range formats {
		path := filepath.Join(p.out, name+".tar.gz")
		var err error
		if format == "tar" {
			err = p.tar(path)
		} else {
			path, err = p.one(format)
		}
		if err != nil {
			return fmt.Errorf("%s for %s: %w", format, p.arch, err)
		}
		fmt.Println(path)
	}
	return nil
}

// zipManual compresses the manual pages in the tree, as distributions do. The compressed files contain neither time nor
// name, so that the output is reproducible.
func (p *packer) zipManual() error {
	pages, err := filepath.Glob(filepath.Join(p.tree, "/usr/share/man/man*/*.[0-9]"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := zip.Write(text); err != nil {
			return err
		}
		if err := zip.Close(); err != nil {
			return err
		}
		if err := os.WriteFile(page+".gz", out.Bytes(), 0o644); err != nil {
			return err
		}
		if err := os.Remove(page); err != nil {
			return err
		}
	}
	return nil
}

// walk calls f for each file and folder of the tree in order, with its place in the system.
func (p *packer) walk(f func(place, path string, e fs.DirEntry, mode fs.FileMode) error) error {
	return filepath.WalkDir(p.tree, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == p.tree {
			return err
		}
		// The mode does not come from the tree, which depends on the umask.
		mode := fs.FileMode(0o644)
		info, err := e.Info()
		if err != nil {
			return err
		}
		if e.IsDir() || info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return f(strings.TrimPrefix(path, filepath.Clean(p.tree)), path, e, mode)
	})
}

// one makes a package and returns its path.
func (p *packer) one(format string) (string, error) {
	var contents files.Contents
	add := func(place, source, kind string, mode fs.FileMode) {
		contents = append(contents, &files.Content{
			Source: source, Destination: place, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: p.date},
		})
	}
	err := p.walk(func(place, path string, e fs.DirEntry, mode fs.FileMode) error {
		switch {
		case e.IsDir() && slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(place+"/", o+"/") }):
			add(place, "", files.TypeDir, mode)
		case e.IsDir():
		case e.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			add(place, to, files.TypeSymlink, 0o777)
		default:
			if place == program && format == "apk" {
				var err error
				if path, err = p.forMusl(path); err != nil {
					return err
				}
			}
			add(place, path, files.TypeFile, mode)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	script := map[string]string{}
	for _, name := range []string{"after-install", "before-remove", "after-remove"} {
		if script[name], err = p.script(name); err != nil {
			return "", err
		}
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "bascule", Arch: p.arch, Platform: "linux",
		Version: number(p.version, p.date), VersionSchema: "none", Release: "1",
		Section: "net", Priority: "optional", License: "BSD-2-Clause",
		Maintainer: p.maintainer, MTime: p.date,
		Description: "Ethernet switch that forwards in the kernel, in eBPF\n" +
			"It joins network namespaces, containers, virtual machines and network cards,\n" +
			"filters as pf does, routes, and has an agent for spanning tree and hot-plug.\n" +
			"It takes Linux 6.6 or newer, or a kernel that has tcx: 'bascule check' tells.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts: nfpm.Scripts{
				PostInstall: script["after-install"], PreRemove: script["before-remove"], PostRemove: script["after-remove"],
			},
		},
	})
	o := &info.Overridables
	switch format { // needed for capture expressions
	case "deb":
		o.Depends, o.Recommends, o.Suggests = []string{"libc6"}, []string{"libpcap0.8t64 | libpcap0.8"}, []string{"tcpdump"}
		o.Deb.Compression = "zstd"
	case "rpm":
		o.Depends, o.Recommends, o.Suggests = []string{"glibc"}, []string{"libpcap"}, []string{"tcpdump"}
		o.RPM.Compression, o.RPM.BuildHost, o.RPM.Summary = "zstd", "localhost", "Ethernet switch that forwards in the kernel, in eBPF"
		info.Release = "1"
	case "apk":
		o.Depends = []string{"musl"}
		info.Release = "0"
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return "", err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	var to bytes.Buffer
	if err := packager.Package(info, &to); err != nil {
		return "", err
	}
	path := filepath.Join(p.out, packager.ConventionalFileName(info))
	return path, os.WriteFile(path, to.Bytes(), 0o644)
}

// script copies a script to a file outside the tree, since an .apk records its time.
func (p *packer) script(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(p.scripts, name))
	if err != nil {
		return "", err
	}
	path := filepath.Clean(p.tree) + "." + name
	if err := os.WriteFile(path, text, 0o755); err != nil {
		return "", err
	}
	return path, os.Chtimes(path, p.date, p.date)
}

// forMusl copies the program to a file outside the tree, and sets Alpine's loader in the copy. Its name is shorter, so
// it fits.
func (p *packer) forMusl(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for _, part := range f.Progs {
		if part.Type != elf.PT_INTERP {
			continue
		}
		loader := musl[p.arch]
		if uint64(len(loader)) >= part.Filesz {
			return "", fmt.Errorf("no room for %s in the program", loader)
		}
		at := text[part.Off : part.Off+part.Filesz]
		clear(at)
		copy(at, loader)
	}
	path = filepath.Clean(p.tree) + ".musl"
	return path, os.WriteFile(path, text, 0o755)
}

// tar makes an archive for unpacking at /.
func (p *packer) tar(path string) error {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	err = p.walk(func(place, path string, e fs.DirEntry, mode fs.FileMode) error {
		h := &tar.Header{
			Name: "." + place, Mode: int64(mode), ModTime: p.date, Uname: "root", Gname: "root", Format: tar.FormatPAX,
			Typeflag: tar.TypeReg,
		}
		var text []byte
		var err error
		switch {
		case e.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case e.Type() == fs.ModeSymlink:
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
			h.Linkname, err = os.Readlink(path)
		default:
			text, err = os.ReadFile(path)
			h.Size = int64(len(text))
		}
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		_, err = archive.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// bom returns the program's bill of materials in CycloneDX 1.6, from the module list in its build information.
func (p *packer) bom() ([]byte, error) {
	info, err := buildinfo.ReadFile(filepath.Join(p.tree, program))
	if err != nil {
		return nil, err
	}
	version := number(p.version, p.date)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: p.date.UTC().Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: "bascule", Type: cdx.ComponentTypeApplication, Name: "bascule", Version: version,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "BSD-2-Clause"}}},
		},
	}
	components := []cdx.Component{{
		BOMRef: "go", Type: cdx.ComponentTypeLibrary, Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go"),
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "BSD-3-Clause"}}},
	}}
	refs := []string{"go"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		url := "pkg:golang/" + m.Path + "@" + m.Version
		components = append(components, cdx.Component{
			BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url,
			Properties: &[]cdx.Property{{Name: "go.sum", Value: m.Sum}},
		})
		refs = append(refs, url)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: "bascule", Dependencies: &refs}}
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}
