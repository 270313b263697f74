# Decides whether the CUDA module is built, with which compiler and for which GPUs.
#
# In:  JK_CUDA, JK_CUDA_RELEASE, JK_PYPI_CUDA, CMAKE_CUDA_ARCHITECTURES, Python_EXECUTABLE
# Out: JK_HAVE_CUDA, JK_WHY_NO_CUDA, JK_CUDA_SOURCES, JK_NVCC_FLAGS, CMAKE_CUDA_ARCHITECTURES

set(JK_HAVE_CUDA FALSE)
set(JK_WHY_NO_CUDA "")  # printed by `python -m jaxkernels`

# JK_CUDA_SOURCES is the only list of CUDA sources. Several launch*.cu files instantiate the
# templates, so that they compile in parallel.
file(GLOB_RECURSE JK_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ffi/*.cu)
list(APPEND JK_CUDA_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/ffi/core/launch_kernel.cc
     ${CMAKE_CURRENT_SOURCE_DIR}/ffi/attention/handlers.cc
     ${CMAKE_CURRENT_SOURCE_DIR}/ffi/rows/cuda/handlers.cc
     ${CMAKE_CURRENT_SOURCE_DIR}/ffi/rows/cuda/launch.cc
     ${CMAKE_CURRENT_SOURCE_DIR}/ffi/rows/read_call.cc
     ${CMAKE_CURRENT_SOURCE_DIR}/ffi/sgemm/handlers.cc)

# nvcc gets two threads: a build machine has at least two cores, and "0" is not understood in every
# spelling. Kernels of releases are compressed to the smallest size. In other builds they take a
# third more space, and each file of 250 kernels compiles 4 seconds faster.
set(JK_NVCC_FLAGS --threads 2)
if(JK_CUDA_RELEASE)
  list(APPEND JK_NVCC_FLAGS --compress-mode=size)
else()
  list(APPEND JK_NVCC_FLAGS --compress-mode=balance -Xfatbin=-compress-all)
endif()

if(NOT JK_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "JK_CUDA must be AUTO, ON or OFF, got '${JK_CUDA}'")
endif()
if(JK_CUDA STREQUAL "OFF")
  set(JK_WHY_NO_CUDA "JK_CUDA=OFF at build time")
  return()
endif()

# Architectures are those that the user names, all of a release, or those of the GPUs that the
# driver finds.
set(is_named FALSE)
set(capabilities)
if(JK_CUDA_RELEASE OR JK_PYPI_CUDA OR DEFINED CMAKE_CUDA_ARCHITECTURES OR NOT "$ENV{CUDAARCHS}" STREQUAL "")
  set(is_named TRUE)
endif()
if(NOT JK_CUDA_RELEASE AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/compute_capabilities.py
                  OUTPUT_VARIABLE gpus ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${gpus}")
endif()
set(found_gpus ${capabilities})
list(FILTER capabilities EXCLUDE REGEX "^[0-7]\\.")  # kernels need 8.0
if(JK_CUDA STREQUAL "AUTO" AND NOT is_named AND NOT capabilities)
  if(found_gpus)
    set(JK_WHY_NO_CUDA "no GPU of compute capability 8.0 or later was found at build time")
  else()
    set(JK_WHY_NO_CUDA "no GPU was found at build time")
  endif()
  return()
endif()

if(JK_PYPI_CUDA)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "from importlib.util import find_spec as f; print(*f('nvidia').submodule_search_locations, sep=';')"
    OUTPUT_VARIABLE nvidia_dirs OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_program(JK_PYPI_NVCC nvcc PATHS ${nvidia_dirs} PATH_SUFFIXES cu13/bin NO_DEFAULT_PATH NO_CACHE)
  if(NOT JK_PYPI_NVCC)
    message(FATAL_ERROR "JK_PYPI_CUDA is on, but ${Python_EXECUTABLE} finds no nvcc. Set it as the "
                        "environment variable JK_PYPI_CUDA=1 and build with pip's build isolation, "
                        "or install 'cuda-toolkit[nvcc,cccl]==13.0.*' first.")
  endif()
  get_filename_component(pypi_root ${JK_PYPI_NVCC} DIRECTORY)
  get_filename_component(pypi_root ${pypi_root} DIRECTORY)
  set(ENV{CUDACXX} ${JK_PYPI_NVCC})
  # The wheels have their libraries in lib; nvcc.profile says lib64.
  set(ENV{CUDAFLAGS} "$ENV{CUDAFLAGS} -L${pypi_root}/lib")
endif()

# Architectures are set before the language is enabled; otherwise CMake chooses the compiler's
# default.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  if(JK_CUDA_RELEASE)
    # Code for 8.0 runs on all of 8.x, for 10.0 on 10.3, for 12.0 on 12.1. With 8.6, 8.9 and PTX too
    # a wheel has 44 MB instead of 26.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real 120-real)
  elseif(capabilities)
    # CMake's "native" would compile for Hopper without wgmma, which needs 90a.
    list(REMOVE_DUPLICATES capabilities)
    set(CMAKE_CUDA_ARCHITECTURES)
    foreach(capability IN LISTS capabilities)
      string(REPLACE "." "" number ${capability})
      if(number GREATER_EQUAL 90)
        string(APPEND number a)
      endif()
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${number}-real)
    endforeach()
  else()
    set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
  endif()
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(JK_HAVE_CUDA TRUE)
  message(STATUS "CUDA kernels for ${CMAKE_CUDA_ARCHITECTURES} by ${CMAKE_CUDA_COMPILER}")
elseif(JK_CUDA STREQUAL "ON")
  message(FATAL_ERROR
    "JK_CUDA=ON, but no CUDA compiler was found. Put nvcc on PATH, or name it in the environment "
    "variable CUDACXX, or set JK_PYPI_CUDA=1 to take the compiler from PyPI; JK_CUDA=OFF builds "
    "without CUDA.")
else()
  set(JK_WHY_NO_CUDA "no CUDA compiler (nvcc) was found at build time")
endif()
