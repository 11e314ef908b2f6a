// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The same switch without the features that have more to decide: a bridge that has none of
 * them is made of this. A question that is never asked leaves no instruction. And the frame
 * is decided on at once, where it has been read: it need not go to the work area in
 * between. A frame like one before is sent at once.
 */
#define FEATURES_NEVER (FEATURES_APART | FEATURE_TRACE)
#define DECIDES_AT_ONCE
#define SENDS_AT_ONCE

#include "switch.bpf.c"
