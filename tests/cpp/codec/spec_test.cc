#include "casync/error.hpp"
#include "support.hpp"

namespace casync::test {
namespace {

std::string refusal(const std::string& spec) {
  try {
    make_codec(spec);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Spec, CanonicalTextNamesEveryParameter) {
  EXPECT_EQ(make_codec("none")->info().spec, "none");
  EXPECT_EQ(make_codec(" onebit() ")->info().spec, "onebit");
  EXPECT_EQ(make_codec("terngrad")->info().spec, "terngrad(bits=2)");
  EXPECT_EQ(make_codec("terngrad( bits = 4 )")->info().spec, "terngrad(bits=4)");
  EXPECT_EQ(make_codec("test_topk(ratio=0.25)")->info().spec, "test_topk(ratio=0.25)");
  for (const char* spec :
       {"none", "fp16", "bf16", "onebit", "terngrad(bits=8)", "test_topk(ratio=0.01)", "test_tworound"})
    EXPECT_EQ(make_codec(make_codec(spec)->info().spec)->info().spec, spec);
}

TEST(Spec, UnknownNamesListTheKnownOnes) {
  const std::string text = refusal("onebits");
  EXPECT_NE(text.find("'onebits'"), std::string::npos) << text;
  for (const std::string& name : codec_names()) EXPECT_NE(text.find(name), std::string::npos) << text;
  EXPECT_EQ(text.find("test_"), std::string::npos) << "test-only codecs are not advertised";
}

TEST(Spec, UnknownParametersNameTheKnownOnes) {
  EXPECT_NE(refusal("terngrad(bit=2)").find("no parameter 'bit'; known: bits (2, 4 or 8)"), std::string::npos);
  EXPECT_NE(refusal("onebit(bits=1)").find("no parameter 'bits'; it has none"), std::string::npos);
}

TEST(Spec, IllegalValuesNameTheLegalOnes) {
  EXPECT_NE(refusal("terngrad(bits=3)").find("bits must be 2, 4 or 8"), std::string::npos);
  EXPECT_NE(refusal("terngrad(bits=two)").find("bits=two"), std::string::npos);
  EXPECT_NE(refusal("terngrad(bits=4.0)").find("bits=4.0"), std::string::npos);
  for (const char* ratio : {"0", "-0.1", "1.5", "nan"})
    EXPECT_NE(refusal(std::string("test_topk(ratio=") + ratio + ")").find("ratio must be"), std::string::npos) << ratio;
}

TEST(Spec, MalformedTextIsRefused) {
  for (const char* spec : {"", " ", "(bits=2)", "terngrad(", "terngrad(bits=2", "terngrad(bits)", "terngrad(=2)",
                           "terngrad(bits=)", "terngrad(bits=2,)", "terngrad(bits=2)x", "terngrad(bits=2, bits=4)"})
    EXPECT_NE(refusal(spec), "accepted") << spec;
}

TEST(Isa, AboveTheProcessorsIsRefused) {
  if (best_isa() == Isa::avx512) GTEST_SKIP() << "this processor has every level";
  EXPECT_THROW(force_isa(Isa::avx512), InvalidArgument);
}

}  // namespace
}  // namespace casync::test
