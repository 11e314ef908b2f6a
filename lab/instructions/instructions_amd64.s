// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// func count() uint64
TEXT ·count(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ	$32, DX
	ORQ	DX, AX
	MOVQ	AX, ret+0(FP)
	RET

// Instructions that do nothing, and that no compiler makes: a plug-in of QEMU finds them.

// func Begin()
TEXT ·Begin(SB), NOSPLIT, $0-0
	BYTE $0x0F; BYTE $0x1F; BYTE $0x80; LONG $0x62617301
	RET

// func End()
TEXT ·End(SB), NOSPLIT, $0-0
	BYTE $0x0F; BYTE $0x1F; BYTE $0x80; LONG $0x62617300
	RET

// func loop(turns uint64)
TEXT ·loop(SB), NOSPLIT, $0-8
	MOVQ	turns+0(FP), CX
again:
	DECQ	CX
	JNZ	again
	RET
