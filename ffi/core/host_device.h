// Marks functions of headers that plans, handlers, kernels and both platforms share.
#pragma once

// JK_INLINE marks CPU code that is inlined into every version of a function (OnThisMachine of
// instruction_sets.h), and so compiled for its instruction set.
#define JK_INLINE __attribute__((always_inline)) inline

// JK_OP marks a function of a row operation: device code, or CPU code.
#ifdef __CUDACC__
#define JK_HOST_DEVICE __host__ __device__
#define JK_OP __device__
#else
#define JK_HOST_DEVICE
#define JK_OP JK_INLINE
#endif
