/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The table of words that a ruleset is compiled to. */
#pragma once

#include "state.h"

/*
 * The first words are the cells. A cell has the place, in this table, of the set of the rules that
 * match a value of a field. The sets of ports follow from PF_CELLS on, by number, and then the sets
 * of rules.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} pf_words SEC(".maps");

static __always_inline u32 pf_cell(u32 at)
{
	u32 *set = bpf_map_lookup_elem(&pf_words, &at);

	return set ? *set : 0;
}

static __always_inline u64 pf_word(u32 at)
{
	u64 *word = bpf_map_lookup_elem(&pf_words, &at);

	return word ? *word : 0;
}

/* Reads words of the table of sets. */
static __always_inline void pf_words_read(u32 at, void *to, u32 bytes)
{
#pragma unroll
	for (u32 i = 0; i < bytes / 8; i++)
		((u64 *)to)[i] = pf_word(at + i);
}
