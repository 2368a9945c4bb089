#pragma once

#include <cstddef>
#include <cstdint>

/// What the kernels of raw.hpp are launched with, as arguments.hpp has it for those of codecs. `nonfinite` is set to 1
/// if something that was produced is NaN or Inf, as the CPU's kernels say it, and otherwise left as it is. Arrays of
/// elements are aligned to an element; payloads need no alignment.
namespace casync::codec::cuda {

/// Elements of an item.
constexpr std::int64_t kPiece = 1024;

/// out = [addend +] factor * src, converted to float32.
struct RawLoad {
  const void* src = nullptr;
  float factor = 1.0F;
  const float* addend = nullptr;  ///< may be null
  float* out = nullptr;           ///< may be `src` or `addend`
  std::int64_t n = 0;
  std::int32_t* nonfinite = nullptr;
};
template <typename F>
void visit_pointers(RawLoad& load, const F& f) {
  f(load.src);
  f(load.addend);
  f(load.out);
  f(load.nonfinite);
}
static_assert(sizeof(RawLoad) == 48, "visit_pointers lists each pointer");

/// dst = (src * first) * second, or (src / first) * second, rounded to nearest even.
struct RawStore {
  const float* src = nullptr;
  float first = 1.0F;
  float second = 1.0F;
  void* dst = nullptr;  ///< may be `src`, if its elements are as large
  std::int64_t n = 0;
  std::int32_t* nonfinite = nullptr;
};
template <typename F>
void visit_pointers(RawStore& store, const F& f) {
  f(store.src);
  f(store.dst);
  f(store.nonfinite);
}
static_assert(sizeof(RawStore) == 40, "visit_pointers lists each pointer");

/// Raw float32 values times `factor`, or a payload of elements.
struct RawSource {
  const float* raw = nullptr;
  float factor = 1.0F;
  const std::byte* payload = nullptr;
};

/// out = the sum of the sources, in order, or the largest of them, where NaN wins. More of them take several launches,
/// where `out` is the first source of the next.
struct RawMerge {
  static constexpr int kMost = 32;

  RawSource sources[kMost]{};
  std::int32_t count = 0;
  bool largest = false;
  float* out = nullptr;  ///< may be a source's `raw`
  std::int64_t n = 0;
  std::int32_t* nonfinite = nullptr;
};
template <typename F>
void visit_pointers(RawMerge& merge, const F& f) {
  for (RawSource& source : merge.sources) {
    f(source.raw);
    f(source.payload);
  }
  f(merge.out);
  f(merge.nonfinite);
}
static_assert(sizeof(RawMerge) == 800, "visit_pointers lists each pointer");

}  // namespace casync::codec::cuda
