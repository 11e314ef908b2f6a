// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The same switch without the features that have more to decide: what a bridge is made
 * of that has none of them. A question that is never asked leaves no instruction, and
 * what a frame is decides on it at once, with no place for it between.
 */
#define FEATURES_NEVER (FEATURES_APART | FEATURE_TRACE)
#define DECIDES_AT_ONCE

#include "switch.bpf.c"
