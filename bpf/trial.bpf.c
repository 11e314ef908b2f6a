// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The same switch for trials: it records its work on a frame (trace.h), and sends nothing. The
 * other objects do not even have a check for trials. And a trial reports nothing to a collector.
 */
#define FEATURES_NEVER FEATURE_SAMPLE

#include "switch.bpf.c"
