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
  EXPECT_NE(refusal("onebit(bits=1)").find("no parameter 'bits'; known: start_step"), std::string::npos);
  EXPECT_NE(refusal("fp16(bits=1)").find("no parameter 'bits'; it has none"), std::string::npos);
}

TEST(Spec, EveryGeneratedCodecStartsAtAStep) {
  const auto late = make_codec("onebit( start_step = 3 )");
  EXPECT_EQ(late->info().spec, "onebit(start_step=3)");
  EXPECT_FALSE(late->applies({10, 10}, 2));
  EXPECT_TRUE(late->applies({10, 10}, 3));
  EXPECT_EQ(make_codec("terngrad(bits=4, start_step=0)")->info().spec, "terngrad(bits=4)");
  EXPECT_EQ(make_codec("terngrad(bits=4, start_step=7)")->info().spec, "terngrad(bits=4, start_step=7)");
  EXPECT_EQ(make_codec("powersgd(rank=2)")->info().spec, "powersgd(rank=2, start_step=1000)") << "its own";
  EXPECT_NE(refusal("onebit(start_step=-1)").find("start_step must be at least 0"), std::string::npos);
}

TEST(Spec, EveryCodecWithTheRuntimesResidualHasADecay) {
  for (const std::string& name : codec_names()) {
    const auto plain = make_codec(name);
    const std::string text = name + "(feedback_decay=0.5)";
    EXPECT_EQ(plain->info().feedback_decay, 1.0F) << name;
    if (plain->info().feedback == Feedback::wrapper)
      EXPECT_EQ(make_codec(text)->info().feedback_decay, 0.5F) << name;
    else
      EXPECT_NE(refusal(text).find("no parameter 'feedback_decay'"), std::string::npos) << name;
  }
}

TEST(Spec, ADecayIsTextWhereItIsNotTheUsualOne) {
  EXPECT_EQ(make_codec("onebit(feedback_decay=1)")->info().spec, "onebit");
  EXPECT_EQ(make_codec("onebit( feedback_decay = 0.95 )")->info().spec, "onebit(feedback_decay=0.95)");
  EXPECT_EQ(make_codec("onebit(feedback_decay=0.5, start_step=7)")->info().spec,
            "onebit(start_step=7, feedback_decay=0.5)");
  EXPECT_EQ(make_codec("topk(feedback_decay=1.0)")->info().spec, make_codec("topk")->info().spec);
  for (const char* wrong : {"0", "-0.5", "1.01", "nan", "inf", "1e-60"})
    EXPECT_NE(refusal(detail::concat("onebit(feedback_decay=", wrong, ")")).find("above 0 and at most 1"),
              std::string::npos)
        << wrong;
  EXPECT_NE(refusal("onebit(feedback_decay=fast)").find("feedback_decay=fast"), std::string::npos);
}

TEST(Spec, AResidualIsKeptIn8BitsOr32) {
  EXPECT_EQ(make_codec("onebit")->info().feedback_bits, 32);
  EXPECT_EQ(make_codec("onebit(feedback_bits=32)")->info().spec, "onebit");
  EXPECT_EQ(make_codec("topk(feedback_bits=8)")->info().feedback_bits, 8);
  EXPECT_EQ(make_codec("onebit(feedback_bits=8, feedback_decay=0.5)")->info().spec,
            "onebit(feedback_decay=0.5, feedback_bits=8)");
  EXPECT_NE(refusal("onebit(feedback_bits=4)").find("feedback_bits must be 8 or 32"), std::string::npos);
  EXPECT_NE(refusal("terngrad(feedback_bits=8)").find("no parameter 'feedback_bits'"), std::string::npos);
  EXPECT_EQ(make_codec("onebit(feedback_bits=8)")->device_code(), nullptr);
}

TEST(Spec, WhatDecaysIsComputedByTheHost) {
  EXPECT_NE(make_codec("onebit(feedback_decay=1)")->device_code(), nullptr);
  EXPECT_EQ(make_codec("onebit(feedback_decay=0.5)")->device_code(), nullptr);
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
