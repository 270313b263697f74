// Marks functions of headers that plans, handlers and kernels share.
#ifndef JAXKERNELS_CORE_HOST_DEVICE_H_
#define JAXKERNELS_CORE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define JK_HOST_DEVICE __host__ __device__
#else
#define JK_HOST_DEVICE
#endif

#endif  // JAXKERNELS_CORE_HOST_DEVICE_H_
