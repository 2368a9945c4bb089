#pragma once

#include "codec/cuda/device_kernels.hpp"
#include "codec/cuda/kernels/raw_arguments.hpp"

/// The host's table of kernels/raw.hpp, by DType: float32, float16, bfloat16, float64, int8. An item is kPiece
/// elements.
namespace casync::codec::cuda {

inline constexpr DeviceKernel kLoadRaw[]{
    {"casync_load_float32", 256, Grid::teams, sizeof(Many<RawLoad>)},
    {"casync_load_float16", 256, Grid::teams, sizeof(Many<RawLoad>)},
    {"casync_load_bfloat16", 256, Grid::teams, sizeof(Many<RawLoad>)},
    {"casync_load_float64", 256, Grid::teams, sizeof(Many<RawLoad>)},
    {"casync_load_int8", 256, Grid::teams, sizeof(Many<RawLoad>)},
};
inline constexpr DeviceKernel kStoreRaw[]{
    {"casync_store_float32", 256, Grid::teams, sizeof(Many<RawStore>)},
    {"casync_store_float16", 256, Grid::teams, sizeof(Many<RawStore>)},
    {"casync_store_bfloat16", 256, Grid::teams, sizeof(Many<RawStore>)},
    {"casync_store_float64", 256, Grid::teams, sizeof(Many<RawStore>)},
    {"casync_store_int8", 256, Grid::teams, sizeof(Many<RawStore>)},
};
inline constexpr DeviceKernel kDivideRaw[]{
    {"casync_divide_float32", 256, Grid::teams, sizeof(Many<RawStore>)},
    {"casync_divide_float16", 256, Grid::teams, sizeof(Many<RawStore>)},
    {"casync_divide_bfloat16", 256, Grid::teams, sizeof(Many<RawStore>)},
};
inline constexpr DeviceKernel kMergeRaw[]{
    {"casync_merge_float32", 256, Grid::teams, sizeof(Many<RawMerge>)},
    {"casync_merge_float16", 256, Grid::teams, sizeof(Many<RawMerge>)},
    {"casync_merge_bfloat16", 256, Grid::teams, sizeof(Many<RawMerge>)},
    {},  // of float64
    {"casync_merge_int8", 256, Grid::teams, sizeof(Many<RawMerge>)},
};

}  // namespace casync::codec::cuda
