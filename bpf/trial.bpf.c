// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The same switch for trials: it writes down what it does with a frame (trace.h), and sends
 * nothing. The other objects do not even have the question whether to do so. And a trial tells
 * no collector.
 */
#define FEATURES_NEVER FEATURE_SAMPLE

#include "switch.bpf.c"
