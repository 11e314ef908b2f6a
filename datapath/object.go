// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// An object is an ELF file that programs are loaded from. A program needs a small part of the
// file's functions, depending on the features that are on. The library would read all
// functions, and link all that might be called, for each program. That took half of the time of
// a load. So the library reads the tables and variables, and the object reads the functions
// that a program really calls.
type object struct {
	spec  *ebpf.CollectionSpec // its programs have no instructions until [linker.make]
	parts map[elf.SectionIndex]*section
	in    map[string]*section // the section of each function
}

// A section is a part of an object that contains functions, tables or variables.
type section struct {
	name     string
	code     bool // it has functions
	data     bool // it has variables
	bytes    []byte
	mentions []mention         // symbols that its instructions refer to, in order
	at       map[string]span   // places of its functions
	function map[uint64]string // function that begins at an offset
}

// A span is a part of a section, in bytes.
type span struct{ from, len uint64 }

// A mention is an instruction, by its offset in the section, and the symbol that it refers
// to.
type mention struct {
	at uint64
	to elf.Symbol
}

// programKinds has the kind of programs by their section's name, as in libbpf.
var programKinds = map[string]ebpf.ProgramSpec{
	"tcx/ingress": {Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress},
	"tcx/egress":  {Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXEgress},
	"xdp.frags":   {Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS},
	"syscall":     {Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE},
	"raw_tp":      {Type: ebpf.RawTracepoint},
}

const functionsSection = ".text" // functions that are not programs

// specOf is readObject. Tests replace it to read each object once.
var specOf = readObject

// readObject returns the programs, tables and variables of an ELF file.
func readObject(file []byte) (*object, error) {
	o := &object{parts: map[elf.SectionIndex]*section{}, in: map[string]*section{}}
	if err := o.read(file); err != nil {
		return nil, fmt.Errorf("the switch program: %w", err)
	}
	return o, nil
}

func (o *object) read(file []byte) error {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return err
	}
	if err := o.readTables(file, f); err != nil {
		return err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return err
	}
	var license []byte
	for i, s := range f.Sections {
		part := &section{name: s.Name, at: map[string]span{}, function: map[uint64]string{}}
		switch {
		case s.Name == "license":
			license = partOf(file, s.Offset, s.FileSize)
			continue
		case s.Flags&elf.SHF_EXECINSTR != 0:
			part.code, part.bytes = true, partOf(file, s.Offset, s.FileSize)
		case o.spec.Maps[s.Name] != nil:
			part.data = true
		case s.Name != ".maps":
			continue
		}
		o.parts[elf.SectionIndex(i)] = part
	}
	for _, s := range symbols {
		part := o.parts[s.Section]
		if part == nil || !part.code || elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		if s.Value > uint64(len(part.bytes)) || s.Size > uint64(len(part.bytes))-s.Value {
			return fmt.Errorf("function %s is not within its section", s.Name)
		}
		part.at[s.Name], part.function[s.Value], o.in[s.Name] = span{s.Value, s.Size}, s.Name, part
		if part.name == functionsSection {
			continue
		}
		p, known := programKinds[part.name]
		if !known {
			return fmt.Errorf("program %s is of an unknown kind, %s", s.Name, part.name)
		}
		p.Name, p.SectionName, p.ByteOrder = s.Name, part.name, f.ByteOrder
		p.License = string(bytes.TrimRight(license, "\x00"))
		o.spec.Programs[s.Name] = &p
	}
	for _, s := range f.Sections {
		part := o.parts[elf.SectionIndex(s.Info)]
		if s.Type != elf.SHT_REL || part == nil || !part.code {
			continue
		}
		if err := part.readMentions(partOf(file, s.Offset, s.FileSize), symbols); err != nil {
			return err
		}
	}
	return nil
}

// readTables makes the library read the object, without its functions.
func (o *object) readTables(file []byte, f *elf.File) error {
	ext := f.Section(".BTF.ext")
	if ext == nil || ext.FileSize < lineInfoLen+uint64(len(nothing)) {
		return fmt.Errorf("it has no section .BTF.ext")
	}
	view := &altered{Reader: bytes.NewReader(file), at: map[int64]byte{}}
	for i, value := range nothing {
		view.at[int64(ext.Offset)+funcInfoLen+int64(i)] = value
		view.at[int64(ext.Offset)+lineInfoLen+int64(i)] = value
	}
	headers := int64(binary.LittleEndian.Uint64(file[sectionHeaders:]))
	for i, s := range f.Sections {
		if s.Flags&elf.SHF_EXECINSTR != 0 {
			view.at[headers+int64(i)*sectionHeaderLen+sectionFlags] = byte(s.Flags &^ elf.SHF_EXECINSTR)
		}
	}
	var err error
	if o.spec, err = ebpf.LoadCollectionSpecFromReader(view); err != nil {
		return err
	}
	o.spec.Programs = map[string]*ebpf.ProgramSpec{}
	return nil
}

// Offsets and sizes in an ELF file (elf(5)) and in its section .BTF.ext (struct btf_ext_header
// of libbpf).
const (
	sectionHeaders   = 40 // e_shoff
	sectionHeaderLen = 64
	sectionFlags     = 8 // sh_flags
	funcInfoLen      = 12
	lineInfoLen      = 20
)

// nothing is an empty part of .BTF.ext, without functions or lines of source code: it has only
// the size of a record, which must be there. The lines in the kernel would have no reader.
var nothing = []byte{4, 0, 0, 0}

// An altered file reads as another file with some bytes replaced.
type altered struct {
	*bytes.Reader
	at map[int64]byte
}

// ReadAt implements io.ReaderAt.
func (f *altered) ReadAt(b []byte, at int64) (int, error) {
	n, err := f.Reader.ReadAt(b, at)
	for place, value := range f.at {
		if place >= at && place < at+int64(n) {
			b[place-at] = value
		}
	}
	return n, err
}

// partOf returns a part of a file, nil if it is outside the file.
func partOf(file []byte, from, size uint64) []byte {
	if from > uint64(len(file)) || size > uint64(len(file))-from {
		return nil
	}
	return file[from : from+size]
}

// readMentions reads what the section's instructions refer to (Elf64_Rel of elf(5)).
func (s *section) readMentions(list []byte, symbols []elf.Symbol) error {
	const size = 16
	s.mentions = make([]mention, 0, len(list)/size)
	for ; len(list) >= size; list = list[size:] {
		// The library omits the first symbol, which is always the null symbol.
		n := elf.R_SYM64(binary.LittleEndian.Uint64(list[8:]))
		if n == 0 || int(n) > len(symbols) {
			return fmt.Errorf("section %s refers to symbol %d, which is not there", s.name, n)
		}
		s.mentions = append(s.mentions, mention{binary.LittleEndian.Uint64(list), symbols[n-1]})
	}
	slices.SortFunc(s.mentions, func(a, b mention) int { return cmp.Compare(a.at, b.at) })
	return nil
}

// linkFrom returns a function and all functions that are called from it, as read returns them.
// Functions that are not called are not linked.
func linkFrom(function string, read func(name string) (asm.Instructions, error)) (all []asm.Instructions, err error) {
	linked := map[string]bool{}
	for names := []string{function}; len(names) > 0; names = names[1:] {
		if linked[names[0]] {
			continue
		}
		linked[names[0]] = true
		code, err := read(names[0])
		if err != nil {
			return nil, fmt.Errorf("the switch program: function %s: %w", names[0], err)
		}
		all = append(all, code)
		names = append(names, code.FunctionReferences()...)
	}
	return all, nil
}

// A linker makes the programs of a configuration. Programs have most functions in common, so
// the linker makes a function once for all programs with the same features.
type linker struct {
	o       *object
	c       *Config
	pruner  *pruner
	special map[specialty]asm.Instructions
}

// A specialty is a function, for a program's features.
type specialty struct {
	function string
	features uint64
}

// linker returns the linker for a configuration, which must be set in the object's variables.
func (o *object) linker(c *Config) *linker {
	l := &linker{o: o, c: c, pruner: newPruner(nil), special: map[specialty]asm.Instructions{}}
	l.pruner.constants = o.constants()
	if o.spec.Maps[rulesetMap] != nil {
		l.pruner.moved = o.moved()
	}
	return l
}

// functions returns a function and all functions that are called from it, specialised for these
// features. The caller must not change them.
func (l *linker) functions(name string, features uint64) ([]asm.Instructions, error) {
	return linkFrom(name, func(name string) (asm.Instructions, error) {
		is := specialty{name, features}
		if code := l.special[is]; code != nil {
			return code, nil
		}
		code, err := l.o.function(name)
		if err != nil {
			return nil, err
		}
		f := &ebpf.ProgramSpec{Instructions: code}
		answer(f, features, l.c)
		l.special[is] = l.pruner.prune(f.Instructions)
		return l.special[is], nil
	})
}

// make sets the instructions of a program.
func (l *linker) make(p *ebpf.ProgramSpec, features uint64) error {
	all, err := l.functions(p.Name, features)
	if err != nil {
		return err
	}
	all = l.o.shareLookups(p, all)
	l.o.makeRoom(all)
	p.Instructions = slices.Concat(all...)
	return nil
}

// constants returns the constants that programs read, with the configuration's values.
func (o *object) constants() []byte {
	all := make([]byte, o.spec.Maps[configMap].ValueSize)
	for _, v := range o.spec.Variables {
		if v.SectionName == configMap {
			copy(all[v.Offset:], v.Value)
		}
	}
	return all
}

// function reads a function.
func (o *object) function(name string) (asm.Instructions, error) {
	s := o.in[name]
	if s == nil {
		return nil, fmt.Errorf("it is not there")
	}
	is := s.at[name]
	code, err := asm.AppendInstructions(make(asm.Instructions, 0, is.len/asm.InstructionSize),
		bytes.NewReader(s.bytes[is.from:is.from+is.len]), binary.LittleEndian, "linux")
	if err != nil {
		return nil, err
	}
	if len(code) == 0 {
		return nil, fmt.Errorf("it is empty")
	}
	var about *btf.Func
	if err := o.spec.Types.TypeByName(name, &about); err != nil {
		return nil, err
	}
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(name), about)
	next, _ := slices.BinarySearchFunc(s.mentions, is.from, func(m mention, at uint64) int { return cmp.Compare(m.at, at) })
	at := is.from
	for i := range code {
		ins := &code[i]
		if next < len(s.mentions) && s.mentions[next].at == at {
			err = o.refer(ins, s.mentions[next].to)
			next++
		} else if ins.IsFunctionReference() && ins.Constant != -1 {
			err = refer(ins, s, at+uint64(ins.Constant+1)*asm.InstructionSize)
		}
		if err != nil {
			return nil, fmt.Errorf("offset %d: %w", at, err)
		}
		at += ins.Size()
	}
	return code, nil
}

// refer makes an instruction refer to a symbol, as the library would.
func (o *object) refer(ins *asm.Instruction, to elf.Symbol) error {
	s := o.parts[to.Section]
	switch {
	case s == nil:
		return fmt.Errorf("it refers to %q, which is elsewhere", to.Name)
	case s.data:
		offset := to.Value
		if elf.ST_TYPE(to.Info) == elf.STT_SECTION {
			offset = uint64(ins.Constant)
		}
		// The kernel takes the offset from the second half of the instruction.
		ins.Src, ins.Constant = asm.PseudoMapValue, int64(offset<<32)
		*ins = ins.WithReference(s.name)
	case !s.code:
		ins.Src = asm.PseudoMapFD
		*ins = ins.WithReference(to.Name)
	case ins.OpCode.JumpOp() == asm.Call:
		offset := to.Value
		if elf.ST_TYPE(to.Info) == elf.STT_SECTION {
			offset = uint64(ins.Constant+1) * asm.InstructionSize
		}
		return refer(ins, s, offset)
	case ins.IsConstantLoad(asm.DWord):
		err := refer(ins, s, uint64(ins.Constant))
		ins.Src = asm.PseudoFunc
		return err
	default:
		return fmt.Errorf("it refers to %q and is no call", to.Name)
	}
	return nil
}

// refer makes an instruction refer to the function that begins at an offset.
func refer(ins *asm.Instruction, s *section, offset uint64) error {
	name := s.function[offset]
	if name == "" {
		return fmt.Errorf("no function begins at offset %d of section %s", offset, s.name)
	}
	ins.Constant = -1
	*ins = ins.WithReference(name)
	return nil
}
