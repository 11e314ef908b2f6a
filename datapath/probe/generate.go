// SPDX-License-Identifier: BSD-2-Clause

package probe

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu" probe probe.bpf.c
