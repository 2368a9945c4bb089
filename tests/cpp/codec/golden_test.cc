#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support.hpp"

/// Payloads of an earlier build decode to the bits they decoded to then, and the same gradients encode to them: what is
/// on the wire and in checkpoints does not change unnoticed. Each line of data/payloads.txt is `spec payload-hex
/// values-hex`. After a deliberate change: CASYNC_REFRESH_GOLDEN=1 ctest -R codec, and say in the commit what changed.
namespace casync::test {
namespace {

constexpr Shape kShape{3, 111};
constexpr const char* kSpecs[]{"none",
                               "fp16",
                               "bf16",
                               "onebit",
                               "terngrad(bits=2)",
                               "terngrad(bits=4)",
                               "terngrad(bits=8)",
                               "test_topk(ratio=0.05)"};

std::string path() { return std::string(CASYNC_GOLDEN_DIR) + "/payloads.txt"; }

std::string hex(const Bytes& bytes) {
  constexpr char kDigit[] = "0123456789abcdef";
  std::string out;
  for (const std::byte byte : bytes) {
    out += kDigit[static_cast<unsigned>(byte) >> 4];
    out += kDigit[static_cast<unsigned>(byte) & 15U];
  }
  return out;
}

Bytes unhex(const std::string& text) {
  Bytes out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return out;
}

/// Exact in every libm: small fractions, both signs, a zero.
std::vector<float> golden_gradient() {
  std::vector<float> out;
  for (int i = 0; i < kShape.numel(); ++i) out.push_back(static_cast<float>((i * 37) % 101 - 50) / 64.0F);
  return out;
}

TEST(Golden, PayloadsKeepTheirBits) {
  if (std::getenv("CASYNC_REFRESH_GOLDEN") != nullptr) {
    std::ofstream file(path());
    for (const char* spec : kSpecs) {
      const Bytes payload = encode_whole(spec, kShape, golden_gradient());
      file << spec << ' ' << hex(payload) << ' ' << hex(elements(decode_whole(spec, kShape, payload), DType::float32))
           << '\n';
    }
  }
  std::ifstream file(path());
  ASSERT_TRUE(file) << path();
  std::string line;
  std::size_t lines = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string spec;
    std::string payload;
    std::string decoded;
    words >> spec >> payload >> decoded;
    ++lines;
    at_every_isa([&] {
      EXPECT_EQ(hex(encode_whole(spec, kShape, golden_gradient())), payload) << spec;
      EXPECT_EQ(hex(elements(decode_whole(spec, kShape, unhex(payload)), DType::float32)), decoded) << spec;
    });
  }
  EXPECT_EQ(lines, std::size(kSpecs));
}

}  // namespace
}  // namespace casync::test
