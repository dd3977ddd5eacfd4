
/*
 * The little of TAP that the unit tests need, and their source of
 * reproducible random numbers.  For one file per program.
 */


#ifndef _QUIC_LB_TAP_H_INCLUDED_
#define _QUIC_LB_TAP_H_INCLUDED_


#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>


#define TAP_SEED  UINT64_C(0x9e3779b97f4a7c15)


static unsigned  tap_count, tap_failed;
static uint64_t  tap_state = TAP_SEED;


#define ok(expr, ...)                                                         \
    tap_ok((expr) ? 1 : 0, #expr, __FILE__, __LINE__, __VA_ARGS__)


/* the name is a format: it tells the case in a loop */

__attribute__((format(printf, 5, 6)))
static inline int
tap_ok(int pass, const char *expr, const char *file, int line,
    const char *name, ...)
{
    va_list  args;

    tap_count++;

    printf("%s %u - ", pass ? "ok" : "not ok", tap_count);

    va_start(args, name);
    vprintf(name, args);
    va_end(args);

    printf("\n");

    if (!pass) {
        tap_failed++;
        printf("# %s:%d: %s\n", file, line, expr);
    }

    return pass;
}


/* the result of main() */

static inline int
tap_done(void)
{
    printf("1..%u\n", tap_count);

    return tap_failed ? 1 : 0;
}


/* xorshift64*, the same on every run */

static inline uint64_t
tap_random(void)
{
    if (tap_state == TAP_SEED) {
        printf("# seed 0x%" PRIx64 "\n", tap_state);
    }

    tap_state ^= tap_state >> 12;
    tap_state ^= tap_state << 25;
    tap_state ^= tap_state >> 27;

    return tap_state * UINT64_C(0x2545f4914f6cdd1d);
}


static inline void
tap_random_bytes(uint8_t *p, size_t len)
{
    while (len--) {
        *p++ = (uint8_t) (tap_random() >> 56);
    }
}


#endif /* _QUIC_LB_TAP_H_INCLUDED_ */
