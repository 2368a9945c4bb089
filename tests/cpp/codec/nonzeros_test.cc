// `nonzeros`: what is decoded is what was encoded, bit for bit, and bytes that it did not write are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "casync/codec.hpp"
#include "casync/error.hpp"

namespace casync::test {
namespace {

using Blob = std::vector<std::byte>;

Blob encoded(const Blob& elements, DType dtype) {
  const auto codec = make_codec("nonzeros");
  const auto n = static_cast<std::int64_t>(elements.size() / size_of(dtype));
  const Source source{elements.data(), elements.size(), true};
  Segment segment;
  segment.shape = {n, 1};
  segment.dtype = dtype;
  segment.range = {0, n};
  segment.sources = {&source, 1};
  Blob payload(codec->bound(segment.shape, dtype, segment.range, 0));
  segment.payload = payload;
  codec->run({&segment, 1});
  payload.resize(segment.payload_bytes);
  return payload;
}

struct Decoded {
  Blob elements;
  bool nonfinite;
};

Decoded decoded(const Blob& payload, std::size_t bytes, DType dtype) {
  const auto n = static_cast<std::int64_t>(bytes / size_of(dtype));
  const Source source{payload.data(), payload.size(), false};
  Blob elements(bytes, std::byte{0xcd});
  Segment segment;
  segment.shape = {n, 1};
  segment.dtype = dtype;
  segment.range = {0, n};
  segment.sources = {&source, 1};
  segment.raw_out = elements.data();
  make_codec("nonzeros")->run({&segment, 1});
  return {elements, segment.nonfinite};
}

/// One element in `every` is not zero.
Blob sparse(std::size_t n, std::size_t every, std::size_t width) {
  Blob elements(n * width);
  for (std::size_t i = every / 2; i < n; i += every) elements[i * width] = static_cast<std::byte>(1 + i % 200);
  return elements;
}

TEST(Nonzeros, GivesBackEveryBit) {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    for (const std::size_t n : {1U, 2U, 100U, 5000U, 70000U}) {
      for (const std::size_t every : {1U, 2U, 50U, 127U, 128U, 129U, 20000U, 100000U}) {
        const Blob elements = sparse(n, every, size_of(dtype));
        const Blob payload = encoded(elements, dtype);
        EXPECT_EQ(decoded(payload, elements.size(), dtype).elements, elements) << n << " elements, one in " << every;
        EXPECT_LE(payload.size(), 8 + elements.size());
        if (every == 50 && n >= 100) {
          EXPECT_EQ(payload.size(), 8 + n / every * (1 + size_of(dtype)));
        }
      }
    }
  }
}

TEST(Nonzeros, KeepsNegativeZerosAndTellsOfWhatIsNotFinite) {
  const std::vector<float> finite{0.0F, -0.0F, 1.5F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  Blob elements(finite.size() * sizeof(float));
  std::memcpy(elements.data(), finite.data(), elements.size());
  const Decoded one = decoded(encoded(elements, DType::float32), elements.size(), DType::float32);
  EXPECT_EQ(one.elements, elements);
  EXPECT_FALSE(one.nonfinite);
  const float spoilt = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(elements.data() + 20, &spoilt, sizeof spoilt);
  const Decoded other = decoded(encoded(elements, DType::float32), elements.size(), DType::float32);
  EXPECT_EQ(other.elements, elements);
  EXPECT_TRUE(other.nonfinite);
}

TEST(Nonzeros, RefusesWhatItDidNotWrite) {
  const Blob elements = sparse(1000, 50, 4);
  const Blob payload = encoded(elements, DType::float32);
  const auto refused = [&](Blob changed) {
    EXPECT_THROW(decoded(changed, elements.size(), DType::float32), CorruptPayload);
  };
  refused({});
  refused(Blob(payload.begin(), payload.end() - 1));
  refused(Blob(payload.begin(), payload.begin() + 12));
  Blob longer = payload;
  longer.push_back(std::byte{0});
  refused(longer);
  Blob far = payload;
  far[8] = std::byte{0xff};  // the first distance goes on into the second
  refused(far);
  Blob many = payload;
  many[1] = std::byte{0xff};
  refused(many);
}

}  // namespace
}  // namespace casync::test
