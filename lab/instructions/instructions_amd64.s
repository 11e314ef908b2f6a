// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// func count() uint64
TEXT ·count(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ	$32, DX
	ORQ	DX, AX
	MOVQ	AX, ret+0(FP)
	RET

// func loop(turns uint64)
TEXT ·loop(SB), NOSPLIT, $0-8
	MOVQ	turns+0(FP), CX
again:
	DECQ	CX
	JNZ	again
	RET
