#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// The vocabulary every room shares. Plain values: no room needs more than this header to name a tensor.
namespace casync {

/// Wall or virtual time in nanoseconds since the session began. Rooms that decide receive it, they never read it.
using Nanoseconds = std::int64_t;
/// 36 years. A session's longer times are cut to this. Up to seven such times can be added without an overflow.
inline constexpr Nanoseconds kLongestTime = Nanoseconds{1} << 60;

/// Number of a rank among those of its session; of engines, a member.
using Rank = std::uint32_t;

/// Element type of a tensor. The numbers are on the wire and in the bindings: append only.
enum class DType : std::uint8_t {
  float32 = 0,
  float16 = 1,
  bfloat16 = 2,
  float64 = 3,
  int8 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  uint8 = 8,
  boolean = 9,
  uint16 = 10,
};

inline constexpr std::array<std::size_t, 11> kDTypeSize{4, 2, 2, 8, 1, 2, 4, 8, 1, 1, 2};
inline constexpr std::array<std::string_view, 11> kDTypeName{
    "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool", "uint16"};

constexpr std::size_t size_of(DType dtype) { return kDTypeSize[static_cast<std::size_t>(dtype)]; }
constexpr std::string_view name_of(DType dtype) { return kDTypeName[static_cast<std::size_t>(dtype)]; }
constexpr bool is_floating(DType dtype) { return dtype <= DType::float64; }

/// How the contributions of the ranks become one value. Numbers as Horovod's (common/message.h).
enum class ReduceOp : std::uint8_t { average = 0, sum = 1, adasum = 2, min = 3, max = 4, product = 5 };

inline constexpr std::array<std::string_view, 6> kReduceOpName{"Average", "Sum", "Adasum", "Min", "Max", "Product"};
constexpr std::string_view name_of(ReduceOp op) { return kReduceOpName[static_cast<std::size_t>(op)]; }

/// What an operation does with its tensors. Numbers are on the wire: append only.
enum class OpKind : std::uint8_t {
  allreduce = 0,
  allgather = 1,
  broadcast = 2,
  barrier = 3,
  reducescatter = 4,
  alltoall = 5,
  join = 6,
};

inline constexpr std::array<std::string_view, 7> kOpKindName{"allreduce",     "allgather", "broadcast", "barrier",
                                                             "reducescatter", "alltoall",  "join"};
constexpr std::string_view name_of(OpKind kind) { return kOpKindName[static_cast<std::size_t>(kind)]; }
/// Whether it adds up what the ranks give, so that a codec may have a part in it.
constexpr bool reduces(OpKind kind) { return kind == OpKind::allreduce || kind == OpKind::reducescatter; }
/// Whether a rank that has joined can take part in it, with zeros.
constexpr bool goes_on_without(OpKind kind) { return kind == OpKind::allreduce || kind == OpKind::barrier; }

/// Where memory is that operations work on. Numbers are on the wire: append only.
enum class MemoryKind : std::uint8_t { host = 0, device = 1 };

inline constexpr std::array<std::string_view, 2> kMemoryKindName{"host", "device"};
constexpr std::string_view name_of(MemoryKind kind) { return kMemoryKindName[static_cast<std::size_t>(kind)]; }

/// A gradient as codecs see it: `rows` = shape[0], `cols` = product of the rest (1 for a vector). numel = rows * cols.
/// A zero-dimensional tensor has rows = cols = 1; an empty one has rows * cols = 0.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  constexpr std::int64_t numel() const { return rows * cols; }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;
};

/// A half-open range of elements of one gradient. Partitions are ranges: offsets, never copies.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

}  // namespace casync
