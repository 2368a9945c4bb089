#pragma once

#include "codec/cuda/kernels/half.hpp"

/// Arrays as generated code reads and writes them, one element at a time. In scratch memory and states they are plain
/// pointers; in a payload nothing is aligned, so elements are moved byte by byte there, and those of 1, 2 or 4 bits are
/// packed from the lowest bit of each byte upwards.
namespace casync::codec::cuda {

/// An array in a payload.
template <typename T>
struct Stored {
  std::byte* bytes;
};
template <typename T>
struct StoredSource {
  const std::byte* bytes;
};
template <int kBits>
struct Packed {
  std::byte* bytes;
};
template <int kBits>
struct PackedSource {
  const std::byte* bytes;
};

template <typename T>
struct BytesOf {
  std::byte byte[sizeof(T)];
};
template <typename T>
CASYNC_DEVICE T load(const std::byte* from) {
  BytesOf<T> bytes{};
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes.byte[i] = from[i];
  return __builtin_bit_cast(T, bytes);
}
template <typename T>
CASYNC_DEVICE void store(std::byte* to, T value) {
  const auto bytes = __builtin_bit_cast(BytesOf<T>, value);
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = bytes.byte[i];
}

CASYNC_DEVICE float at(const float* from, std::int64_t i) { return from[i]; }
template <typename T>
CASYNC_DEVICE std::int32_t at(const T* from, std::int64_t i) {
  return static_cast<std::int32_t>(from[i]);
}
CASYNC_DEVICE float at(StoredSource<float> from, std::int64_t i) { return load<float>(from.bytes + 4 * i); }
template <typename T>
CASYNC_DEVICE std::int32_t at(StoredSource<T> from, std::int64_t i) {
  return static_cast<std::int32_t>(load<T>(from.bytes + static_cast<std::int64_t>(sizeof(T)) * i));
}
template <typename Format>
CASYNC_DEVICE float at(const Narrow<Format>* from, std::int64_t i) {
  return Format::read(from[i].bits);
}
template <typename Format>
CASYNC_DEVICE float at(StoredSource<Narrow<Format>> from, std::int64_t i) {
  return Format::read(load<std::uint16_t>(from.bytes + 2 * i));
}
template <int kBits>
CASYNC_DEVICE auto at(PackedSource<kBits> from, std::int64_t i) {
  const auto byte = static_cast<unsigned>(from.bytes[i * kBits / 8]);
  const auto code = static_cast<std::int32_t>(byte >> (i * kBits % 8) & ((1U << kBits) - 1U));
  if constexpr (kBits == 1)
    return code != 0;
  else
    return code;
}

template <typename T, typename Value>
CASYNC_DEVICE void put(T* to, std::int64_t i, Value value) {
  to[i] = static_cast<T>(value);
}
template <typename T, typename Value>
CASYNC_DEVICE void put(Stored<T> to, std::int64_t i, Value value) {
  store(to.bytes + static_cast<std::int64_t>(sizeof(T)) * i, static_cast<T>(value));
}

template <typename Format>
CASYNC_DEVICE void put(Stored<Narrow<Format>> to, std::int64_t i, float value) {
  store(to.bytes + 2 * i, Format::write(value));
}

/// False if there is no such place.
CASYNC_DEVICE bool put_one(float* to, std::int64_t size, std::int32_t place, float value) {
  if (place < 0 || place >= size) return false;
  to[place] = value;
  return true;
}

/// The element at an index that is held inside of the array; 0 if it is empty.
template <typename Source>
CASYNC_DEVICE auto pick(Source from, std::int32_t index, std::int64_t size) -> decltype(at(from, 0)) {
  if (size == 0) return {};
  const auto last = static_cast<std::int32_t>(size - 1);
  return at(from, smaller(larger(index, 0), last));
}

/// Codes of less than a byte; a byte is one thread's.
template <int kBits, typename Team, typename Code>
CASYNC_DEVICE void pack(const Team& team, Packed<kBits> to, std::int64_t length, const Code& code) {
  constexpr int kCodes = 8 / kBits;
  for (std::int64_t byte = team.rank(); byte * kCodes < length; byte += team.size()) {
    std::uint32_t packed = 0;
    for (int k = 0; k < kCodes; ++k)
      if (byte * kCodes + k < length)
        packed |= (static_cast<std::uint32_t>(code(byte * kCodes + k)) & ((1U << kBits) - 1U)) << (k * kBits);
    to.bytes[byte] = static_cast<std::byte>(packed);
  }
  team.barrier();
}

}  // namespace casync::codec::cuda
