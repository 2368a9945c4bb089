#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

/// What the fuzz targets share. A target is `LLVMFuzzerTestOneInput` and nothing else: libFuzzer calls it, and so does
/// run_corpus.cc with the inputs that are kept. A finding is a crash, a sanitizer's report, an exception that leaves
/// the target, or a `require` that does not hold.
namespace casync::fuzz {

using Bytes = std::vector<std::byte>;

/// The bytes of one input, from the front on; where they end, zeros follow.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  template <typename T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const auto bytes = take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  /// One byte's choice among `count`, at most 256.
  std::size_t below(std::size_t count) { return get<std::uint8_t>() % count; }
  bool flag() { return below(2) == 1; }
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::size_t left() const { return left_.size(); }

 private:
  std::span<const std::byte> left_;
};

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace casync::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
