#pragma once

#include "codec/cpu/kernels/kernels.hpp"

/// The functions behind a kernel table, in the namespace of the instruction set being compiled.
namespace casync::codec::CASYNC_KERNEL_ISA {

bool load_float32(const void* src, float factor, const float* addend, float* out, std::int64_t n);
bool load_float16(const void* src, float factor, const float* addend, float* out, std::int64_t n);
bool load_bfloat16(const void* src, float factor, const float* addend, float* out, std::int64_t n);
bool load_float64(const void* src, float factor, const float* addend, float* out, std::int64_t n);

bool store_float32(const float* src, float first, float second, void* dst, std::int64_t n, bool stream);
bool store_float16(const float* src, float first, float second, void* dst, std::int64_t n, bool stream);
bool store_bfloat16(const float* src, float first, float second, void* dst, std::int64_t n, bool stream);
bool store_float64(const float* src, float first, float second, void* dst, std::int64_t n, bool stream);

bool divide_float32(const float* src, float divisor, float factor, void* dst, std::int64_t n, bool stream);
bool divide_float16(const float* src, float divisor, float factor, void* dst, std::int64_t n, bool stream);
bool divide_bfloat16(const float* src, float divisor, float factor, void* dst, std::int64_t n, bool stream);

bool merge_float32(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming);
bool merge_float16(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming);
bool merge_bfloat16(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming);

}  // namespace casync::codec::CASYNC_KERNEL_ISA
