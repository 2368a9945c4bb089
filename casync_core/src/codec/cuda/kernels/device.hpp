#pragma once

/// Where code runs: on a device, and on the CPU if a compiler for the CPU compiles it. Apart from this word, what only
/// compilers for CUDA know of is in team.hpp.
#if defined(__CUDACC__)
#define CASYNC_DEVICE __device__ inline
#else
#define CASYNC_DEVICE inline
#endif
