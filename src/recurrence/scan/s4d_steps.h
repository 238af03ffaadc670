/* From S4D's parameters to its steps and back, in double: once a call and number of a state. */
#ifndef LNT_S4D_STEPS_H
#define LNT_S4D_STEPS_H

#include <complex.h>

#include "recurrence/scan/scan.h"

/* Abar and Bbar, and their derivatives in A and in dt. */
typedef struct {
    double complex A, B, A_by_A, A_by_dt, B_by_A, B_by_dt;
} lnt_s4d_step;

/* Bbar = dt (e^z - 1) / z and dBbar/dA = dt^2 (z e^z - e^z + 1) / z^2 cancel where z = dt A is small: by their series there. */
static inline lnt_s4d_step lnt_s4d_discretize(int how, double dt, double complex A)
{
    const double complex z = dt * A;
    if (how == LNT_S4D_BILINEAR) {
        const double complex f = 1 / (1 - z / 2);
        return (lnt_s4d_step){ (1 + z / 2) * f, dt * f, dt * f * f, A * f * f, dt * dt / 2 * f * f, f * f };
    }
    const double complex e = cexp(z);
    const bool near = cabs(z) < 1e-3;
    const double complex b = near ? 1 + z / 2 * (1 + z / 3 * (1 + z / 4)) : (e - 1) / z;
    const double complex c = near ? 0.5 + z / 3 + z * z / 8 + z * z * z / 30 : (z * e - e + 1) / (z * z);
    return (lnt_s4d_step){ e, dt * b, dt * e, A * e, dt * dt * c, e };
}

typedef struct {
    double complex A, C;
    double dt;
} lnt_s4d_gradient;

/* From those of Abar and of K = C Bbar. */
static inline lnt_s4d_gradient lnt_s4d_backward(lnt_s4d_step s, double complex C, double complex dA, double complex dK)
{
    return (lnt_s4d_gradient){ conj(s.A_by_A) * dA + conj(C * s.B_by_A) * dK, conj(s.B) * dK,
                               creal(conj(s.A_by_dt) * dA + conj(C * s.B_by_dt) * dK) };
}

#endif
