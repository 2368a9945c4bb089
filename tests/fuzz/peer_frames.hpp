#pragma once

#include <array>
#include <deque>

#include "casync/plan.hpp"
#include "executor/operation.hpp"
#include "input.hpp"

/// What the target `peer` lets peers send: frames, written by the product's own FrameWriter, whose fields may be wrong.
namespace casync::fuzz {

inline constexpr casync::Rank kSize = 3;
inline constexpr std::uint32_t kSession = 7;
inline constexpr std::size_t kHeadBytes = 8192;
inline constexpr std::size_t kInlineBytes = 4096;

struct Tensor {
  const char* name;
  OpKind kind;
  DType dtype;
  Shape shape;
  const char* compression;
};
inline constexpr Tensor kTensors[] = {
    {"none", OpKind::allreduce, DType::float32, {100, 3}, "none"},
    {"large", OpKind::allreduce, DType::float16, {9'000, 1}, "none"},
    {"onebit", OpKind::allreduce, DType::float32, {30, 1'000}, "onebit"},
    {"state", OpKind::allreduce, DType::float32, {8'000, 1}, "test_state(gather=0)"},
    {"sparse", OpKind::allreduce, DType::float32, {6'000, 1}, "dgc(ratio=0.2)"},
    {"matrix", OpKind::allreduce, DType::float32, {60, 100}, "powersgd(rank=2, start_step=0)"},
    {"topk", OpKind::allreduce, DType::float32, {20'000, 1}, "test_topk(ratio=0.2)"},
    {"rounds", OpKind::allreduce, DType::float64, {20'000, 1}, "test_tworound"},
    {"auto", OpKind::allreduce, DType::float32, {6'000, 1}, "auto(fp16, terngrad(bits=4))"},
    {"whole", OpKind::allreduce, DType::int32, {50, 1}, "none"},
    {"gather", OpKind::allgather, DType::float32, {4, 500}, "none"},
    {"broadcast", OpKind::broadcast, DType::uint8, {9'000, 1}, "none"},
    {"barrier", OpKind::barrier, DType::uint8, {0, 1}, "none"},
    {"scatter", OpKind::reducescatter, DType::float32, {30, 100}, "onebit"},
    {"alltoall", OpKind::alltoall, DType::float32, {6, 400}, "none"},
    {"join", OpKind::join, DType::uint8, {0, 1}, "none"},
};
inline constexpr std::size_t kTensorCount = std::size(kTensors);

Definition definition_of(const Tensor& tensor);

/// A frame, and the bodies that it announces in their order. A body has what its checksum says, if it has one.
struct PeerFrame {
  Bytes bytes;
  std::deque<Bytes> bodies;  ///< each repeats itself up to the length of the memory that it comes to
};
PeerFrame frame_from(Input& input);

}  // namespace casync::fuzz
