// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The same switch with one lock around its addresses, like bridges that keep them under a mutex. It
 * is only for the lab, which measures the cost of the lock. Ordinary bridges are made of
 * switch.bpf.c as it is.
 *
 * A CPU holds the lock from the look at its remembered decision to the end of the decision. It
 * learns and looks up under the lock, but does not send. The table is sound without the lock, so
 * the clock and the control program work without it.
 */
#define DECIDES_AT_ONCE /* under the lock, which a separate function would not have */

#include "decision.h"

/*
 * How often a frame tries the lock. This takes some milliseconds, longer than any holder takes that
 * is not prevented from running. After that the frame goes on without the lock, which harms
 * nothing. So no frame waits for ever.
 */
#define LOCK_SPINS (1 << 20)

u32 lock_holder; /* CPU + 1, 0 for none */
u32 lock_missed; /* waits that ended without it */

/* Programs run with soft interrupts off: a CPU has one frame at a time. */
static __always_inline u32 lock_self(void)
{
	return bpf_get_smp_processor_id() + 1;
}

static long lock_try(u32 n, u32 *self)
{
	/* only reads while the lock is taken: the holder's cache line stays where it is */
	return !READ_ONCE(lock_holder) && !__sync_val_compare_and_swap(&lock_holder, 0, *self);
}

static __always_inline void lock_take(u32 self)
{
	if (!__sync_val_compare_and_swap(&lock_holder, 0, self))
		return;
	bpf_loop(LOCK_SPINS, lock_try, &self, 0);
	if (READ_ONCE(lock_holder) != self)
		__sync_fetch_and_add(&lock_missed, 1);
}

/* Releases the lock. An exchange is a full barrier: the next holder sees this holder's writes. */
static __always_inline void lock_give(u32 self)
{
	if (READ_ONCE(lock_holder) == self)
		__sync_lock_test_and_set(&lock_holder, 0);
}

/* If the decision does not hold, keeps the lock for locked_decide(), which follows. */
static __always_inline bool locked_decision_holds(const struct decision *d, const struct frame *f,
						  u32 epoch)
{
	u32 self = lock_self();

	lock_take(self);
	if (!decision_holds(d, f, epoch))
		return false;
	lock_give(self);
	return true;
}

static __always_inline enum action locked_decide(const struct hook *h, const struct frame *f,
						 struct verdict *v, u32 now)
{
	u32 self = lock_self();
	enum action action;

	/* the lock is not held if the decision was valid, but could not be used */
	if (READ_ONCE(lock_holder) != self)
		lock_take(self);
	action = decide(h, f, v, now);
	lock_give(self);
	return action;
}

#define decision_holds locked_decision_holds
#define decide locked_decide

#include "switch.bpf.c"
