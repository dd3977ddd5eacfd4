
/*
 * Results of all functions in src/core.
 */


#ifndef _QUIC_LB_ERROR_H_INCLUDED_
#define _QUIC_LB_ERROR_H_INCLUDED_


enum {
    QUIC_LB_OK = 0,
    QUIC_LB_ERR_SHORT = -1,      /* the input ends too early */
    QUIC_LB_ERR_INVALID = -2,    /* the input breaks a rule of its format */
    QUIC_LB_ERR_RANGE = -3,      /* a parameter is out of its range */
    QUIC_LB_ERR_CRYPTO = -4,     /* the cryptographic library failed */
    QUIC_LB_ERR_FULL = -5        /* a bound is reached */
};


#endif /* _QUIC_LB_ERROR_H_INCLUDED_ */
