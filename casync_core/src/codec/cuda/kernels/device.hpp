#pragma once

/// Where code runs. Apart from these words, what only nvcc knows is in team.hpp.
#if defined(__CUDACC__)
#define CASYNC_DEVICE __device__ inline
#define CASYNC_HOST_DEVICE __host__ __device__ inline
#else
#define CASYNC_DEVICE inline
#define CASYNC_HOST_DEVICE inline
#endif
