// Marks functions of headers that plans, handlers and kernels share.
#ifndef JAXKERNELS_CORE_HOST_DEVICE_H_
#define JAXKERNELS_CORE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define JK_HOST_DEVICE __host__ __device__
// For arithmetic that kernels of both platforms inline.
#define JK_ARITHMETIC __host__ __device__ __forceinline__
#else
#define JK_HOST_DEVICE
#define JK_ARITHMETIC __attribute__((always_inline)) inline
#endif

#endif  // JAXKERNELS_CORE_HOST_DEVICE_H_
