/* s4d_steps.h on a GPU. */
#ifndef LNT_S4D_STEPS_CUH
#define LNT_S4D_STEPS_CUH

#include "device/cuda.cuh"

extern "C" {
#include "recurrence/scan/scan.h"
}

namespace {

struct complex64 {
    double re, im;
};
__device__ complex64 operator+(complex64 a, complex64 b) { return { a.re + b.re, a.im + b.im }; }
__device__ complex64 operator-(complex64 a, complex64 b) { return { a.re - b.re, a.im - b.im }; }
__device__ complex64 operator*(complex64 a, complex64 b) { return { a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re }; }
__device__ complex64 operator*(double a, complex64 b) { return { a * b.re, a * b.im }; }
__device__ complex64 operator/(complex64 a, complex64 b)
{
    const double over = 1 / (b.re * b.re + b.im * b.im);
    return over * (a * complex64{ b.re, -b.im });
}
__device__ complex64 conjugate(complex64 a) { return { a.re, -a.im }; }

/* Abar and Bbar, and their derivatives in A and in dt: s4d_steps.h. */
struct s4d_step {
    complex64 A, B, A_by_A, A_by_dt, B_by_A, B_by_dt;
};
__device__ s4d_step discretize(bool bilinear, double dt, complex64 A)
{
    const complex64 z = dt * A, one = { 1, 0 };
    if (bilinear) {
        const complex64 f = one / (one - 0.5 * z), f2 = f * f;
        return { (one + 0.5 * z) * f, dt * f, dt * f2, A * f2, (dt * dt / 2) * f2, f2 };
    }
    double sine, cosine;
    sincos(z.im, &sine, &cosine);
    const complex64 e = exp(z.re) * complex64{ cosine, sine };
    complex64 b, c;
    if (z.re * z.re + z.im * z.im < 1e-6) {
        b = one + 0.5 * z * (one + (1. / 3) * z * (one + 0.25 * z));
        c = complex64{ 0.5, 0 } + (1. / 3) * z + 0.125 * z * z + (1. / 30) * z * z * z;
    } else {
        b = (e - one) / z;
        c = (z * e - e + one) / (z * z);
    }
    return { e, dt * b, dt * e, A * e, (dt * dt) * c, e };
}

} // namespace

#endif
