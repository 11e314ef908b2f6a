// SPDX-License-Identifier: BSD-2-Clause
/*
 * A plug-in of QEMU (TCG). It counts how often the instruction at each address of the
 * kernel is executed, and the instructions of user space in total. It counts between the
 * two instructions by which lab/instructions marks the beginning and the end. When the
 * machine ends, it writes a line for each address: the address (0 for all of user
 * space), and the count.
 *
 * Debian has no header for plug-ins. The declarations match version 1 of the interface in
 * QEMU 7.2's include/qemu/qemu-plugin.h.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
					   void (*cb)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_atexit_cb(uint64_t id, void (*cb)(uint64_t, void *), void *data);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn,
						enum qemu_plugin_op op, void *at, uint64_t add);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    void (*cb)(unsigned int, void *),
					    enum qemu_plugin_cb_flags flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t i);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);

EXPORT int qemu_plugin_version = 1;

/* nopl 0x62617301(%rax), and 0x62617300: lab/instructions/instructions_amd64.s */
static const uint8_t begins[] = {0x0f, 0x1f, 0x80, 0x01, 0x73, 0x61, 0x62};
static const uint8_t ends[] = {0x0f, 0x1f, 0x80, 0x00, 0x73, 0x61, 0x62};

/* An address, and its executions: since the start, before the present part, and in all parts. */
struct count {
	uint64_t at, now, begin, parts;
};

/* In such a run a kernel executes the instructions at some 400 000 addresses. */
#define COUNTS (1u << 22)
static struct count counts[COUNTS], user;
static const char *out;

static struct count *count_of(uint64_t at)
{
	uint32_t i = (at * 0x9E3779B97F4A7C15ull) >> 42;

	for (uint32_t tries = 0; tries < COUNTS; tries++, i = (i + 1) % COUNTS) {
		if (!counts[i].at)
			counts[i].at = at;
		if (counts[i].at == at)
			return &counts[i];
	}
	fprintf(stderr, "functions: more than %u addresses\n", COUNTS);
	exit(1);
}

static void begin(unsigned int cpu, void *data)
{
	user.begin = user.now;
	for (uint32_t i = 0; i < COUNTS; i++)
		counts[i].begin = counts[i].now;
}

static void end(unsigned int cpu, void *data)
{
	user.parts += user.now - user.begin;
	for (uint32_t i = 0; i < COUNTS; i++)
		counts[i].parts += counts[i].now - counts[i].begin;
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	size_t n = qemu_plugin_tb_n_insns(tb);

	for (size_t i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t at = qemu_plugin_insn_vaddr(insn);
		struct count *c = at >> 63 ? count_of(at) : &user;

		qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64,
							   &c->now, 1);
		if (qemu_plugin_insn_size(insn) != sizeof(begins))
			continue;
		if (!memcmp(qemu_plugin_insn_data(insn), begins, sizeof(begins)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, begin, QEMU_PLUGIN_CB_NO_REGS,
							       NULL);
		if (!memcmp(qemu_plugin_insn_data(insn), ends, sizeof(ends)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, end, QEMU_PLUGIN_CB_NO_REGS,
							       NULL);
	}
}

static void finish(uint64_t id, void *data)
{
	FILE *f = fopen(out, "w");

	if (!f) {
		perror(out);
		return;
	}
	if (user.parts)
		fprintf(f, "0 %lu\n", user.parts);
	for (uint32_t i = 0; i < COUNTS; i++)
		if (counts[i].parts)
			fprintf(f, "%lx %lu\n", counts[i].at, counts[i].parts);
	fclose(f);
}

EXPORT int qemu_plugin_install(uint64_t id, const struct qemu_info *info, int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "out=", 4))
			out = strdup(argv[i] + 4);
	if (!out) {
		fprintf(stderr, "functions: give out=FILE\n");
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, finish, NULL);
	return 0;
}
