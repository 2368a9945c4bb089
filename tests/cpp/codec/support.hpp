#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "codec/cpu/kernels/kernels.hpp"

/// What the codec tests share: gradients from a seed, segments as the executor would fill them, dispatch levels.
namespace casync::test {

using Bytes = std::vector<std::byte>;

struct Seeded {
  std::uint64_t state;
  explicit Seeded(std::uint64_t seed) : state(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  std::uint64_t next();
  double uniform();  ///< [0, 1)
  double normal();
};

/// Normal numbers of varying scale, some zeros of either sign.
std::vector<float> gradient(std::int64_t n, std::uint64_t seed);

/// Elements of `dtype` with the values given (rounded as a cast rounds), and back.
Bytes elements(const std::vector<float>& values, DType dtype);
std::vector<float> values(const Bytes& elements, DType dtype);

/// Runs `body` under every dispatch level that this processor offers and with all ways to read memory, restoring the
/// best ones.
template <typename Body>
void at_every_isa(const Body& body) {
  const codec::Reading best_reading = codec::reading();
  for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
    for (const auto reading : {codec::Reading::in_order, codec::Reading::fetched, codec::Reading::side_by_side}) {
      SCOPED_TRACE("isa " + std::to_string(isa) + ", reading " + std::to_string(static_cast<int>(reading)));
      force_isa(static_cast<Isa>(isa));
      codec::force_reading(reading);
      body();
    }
  }
  force_isa(best_isa());
  codec::force_reading(best_reading);
}

/// The state arrays of a codec for one gradient, started, with 0.5 for every value that ranks agree on.
class State {
 public:
  State(const Codec& codec, Shape shape);
  State(const State& other) : arrays(other.arrays), values(other.values) { point(); }
  State& operator=(const State&) = delete;
  std::span<float* const> pointers() const { return pointers_; }

  std::vector<StateArray> arrays;
  std::vector<std::vector<float>> values;

 private:
  void point();
  std::vector<float*> pointers_;
};

/// One call of Codec::run with its buffers, so that tests read as sentences.
///   Call call(codec, shape, range); call.raw(bytes).residual(r).encode().run();  call.payload ...
class Call {
 public:
  Call(std::shared_ptr<const Codec> codec, Shape shape, Range range, DType dtype = DType::float32);

  /// A raw source: the WHOLE gradient's elements, of which the range is taken.
  Call& raw(const Bytes& whole);
  Call& encoded(const Bytes& bytes);
  Call& residual(std::vector<float>* whole);  ///< the whole gradient's residual, of which the range is changed
  Call& state(State* whole);                  ///< instead of one of its own
  Call& encode();                             ///< asks for a payload
  Call& deliver();                            ///< asks for raw_out
  Call& run();

  Segment segment;
  Bytes payload;  ///< after run()
  Bytes out;      ///< after run()
  std::vector<float> result() const { return values(out, segment.dtype); }
  std::size_t bound() const;

 private:
  std::shared_ptr<const Codec> codec_;
  State state_;
  std::vector<Source> sources_;
};

/// Whole gradient -> payload, and payload -> float32 values.
Bytes encode_whole(const std::string& spec, Shape shape, const std::vector<float>& gradient,
                   std::vector<float>* residual = nullptr);
std::vector<float> decode_whole(const std::string& spec, Shape shape, const Bytes& payload);

/// Equal bits, NaNs included.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

/// The shapes that every codec must get right.
std::vector<Shape> awkward_shapes();

}  // namespace casync::test
