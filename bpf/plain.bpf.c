// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The same switch without the features that need more checks: a bridge that has none of them is
 * made of this. A check that is never made leaves no instruction. And the frame is decided on at
 * once, where it has been read: it need not go through the work area. A frame like one before is
 * sent at once.
 */
#define FEATURES_NEVER (FEATURES_APART | FEATURE_TRACE)
#define DECIDES_AT_ONCE
#define SENDS_AT_ONCE

#include "switch.bpf.c"
