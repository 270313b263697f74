"""Prints the compute capability of every GPU, one a line, as the CUDA driver reports it; nothing without a GPU.

It asks the driver's library, which kernels need anyway. nvidia-smi may be missing in containers and under WSL.
"""

import ctypes
import os
import sys

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # hides GPUs from programs, not from builds
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit()
count = ctypes.c_int()
if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
    sys.exit()
for device in range(count.value):
    numbers = [ctypes.c_int() for _ in range(2)]
    for number, attribute in zip(numbers, (MAJOR, MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    print(*(number.value for number in numbers), sep=".")
